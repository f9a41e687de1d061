"""An event whose job is too large: refused before anything of it is stored; one stored by an older version is given up."""

import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from tests.processes import Process
from yamchi.notifications.schemas.notification_job import NotificationJob
from yamchi.storage.outbox import MOST_TRIES
from yamchi.testing import TestApp

USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"
LARGE = {"note": "x" * 1_100_000}


def event(event_id: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"event_type": "user_registered", "event_id": event_id, "user_id": USER, "data": data}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def server(home: Path) -> Iterator[Process]:
    process = Process(home, "up", "--port", "0")
    yield process
    if process.process.poll() is None:
        process.end(signal.SIGTERM)


def test_nothing_of_it_is_stored_and_its_neighbors_are_accepted(server: Process, home: Path) -> None:
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        refused = client.post("/api/v1/events", json=event("large", LARGE))
        assert refused.status_code == 422
        assert "1,048,576" in refused.json()["detail"]
        batch = client.post("/api/v1/events/batch", json=[event("good", {}), event("large", LARGE)])
        assert batch.status_code == 422
        assert client.post("/api/v1/events", json=event("small", {})).status_code == 202
        job = _job("bd0b0a5c-61b4-4a44-a6ae-1d3c0e1f2b3c", LARGE)
        assert client.post("/api/v1/notifications", json=job).status_code == 422
        assert _stored(home) == ["small"]
        assert client.get(f"/api/v1/notifications/{job['job_id']}").status_code == 404


def test_one_that_an_older_version_stored_is_given_up_and_said(home: Path) -> None:
    """It used to end the process, at every start."""
    first = Process(home, "up", "--port", "0")
    with httpx2.Client(base_url=first.url, timeout=60) as client:
        assert client.post("/api/v1/events", json=event("old", {})).status_code == 202
        # Its job must be gone: one that is still queued would be worked on by the second process.
        first.wait_for(lambda: _failed(client), "the end of its job")
    first.end(signal.SIGTERM)
    _make_it_large_and_interrupted(home, "old")
    again = Process(home, "up", "--port", "0")
    try:
        with httpx2.Client(base_url=again.url, timeout=60) as client:
            (row,) = again.wait_for(lambda: _failed(client), "giving up")  # type: ignore[misc]
            assert "can't be queued" in row["last_error"]
            assert "1,048,576" in row["last_error"]
            again.wait_for(lambda: _states(home) == {"old": "enqueued"}, "the end of the event")
            services = {one["name"]: one for one in client.get("/readyz").json()["services"]}
            assert services["event sweeper"]["failures"] == 0
    finally:
        assert again.process.poll() is None
        again.end(signal.SIGTERM)


async def test_what_nobody_foresaw_is_tried_again_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an event that can't be finished does not keep the others from being finished."""
    async with TestApp() as app:
        app.notifications.serve()
        service, deliveries = app.notifications.service, app.notifications.deliveries
        job = NotificationJob.model_validate(_job("bd0b0a5c-61b4-4a44-a6ae-1d3c0e1f2b3c", {}))
        await app.database.write(lambda connection: deliveries.queue(connection, [job]))
        await app.database.write(
            lambda connection: (
                connection.exec_driver_sql(
                    "INSERT INTO events (event_id, event_type, data, occurred_at, received_at, state)"
                    " SELECT ?, 'x', '{}', created_at, created_at, 'accepted' FROM notification_delivery",
                    [("odd",), ("fine",)],
                ).rowcount
            )
        )
        await app.clock.advance("1m")
        whole = service.outbox._finish

        async def odd(event_id: str) -> Any:
            if event_id == "odd":
                raise TypeError("unhashable type")
            return await whole(event_id)

        monkeypatch.setattr(service.outbox, "_finish", odd)
        assert await service.outbox.sweep() == 2
        for _ in range(MOST_TRIES - 1):
            assert await service.outbox.sweep() == 1
        assert await service.outbox.sweep() == 0
        assert await deliveries.status(job.delivery_id) == "FAILED"


def _job(job_id: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "user_id": USER,
        "channel": "email",
        "template_code": "welcome_email",
        "locale": "ru",
        "data": data,
        "meta": {"event_type": "user_registered", "event_id": "odd"},
        "created_at": "2026-01-01T00:00:00Z",
    }


def _failed(client: httpx2.Client) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get("/api/v1/notifications", params={"status": "FAILED"}).json()
    return rows


def _stored(home: Path) -> list[str]:
    return sorted(_states(home))


def _states(home: Path) -> dict[str, str]:
    with sqlite3.connect(home / "var" / "data.db") as db:
        return dict(db.execute("SELECT event_id, state FROM events").fetchall())


def _make_it_large_and_interrupted(home: Path, event_id: str) -> None:
    """As a version that encoded its jobs too late left it."""
    with sqlite3.connect(home / "var" / "data.db") as db:
        (job,) = db.execute(
            "SELECT job FROM notification_delivery WHERE event_id = ?", (event_id,)
        ).fetchone()
        large = orjson.dumps({**orjson.loads(job), "data": LARGE}).decode()
        db.execute(
            "UPDATE notification_delivery SET status = 'QUEUED', job = ? WHERE event_id = ?",
            (large, event_id),
        )
        db.execute(
            "UPDATE events SET state = 'accepted', received_at = '2026-01-01 00:00:00.000000'"
            " WHERE event_id = ?",
            (event_id,),
        )
