"""E-mail: over SMTP, or into the mailbox of the board where no server is set, so that a newcomer sees real letters."""

from email.utils import parseaddr

from sqlalchemy import delete, desc, select

from yamchi.clock import Clock, Millis
from yamchi.notifications.channels.base import Channel, Message, Recipient
from yamchi.notifications.channels.email.mime import Letter, compose
from yamchi.notifications.channels.email.smtp import SmtpPool, SmtpServer
from yamchi.notifications.tables import mailbox
from yamchi.storage.database import Database

PRUNE_EVERY: Millis = 3_600_000
PRUNE_BATCH = 1_000


class EmailChannel(Channel):
    """Letters. The Message-ID comes from the job, so a letter sent twice can be recognized, and is sent again when in doubt."""

    name = "email"
    resends_unknown = True

    def __init__(self, server: SmtpServer, sender: str, clock: Clock) -> None:
        self.provider = server.name
        self._sender = sender
        self._clock = clock
        self._pool = SmtpPool(server)

    def address(self, recipient: Recipient) -> str | None:
        return recipient.email

    async def send(self, message: Message) -> str | None:
        letter = compose(message, self._sender, self._clock.now())
        await self._pool.send(letter)
        return letter.message_id

    async def ping(self) -> str:
        """Whether the server lets us in, and takes letters from our sender."""
        return await self._pool.try_sender(parseaddr(self._sender)[1])

    async def close(self) -> None:
        await self._pool.close()


class MailboxChannel(Channel):
    """Letters kept in the database, to be read at `/mailbox`."""

    name = "email"
    provider = "mailbox"
    resends_unknown = True

    def __init__(self, kept: "Mailbox", sender: str, clock: Clock) -> None:
        self._mailbox = kept
        self._sender = sender
        self._clock = clock

    def address(self, recipient: Recipient) -> str | None:
        return recipient.email

    async def send(self, message: Message) -> str | None:
        now = self._clock.now()
        letter = compose(message, self._sender, now)
        await self._mailbox.keep(letter, now)
        return letter.message_id


class Mailbox:
    """The table `mailbox`: e-mails that are shown on the board instead of being sent."""

    def __init__(self, database: Database, clock: Clock, retention: Millis) -> None:
        self._database = database
        self._clock = clock
        self._retention = retention
        self._keep = database.insert(mailbox).on_conflict_do_nothing()

    async def keep(self, letter: Letter, now: Millis) -> None:
        """A letter that is here already stays as it is: the same Message-ID is the same letter."""
        row = {
            "message_id": letter.message_id,
            "received_at": now,
            "sender": letter.sender,
            "recipients": [letter.recipient],
            "subject": letter.subject,
            "message": letter.content,
        }
        await self._database.put(self._keep, row)

    async def watch(self) -> None:
        """Prune once an hour."""
        while True:
            await self.prune()
            await self._clock.sleep(PRUNE_EVERY)

    async def prune(self) -> int:
        """Remove letters older than the retention, not too many at a time; how many went."""
        is_old, gone = mailbox.c.received_at < self._clock.now() - self._retention, 0
        old = delete(mailbox).where(
            mailbox.c.message_id.in_(select(mailbox.c.message_id).where(is_old).limit(PRUNE_BATCH))
        )
        while went := await self._database.execute(old):
            gone += went
        return gone

    async def list(self, *, offset: int = 0, limit: int = 50) -> list[dict[str, object]]:
        columns = [column for column in mailbox.columns if column.name != "message"]
        query = select(*columns).order_by(desc(mailbox.c.received_at)).offset(offset).limit(limit)
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [dict(row) for row in rows]

    async def get(self, message_id: str) -> bytes | None:
        query = select(mailbox.c.message).where(mailbox.c.message_id == message_id)
        message: bytes | None = await self._database.value(query)
        return message
