"""E-mail: over SMTP, or into the mailbox of the board where no server is set, so that a newcomer sees real letters."""

from email.utils import parseaddr

from sqlalchemy import delete, desc, select

from yamchi.clock import Clock, Millis
from yamchi.notifications.channels.base import Channel, Message, Recipient
from yamchi.notifications.channels.email.mime import Letter, compose
from yamchi.notifications.channels.email.smtp import SmtpPool, SmtpServer
from yamchi.notifications.tables import mailbox
from yamchi.storage.database import Database

KEPT: Millis = 90 * 86_400_000
FORGOTTEN_EVERY: Millis = 3_600_000
FORGOTTEN_AT_ONCE = 5_000


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

    def __init__(self, database: Database, sender: str, clock: Clock, keep: Millis = KEPT) -> None:
        self._mailbox = Mailbox(database, keep)
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
    """The table `mailbox`: e-mails that are shown on the board instead of being sent. Old ones go as new ones come."""

    def __init__(self, database: Database, keep: Millis = KEPT) -> None:
        self._database = database
        self._keep_for = keep
        self._forgot_at: Millis | None = None
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
        if self._forgot_at is None or now - self._forgot_at >= FORGOTTEN_EVERY:
            self._forgot_at = now
            await self._forget(now - self._keep_for)

    async def _forget(self, before: Millis) -> None:
        """Not too many at a time: others write, too."""
        old = select(mailbox.c.message_id).where(mailbox.c.received_at < before).limit(FORGOTTEN_AT_ONCE)
        gone = delete(mailbox).where(mailbox.c.message_id.in_(old))
        while await self._database.execute(gone):
            pass

    async def list(self, *, offset: int = 0, limit: int = 50) -> list[dict[str, object]]:
        columns = [column for column in mailbox.columns if column.name != "message"]
        query = select(*columns).order_by(desc(mailbox.c.received_at)).offset(offset).limit(limit)
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [dict(row) for row in rows]

    async def get(self, message_id: str) -> bytes | None:
        query = select(mailbox.c.message).where(mailbox.c.message_id == message_id)
        message: bytes | None = await self._database.value(query)
        return message
