"""Management: look at jobs and change them by hand, pause a queue, see who works."""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson

from yamchi.clock import Millis, to_millis
from yamchi.queues import foreign
from yamchi.queues.engines.base import WORKER_TTL, Minute, Page, WorkerInfo
from yamchi.queues.engines.bull.base import Context, Part, section
from yamchi.queues.engines.bull.codec import STATES as BULL_STATES
from yamchi.queues.engines.bull.codec import as_hash, may_be_job, record
from yamchi.queues.engines.bull.connection import pack
from yamchi.queues.engines.bull.scripts import script
from yamchi.queues.records import STATES, Claim, JobRecord, State

SEARCHED = 500
"""Jobs looked at in one round trip of a search."""

CLEANED = 1_000
"""Jobs removed in one call, so that Redis is not held up for long."""

QUEUES_KNOWN_FOR: Millis = 5_000
QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_MINUTE = re.compile(rb"\d{1,12}[cf]\d{1,15}")

# Where the jobs of each state lie, first the list or set whose jobs come first. Waiting jobs leave a list at its end.
PLACES: dict[State, tuple[str, ...]] = {
    "waiting": ("wait", "paused", "prioritized"),
    "delayed": ("delayed",),
    "active": ("active",),
    "completed": ("completed",),
    "failed": ("failed",),
    "cancelled": ("ym:cancelled",),
    "expired": ("ym:expired",),
}
LISTS = ("wait", "paused", "active")
BACKWARDS = ("wait", "paused", "completed", "failed", "ym:cancelled", "ym:expired")
SHOWN_FIRST: tuple[State, ...] = (
    "active",
    "waiting",
    "delayed",
    "failed",
    "completed",
    "cancelled",
    "expired",
)


class Management(Part):
    """get, page, counts, … : what the board, the API and the command line rest on."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._queues: tuple[Millis, list[str]] = (0, [])

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, queue: str, job_id: str) -> JobRecord | None:
        found = may_be_job(job_id) and await self._connections.run(script("get"), self._base(queue), job_id)
        if not found:
            return None
        flat, state, score, logs = found
        job = record(queue, job_id, as_hash(flat), BULL_STATES[state], float(score))
        job.logs = [foreign.text(line) for line in logs]
        return job

    async def page(self, queue: str, state: State | None, search: str, offset: int, limit: int) -> Page:
        states = [state] if state else list(SHOWN_FIRST)
        if search:
            return Page(*await section(self._search(queue, states, search), offset, limit))
        sizes = await self._sizes(queue, states)
        jobs: list[JobRecord] = []
        for one, place, size in sizes:
            if offset < size and len(jobs) < limit:
                jobs += await self._slice(queue, one, place, offset, limit - len(jobs))
            offset = max(offset - size, 0)
        return Page(jobs, sum(size for _, _, size in sizes))

    async def _search(self, queue: str, states: Sequence[State], search: str) -> AsyncIterator[JobRecord]:
        wanted = search.encode()
        for state, place, size in await self._sizes(queue, states):
            for start in range(0, size, SEARCHED):
                for job in await self._slice(queue, state, place, start, SEARCHED):
                    if search in job.id or search == job.name or wanted in job.payload:
                        yield job

    async def _sizes(self, queue: str, states: Sequence[State]) -> list[tuple[State, str, int]]:
        places = [(state, place) for state in states for place in PLACES[state]]
        base = self._base(queue)
        sizes = await self._connections.ask(
            *(pack("LLEN" if place in LISTS else "ZCARD", base + place) for _, place in places)
        )
        return [(state, place, size) for (state, place), size in zip(places, sizes, strict=True)]

    async def _slice(self, queue: str, state: State, place: str, offset: int, limit: int) -> list[JobRecord]:
        base = self._base(queue)
        (ids,) = await self._connections.ask(_range(base + place, place, offset, offset + limit - 1))
        if place in ("wait", "paused"):
            ids.reverse()
        scores = ids[1::2] if place not in LISTS else [b"0"] * len(ids)
        ids = ids[::2] if place not in LISTS else ids
        if not ids:
            return []
        flats = await self._hashes(base, ids)
        return [
            record(queue, foreign.text(job_id, foreign.LONGEST_ID), as_hash(flat), state, float(score))
            for job_id, score, flat in zip(ids, scores, flats, strict=True)
            if flat
        ]

    async def counts(self, queue: str) -> dict[State, int]:
        counted: dict[State, int] = dict.fromkeys(STATES, 0)
        for state, _, size in await self._sizes(queue, STATES):
            counted[state] += size
        return counted

    async def history(self, queue: str, minutes: int) -> list[Minute]:
        (flat,) = await self._connections.ask(pack("HGETALL", f"{self._base(queue)}ym:minutes"))
        counts = {
            field: int(value) for field, value in as_hash(flat).items() if _MINUTE.fullmatch(field + value)
        }
        since = self._clock.now() // 60_000 - minutes
        moments = sorted({int(field[:-1]) for field in counts})
        return [
            Minute(moment * 60_000, counts.get(b"%dc" % moment, 0), counts.get(b"%df" % moment, 0))
            for moment in moments
            if moment >= since
        ]

    async def queues(self) -> list[str]:
        """By the `meta` key that every BullMQ queue has; looked for at most every few seconds, since it takes a scan."""
        known_at, names = self._queues
        if self._clock.now() - known_at > QUEUES_KNOWN_FOR:
            names = sorted([name async for name in self._scan_queues() if not name.endswith(".dlq")])
            self._queues = self._clock.now(), names
        return names

    async def _scan_queues(self) -> AsyncIterator[str]:
        start, end = f"{self._prefix}:", ":meta"
        pattern = "".join(f"\\{char}" if char in "*?[]\\" else char for char in start) + "*" + end
        cursor = b"0"
        while True:
            ((cursor, keys),) = await self._connections.ask(
                pack("SCAN", cursor, "MATCH", pattern, "COUNT", 5_000, "TYPE", "hash")
            )
            for key in keys:
                name = key.decode("utf-8", "replace")[len(start) : -len(end)]
                if QUEUE_NAME.fullmatch(name):  # others have keys of their own
                    yield name
            if cursor == b"0":
                return

    # ── Changing ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def remove(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._act("remove", queue, job_ids)

    async def promote(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._act("promote", queue, job_ids)

    async def retry(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._act("retry", queue, job_ids)

    async def _act(self, name: str, queue: str, job_ids: Sequence[str]) -> list[str]:
        chosen = [job_id for job_id in job_ids if may_be_job(job_id)]
        done = await self._connections.run(script(name), self._base(queue), *chosen)
        return [job_id for job_id, is_done in zip(chosen, done, strict=True) if is_done]

    async def cancel(self, queue: str, job_ids: Sequence[str]) -> dict[str, State]:
        chosen = [job_id for job_id in job_ids if may_be_job(job_id)]
        states = await self._connections.run(script("cancel"), self._base(queue), *chosen)
        return {job_id: state.decode() for job_id, state in zip(chosen, states, strict=True) if state}

    async def update(self, queue: str, job_id: str, payload: bytes) -> bool:
        if not may_be_job(job_id):
            return False
        return bool(await self._connections.run(script("update"), self._base(queue), job_id, payload))

    async def progress(self, claim: Claim, value: bytes) -> None:
        job = claim.job
        await self._connections.run(script("progress"), self._base(job.queue), job.id, claim.token, value)

    async def log(self, queue: str, job_id: str, lines: Sequence[str]) -> None:
        if may_be_job(job_id):
            await self._connections.run(script("log"), self._base(queue), job_id, *lines)

    async def pause(self, queue: str) -> None:
        await self._connections.run(script("pause"), self._base(queue), "paused")

    async def resume(self, queue: str) -> None:
        # A queue paused by an older BullMQ has its jobs in another list; they come back some thousands at a time.
        while await self._connections.run(script("pause"), self._base(queue), "resumed"):
            continue

    async def paused(self, queue: str) -> bool:
        (is_paused,) = await self._connections.ask(pack("HEXISTS", f"{self._base(queue)}meta", "paused"))
        return bool(is_paused)

    async def clean(self, queue: str, state: State, older_than: Millis, limit: int) -> int:
        before = self._clock.now() - older_than
        gone = 0
        while gone < limit:
            share = min(limit - gone, CLEANED)
            went = await self._connections.run(
                script("clean"), self._base(queue), before, share, *PLACES[state]
            )
            gone += went
            if not went:
                break
        return gone

    # ── Workers ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def heartbeat(self, worker: WorkerInfo | str) -> None:
        if isinstance(worker, str):
            await self._connections.ask(pack("HDEL", self._workers, worker))
        else:
            await self._connections.ask(pack("HSET", self._workers, worker.id, orjson.dumps(worker)))

    async def workers(self) -> list[WorkerInfo]:
        (flat,) = await self._connections.ask(pack("HGETALL", self._workers))
        known = [_worker(orjson.loads(info)) for info in flat[1::2]]
        now = self._clock.now()
        forgotten = [worker.id for worker in known if worker.seen_at < now - 10 * to_millis(WORKER_TTL)]
        if forgotten:
            await self._connections.ask(pack("HDEL", self._workers, *forgotten))
        return [worker for worker in known if worker.seen_at >= now - to_millis(WORKER_TTL)]


def _range(key: str, place: str, first: int, last: int) -> bytes:
    if place in ("wait", "paused"):
        return pack("LRANGE", key, -last - 1, -first - 1)
    if place in LISTS:
        return pack("LRANGE", key, first, last)
    return pack("ZREVRANGE" if place in BACKWARDS else "ZRANGE", key, first, last, "WITHSCORES")


def _worker(info: dict[str, Any]) -> WorkerInfo:
    return WorkerInfo(**{**info, "queues": tuple(info["queues"]), "running": tuple(info["running"])})
