"""A queue whose jobs are due while nobody works on them says so, wherever somebody looks."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from yamchi import Job, Yamchi
from yamchi.queues.engines.sqlite import SqliteEngine
from yamchi.queues.records import Completed
from yamchi.settings import Settings
from yamchi.testing import MovableClock, eventually
from yamchi.web import create_app

SAID = "and no worker is at work on it: start one with yamchi worker, and --app if the queue is your own."
USER = "0b5e2f6c-5a0d-4b8e-9c44-3d1c7f1f3a10"


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def app(tmp_path: Path, clock: MovableClock) -> AsyncIterator[Yamchi]:
    async with Yamchi(
        Settings(home=tmp_path), clock=clock, engine=SqliteEngine(tmp_path / "q.db", clock)
    ) as app:

        @app.job("mail")
        async def send(job: Job[Any]) -> None: ...

        yield app


@pytest.fixture
async def client(app: Yamchi) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=create_app(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
        yield client


async def test_what_is_due_for_a_minute_and_attended_by_nobody(app: Yamchi, clock: MovableClock) -> None:
    queue = app.queue("mail")
    assert await queue.unattended() is None, "it is empty"
    await queue.add(1)
    await clock.advance("59s")
    assert await queue.unattended() is None, "a worker may be on its way"
    await clock.advance("1s")
    assert await queue.unattended() == f"Its jobs are due for 1 min, {SAID}"


async def test_what_is_not_due_yet_waits_for_nobody(app: Yamchi, clock: MovableClock) -> None:
    queue = app.queue("mail")
    await queue.add(1, delay="2h")
    await clock.advance("119m")
    assert await queue.unattended() is None
    await clock.advance("3m")
    assert await queue.unattended() == f"Its jobs are due for 2 min, {SAID}", (
        "though it still counts as delayed"
    )


async def test_a_worker_of_the_queue_attends_it_and_that_of_another_does_not(
    app: Yamchi, clock: MovableClock
) -> None:
    @app.job("other")
    async def other(job: Job[Any]) -> None: ...

    mail = app.queue("mail")
    await mail.add(1)
    await clock.advance("5m")
    working = asyncio.create_task((worker := app.worker(["other"])).run())
    await eventually(mail.engine.workers)
    assert SAID in (await mail.unattended() or "")
    worker.stop()
    await working
    await mail.pause()
    working = asyncio.create_task((worker := app.worker(["mail"])).run())

    async def is_attended() -> bool:
        return await mail.unattended() is None

    await eventually(is_attended)
    worker.stop()
    await working


async def test_what_gets_done_is_attended_by_somebody(app: Yamchi, clock: MovableClock) -> None:
    """By a worker of another program, which is not listed."""
    queue = app.queue("mail")
    await queue.add_many([1, 2])
    await clock.advance("5m")
    (claim,) = (await queue.engine.exchange("mail", [], 1, 30_000, "node")).claims
    assert await queue.unattended() is None, "one is running"
    await queue.engine.exchange("mail", [Completed(claim)], 0, 30_000, "node")
    assert await queue.unattended() is None, "one has just been done"
    await clock.advance("10m")
    assert SAID in (await queue.unattended() or "")


async def test_it_is_said_wherever_somebody_looks(
    app: Yamchi, client: httpx2.AsyncClient, clock: MovableClock
) -> None:
    await app.queue("mail").add(1)
    await clock.advance("2m")
    ready = await client.get("/readyz")
    assert (ready.status_code, ready.json()["ready"]) == (200, True), "a warning, and no more"
    (check,) = (one for one in ready.json()["checks"] if one["what"] == "queue mail")
    assert (check["ok"], SAID in check["found"]) == (None, True)
    (shown,) = (one for one in (await client.get("/api/queues")).json() if one["name"] == "mail")
    assert SAID in shown["warning"]
    assert (await client.get("/api/queues/mail")).json()["warning"] == shown["warning"]


async def test_a_persons_pending_messages_say_what_they_wait_for(
    app: Yamchi, client: httpx2.AsyncClient, clock: MovableClock
) -> None:
    await client.put(f"/api/v1/users/{USER}", json={"email": "asel@example.com"})
    event = {"event_type": "user_registered", "event_id": "e-1", "user_id": USER, "data": {"name": "Asel"}}
    assert (await client.post("/api/v1/events", json=event)).status_code == 202
    pending = f"/api/v1/users/{USER}/pending"
    (item,) = (await client.get(pending)).json()["items"]
    assert item["why"] is None
    await clock.advance("2m")
    (item,) = (await client.get(pending)).json()["items"]
    assert SAID in item["why"]
