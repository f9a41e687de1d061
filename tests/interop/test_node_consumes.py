"""Yamchi adds jobs, Node's BullMQ worker runs them, and we see what it did."""

from typing import Any

from tests.interop.node import Peer
from yamchi.app import Yamchi
from yamchi.queues.job import Job
from yamchi.testing.waiting import eventually


async def in_state(job: Job[Any], state: str) -> Job[Any]:
    async def there() -> Job[Any] | None:
        current = await job.refresh()
        return current if current.state == state else None

    found = await eventually(there)
    assert found is not None
    return found


async def test_nodes_worker_completes_our_job(app: Yamchi, node: Peer) -> None:
    app.define("mail")
    await node.ask("work", queue="mail", options={"name": "node-worker"})
    job = await app.queue("mail").add(
        {"progress": 30, "log": "hello", "result": {"ok": True}}, name="send", id="letter-1"
    )
    done = await in_state(job, "completed")
    assert (done.returned, done.progress_made, done.logs) == ({"ok": True}, 30, ["hello"])
    assert (done.attempts_made, done.worker) == (1, "node-worker")
    shown = await node.ask("job", queue="mail", id="letter-1")
    assert (shown["name"], shown["opts"]["attempts"]) == ("send", 3)
    assert shown["opts"]["backoff"] == {"type": "exponential", "delay": 1000}
    assert (shown["opts"]["removeOnComplete"], shown["opts"]["removeOnFail"]) == (
        {"count": 100},
        {"count": 50},
    )
    assert shown["opts"]["jobId"] == "letter-1"


async def test_node_retries_by_our_options(app: Yamchi, node: Peer) -> None:
    app.define("mail")
    await node.ask("work", queue="mail")
    fixed = await app.queue("mail").add(
        {"fails": 2, "result": "ok"}, backoff={"type": "fixed", "delay": 0.05}
    )
    steps = await app.queue("mail").add({"fails": 1, "result": "ok"}, backoff=["50ms", "100ms"])
    done = await in_state(fixed, "completed")
    assert (done.attempts_made, done.returned) == (3, "ok")
    assert (await in_state(steps, "completed")).attempts_made == 2
    dead = await app.queue("mail").add({"fails": 9}, attempts=2, backoff={"type": "fixed", "delay": 0.02})
    failed = await in_state(dead, "failed")
    assert (failed.attempts_made, failed.failed_reason) == (2, "failure 2")
    assert "failure 2" in (failed.stacktrace or "")


async def test_node_keeps_our_order_and_delays(app: Yamchi, node: Peer) -> None:
    app.define("mail")
    queue = app.queue("mail")
    await node.ask("counts", queue="mail")  # Node takes a while to start
    await queue.add({"n": "later"}, delay="2s")
    for priority in (1, 10, 5):
        await queue.add({"n": priority}, priority=priority)
    await node.ask("work", queue="mail", options={"concurrency": 1})

    async def all_seen() -> Any:
        seen = await node.ask("seen", queue="mail")
        return seen if len(seen) == 4 else None

    assert [one["data"]["n"] for one in await eventually(all_seen)] == [10, 5, 1, "later"]


async def test_we_hear_nodes_events(app: Yamchi, node: Peer) -> None:
    app.define("mail", attempts=1)
    heard: list[tuple[Any, ...]] = []
    for event in ("completed", "failed", "progress"):
        app.queue("mail").on(event, lambda job, value, event=event: heard.append((event, job.id, value)))
    await node.ask("work", queue="mail")
    app.listen()
    await app.queue("mail").add({"result": "yes", "progress": 5}, id="good")
    await app.queue("mail").add({"fails": 1}, id="bad")
    await eventually(lambda: len(heard) == 3)
    assert sorted(heard) == [
        ("completed", "good", "yes"), ("failed", "bad", "failure 1"), ("progress", "good", 5),
    ]  # fmt: skip


async def test_dead_letters_are_jobs_for_node(app: Yamchi, node: Peer, redis_url: str) -> None:
    from yamchi.testing.conformance.worker import working

    @app.job("mail", attempts=1)
    async def send(job: Job[Any]) -> None:
        raise ValueError("User has no email")

    job = await app.queue("mail").add({"to": 7}, id="lost")
    async with working(app):
        await in_state(job, "failed")
    letter = await node.ask("job", queue="mail.dlq", id="lost")
    assert letter["state"] == "waiting"
    assert letter["data"]["job"] == {"to": 7}
    assert letter["data"]["error_message"] == "ValueError: User has no email"
    assert letter["data"]["failed_at"].endswith("Z")


async def test_metrics_of_bullmq_are_kept(app: Yamchi, node: Peer) -> None:
    from yamchi.testing.conformance.worker import working

    @app.job("mail")
    async def send(job: Job[Any]) -> None:
        return None

    jobs = await app.queue("mail").add_many([{}] * 3)
    async with working(app):
        for job in jobs:
            await in_state(job, "completed")
    metrics = await node.ask("metrics", queue="mail", type="completed")
    assert metrics["meta"]["count"] == 3
