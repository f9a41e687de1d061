"""The queues that ship: what `yamchi up` runs when no application is named.

Declaring a queue here gives it its limits and its retries; the rooms that handle its jobs add their handlers.
`hello` is there so that a newcomer sees a job run before writing one.
"""

from pydantic import BaseModel, Field

from yamchi.app import Yamchi
from yamchi.queues.ticket import Job
from yamchi.settings import Settings

CHAIN_STEPS = ["1m", "5m", "15m"]
EXPONENTIAL = {"type": "exponential", "delay": 1}


def shipped_app(settings: Settings | None = None) -> Yamchi:
    """An application with every queue that ships."""
    app = Yamchi(settings)
    _declare_media(app)
    _declare_messages(app)
    _declare_business(app)
    app.job("hello")(greet)
    return app


def _declare_media(app: Yamchi) -> None:
    app.define("media-processing", concurrency=5, attempts=3, backoff=EXPONENTIAL)
    app.define("media-sync", concurrency=5, attempts=3, backoff=EXPONENTIAL)
    app.define("watermark", concurrency=3, attempts=3, backoff=EXPONENTIAL)


def _declare_messages(app: Yamchi) -> None:
    app.define("notifications", concurrency=10, attempts=3, backoff=EXPONENTIAL)
    app.notifications.serve()
    for chain in ("emailChain", "reminders"):
        app.define(chain, concurrency=5, attempts=3, backoff=CHAIN_STEPS, keep_completed=100, keep_failed=200)
    app.define("email_queue", concurrency=10, attempts=3, backoff=EXPONENTIAL)


def _declare_business(app: Yamchi) -> None:
    app.define("report_queue", concurrency=2, attempts=3, backoff=EXPONENTIAL)
    app.define("payment_queue", concurrency=5, attempts=10, backoff={"type": "exponential", "delay": 5})


class Greeting(BaseModel):
    """Whom to greet."""

    name: str = Field(default="world", max_length=200)


async def greet(job: Job[Greeting]) -> dict[str, str]:
    """Says hello, in the job's log and as its result."""
    text = f"Hello, {job.data.name}!"
    await job.log(text)
    return {"greeting": text}
