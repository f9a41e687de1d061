"""The feed: every change that open pages are sent, numbered in the order of the commits.

A page that knows the last number it has seen can go on from there, in any process and after any break. Rows older than
`RETENTION` are deleted; a page that was away for longer loads everything again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
import structlog
from sqlalchemy import Connection, Select, asc, bindparam, delete, false, func, select, update

from yamchi.clock import Clock, Millis
from yamchi.errors import EngineError
from yamchi.notifications.tables import live_feed as table
from yamchi.storage.database import Database
from yamchi.storage.tables import Moment

Kind = Literal["item", "read_all", "message", "erased"]
"""`erased` says that a person was erased, and not who: hubs look which of their pages are to end."""

RETENTION: Millis = 24 * 3_600_000
MESSAGE_LIFE: Millis = 5 * 60_000
"""How long a message waits for a page to open, unless it says itself when it expires."""

BATCH = 1_000
PRUNE_EVERY: Millis = 10 * 60_000

log = structlog.get_logger("yamchi.inbox")


@dataclass(frozen=True, slots=True)
class News:
    """One line of the feed. `body` is JSON, for what is kept nowhere else."""

    seq: int
    user_id: str
    kind: Kind
    message_id: str | None
    body: str | None


# Built once: a thousand pages that come back at the same moment ask a thousand times.
_NEWS = select(table.c.seq, table.c.user_id, table.c.kind, table.c.message_id, table.c.body)
_AFTER = _NEWS.where(table.c.seq > bindparam("since")).order_by(asc(table.c.seq)).limit(bindparam("limit"))
_MISSED = _AFTER.where(
    table.c.user_id == bindparam("user_id"),
    table.c.seq <= bindparam("until"),
    table.c.expires_at.is_(None) | (table.c.expires_at > bindparam("now", type_=Moment)),
)
_MESSAGES = _MISSED.where(table.c.kind == "message")
_UNDELIVERED = _MESSAGES.where(table.c.is_delivered == false())
_BOUNDS = select(func.min(table.c.seq), func.max(table.c.seq))


class Feed:
    """The table `live_feed`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._tell = database.insert(table).inline().on_conflict_do_nothing()  # nobody asks for its number
        self.listeners: set[Callable[[], None]] = set()

    # ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def tell(self, user_id: str, message_id: str) -> None:
        """Announce a new message in this person's inbox. Repeating changes nothing."""
        await self._put(self._row(user_id, "item", message_id, once=message_id))

    async def publish(
        self,
        user_id: str,
        body: Mapping[str, Any],
        *,
        once: str | None = None,
        expires_at: Millis | None = None,
    ) -> None:
        """A message to the open pages alone; with none open it waits a while for the first."""
        now = self._clock.now()
        row = self._row(user_id, "message", once, once=once)
        row["body"] = orjson.dumps(body).decode()
        row["expires_at"] = min(expires_at or now + MESSAGE_LIFE, now + RETENTION)
        await self._put(row)

    async def announce_erasure(self) -> None:
        """Let the hubs of all processes end the pages of people who were erased."""
        await self._put(self._row("", "erased", None))

    def note(self, connection: Connection, user_id: str, kind: Kind, message_id: str | None = None) -> None:
        """Inside a transaction of the caller, who calls `wake` afterwards: something changed."""
        connection.execute(self._tell, self._row(user_id, kind, message_id))

    def wake(self) -> None:
        """Wake the hub of this process; those of other processes poll."""
        for listener in self.listeners:
            listener()

    async def note_delivered(self, seqs: Sequence[int]) -> None:
        """These messages have reached a page: one that opens from now on does not get them."""
        change = update(table).where(table.c.seq.in_(seqs)).values(is_delivered=True)
        await self._database.execute(change)

    async def _put(self, row: dict[str, Any]) -> None:
        await self._database.put(self._tell, row)
        self.wake()

    def _row(
        self, user_id: str, kind: Kind, message_id: str | None, once: str | None = None
    ) -> dict[str, Any]:
        return {
            "user_id": user_id,
            "kind": kind,
            "message_id": message_id,
            "once": once,
            "body": None,
            "is_delivered": False,
            "created_at": self._clock.now(),
            "expires_at": None,
        }

    # ── Following ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def after(self, seq: int) -> list[News]:
        """What came after this number, for anybody, at most a batch."""
        return await self._look(_AFTER, since=seq, limit=BATCH)

    async def missed(self, user_id: str, since: int, until: int, limit: int) -> list[News]:
        """What one person has missed. A message that has expired meanwhile is no news."""
        return await self._look(_MISSED, user_id=user_id, since=since, until=until, limit=limit)

    async def messages(self, user_id: str, since: int | None, until: int, limit: int) -> list[News]:
        """Messages since that number; where there is none, those that no page has received yet."""
        query = _UNDELIVERED if since is None else _MESSAGES
        return await self._look(query, user_id=user_id, since=since or 0, until=until, limit=limit)

    async def bounds(self) -> tuple[int, int]:
        """The oldest number that is kept, and the newest."""
        oldest, newest = await self._database.read(lambda connection: connection.execute(_BOUNDS).one())
        return oldest or 0, newest or 0

    async def _look(self, query: Select[Any], **values: Any) -> list[News]:
        values["now"] = self._clock.now()
        rows = await self._database.read(lambda connection: connection.execute(query, values).all())
        return [News(*row) for row in rows]

    # ── Forgetting ────────────────────────────────────────────────────────────────────────────────────────────────

    async def watch(self) -> None:
        """Delete old rows, again and again; any number of processes may run this."""
        while True:
            try:
                pruned = await self.prune()
            except EngineError as error:
                pruned = 0
                log.warning("pruning the feed failed; it is tried again", error=str(error))
            await self._clock.sleep(0 if pruned else PRUNE_EVERY)

    async def prune(self) -> int:
        """Delete a batch of the oldest rows; returns how many. The newest row stays, so that the numbering goes on from it."""
        before = self._clock.now() - RETENTION
        oldest = select(table.c.seq, table.c.created_at).order_by(asc(table.c.seq)).limit(BATCH + 1)

        def forget(connection: Connection) -> int:
            rows = connection.execute(oldest).all()[:-1]
            old = [row.seq for row in rows if row.created_at < before]
            return connection.execute(delete(table).where(table.c.seq <= old[-1])).rowcount if old else 0

        return await self._database.write(forget)
