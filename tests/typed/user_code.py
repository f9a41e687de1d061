"""Code as users write it, for mypy alone: what is right passes, and what is wrong is caught, or its `ignore` would be unused."""

from datetime import timedelta
from typing import Any, assert_type

from pydantic import BaseModel

from yamchi import Job, New, Plugin, Queue, Yamchi
from yamchi.testing import MovableClock, TestApp

app = Yamchi()


class Thumb(BaseModel):
    url: str
    width: int = 320


class Reviews(Plugin):
    name = "reviews"

    def declare(self) -> None:
        self.app.define("reviews", concurrency=2, backoff=["1m", "5m"])
        self.app.define("reviews", concurency=2)  # type: ignore[call-arg]

    def serve(self) -> None:
        self.app.job("reviews", name="ask", attempts=5)(self._ask)
        self.app.cron("0 * * * *")(self._look)
        self.app.job("reviews")(self._mix)  # type: ignore[type-var]

    async def _ask(self, job: Job[str]) -> None:
        await job.queue.add(job.data, delay="1h")
        await job.queue.add(job.data, dealy="1h")  # type: ignore[call-arg]

    async def _look(self) -> None: ...

    async def _mix(self, one: Job[str], other: Job[str]) -> None: ...


@app.job("thumbnails", concurrency=4, attempts=5, rate="10/s", timeout=timedelta(minutes=1))
async def make(job: Job[Thumb]) -> dict[str, Any]:
    await job.progress(50)
    assert_type(job.data, Thumb)
    return {"made": job.data.url, "as": job.data.size}  # type: ignore[attr-defined]


@app.job("thumbnails", name="plain", processes=2, memory="512MB")
def plain(job: Job[Thumb]) -> int:
    return job.data.width


@app.job("thumbnails", name="nothing", concurency=4)  # type: ignore[call-arg]
def nothing() -> None: ...


@app.job("thumbnails", name="of-text", concurrency="4")  # type: ignore[arg-type]
async def of_text(job: Job[Thumb]) -> None: ...


@app.job("thumbnails", name="data")  # type: ignore[type-var]
async def data(url: Thumb) -> None: ...


@app.cron("0 3 * * *", zone="Asia/Almaty")
async def nightly() -> None: ...


async def use() -> None:
    queue = app.queue("thumbnails")
    assert_type(queue, Queue)
    job = await queue.add(Thumb(url="cat.jpg"), delay=timedelta(minutes=5), id="thumb-42")
    assert_type(job, Job[Any])
    await job.result(timeout="10s")
    await queue.add(Thumb(url="cat.jpg"), dealy="5m")  # type: ignore[call-arg]
    await queue.add_many([{"url": "dog.jpg"}, New(Thumb(url="owl.jpg"), delay="5m")])
    await queue.clean("complete", older_than="7d")  # type: ignore[arg-type]
    queue.on("completed", print)
    queue.on("complted", print)  # type: ignore[arg-type]
    assert_type(app.plugin(Reviews), Reviews)
    async with TestApp(plugins=[Reviews]) as test:
        assert_type(test.clock, MovableClock)
        await test.clock.advance("24h")


def use_without_a_loop() -> None:
    app.sync.queue("thumbnails").add(Thumb(url="cat.jpg"), delay="5m").result(timeout=5)
    app.sync.queue("thumbnails").add(Thumb(url="cat.jpg"), dealy="5m")  # type: ignore[call-arg]
