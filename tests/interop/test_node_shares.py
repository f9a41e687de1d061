"""Node's workers and ours on one queue at once: each job runs once, and each side takes up what the other leaves."""

import asyncio
from collections import Counter
from typing import Any

from tests.interop.node import Peer, peer
from yamchi.app import Yamchi
from yamchi.queues.job import Job
from yamchi.testing.conformance.worker import working
from yamchi.testing.waiting import eventually


async def test_every_job_runs_once_on_one_side(app: Yamchi, node: Peer) -> None:
    ours: list[str] = []

    @app.job("mail", concurrency=5, keep_completed=1_000)
    async def send(job: Job[Any]) -> None:
        await asyncio.sleep(0.002)
        ours.append(job.id)

    await node.ask("work", queue="mail", options={"concurrency": 5})
    queue = app.queue("mail")
    async with working(app):
        for _ in range(10):
            await queue.add_many([{}] * 20)
            for _ in range(5):
                await node.ask("add", queue="mail", name="send", data={})

        async def done() -> bool:
            counts = await queue.engine.counts("mail")
            return counts["completed"] == 250

        await eventually(done)
    theirs = [one["id"] for one in await node.ask("seen", queue="mail")]
    runs = Counter(ours) + Counter(theirs)
    assert (len(runs), runs.total()) == (250, 250)
    assert ours
    assert theirs, "both took their share"


async def test_we_take_up_what_a_killed_node_left(app: Yamchi, redis_url: str) -> None:
    runs: list[int] = []

    @app.job("mail")
    async def send(job: Job[Any]) -> str:
        runs.append(job.attempts_made)
        return "ours"

    async with peer(redis_url) as doomed:
        await doomed.ask("work", queue="mail", options={"lockDuration": 1_000, "concurrency": 1})
        job = await app.queue("mail").add({"hang": True})
        await eventually(lambda: doomed.ask("seen", queue="mail"))
    async with working(app):
        await eventually(lambda: runs)
        await eventually(lambda: _ended(job))
    done = await job.refresh()
    assert (done.state, done.returned, runs) == ("completed", "ours", [2])


async def test_node_takes_up_what_we_left(app: Yamchi, node: Peer) -> None:
    app.define("mail")
    job = await app.queue("mail").add({"result": "theirs"})
    (held,) = (await app.queue("mail").engine.exchange("mail", [], 1, 200, "doomed")).claims
    assert held.job.id == job.id
    await node.ask("work", queue="mail", options={"stalledInterval": 300})
    await eventually(lambda: _ended(job))
    done = await job.refresh()
    assert (done.state, done.returned, done.attempts_made) == ("completed", "theirs", 2)


async def _ended(job: Job[Any]) -> bool:
    return (await job.refresh()).state == "completed"
