"""What `yamchi up` runs when no application is named: the features, the queues that other programs fill, and `hello`.

A feature declares its own queues. `hello` is there so that a newcomer sees a job run before writing one.
"""

from typing import Any

from pydantic import BaseModel, Field

from yamchi.app import Yamchi
from yamchi.queues.job import Job
from yamchi.settings import Settings

CHAIN_STEPS = ["1m", "5m", "15m"]
CHAIN: dict[str, Any] = {
    "concurrency": 5,
    "attempts": 3,
    "backoff": CHAIN_STEPS,
    "keep_completed": 100,
    "keep_failed": 200,
}

QUEUES: dict[str, dict[str, Any]] = {
    "emailChain": CHAIN,
    "reminders": CHAIN,
}
"""Queues that are offered before their feature is there. A feature that declares one takes it from here."""


def shipped_app(settings: Settings | None = None) -> Yamchi:
    """An application with every queue that ships."""
    app = Yamchi(settings)
    add_to(app)
    return app


def add_to(app: Yamchi) -> None:
    """Let an application have every queue that ships, and handle them."""
    declare_queues(app)
    app.job("hello")(greet)
    app.serve()


def declare_queues(app: Yamchi) -> None:
    """The queues whose features are not there yet; what a feature declares itself stands."""
    declared = {queue.name for queue in app.queues}
    for name, limits in QUEUES.items():
        if name not in declared:
            app.define(name, **limits)


class Greeting(BaseModel):
    """Whom to greet."""

    name: str = Field(default="world", max_length=200)


async def greet(job: Job[Greeting]) -> dict[str, str]:
    """Says hello, in the job's log and as its result."""
    text = f"Hello, {job.data.name}!"
    await job.log(text)
    return {"greeting": text}
