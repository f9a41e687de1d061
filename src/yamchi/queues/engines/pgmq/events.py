"""Events for other processes: sent as notifications while one of them listens."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

import orjson

from yamchi.queues.engines.base import Event
from yamchi.queues.engines.pgmq.connections import Connections
from yamchi.queues.engines.pgmq.rows import clean
from yamchi.queues.records import Cancelled, Completed, Expired, Failed, Verdict

EVENTS = "yamchi_events"
LONGEST_BYTES = 7_000
"""PostgreSQL carries 8,000 bytes in a notification."""

LISTENERS_CHECKED_SECONDS = 1.0
"""How often to look whether another process listens for events."""

_ANNOUNCE = (
    "INSERT INTO yamchi.listeners VALUES (%s, statement_timestamp()) "
    "ON CONFLICT (origin) DO UPDATE SET seen_at = excluded.seen_at"
)
_IS_HEARD = (
    "SELECT 1 FROM yamchi.listeners WHERE origin <> %s AND seen_at > statement_timestamp() - interval '30 s'"
)


class EventSender:
    """Sends the events of this process, and says that it listens for those of others."""

    def __init__(self, connections: Connections) -> None:
        self.origin = secrets.token_hex(6)
        self._connections = connections
        self._listened_to_until = self._asked_at = 0.0

    async def announce(self) -> None:
        """Say that this process listens."""
        async with self._connections.lend() as db:
            await db.execute(_ANNOUNCE, (self.origin,))

    async def send(self, events: Iterable[Event]) -> None:
        """Tell other processes, if any listens: finding that out costs a look a second. Events are made only if one does."""
        now = asyncio.get_running_loop().time()
        must_ask = now - self._asked_at > LISTENERS_CHECKED_SECONDS
        if not (must_ask or now < self._listened_to_until):
            return
        async with self._connections.lend() as db:
            if must_ask:
                self._asked_at = now
                heard = await db.execute(_IS_HEARD, (self.origin,))
                is_heard = await heard.fetchone()
                self._listened_to_until = now + 2 * LISTENERS_CHECKED_SECONDS if is_heard else 0.0
            if now < self._listened_to_until:
                for note in write_events(self.origin, events):
                    await db.execute("SELECT pg_notify(%s, %s)", (EVENTS, note))


def events_of(queue: str, verdicts: Iterable[Verdict]) -> Iterator[Event]:
    """What verdicts tell."""
    for verdict in verdicts:
        job = verdict.claim.job
        match verdict:
            case Completed(result=result):
                yield Event("completed", queue, job.id, job.name, result)
            case Failed(error=error):
                yield Event("failed", queue, job.id, job.name, orjson.dumps(clean(error)))
            case Expired():
                yield Event("expired", queue, job.id, job.name)
            case Cancelled():
                yield Event("cancelled", queue, job.id, job.name)


def write_events(origin: str, events: Iterable[Event]) -> Iterator[str]:
    """Events as notifications, each within PostgreSQL's limit; a value too long for that is left out, and says so."""
    batch: list[bytes] = []
    room = LONGEST_BYTES
    for event in events:
        body = _write(event)
        if len(body) > LONGEST_BYTES:
            body = orjson.dumps([event.type, event.queue, event.job_id, event.name, None, True])
        if len(body) > room and batch:
            yield _wrap(origin, batch)
            batch, room = [], LONGEST_BYTES
        batch.append(body)
        room -= len(body) + 1
    if batch:
        yield _wrap(origin, batch)


def _write(event: Event) -> bytes:
    value = None if event.value is None else event.value.decode()
    return orjson.dumps([event.type, event.queue, event.job_id, event.name, value, False])


def _wrap(origin: str, batch: Sequence[bytes]) -> str:
    return orjson.dumps([origin, [orjson.Fragment(body) for body in batch]]).decode()


async def read_events(
    inbox: "asyncio.Queue[str]", origin: str, timeout: float
) -> AsyncIterator[tuple[Event, bool]]:
    """Events of others, each with whether its value was left out; ends when nothing came for a while."""
    while True:
        try:
            async with asyncio.timeout(timeout):
                sender, events = orjson.loads(await inbox.get())
        except TimeoutError:
            return
        if sender != origin:
            for kind, queue, job_id, name, value, left_out in events:
                yield Event(kind, queue, job_id, name, None if value is None else value.encode()), left_out
