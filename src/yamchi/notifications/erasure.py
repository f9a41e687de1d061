"""Erasing a person: everything that identifies them or was written to them is deleted; the counts stay.

Done in steps that may each be repeated, the person's own row last: what a crash interrupts, the next call finishes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Table, delete, or_, select, update

from yamchi.errors import WrongState
from yamchi.notifications.people.tokens import PersonTokens
from yamchi.notifications.schemas.notification_job import AS_SENT, NOBODY
from yamchi.notifications.sending.service import NotificationService
from yamchi.notifications.sending.statuses import FINAL
from yamchi.notifications.tables import (
    campaign_people,
    campaigns,
    cap_turns,
    cap_uses,
    delivery_attempts,
    delivery_parts,
    digest_items,
    digests,
    events,
    inbox,
    live_feed,
    mailbox,
    null_ledger,
    preferences,
    push_subscriptions,
    suppressions,
    users,
)
from yamchi.notifications.tables import notification_delivery as deliveries
from yamchi.queues.queue import Queue
from yamchi.storage.database import Database

DELETED: tuple[Table, ...] = (
    preferences,
    cap_turns,
    cap_uses,
    digests,
    digest_items,
    inbox,
    live_feed,
    push_subscriptions,
)
"""Rows of these are deleted whole."""

TABLES_WITH_PEOPLE = (*DELETED, users, suppressions, deliveries, events, campaign_people, null_ledger)
"""Every table that refers to people; a test compares it with the schema."""

BATCH = 500
EVENTS_BATCH = 5_000

LONGEST_WAIT_SECONDS = 15.0
"""How long an erasure waits for messages to the person that are being sent: one that is cancelled ends within seconds."""

LOOK_AGAIN_SECONDS = 0.1


class Erasure:
    """Erases people from the tables of notifications."""

    def __init__(
        self,
        database: Database,
        service: NotificationService,
        queue: Queue,
        tokens: PersonTokens,
        announce: Callable[[], Awaitable[None]],
    ) -> None:
        self._database = database
        self._service = service
        self._queue = queue
        self._tokens = tokens
        self._announce = announce

    async def erase(self, user_id: str) -> dict[str, int]:
        """Cancel pending deliveries, clear the rows that the counts need, delete the rest; how many of each."""
        await self._tokens.revoke(user_id)
        await self._announce()
        cancelled, emptied = 0, 0
        while rows := await self._deliveries(user_id):
            cancelled += await self._cancel_all(rows)
            await self._empty(rows)
            emptied += len(rows)
        told = await self._empty_events(user_id)
        was_known = await self._database.write(lambda connection: _delete(connection, user_id))
        return {"people": was_known, "cancelled": cancelled, "deliveries": emptied, "events": told}

    async def _deliveries(self, user_id: str) -> Sequence[Any]:
        columns = (deliveries.c.job_id, deliveries.c.status, deliveries.c.provider_message_id)
        query = select(*columns).where(deliveries.c.user_id == user_id).limit(BATCH)
        return await self._database.rows(query)

    async def _cancel_all(self, rows: Sequence[Any]) -> int:
        """Cancel what is pending, and take the jobs and dead letters, which hold the same words, out of the queue."""
        cancelled = 0
        for row in rows:
            if row.status not in FINAL:
                cancelled += await self._cancel(row.job_id)
        ids = [row.job_id for row in rows]
        await self._let_end(ids)
        await self._queue.remove(ids)
        await self._queue.dead_letters.purge(ids)
        return cancelled

    async def _let_end(self, job_ids: Sequence[str]) -> None:
        """Wait for those that are running: they would write of the person again, and can't be removed."""
        time = asyncio.get_running_loop().time
        until = time() + LONGEST_WAIT_SECONDS
        while job_ids := await self._running(job_ids):
            if time() > until:
                raise WrongState("A message to this person is being sent: erase them again in a minute.")
            await asyncio.sleep(LOOK_AGAIN_SECONDS)  # a real message takes real time

    async def _running(self, job_ids: Sequence[str]) -> list[str]:
        found = await self._queue.records(job_ids)
        return [record.id for record in found.values() if record.state == "active"]

    async def _cancel(self, job_id: str) -> bool:
        try:
            await self._service.cancel(job_id)
        except WrongState:
            return False  # it has just been sent
        return True

    async def _empty(self, rows: Sequence[Any]) -> None:
        ids = [row.job_id for row in rows]
        letters = [row.provider_message_id for row in rows if row.provider_message_id]
        nothing = {"user_id": None, "job": None, "last_error": None, "provider_message_id": None}

        def empty(connection: Connection) -> None:
            connection.execute(delete(mailbox).where(mailbox.c.message_id.in_(letters)))
            connection.execute(delete(delivery_parts).where(delivery_parts.c.job_id.in_(ids)))
            connection.execute(
                update(delivery_attempts).where(delivery_attempts.c.job_id.in_(ids)).values(answer=None)
            )
            connection.execute(update(deliveries).where(deliveries.c.job_id.in_(ids)).values(nothing))

        await self._database.write(empty)

    async def _empty_events(self, user_id: str) -> int:
        """Events have no index by person, which each would pay for: they are gone through, some thousands at a time."""
        emptied, last = 0, ""
        while rows := await self._events_after(last):
            last = rows[-1].event_id
            theirs = [row.event_id for row in rows if row.user_id == user_id]
            if theirs:
                emptied += await self._database.write(partial(_empty_events, event_ids=theirs))
        return emptied

    async def _events_after(self, last: str) -> Sequence[Any]:
        query = select(events.c.event_id, events.c.user_id).where(events.c.event_id > last)
        query = query.order_by(events.c.event_id).limit(EVENTS_BATCH)
        return await self._database.rows(query)


def _empty_events(connection: Connection, event_ids: Sequence[str]) -> int:
    theirs = events.c.event_id.in_(event_ids)
    return connection.execute(update(events).where(theirs).values(user_id=None, data={})).rowcount


def _delete(connection: Connection, user_id: str) -> int:
    """Whether there was such a person."""
    for table in DELETED:
        connection.execute(delete(table).where(table.c.user_id == user_id))
    addresses = select(users.c.email, users.c.phone, users.c.telegram_id).where(users.c.user_id == user_id)
    known = [address for address in connection.execute(addresses).first() or () if address]
    is_theirs = or_(suppressions.c.user_id == user_id, suppressions.c.address.in_(known))
    connection.execute(delete(suppressions).where(is_theirs))
    sent_to = deliveries.c.job["meta"][AS_SENT]["to"].as_string()
    to_them = (deliveries.c.status == "UNKNOWN") & (deliveries.c.user_id == str(NOBODY)) & sent_to.in_(known)
    connection.execute(update(deliveries).where(to_them).values(job=None))
    listed = campaign_people.c.campaign_id.in_(select(campaigns.c.campaign_id))
    connection.execute(delete(campaign_people).where(listed & (campaign_people.c.user_id == user_id)))
    connection.execute(update(null_ledger).where(null_ledger.c.user_id == user_id).values(user_id=None))
    return connection.execute(delete(users).where(users.c.user_id == user_id)).rowcount
