"""What becomes of a delivery's status: what was sent stays sent, what was cancelled waits no more, and campaigns count the same."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from yamchi.notifications.schemas.notification_job import NotificationJob
from yamchi.notifications.sending.deliveries import Status
from yamchi.testing import TestApp


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
