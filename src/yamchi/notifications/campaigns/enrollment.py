"""Putting people on a campaign's list: in batches, each once, and those of a CSV who are not known yet become known."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy import Connection, delete, select

from yamchi.clock import Clock
from yamchi.notifications.campaigns.lists import Broken, Entry, Report, read_list
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.notification_job import derived_id
from yamchi.notifications.tables import campaign_people, users
from yamchi.queues.handlers import describe
from yamchi.storage.database import Database

BATCH = 1_000
LOOKED_UP = 500

T = TypeVar("T")
Guard = Callable[[Connection], None]
"""Asked in each transaction: raises when the list is no longer this request's to write."""


class Enrollment:
    """The table `campaign_people`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        enroll = database.insert(campaign_people).on_conflict_do_nothing()
        self._enroll = enroll.returning(campaign_people.c.user_id)
        self._meet = database.insert(users).on_conflict_do_nothing()

    async def by_ids(self, campaign_id: str, user_ids: Iterable[str], guard: Guard) -> Report:
        """These people, each once. One who is not known has no address, and the delivery will say so."""
        report = Report()
        for batch in _batches(iter(user_ids), BATCH):
            rows = [_row(campaign_id, user_id) for user_id in dict.fromkeys(batch)]
            added = await self._database.write(partial(self._add, rows=rows, guard=guard))
            report.rows += len(batch)
            report.people += added
            report.twice += len(batch) - added
        return report

    async def by_csv(self, campaign_id: str, lines: Iterable[str], guard: Guard) -> Report:
        """The people of a table. Reading it is left to a thread, a batch at a time."""
        report, rows = Report(), read_list(lines)
        while batch := await asyncio.to_thread(lambda: list(islice(rows, BATCH))):
            report.rows += len(batch)
            entries = [row for row in batch if isinstance(row, Entry)]
            take = partial(self._take, campaign_id=campaign_id, entries=entries, guard=guard)
            added, refused = await self._database.write(take)
            report.people += added
            report.twice += len(entries) - len(refused) - added
            for broken in sorted([*(row for row in batch if isinstance(row, Broken)), *refused], key=_number):
                report.refuse(broken)
        return report

    async def empty(self, campaign_id: str, guard: Guard) -> None:
        """Take everybody off the list."""
        listed = campaign_people.c
        some = select(listed.user_id).where(listed.campaign_id == campaign_id).limit(BATCH)
        gone = delete(campaign_people).where(listed.campaign_id == campaign_id, listed.user_id.in_(some))

        def remove_some(connection: Connection) -> int:
            guard(connection)
            return connection.execute(gone).rowcount

        while await self._database.write(remove_some):
            continue

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, connection: Connection, rows: Sequence[Mapping[str, Any]], guard: Guard) -> int:
        guard(connection)
        return len(connection.execute(self._enroll, rows).all()) if rows else 0

    def _take(
        self, connection: Connection, campaign_id: str, entries: Sequence[Entry], guard: Guard
    ) -> tuple[int, list[Broken]]:
        """How many are new on the list, and which rows name nobody who can be reached."""
        known = _known(connection, "user_id", [entry.user_id for entry in entries if entry.user_id])
        by_email = _known(connection, "email", [entry.email for entry in entries if entry.email])
        people: dict[str, Entry] = {}
        strangers: dict[str, dict[str, Any]] = {}
        refused: list[Broken] = []
        for entry in entries:
            user_id = entry.user_id or by_email.get(entry.email or "")
            if user_id is None or (entry.user_id and user_id not in known):
                stranger = self._introduce(entry)
                if isinstance(stranger, Broken):
                    refused.append(stranger)
                    continue
                user_id = str(stranger["user_id"])
                strangers[user_id] = stranger
            people.setdefault(user_id, entry)
        if strangers:
            connection.execute(self._meet, list(strangers.values()))
        rows = [_row(campaign_id, user_id, entry.data) for user_id, entry in people.items()]
        return self._add(connection, rows, guard), refused

    def _introduce(self, entry: Entry) -> dict[str, Any] | Broken:
        """A person who is not known yet: an address is all it takes."""
        if entry.email is None:
            return Broken(entry.row, f"there is no user {entry.user_id}, and no email to make one")
        try:
            person = User.model_validate({"email": entry.email, **entry.about})
        except ValidationError as error:
            return Broken(entry.row, describe(error))
        now = self._clock.now()
        user_id = entry.user_id or str(derived_id("person", str(person.email)))
        fields = {"user_id": user_id, "created_at": now, "updated_at": now}
        names = ("email", "phone", "telegram_id", "locale", "timezone", "attributes")
        return fields | {name: getattr(person, name) for name in names}


def _known(connection: Connection, column: str, values: Sequence[str]) -> dict[str, str]:
    """Who is known under these values; of several people with one address, always the same one."""
    found: dict[str, str] = {}
    for some in _batches(iter(values), LOOKED_UP):
        query = select(users.c[column], users.c.user_id).where(users.c[column].in_(some))
        for value, user_id in connection.execute(query.order_by(users.c.user_id)):
            found.setdefault(value, user_id)
    return found


def _row(campaign_id: str, user_id: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"campaign_id": campaign_id, "user_id": user_id, "data": data}


def _batches(values: Iterator[T], size: int) -> Iterator[list[T]]:
    while batch := list(islice(values, size)):
        yield batch


def _number(broken: Broken) -> int:
    return broken.row
