"""The null channel accepts every message and sends nothing: for rehearsals, and for counting.

Each message is a row in the table `null_ledger`, written together with the delivery's status: a person who was sent a
message twice is there twice. Where a template has no `null` version, that of `email` is used.
"""

from sqlalchemy import delete, insert, select

from yamchi.clock import Clock, Millis
from yamchi.notifications.channels.base import Channel, Message, Recipient, StoredMessage
from yamchi.notifications.tables import null_ledger
from yamchi.storage.database import Database, Put

NEW_LINE = insert(null_ledger)

RETENTION: Millis = 30 * 86_400_000
PRUNE_EVERY: Millis = 3_600_000
PRUNE_BATCH = 5_000


class NullChannel(Channel):
    """Accepts every message, and writes a row."""

    name = "null"
    provider = "ledger"
    resends_unknown = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def address(self, recipient: Recipient) -> str | None:
        return recipient.user_id or recipient.email or recipient.phone or recipient.telegram_id

    async def send(self, message: Message) -> StoredMessage:
        line = {"job_id": message.job_id, "user_id": message.user_id, "received_at": self._clock.now()}
        return StoredMessage(Put(NEW_LINE, line))


class NullLedger:
    """Deletes old rows, so that rehearsals do not fill the disk."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def watch(self) -> None:
        """Prune once an hour."""
        while True:
            await self.prune()
            await self._clock.sleep(PRUNE_EVERY)

    async def prune(self) -> int:
        """Remove lines older than `RETENTION`, the oldest first and not too many at a time; how many went."""
        ledger, before, gone = null_ledger.c, self._clock.now() - RETENTION, 0
        # By number, which grows with time: so no index is needed by time, which every message would have to pay for.
        oldest = select(ledger.entry).order_by(ledger.entry).limit(PRUNE_BATCH)
        old = delete(null_ledger).where(ledger.entry.in_(oldest), ledger.received_at < before)
        while went := await self._database.execute(old):
            gone += went
        return gone
