"""A pause is a fact about a queue, whichever side is in use.

What is paused on the broker, by whomever, is paused in the spool too: the broker is asked every few seconds, and the
answer is kept in the spool, where it survives a restart during the outage. What is paused or resumed during an outage is
noted in the spool, and the broker is told before it gets the first job.
"""

import asyncio

from yamchi.errors import EngineUnavailable
from yamchi.queues.engines.base import Engine
from yamchi.queues.failover.sides import CALL_SECONDS, Sides


class Pauses:
    """Whether queues are paused, on both sides."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._worked_on: set[str] = set()
        self.watch = self._worked_on.add
        """Look after the pause of this queue: it is worked on here, so the spool may have to know."""

    async def is_paused(self, queue: str) -> bool:
        return await self._sides.call(lambda engine: engine.paused(queue))

    async def set(self, queue: str, is_paused: bool) -> None:
        """Noted in the spool first, so that it is not lost if the broker goes away meanwhile."""
        await self._sides.spool.note_pause(queue, is_paused)
        await self._sides.call(lambda engine: _set(engine, queue, is_paused))
        if self._sides.on_primary:
            await self._sides.spool.forget_pause(queue, is_paused)

    async def tell_primary(self, noted: dict[str, bool]) -> None:
        """Bring the broker what was noted while it was away."""
        for queue, is_paused in noted.items():
            await _set(self._sides.primary, queue, is_paused)
            await self._sides.spool.forget_pause(queue, is_paused)

    async def copy_to_spool(self) -> None:
        """Keep the spool as the broker is, for queues that are worked on here. A round trip for each queue, all at once."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await asyncio.gather(*(self._copy(queue) for queue in tuple(self._worked_on)))
        except (EngineUnavailable, TimeoutError):
            return  # whoever works on the queue will notice, and what was copied last stands

    async def _copy(self, queue: str) -> None:
        is_paused = await self._sides.primary.paused(queue)
        if await self._sides.spool.paused(queue) != is_paused:
            await self._sides.spool.copy_pause(queue, is_paused)


async def _set(engine: Engine, queue: str, is_paused: bool) -> None:
    await (engine.pause(queue) if is_paused else engine.resume(queue))
