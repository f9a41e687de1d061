"""The application whose workers send a campaign and are killed: `yamchi worker --app tests/faults/campaign_app.py`."""

from yamchi import Yamchi

app = Yamchi()
app.define("notifications", concurrency=200, attempts=50, backoff="200ms")
app.notifications.serve()
