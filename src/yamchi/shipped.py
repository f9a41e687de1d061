"""What `yamchi up` runs when no application is named: the features, and `hello`.

A feature declares its own queues. `hello` is there so that a newcomer sees a job run before writing one.
"""

from pydantic import BaseModel, Field

from yamchi.app import Yamchi
from yamchi.queues.job import Job
from yamchi.settings import Settings


def shipped_app(settings: Settings | None = None) -> Yamchi:
    """An application with every queue that ships."""
    app = Yamchi(settings)
    add_to(app)
    return app


def add_to(app: Yamchi) -> None:
    """Let an application have `hello`, and handle what its features bring."""
    app.job("hello")(greet)
    app.serve()


class Greeting(BaseModel):
    """Whom to greet."""

    name: str = Field(default="world", max_length=200)


async def greet(job: Job[Greeting]) -> dict[str, str]:
    """Says hello, in the job's log and as its result."""
    text = f"Hello, {job.data.name}!"
    await job.log(text)
    return {"greeting": text}
