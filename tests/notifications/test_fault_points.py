"""The API dies at each named point of an event's way in; afterwards there is one letter, whether the caller asks again or not.

A worker dies when the gateway has taken an SMS: that is not sent again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from tests.notifications.fleet import Fleet, address_of, letter, number_of
from tests.processes import DEADLINE, Process
from tests.scale import FULL
from tests.services.gateway import Gateway
from tests.services.mail import MailServer
from yamchi.notifications.people.recipients import User
from yamchi.notifications.tables import events
from yamchi.testing import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]

POINTS = ("event.received", "event.stored", "event.enqueued", "event.marked")
EVENT = {"event_type": "user_registered", "event_id": "e-1", "user_id": str(number_of(1)), "data": {}}
LONG_AGO = 3_600_000

Start = Callable[..., Process]


ENGINES = ["sqlite", *([pytest.param("bull", marks=pytest.mark.services)] if FULL else [])]


@pytest.fixture(params=ENGINES)
async def fleet(
    request: pytest.FixtureRequest, mail_server: MailServer, tmp_path: Path
) -> AsyncIterator[Fleet]:
    is_bull = request.param == "bull"
    url = str(request.getfixturevalue("redis_url")) if is_bull else f"sqlite:///{tmp_path}/jobs.db"
    fleet = Fleet(tmp_path, url, mail_server)
    await fleet.notifications.recipients.put(str(number_of(1)), User(email=address_of(1)))
    yield fleet
    await fleet.close()


@pytest.fixture
def start(fleet: Fleet) -> Iterator[Start]:
    """Starts a `yamchi` command that serves HTTP."""
    started: list[Process] = []

    def start(command: str, **environment: str) -> Process:
        settings = {**fleet.environment(), "LOG_LEVEL": "info", **environment}
        started.append(Process(fleet.home, command, "--port", "0", **settings))
        return started[-1]

    yield start
    for process in started:
        process.process.kill()
        process.process.wait()


async def post(process: Process) -> dict[str, Any]:
    url = await asyncio.to_thread(lambda: process.url)
    async with httpx2.AsyncClient(base_url=url, timeout=DEADLINE) as client:
        answer = await client.post("/api/v1/events", json=EVENT)
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


async def die_at(point: str, start: Start) -> None:
    """Send the event to an API that ends there, as a power cut would."""
    process = start("api", YAMCHI_FAULT=point)
    with suppress(httpx2.TransportError):
        await post(process)
    await eventually(lambda: process.process.poll() == -9, DEADLINE)


async def one_letter(fleet: Fleet) -> None:
    """It arrives, the queue runs dry, and there is no second one."""
    await fleet.all_sent(1)
    assert fleet.mail.by_recipient() == {address_of(1): 1}


@pytest.mark.parametrize("point", POINTS)
async def test_the_caller_asks_again(fleet: Fleet, start: Start, point: str) -> None:
    await die_at(point, start)
    process = start("up")
    answer = await post(process)
    assert answer["duplicate"] is (point != "event.received")
    assert len(answer["jobs"]) == 1
    await one_letter(fleet)
    assert (await post(process))["jobs"] == [{**answer["jobs"][0], "status": "SENT"}]
    await one_letter(fleet)


@pytest.mark.parametrize("point", POINTS[1:])
async def test_nobody_asks_again(fleet: Fleet, start: Start, point: str) -> None:
    await die_at(point, start)
    aged = update(events).values(received_at=fleet.app.clock.now() - LONG_AGO)
    await fleet.app.database.write(lambda connection: connection.execute(aged).rowcount)
    start("up")
    await one_letter(fleet)


async def test_an_sms_that_was_taken_is_not_sent_by_the_next_worker(fleet: Fleet, start: Start) -> None:
    with Gateway() as gateway:
        await fleet.notifications.recipients.put(str(number_of(2)), User(phone="+77010000000"))
        job = letter(2, channel="sms", template_code="payment_failed", data={"amount": "1"})
        await fleet.notifications.service.send([job])
        first = start("up", YAMCHI_FAULT="message.sent", SMS_URL=gateway.url)
        await eventually(lambda: first.process.poll() == -9, DEADLINE)
        start("up", SMS_URL=gateway.url)
        queue = fleet.notifications.queue

        async def is_put_off() -> bool:
            return (await queue.job(job.delivery_id)).state == "delayed"

        await eventually(is_put_off, DEADLINE)
    assert await fleet.notifications.deliveries.status(job.delivery_id) == "UNKNOWN"
    assert len(gateway.taken) == 1
