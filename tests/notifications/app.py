"""The application whose workers the tests kill: `yamchi worker --app tests/notifications/app.py`.

Notifications as they ship, with attempts enough for every kill and every finished job kept, so that it can be counted.
"""

from yamchi import Yamchi

KEPT = 1_000_000

app = Yamchi()
app.define(
    "notifications", concurrency=10, attempts=20, backoff="200ms", keep_completed=KEPT, keep_failed=KEPT
)
app.notifications.serve()
