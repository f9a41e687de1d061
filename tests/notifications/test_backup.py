"""Copies taken while letters are asked for and sent, with the commands of docs/operations.md; then the copy is put in place.

After the restore: no delivery is without its job, everybody whom the copy knows gets their letter, and nobody gets a second
one whose first the copy knew of.
"""

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select

from tests.notifications.fleet import SLOTS, TIMEOUT_SECONDS, Fleet, UnhurriedMailServer
from tests.scale import FULL
from tests.services.databases import Database
from yamchi.errors import UnknownJob
from yamchi.notifications.tables import notification_delivery
from yamchi.testing import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

DOCS = Path(__file__).parents[2] / "docs/operations.md"
LETTERS = 5_000 if FULL else 600
BATCH = 20
ENGINES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@dataclass
class Place:
    """A home with its database, before or after the restore."""

    home: Path
    url: str
    database_url: str | None = None

    def run(self, command: str, **environment: str) -> None:
        """A command of the documentation, as somebody types it in the home."""
        variables = {"DATABASE_URL": self.database_url or "", **environment}
        done = subprocess.run(
            [
                "/usr/bin/env",
                *(f"{name}={value}" for name, value in variables.items()),
                "bash",
                "-ec",
                command,
            ],
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def documented(name: str) -> str:
    (script,) = re.findall(rf"<!-- {name} -->\n```bash\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return str(script)


@pytest.fixture
def places(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Place, Place]:
    homes = tmp_path / "before", tmp_path / "after"
    for home in homes:
        home.mkdir()
    if engine == "sqlite":
        before, after = (Place(home, "sqlite:///var/yamchi.db") for home in homes)
        return before, after
    make: Callable[[], Database] = request.getfixturevalue("postgres_database")
    before, after = (Place(home, url, url) for home, url in zip(homes, (make().url, make().url), strict=True))
    return before, after


@pytest.fixture
async def mail() -> AsyncIterator[UnhurriedMailServer]:
    with UnhurriedMailServer() as server:
        yield server


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_copy_taken_under_load(
    engine: str, places: tuple[Place, Place], mail: UnhurriedMailServer
) -> None:
    before, after = places
    suffix = "" if engine == "sqlite" else " postgres"
    fleet = Fleet(before.home, before.url, mail, database_url=before.database_url)
    try:
        await fleet.send(LETTERS // 2)
        fleet.start_worker()
        await eventually(lambda: len(mail.letters) >= LETTERS // 6, TIMEOUT_SECONDS)
        copied = asyncio.Event()
        asking = asyncio.create_task(ask_for_more(fleet, copied))
        sent_before = {address for address, _ in list(mail.letters)}
        await asyncio.to_thread(before.run, documented(f"backup{suffix}"))
        is_under_load = not asking.done() and len(mail.letters) > len(sent_before)
        copied.set()
        await asking
        await fleet.all_sent(LETTERS)
    finally:
        await fleet.close()
    first_time = len(mail.letters)
    assert mail.by_recipient().total() == len(mail.by_recipient()) == LETTERS

    (before.home / "backup").rename(after.home / "backup")
    await asyncio.to_thread(
        after.run, documented(f"restore{suffix}"), NEW_DATABASE_URL=after.database_url or ""
    )
    fleet = Fleet(after.home, after.url, mail, database_url=after.database_url)
    try:
        deliveries = await statuses(fleet)
        pending = {name for name, status in deliveries.items() if status != "SENT"}
        jobless = [name for name in pending if not await has_job(fleet, name)]
        unwritten = await queued(fleet) - deliveries.keys()
        known_as_sent = len(deliveries) - len(pending)
        fleet.start_worker()
        await eventually(lambda: is_quiet(fleet), TIMEOUT_SECONDS)
        left = {name for name, status in (await statuses(fleet)).items() if status != "SENT"}
    finally:
        await fleet.close()
    again = [address for address, _ in mail.letters[first_time:]]
    print(
        f"{engine}: {LETTERS} letters; the copy has {len(deliveries)} deliveries, {known_as_sent} of them sent; "
        f"{len(again)} sent again, {len(sent_before & set(again))} of those sent before the copy was begun, "
        f"{len(jobless)} deliveries without a job, {len(left)} still told as pending"
    )
    assert is_under_load, "the copy was taken while nothing happened: this shows nothing"
    assert jobless == []
    assert len(again) == len(set(again))
    assert len(again) == len(pending) - len(left) + len(unwritten), (
        "what the copy had as pending, or only as a job"
    )
    assert len(unwritten) <= BATCH, (
        "only what was being asked for when the copy was begun: jobs go before their deliveries"
    )
    assert len(sent_before & set(again)) <= SLOTS, "only what was being written down when the copy was begun"
    assert len(left) <= SLOTS, "only what ended between the two snapshots"


async def ask_for_more(fleet: Fleet, copied: asyncio.Event) -> None:
    """The last ones only when the copy is taken: on a busy machine that may take longer than all the others."""
    for first in range(LETTERS // 2, LETTERS, BATCH):
        if first + BATCH >= LETTERS:
            await copied.wait()
        await fleet.send(BATCH, first=first)
        await eventually(lambda first=first: len(fleet.mail.letters) >= first - LETTERS // 3, TIMEOUT_SECONDS)


async def statuses(fleet: Fleet) -> dict[str, str]:
    table = notification_delivery
    rows = await fleet.app.database.read(lambda c: c.execute(select(table.c.job_id, table.c.status)).all())
    return {str(row.job_id): row.status for row in rows}


async def queued(fleet: Fleet) -> set[str]:
    pages = [
        await fleet.notifications.queue.jobs(state, limit=LETTERS)
        for state in ("waiting", "active", "delayed")
    ]
    return {job.id for page in pages for job in page}


async def has_job(fleet: Fleet, job_id: str) -> bool:
    try:
        await fleet.notifications.queue.job(job_id)
    except UnknownJob:
        return False
    return True


async def is_quiet(fleet: Fleet) -> bool:
    stats = await fleet.notifications.queue.stats()
    return bool(stats["waiting"] == stats["active"] == stats["delayed"] == 0)
