"""Bull Board, as BullMQ's users run it, shows our queues, jobs, logs and workers, and can retry our failed job."""

from collections.abc import Callable
from typing import Any

import httpx2 as httpx

from tests.interop.node import board
from yamchi.app import Yamchi
from yamchi.queues.job import Job
from yamchi.testing.conformance.worker import working
from yamchi.testing.waiting import eventually


async def test_bull_board_shows_and_retries(app: Yamchi, redis_url: str) -> None:
    is_fixed = False

    @app.job("mail", attempts=1)
    async def send(job: Job[Any]) -> str:
        await job.log("trying")
        if not is_fixed:
            raise ValueError("User has no email")
        return "sent"

    job = await app.queue("mail").add({"to": "nobody"}, id="letter-1")
    async with (
        board(redis_url, "mail", "mail.dlq") as api,
        httpx.AsyncClient(base_url=api) as http,
        working(app),
    ):
        failed = await eventually(_shown(http, "failed", 1))
        (shown,) = failed["jobs"]
        assert (shown["id"], shown["name"], shown["data"]) == ("letter-1", "send", {"to": "nobody"})
        assert (shown["failedReason"], shown["attempts"]) == ("ValueError: User has no email", 1)
        assert "raise ValueError" in shown["stacktrace"][0]
        assert (await http.get("/queues/mail/letter-1/logs")).json() == ["trying"]
        answer = await http.get("/queues?activeQueue=mail.dlq&status=waiting&page=1&jobsPerPage=10")
        (letter,) = next(one for one in answer.json()["queues"] if one["name"] == "mail.dlq")["jobs"]
        assert letter["data"]["job"] == {"to": "nobody"}
        workers = await eventually(_workers(http))
        # Redis lists the clients of all its databases, so other tests' workers may be among them.
        assert (await job.refresh()).worker in [worker["name"] for worker in workers]
        is_fixed = True
        answer = await http.put("/queues/mail/letter-1/retry")
        assert answer.status_code in (200, 204), answer.text
        await eventually(_shown(http, "completed", 1))
    done = await job.refresh()
    assert (done.state, done.returned) == ("completed", "sent")
    assert (await app.queue("mail").dead_letters.list()).total == 0, (
        "a job that was put back has no dead letter"
    )


def _shown(http: httpx.AsyncClient, status: str, count: int) -> Callable[[], Any]:
    async def look() -> Any:
        answer = await http.get(f"/queues?activeQueue=mail&status={status}&page=1&jobsPerPage=10")
        queue = next(one for one in answer.json()["queues"] if one["name"] == "mail")
        return queue if queue["counts"][status] == count and len(queue["jobs"]) == count else None

    return look


def _workers(http: httpx.AsyncClient) -> Callable[[], Any]:
    async def look() -> Any:
        return (await http.get("/queues/mail/workers")).json()["workers"]

    return look
