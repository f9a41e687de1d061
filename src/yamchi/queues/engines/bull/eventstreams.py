"""Events of other processes, read from the streams that BullMQ's scripts write for its QueueEvents."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Literal, cast

import orjson

from yamchi.clock import Millis
from yamchi.queues import foreign
from yamchi.queues.engines.base import Event
from yamchi.queues.engines.bull.base import Context, Part
from yamchi.queues.engines.bull.codec import as_hash
from yamchi.queues.engines.bull.connection import pack
from yamchi.queues.records import Cancelled, Completed, Expired, Failed, Verdict

NEW_QUEUES_EVERY: Millis = 1_000
"""How often to look for queues that are new."""

REMEMBERED = 20_000
"""So many of our own events are remembered, to be left out when they come back on a stream."""

Kind = Literal["completed", "failed", "progress", "stalled", "cancelled", "expired"]
READ_KINDS = frozenset((b"completed", b"failed", b"progress", b"stalled", b"cancelled", b"expired"))
_KINDS: dict[type, bytes] = {
    Completed: b"completed", Failed: b"failed", Expired: b"expired", Cancelled: b"cancelled",
}  # fmt: skip


class EventStreams(Part):
    """events."""

    def __init__(self, context: Context, queues: Callable[[], Awaitable[list[str]]]) -> None:
        super().__init__(context)
        self._queues = queues
        self.is_on = False
        self._own: set[tuple[bytes, str]] = set()
        self._own_order: deque[tuple[bytes, str]] = deque()

    async def events(self) -> AsyncIterator[Event]:
        self.is_on = True
        ((seconds, micros),) = await self._connections.ask(pack("TIME"))  # the streams go by Redis's clock
        start = b"%d-0" % (int(seconds) * 1000 + int(micros) // 1000)
        places: dict[str, bytes] = {}
        try:
            while True:
                for queue in await self._queues():
                    places.setdefault(queue, start)
                if not places:
                    await asyncio.sleep(NEW_QUEUES_EVERY / 1000)
                    continue
                for queue, entries in await self._read(places):
                    for entry_id, flat in entries:
                        places[queue] = entry_id
                        if event := self._event(queue, flat):
                            yield event
        finally:
            self.is_on = False

    async def _read(self, places: dict[str, bytes]) -> list[tuple[str, list[Any]]]:
        keys = [f"{self._base(queue)}events" for queue in places]
        command = pack("XREAD", "COUNT", 1_000, "BLOCK", NEW_QUEUES_EVERY, "STREAMS", *keys, *places.values())
        (reply,) = await self._connections.ask(command, role="events")
        queues = dict(zip(keys, places, strict=True))
        return [(queues[key.decode()], entries) for key, entries in reply or []]

    def _event(self, queue: str, flat: list[bytes]) -> Event | None:
        fields = as_hash(flat)
        kind = fields.get(b"event", b"")
        if kind not in READ_KINDS:
            return None
        job_id = foreign.text(fields.get(b"jobId", b""), foreign.LONGEST_ID)
        if (kind, job_id) in self._own:
            if kind != b"progress":
                self._own.discard((kind, job_id))
            return None
        return Event(cast("Kind", kind.decode()), queue, job_id, "", _value(kind, fields))

    def note(self, kind: bytes, job_id: str) -> None:
        """Remember an event of ours, if anybody listens here."""
        if self.is_on:
            self._own.add((kind, job_id))
            self._own_order.append((kind, job_id))
            if len(self._own_order) > REMEMBERED:
                self._own.discard(self._own_order.popleft())

    def note_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            if kind := _KINDS.get(type(verdict)):
                self.note(kind, verdict.claim.job.id)

    def forget_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """These settled nothing: what is told of their jobs is somebody else's."""
        for verdict in verdicts:
            if kind := _KINDS.get(type(verdict)):
                self._own.discard((kind, verdict.claim.job.id))


def _value(kind: bytes, fields: dict[bytes, bytes]) -> bytes | None:
    match kind:
        case b"completed":
            return foreign.json(fields.get(b"returnvalue"))
        case b"failed":
            return orjson.dumps(fields.get(b"failedReason", b"").decode("utf-8", "backslashreplace"))
        case b"progress":
            return foreign.json(fields.get(b"data"))
    return None
