"""Dead letters: jobs that will not be run again, kept until somebody looks, mends and replays them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from yamchi.clock import isoformat
from yamchi.errors import UnknownJob, WrongState
from yamchi.queues import foreign
from yamchi.queues.engines.base import Engine, LetterPage
from yamchi.queues.handlers import QueueDefinition, check_size, encode_json
from yamchi.queues.once import OnDone, each_once
from yamchi.queues.records import DeadLetter, JobRecord, NewJob


def to_dict(letter: DeadLetter) -> dict[str, Any]:
    """A letter as JSON can carry it: `body` holds the `job` with its data, or the `raw_value` of a message that was no job."""
    return {
        "id": letter.id,
        "queue": letter.queue,
        "name": letter.name,
        "error": letter.error,
        "failed_at": isoformat(letter.failed_at),
        "body": foreign.shown(letter.body),
    }


class DeadLetters:
    """The dead letters of one queue."""

    def __init__(self, definition: QueueDefinition, engine: Engine) -> None:
        self._queue = definition.name
        self._definition = definition
        self._engine = engine

    async def list(self, *, search: str = "", offset: int = 0, limit: int = 50) -> LetterPage:
        """A page of letters, newest first, whose id, error or content contains `search`."""
        return await self._engine.letters(self._queue, search, offset, limit)

    async def get(self, letter_id: str) -> DeadLetter:
        letter = await self._engine.letter(self._queue, letter_id)
        if letter is None:
            raise UnknownJob(f"Queue {self._queue} has no dead letter {letter_id!r}.")
        return letter

    async def replay(self, letter_id: str, data: Any = ...) -> None:
        """Put the job back in its queue with all its attempts, with other data if given."""
        letter = await self.get(letter_id)
        job = self._revive(letter, await self._engine.get(self._queue, letter_id), data)
        if not await self._engine.replay(self._queue, {letter_id: job}):
            raise WrongState(
                f"Dead letter {letter_id} of {self._queue} has been replayed or purged meanwhile."
            )

    async def replay_all(self, *, search: str = "", on_done: OnDone | None = None) -> int:
        """Replay every matching letter that holds a job, each once even if it fails again meanwhile; how many were replayed."""

        async def page(offset: int) -> Sequence[DeadLetter]:
            return (await self._engine.letters(self._queue, search, offset, 500)).letters

        async def replay(letters: Sequence[DeadLetter]) -> Sequence[str]:
            valid = [letter for letter in letters if is_job(letter)]
            failed = await asyncio.gather(*(self._engine.get(self._queue, letter.id) for letter in valid))
            jobs = {letter.id: self._revive(letter, job) for letter, job in zip(valid, failed, strict=True)}
            return await self._engine.replay(self._queue, jobs) if jobs else []

        return await each_once(page, replay, on_done)

    async def purge(self, letter_ids: Sequence[str] | None = None) -> int:
        """Drop these letters, or all; how many were dropped."""
        return await self._engine.purge(self._queue, letter_ids)

    def _revive(self, letter: DeadLetter, failed: JobRecord | None, data: Any = ...) -> NewJob:
        """The job to run again: as it was added if that is still known, else with the queue's options."""
        name = letter.name or self._definition.default_name
        if data is ...:
            if not is_job(letter):
                raise WrongState(
                    f"Dead letter {letter.id} was never a valid job: replay it with corrected data."
                )
            data = orjson.loads(letter.body)["job"]
            payload = check_size(self._definition, name, encode_json(data))
        else:
            payload = self._definition.encode(name, data)
        if failed is None:
            return NewJob(letter.id, name, payload, self._definition.options)
        known = self._definition.fill_in(failed)
        return NewJob(letter.id, name, payload, known.options, known.priority)


def is_job(letter: DeadLetter) -> bool:
    """Whether the letter holds a job, and not a raw value."""
    body = foreign.shown(letter.body)
    return isinstance(body, dict) and "job" in body
