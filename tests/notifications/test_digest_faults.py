"""Digests when things go wrong: workers are killed while they collect and tell, and two processes race at the last moment."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tests.notifications.conftest import USER
from tests.notifications.fleet import TIMEOUT_SECONDS, Fleet, UnhurriedMailServer, address_of, number_of
from tests.notifications.harness import ScriptedChannel
from tests.scale import FULL
from yamchi.notifications.channels.base import Recipient
from yamchi.notifications.people.recipients import User
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.policy.context import SendContext, SendRequest
from yamchi.notifications.policy.model import NONE, Digest
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.schemas.notification_job import NotificationJob, derived_id
from yamchi.notifications.sending.deliveries import Deliveries
from yamchi.notifications.sending.digests import Digests
from yamchi.notifications.tables import digest_items
from yamchi.storage.database import Database
from yamchi.testing import MovableClock, eventually

PEOPLE, FILMS, KILLS = (50, 100, 10) if FULL else (10, 20, 3)
RULES = """
- on: film_out
  notify:
    first_of: [telegram, email]
    template: new_film_recommendation
    digest: {every: 1s, template: told}
"""
TOLD = "---\nsubject: films\n---\n<p>{% for film in items %}[{{ film.title }}]{% endfor %}</p>"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    server = UnhurriedMailServer()
    server.start()
    (tmp_path / "rules.yaml").write_text(RULES)
    folder = tmp_path / "templates" / "told"
    folder.mkdir(parents=True)
    (folder / "email.en.html").write_text(TOLD)
    fleet = Fleet(tmp_path, f"sqlite:///{tmp_path}/jobs.db", server)
    yield fleet
    await fleet.close()
    server.stop()


def told(fleet: Fleet, address: str) -> Counter[str]:
    """How often each film was told of; a letter that came twice counts once."""
    letters = {str(letter["Message-ID"]): letter for to, letter in fleet.mail.letters if to == address}
    texts = [letter.get_body(("plain",)).get_content() for letter in letters.values()]
    return Counter(film for text in texts for film in re.findall(r"\[(F\d+)\]", text))


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_killed_workers_lose_nothing_on_the_way_to_a_digest(fleet: Fleet) -> None:
    people = fleet.notifications.recipients
    for user in range(PEOPLE):
        await people.put(str(number_of(user)), User(email=address_of(user), locale="en"))
    for _ in range(2):
        fleet.start_worker()
    moments = set(random.sample(range(1, FILMS), KILLS))
    for film in range(FILMS):
        events = [
            Event(
                event_type="film_out",
                event_id=f"{film}-{user}",
                user_id=number_of(user),
                data={"title": f"F{film}"},
            )
            for user in range(PEOPLE)
        ]
        await fleet.notifications.service.handle_events(events)
        if film in moments:
            await fleet.kill(await fleet.busy_worker())
            fleet.start_worker()

    async def all_over() -> bool:
        statuses = await fleet.statuses()
        is_over = set(statuses) == {"SENT", "SUPPRESSED"}  # each went on from Telegram, which is not set up
        return is_over and statuses["SUPPRESSED"] == PEOPLE * FILMS < statuses["SENT"]

    try:
        await eventually(all_over, TIMEOUT_SECONDS)
    except AssertionError as error:
        said = "\n".join(worker.said[-2_000:] for worker in fleet.workers)
        raise AssertionError(f"{await fleet.statuses()}\n{said}") from error
    letters = fleet.mail.by_recipient()
    print(f"{PEOPLE * FILMS} events, {fleet.kills} kills: {letters.total()} letters")
    for user in range(PEOPLE):
        assert told(fleet, address_of(user)) == {f"F{film}": 1 for film in range(FILMS)}
    assert letters.total() < PEOPLE * FILMS / 2


# ── Two processes at the last moment ──────────────────────────────────────────────────────────────────────────────


def context(number: int) -> SendContext:
    fields: dict[str, Any] = {"user_id": USER, "channel": "telegram", "template_code": "t", "locale": "en"}
    meta = {"event_type": "test", "event_id": f"e-{number}"}
    job = NotificationJob.model_validate(
        fields
        | {"job_id": derived_id(str(number)), "data": {"number": number}, "meta": meta}
        | {"created_at": "2026-01-01T00:00:00Z"}
    )
    request = SendRequest(None, job)  # type: ignore[arg-type] - digests ask nothing of it
    return SendContext(request, job, NONE, Recipient(USER), ScriptedChannel(), None, "UTC")


async def test_nothing_slips_into_a_digest_that_is_being_told(database_url: str) -> None:
    clock, digest = MovableClock(), Digest(every="1h", template="t")
    databases = [Database(database_url, [Notifications.schema()]) for _ in range(3)]
    await databases[0].migrate()
    processes = [Digests(database, Deliveries(database, clock), clock) for database in databases]
    first = await processes[0].collect(context(0), digest)

    async def collect(digests: Digests, numbers: range) -> None:
        for number in numbers:
            await digests.collect(context(number), digest)

    async def tell() -> list[int]:
        await asyncio.sleep(random.uniform(0, 0.05))
        gathered = await processes[2].gather(first.delivery_id, first)
        return [item["number"] for item in gathered.items]

    *_, told_of = await asyncio.gather(
        collect(processes[0], range(1, 50)), collect(processes[1], range(50, 100)), tell()
    )
    rows = await databases[0].read(lambda c: c.execute(select(digest_items)).all())
    inside = {row.data["number"] for row in rows if row.digest_id == first.delivery_id}
    assert inside == set(told_of)
    assert {row.data["number"] for row in rows} == set(range(100))
    for database in databases:
        await database.close()


@pytest.mark.parametrize("is_ours", [True, False], ids=["its row came first", "another program queued it"])
async def test_who_comes_late_finds_that_its_digest_was_told(database_url: str, is_ours: bool) -> None:
    """A worker that takes over a dead one's job may collect what was told since it last looked."""
    clock, digest, item = MovableClock(), Digest(every="1h", template="t"), context(0)
    database = Database(database_url, [Notifications.schema()])
    await database.migrate()
    deliveries = Deliveries(database, clock)
    digests = Digests(database, deliveries, clock)
    if is_ours:
        await database.write(lambda connection: deliveries.queue(connection, [item.job]))
    telling = await digests.collect(item, digest)
    assert telling is not None
    await digests.gather(telling.delivery_id, telling)
    await deliveries.record(telling, "SENT", attempts=1)
    await digests.settle(telling.delivery_id, telling.delivery_id)

    assert await digests.collect(item, digest) is None
    assert not await database.rows(select(digest_items))
    await database.close()
