"""What becomes of a delivery's status: what was sent stays sent, what was cancelled waits no more, and campaigns count the same."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from yamchi.notifications.plugin import Notifications
from yamchi.notifications.schemas.notification_job import NotificationJob, derived_id
from yamchi.notifications.sending.deliveries import Deliveries
from yamchi.notifications.sending.statuses import Status
from yamchi.storage.database import Database
from yamchi.testing import MovableClock, TestApp


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[TestApp]:
    async with TestApp(home=tmp_path) as app:
        yield app


@pytest.mark.parametrize(
    ("statuses", "last"),
    [
        (["QUEUED", "RETRYING"], "RETRYING"),
        (["RETRYING", "SENT"], "SENT"),
        (["RETRYING", "QUEUED"], "QUEUED"),
        (["SENT", "RETRYING"], "SENT"),
        (["SENT", "FAILED"], "SENT"),
        (["CANCELLED", "QUEUED"], "CANCELLED"),
        (["CANCELLED", "RETRYING"], "CANCELLED"),
        (["CANCELLED", "SENT"], "SENT"),
        (["CANCELLED", "FAILED"], "FAILED"),
        (["FAILED", "QUEUED", "SENT"], "SENT"),
    ],
)
async def test_a_status_is_replaced_unless_it_says_more(
    app: TestApp, welcome: dict[str, Any], statuses: list[Status], last: Status
) -> None:
    deliveries = app.notifications.deliveries
    job = NotificationJob.model_validate({**welcome, "meta": {**welcome["meta"], "campaign_id": "spring"}})
    for status in statuses:
        await deliveries.record(job, status, attempts=1)
    assert await deliveries.status(job.delivery_id) == last
    counted = await deliveries.campaign_counts.of("spring")
    assert {status: n for status, n in counted[""].items() if n} == {last: 1}


# ── Several processes ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def processes(database_url: str) -> AsyncIterator[list[Deliveries]]:
    """As two processes have them: each with its own connections."""
    databases = [Database(database_url, [Notifications.schema()]) for _ in range(2)]
    await databases[0].migrate()
    yield [Deliveries(database, MovableClock()) for database in databases]
    for database in databases:
        await database.close()


@pytest.mark.parametrize("campaign", [None, "spring"])
async def test_of_two_that_send_what_another_program_queued_one_may(
    processes: list[Deliveries], welcome: dict[str, Any], campaign: str | None
) -> None:
    for number in range(100):
        given = {
            **welcome,
            "job_id": derived_id(str(number)),
            "meta": {**welcome["meta"], "campaign_id": campaign},
        }
        job = NotificationJob.model_validate(given)
        may = await asyncio.gather(*(one.hand_over(job, 1) for one in processes))
        assert sorted(may) == [False, True]
    counted = (await processes[0].campaign_counts.of("spring")).get("", {})
    assert {status: n for status, n in counted.items() if n} == ({"UNKNOWN": 100} if campaign else {})
