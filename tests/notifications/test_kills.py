"""SIGKILL of workers at random through many letters: everybody gets theirs, and only what was in flight goes out twice."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.notifications.fleet import TIMEOUT_SECONDS, Fleet, UnhurriedMailServer, address_of
from tests.scale import FULL
from yamchi.testing import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

LETTERS, KILLS = (5_000, 10) if FULL else (400, 2)
ENGINES = ["sqlite", *(pytest.param(name, marks=pytest.mark.services) for name in ("bull", "pgmq", "kafka"))]


@pytest.fixture
async def url(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match engine:
        case "bull":
            return str(request.getfixturevalue("redis_url"))
        case "pgmq":
            return str(request.getfixturevalue("postgres_database")().url)
        case "kafka":
            server = await asyncio.to_thread(request.getfixturevalue("private_kafka"))
            return f"kafka://{server.url}"
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
async def fleet(url: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    with UnhurriedMailServer() as server:
        fleet = Fleet(tmp_path, url, server)
        yield fleet
        await fleet.close()


@pytest.mark.parametrize("engine", ENGINES)
async def test_killed_workers_lose_no_letter(fleet: Fleet, engine: str) -> None:
    await fleet.send(LETTERS)
    for _ in range(2):
        fleet.start_worker()
    for moment in sorted(random.sample(range(LETTERS // 20, LETTERS * 9 // 10), KILLS)):
        await eventually(lambda moment=moment: len(fleet.mail.letters) >= moment, TIMEOUT_SECONDS)
        await fleet.kill(await fleet.busy_worker())
        fleet.start_worker()
    await fleet.all_sent(LETTERS)

    received = fleet.mail.by_recipient()
    duplicates = received.total() - len(received)
    print(
        f"{engine}: {LETTERS} letters, {fleet.kills} kills, {fleet.in_flight} in flight at the kills, "
        f"{duplicates} sent twice, {LETTERS - len(received)} lost"
    )
    assert set(received) == {address_of(user) for user in range(LETTERS)}
    assert duplicates <= fleet.in_flight
    assert all(len(fleet.mail.message_ids(address)) == 1 for address in received)
    assert await fleet.statuses() == {"SENT": LETTERS}
