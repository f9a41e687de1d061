"""The null channel: reaches everybody and bothers nobody. For rehearsals, and for counting.

What it gets becomes a line in the table `null_ledger`, a new one each time, written together with the delivery's status:
a person who was sent a message twice is there twice. Where it has no template of its own it uses that of the letter.
"""

from collections import Counter

from sqlalchemy import distinct, func, insert, select

from yamchi.clock import Clock
from yamchi.notifications.channels.base import Channel, Kept, Message, Recipient
from yamchi.notifications.tables import null_ledger
from yamchi.storage.database import Database, Put

NEW_LINE = insert(null_ledger)


class NullChannel(Channel):
    """Takes every message, and writes it down."""

    name = "null"
    provider = "ledger"
    resends_unknown = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def address(self, recipient: Recipient) -> str | None:
        return recipient.user_id or recipient.email or recipient.phone or recipient.telegram_id

    async def send(self, message: Message) -> Kept:
        line = {"job_id": message.job_id, "user_id": message.user_id, "received_at": self._clock.now()}
        return Kept(Put(NEW_LINE, line))


async def count_ledger(database: Database) -> Counter[str]:
    """How many lines there are, and to how many jobs and people they belong."""
    ledger = null_ledger.c
    query = select(func.count(), func.count(distinct(ledger.job_id)), func.count(distinct(ledger.user_id)))
    row = await database.read(lambda connection: connection.execute(query).one())
    return Counter(lines=row[0], jobs=row[1], people=row[2])
