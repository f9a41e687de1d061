"""Notifications of PostgreSQL: one connection of an event loop listens for new messages and for events of other processes."""

import asyncio
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import structlog

from yamchi.errors import YamchiError
from yamchi.observe.lasting import LastingTrouble
from yamchi.queues.engines.pgmq.bounds import Place
from yamchi.queues.engines.pgmq.connections import Connection, Connections
from yamchi.queues.engines.pgmq.events import EVENTS

log = structlog.get_logger("yamchi.pgmq")

WAKE = "yamchi_wake"
_PLACE = re.compile("u?-?[0-9]{1,18}")
LONGEST_PAUSE_SECONDS = 1.0
"""Between tries to listen: when PostgreSQL is back, whoever waits for a notification waits so long."""


class Listener:
    """Wakes up the workers of each queue that got a message, and hands on the events of other processes.

    `put` is called with a table and the places in it that were written to; with no table when some may have been missed.
    """

    def __init__(self, connections: Connections, put: Callable[[str | None, Sequence[Place]], None]) -> None:
        self.wakeups: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._connections = connections
        self._put = put
        self._task: asyncio.Task[None] | None = None
        self._is_listening = asyncio.Event()
        self._readers: list[asyncio.Queue[str]] = []

    def start(self) -> None:
        """Listen from now on; the connection is made anew whenever it breaks."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="pgmq-listener")

    async def ready(self) -> None:
        """Return when the connection listens."""
        self.start()
        await self._is_listening.wait()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            return
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    @contextmanager
    def reading(self) -> Iterator[asyncio.Queue[str]]:
        """What other processes tell from now on."""
        inbox: asyncio.Queue[str] = asyncio.Queue()
        self._readers.append(inbox)
        try:
            yield inbox
        finally:
            self._readers.remove(inbox)

    async def _run(self) -> None:
        pause, trouble = 0.1, LastingTrouble(log)
        while True:
            try:
                with self._connections.explained():
                    async with await self._connections.connect() as connection:
                        await connection.execute(f"LISTEN {WAKE}; LISTEN {EVENTS}")
                        pause = 0.1
                        trouble.end()
                        await self._read_notifications(connection)
            except YamchiError as error:
                trouble.meet(f"[pgmq] can't listen for notifications: {error}")
            self._is_listening.clear()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _read_notifications(self, connection: Connection) -> None:
        self._is_listening.set()
        self._put(None, ())
        for wakeup in self.wakeups.values():
            wakeup.set()  # what came while nobody listened
        async for notice in connection.notifies():
            if notice.channel == WAKE:
                table, places = read_places(notice.payload)
                self._put(table, places)
                self.wakeups[table].set()
            else:
                for inbox in self._readers:
                    inbox.put_nowait(notice.payload)


def read_places(note: str) -> tuple[str, list[Place]]:
    """A table, and where in it something was put, as the triggers write it: `q_mail 1800000000000000 u1700000000000000`.

    Anybody may send a notification: what is no place is none."""
    table, *places = note.split(" ")
    return table, [
        Place(int(place.removeprefix("u")), place.startswith("u"))
        for place in places
        if _PLACE.fullmatch(place)
    ]
