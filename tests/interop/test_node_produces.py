"""Node's BullMQ adds jobs, Yamchi's worker runs them, and Node sees everything it would see of its own worker."""

import asyncio
import base64
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.interop.node import Peer
from yamchi.app import Yamchi
from yamchi.queues.job import Job
from yamchi.testing.conformance.worker import working
from yamchi.testing.waiting import eventually


async def node_job(node: Peer, job_id: str, state: str) -> Any:
    async def found() -> Any:
        job = await node.ask("job", queue="mail", id=job_id)
        return job if job and job["state"] == state else None

    return await eventually(found)


async def test_our_worker_completes_nodes_job(app: Yamchi, node: Peer) -> None:
    @app.job("mail", name="send")
    async def send(job: Job[dict[str, Any]]) -> dict[str, Any]:
        await job.progress(40)
        await job.log("on its way")
        return {"sent": job.data["to"], "attempt": job.attempts_made}

    job_id = await node.ask("add", queue="mail", name="send", data={"to": "Нуржан"})
    assert job_id == "1", "BullMQ counts up ids where none is given"
    async with working(app):
        job = await node_job(node, job_id, "completed")
        workers = await eventually(lambda: node.ask("workers", queue="mail"))
    assert job["returnvalue"] == {"sent": "Нуржан", "attempt": 1}
    assert (job["attemptsMade"], job["attemptsStarted"], job["progress"]) == (1, 1, 40)
    assert job["logs"] == ["on its way"]
    assert f"bull:{base64.b64encode(b'mail').decode()}:w:{job['processedBy']}" in workers
    assert job["finishedOn"] >= job["processedOn"] >= job["timestamp"]


async def test_a_job_that_nobody_named_is_the_queues_default_one(app: Yamchi, node: Peer) -> None:
    """`queue.add(data)` of Bull has this word for it."""

    @app.job("mail", name="send")
    async def send(job: Job[Any]) -> dict[str, Any]:
        return {"name": job.name, "attempts": job.attempts}

    @app.job("mail", name="another")
    async def another(job: Job[Any]) -> None:
        raise AssertionError("it is for the first")

    options = {"attempts": 7}
    job_id = await node.ask("add", queue="mail", name="__default__", data={}, opts=options)
    async with working(app):
        job = await node_job(node, job_id, "completed")
    assert job["returnvalue"] == {"name": "__default__", "attempts": 7}


async def test_retries_by_nodes_options(app: Yamchi, node: Peer) -> None:
    made: list[int] = []

    @app.job("mail", name="send")
    async def send(job: Job[Any]) -> str:
        made.append(job.attempts_made)
        if job.attempts_made < 3:
            raise ValueError(f"no luck {job.attempts_made}")
        return "at last"

    options = {"attempts": 3, "backoff": {"type": "fixed", "delay": 50}}
    job_id = await node.ask("add", queue="mail", name="send", data={}, opts=options)
    async with working(app):
        job = await node_job(node, job_id, "completed")
    assert made == [1, 2, 3]
    assert (job["attemptsMade"], job["returnvalue"]) == (3, "at last")
    assert len(job["stacktrace"]) == 2, "a stack for each failed attempt"


async def test_without_options_there_is_one_attempt_and_all_is_kept(app: Yamchi, node: Peer) -> None:
    @app.job("mail", name="send")
    async def send(job: Job[Any]) -> None:
        raise ValueError("never")

    ids = [await node.ask("add", queue="mail", name="send", data={"n": n}) for n in range(60)]
    async with working(app):
        jobs = [await node_job(node, job_id, "failed") for job_id in ids]
    assert {(job["attemptsMade"], job["failedReason"]) for job in jobs} == {(1, "ValueError: never")}
    assert (await app.queue("mail").dead_letters.list()).total == 60


async def test_remove_on_complete_as_node_says_it(app: Yamchi, node: Peer) -> None:
    done: list[str] = []

    @app.job("mail", name="send")
    async def send(job: Job[Any]) -> None:
        done.append(job.id)

    gone = await node.ask("add", queue="mail", name="send", data={}, opts={"removeOnComplete": True})
    for _ in range(5):
        await node.ask("add", queue="mail", name="send", data={}, opts={"removeOnComplete": 2})
    async with working(app):
        await eventually(lambda: len(done) == 6)
        await eventually(lambda: _completed(node, 2))
    assert await node.ask("job", queue="mail", id=gone) is None


async def _completed(node: Peer, count: int) -> bool:
    counts = await node.ask("counts", queue="mail")
    return bool((counts["completed"], counts["active"]) == (count, 0))


async def test_delays_and_priorities(app: Yamchi, node: Peer) -> None:
    order: list[str] = []

    @app.job("mail", name="send", concurrency=1)
    async def send(job: Job[str]) -> None:
        order.append(job.data)

    await node.ask("add", queue="mail", name="send", data="later", opts={"delay": 700})
    for priority in (5, 1, 100, 3):
        await node.ask("add", queue="mail", name="send", data=f"p{priority}", opts={"priority": priority})
    await node.ask("add", queue="mail", name="send", data="none")
    async with working(app):
        await eventually(lambda: len(order) == 6)
    assert order == ["none", "p1", "p3", "p5", "p100", "later"]


async def test_an_unknown_backoff_is_waited_as_it_says(app: Yamchi, node: Peer) -> None:
    @app.job("mail", name="send")
    async def send(job: Job[Any]) -> str:
        if job.attempts_made == 1:
            raise ValueError("once")
        return "then"

    options = {"attempts": 2, "backoff": {"type": "my-own-strategy", "delay": 20}}
    job_id = await node.ask("add", queue="mail", name="send", data={}, opts=options)
    async with working(app):
        assert (await node_job(node, job_id, "completed"))["returnvalue"] == "then"


async def test_queue_events_hear_us(app: Yamchi, node: Peer) -> None:
    @app.job("mail", name="send", attempts=1)
    async def send(job: Job[dict[str, Any]]) -> str:
        await job.progress({"done": 1})
        if job.data.get("bad"):
            raise ValueError("broken")
        return "fine"

    await node.ask("listen", queue="mail")
    good = await node.ask("add", queue="mail", name="send", data={})
    bad = await node.ask("add", queue="mail", name="send", data={"bad": True})

    async def heard() -> Any:
        events = {
            (event["type"], event.get("jobId")): event for event in await node.ask("heard", queue="mail")
        }
        return events if ("completed", good) in events and ("failed", bad) in events else None

    async with working(app):
        events = await eventually(heard)
    assert events["completed", good]["returnvalue"] == "fine"
    assert events["failed", bad]["failedReason"] == "ValueError: broken"
    assert events["progress", good]["data"] == {"done": 1}
    assert ("active", good) in events


async def test_a_flow_of_node(app: Yamchi, node: Peer) -> None:
    """A parent waits for its children, also where Yamchi runs both."""
    order: list[str] = []

    @app.job("mail", name="part")
    async def part(job: Job[Any]) -> str:
        order.append(f"child {job.data}")
        return "part"

    @app.job("mail", name="whole")
    async def whole(job: Job[Any]) -> str:
        order.append("parent")
        return "whole"

    children = [{"name": "part", "queueName": "mail", "data": n} for n in (1, 2)]
    parent = await node.ask("flow", flow={"name": "whole", "queueName": "mail", "children": children})
    async with working(app):
        job = await node_job(node, parent, "completed")
    assert job["returnvalue"] == "whole"
    assert sorted(order[:2]) == ["child 1", "child 2"]
    assert order[2:] == ["parent"]


@pytest.mark.parametrize(
    ("options", "way", "expected"),
    [
        ({}, "pending", "completed"),
        ({}, "expired", "completed"),
        ({"removeDependencyOnFailure": True}, "running", "completed"),
        ({"ignoreDependencyOnFailure": True}, "pending", "completed"),
        ({"continueParentOnFailure": True}, "pending", "completed"),
        ({"failParentOnFailure": True}, "running", "failed"),
        ({"failParentOnFailure": True}, "expired", "failed"),
    ],
)
async def test_a_parent_is_told_of_a_child_that_will_not_be_run(
    app: Yamchi, node: Peer, redis_url: str, options: dict[str, bool], way: str, expected: str
) -> None:
    """As BullMQ does for a child that failed; where nobody said what that means to the parent, as for one that was removed."""
    started = asyncio.Event()

    @app.job("parts", name="part")
    async def part(job: Job[Any]) -> None:
        started.set()
        await asyncio.sleep(60)

    @app.job("mail", name="whole")
    async def whole(job: Job[Any]) -> str:
        return "whole"

    child = {"name": "part", "queueName": "parts", "data": 1, "opts": {"jobId": "part", **options}}
    parent = await node.ask("flow", flow={"name": "whole", "queueName": "mail", "children": [child]})
    if way == "expired":
        async with Redis.from_url(redis_url) as redis:
            await redis.hset("bull:parts:part", "ymExpiresAt", 1)
    job = await app.queue("parts").job("part")
    assert job
    if way == "pending":
        await job.cancel()
    async with working(app):
        if way == "running":
            await started.wait()
            await job.cancel()
        ended = await node_job(node, parent, expected)
    if expected == "failed":
        state = "expired" if way == "expired" else "cancelled"
        assert ended["failedReason"] == f"child bull:parts:part {state}"


async def test_a_schedule_of_node_goes_on(app: Yamchi, node: Peer) -> None:
    runs: list[str] = []

    @app.job("mail", name="tick")
    async def tick(job: Job[dict[str, int]]) -> None:
        runs.append(job.id)
        assert job.data == {"n": 7}

    template = {"name": "tick", "data": {"n": 7}}
    await node.ask("schedule", queue="mail", id="every", repeat={"every": 150}, template=template)
    cron = {"pattern": "* * * * * *", "tz": "Asia/Almaty"}
    await node.ask("schedule", queue="mail", id="cron", repeat=cron, template=template)
    async with working(app):
        await eventually(lambda: sum("every" in one for one in runs) >= 4)
        await eventually(lambda: sum("cron" in one for one in runs) >= 2)
    assert len(runs) == len(set(runs)), "each moment runs once"
    schedulers = {one["key"]: one for one in await node.ask("schedulers", queue="mail")}
    assert schedulers["cron"]["tz"] == "Asia/Almaty"
    assert schedulers["every"]["iterationCount"] >= 4


async def test_node_pauses_and_resumes(app: Yamchi, node: Peer) -> None:
    done: list[str] = []

    @app.job("mail", name="send")
    async def send(job: Job[Any]) -> None:
        done.append(job.id)

    await node.ask("pause", queue="mail")
    assert await app.queue("mail").is_paused()
    job_id = await node.ask("add", queue="mail", name="send", data={})
    async with working(app):
        assert (await node.ask("counts", queue="mail"))["waiting"] + (
            await node.ask("counts", queue="mail")
        ).get("paused", 0) >= 1
        await node.ask("resume", queue="mail")
        await node_job(node, job_id, "completed")
    await app.queue("mail").pause()
    assert await node.ask("paused", queue="mail")


async def test_a_limit_over_all_workers(app: Yamchi, node: Peer) -> None:
    running = most = done = 0

    @app.job("mail", name="send")
    async def send(job: Job[Any]) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        done += 1

    await node.ask("limit", queue="mail", concurrency=2)
    for _ in range(12):
        await node.ask("add", queue="mail", name="send", data={})
    async with working(app):
        await eventually(lambda: done == 12, within=10)
    assert most == 2


async def test_a_worker_that_dies_is_forgiven_once(app: Yamchi, node: Peer) -> None:
    """As in BullMQ, a job whose producer said nothing of attempts is run again after a stall, once."""
    app.define("mail")
    engine = app.queue("mail").engine
    job_id = await node.ask("add", queue="mail", name="send", data={})
    for has_failed in (False, True):
        (held,) = (await engine.exchange("mail", [], 1, 50, "doomed")).claims
        assert held.job.id == job_id
        ((_, failed),) = await eventually(lambda: engine.recover("mail"))
        assert failed is has_failed
    job = await node.ask("job", queue="mail", id=job_id)
    assert (job["state"], job["stalledCounter"]) == ("failed", 2)
