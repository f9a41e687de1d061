"""The SQLite engine as a spool: it can hold jobs for another engine, as `Spool` says."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from yamchi.clock import Millis
from yamchi.queues.engines.sqlite import SqliteEngine, adding, management, working
from yamchi.queues.records import Claim, NewJob

T = TypeVar("T")


class SqliteSpool(SqliteEngine):
    """Jobs in one SQLite file, until their broker is back."""

    async def add_doubtful(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        now = self._clock.now()
        return await self._do_doubtful(queue, jobs, lambda db: adding.add(db, queue, jobs, now))

    async def fire_doubtful(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> bool:
        now = self._clock.now()
        return await self._do_doubtful(
            queue, [job], lambda db: adding.fire(db, schedule, moment, queue, job, now)
        )

    async def _do_doubtful(self, queue: str, jobs: Sequence[NewJob], work: Callable[[working.Db], T]) -> T:
        def op(db: working.Db) -> T:
            adding.note_doubts(db, queue, [job.id for job in jobs])
            return work(db)

        done = await self._file.write(op)
        self._wake_up(queue)
        return done

    async def doubtful_begun(self, queue: str, mover: str) -> list[str]:
        return await self._file.read(lambda db: working.doubtful_begun(db, queue, mover))

    async def forget_doubts(self, queue: str, job_ids: Sequence[str]) -> None:
        await self._file.write(lambda db: working.forget_doubts(db, queue, job_ids))

    async def take_pending(self, queue: str, want: int, lease: Millis, mover: str) -> list[Claim]:
        token, now = self._new_token(), self._clock.now()
        return await self._file.write(
            lambda db: working.take_pending(db, queue, want, lease, mover, token, now)
        )

    async def spooled(self, mover: str) -> list[str]:
        return await self._file.read(lambda db: working.spooled(db, mover))

    async def drop(self, queue: str, claims: Sequence[Claim]) -> list[str]:
        def drop(db: working.Db) -> list[str]:
            asked = management.cancelled(db, queue)
            working.drop(db, queue, claims)
            return asked

        asked = set(await self._file.write(drop))
        return [held.job.id for held in claims if held.job.id in asked]

    async def end_move(self, queue: str, mover: str) -> None:
        now = self._clock.now()
        await self._file.write(lambda db: working.end_move(db, queue, mover, now))
        self._wake_up(queue)

    async def note_pause(self, queue: str, is_paused: bool) -> None:
        await self._file.write(lambda db: management.note_pause(db, queue, is_paused))
        self._wake_up(queue)

    async def noted_pauses(self) -> dict[str, bool]:
        return await self._file.read(management.noted_pauses)

    async def forget_pause(self, queue: str, is_paused: bool) -> None:
        await self._file.write(lambda db: management.forget_pause(db, queue, is_paused))

    async def copy_pause(self, queue: str, is_paused: bool) -> None:
        await self._file.write(lambda db: management.copy_pause(db, queue, is_paused))
        self._wake_up(queue)
