"""Dead letters: waiting jobs of the queue `<queue>.dlq`, so that Bull Board shows them and Node can take them."""

from collections.abc import AsyncIterator, Mapping, Sequence

from yamchi.queues import foreign
from yamchi.queues.engines.base import LetterPage
from yamchi.queues.engines.bull.base import Part, section
from yamchi.queues.engines.bull.codec import RESERVED, add_args, as_hash, letter
from yamchi.queues.engines.bull.connection import pack
from yamchi.queues.engines.bull.scripts import script
from yamchi.queues.records import DeadLetter, NewJob

SEARCHED = 500
"""Letters looked at in one round trip of a search."""


class Letters(Part):
    """letters, letter, replay, purge."""

    async def letters(self, queue: str, search: str, offset: int, limit: int) -> LetterPage:
        if search:
            found = (one async for one in self._all_letters(queue) if _has(one, search))
            return LetterPage(*await section(found, offset, limit))
        (total,) = await self._connections.ask(pack("LLEN", f"{self._dlq(queue)}wait"))
        return LetterPage(await self._some_letters(queue, offset, limit), total)

    async def _all_letters(self, queue: str) -> AsyncIterator[DeadLetter]:
        offset = 0
        while some := await self._some_letters(queue, offset, SEARCHED):
            for one in some:
                yield one
            offset += SEARCHED

    async def _some_letters(self, queue: str, offset: int, limit: int) -> list[DeadLetter]:
        if limit < 1:
            return []  # to Redis a range that ends before its first element ends with the last
        dlq = self._dlq(queue)
        (ids,) = await self._connections.ask(pack("LRANGE", f"{dlq}wait", offset, offset + limit - 1))
        if not ids:
            return []
        flats = await self._hashes(dlq, ids)
        return [
            letter(queue, foreign.text(one, foreign.LONGEST_ID), as_hash(flat))
            for one, flat in zip(ids, flats, strict=True)
        ]

    async def letter(self, queue: str, letter_id: str) -> DeadLetter | None:
        if letter_id in RESERVED:
            return None
        (flat,) = await self._hashes(self._dlq(queue), [letter_id.encode()])
        return letter(queue, letter_id, as_hash(flat)) if flat else None

    async def replay(self, queue: str, jobs: Mapping[str, NewJob]) -> list[str]:
        base, now = self._base(queue), self._clock.now()
        args = [part for one, job in jobs.items() for part in (one, *add_args(base, job, now))]
        done = await self._connections.run(script("replay"), base, *args)
        return [one for one, is_done in zip(jobs, done, strict=True) if is_done]

    async def purge(self, queue: str, letter_ids: Sequence[str] | None) -> int:
        if letter_ids is not None:
            return await self._drop(queue, letter_ids)
        gone = 0
        while ids := (
            await self._connections.ask(pack("LRANGE", f"{self._dlq(queue)}wait", 0, SEARCHED - 1))
        )[0]:
            gone += await self._drop(queue, ids)
        return gone

    async def _drop(self, queue: str, letter_ids: Sequence[str | bytes]) -> int:
        return int(await self._connections.run(script("purge"), self._base(queue), *letter_ids))

    def _dlq(self, queue: str) -> str:
        return self._base(f"{queue}.dlq")


def _has(one: DeadLetter, search: str) -> bool:
    return search in one.id or search in one.error or search.encode() in one.body
