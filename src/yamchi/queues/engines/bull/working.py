"""The worker's conversation: settle and claim, renew, recover, wake, permits under a rate limit.

An exchange is one script call for up to `CHUNK` verdicts and claims, and all its calls are one round trip. Two may be
in flight, each on a connection of its own.
"""

import asyncio
import base64
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Any

import structlog

from yamchi.clock import Millis, isoformat
from yamchi.errors import EngineError, EngineUnavailable
from yamchi.queues import foreign
from yamchi.queues.engines.base import Exchange, RateLimit, stalled_verdict
from yamchi.queues.engines.bull.base import Context, Part
from yamchi.queues.engines.bull.codec import (
    Hash,
    as_hash,
    bull_options_of,
    claimed,
    failures,
    is_sound,
    packed,
    record,
)
from yamchi.queues.engines.bull.schedulers import next_run
from yamchi.queues.engines.bull.scripts import Script, script
from yamchi.queues.engines.bull.verdicts import Held, encode
from yamchi.queues.records import Claim, DeadLetter, Failed, JobRecord, Verdict

log = structlog.get_logger("yamchi.bull")

CHUNK = 100
"""So many verdicts or claims go into one script call, so that Redis is not held up for long by one."""

TAKEOVER: Millis = 10_000
"""How long a stalled job is held while it is decided what becomes of it."""

STALLED_AT_ONCE = 500
_OVER = (-1, -20)
"""Codes for a job that is nobody's any more: its hash is gone, or it waits or has ended."""

_GONE = (*_OVER, -2, -3, -6)
"""Those, and BullMQ's codes for a job that is no longer ours: not locked, not active, locked by another."""


class Working(Part):
    """exchange, renew, recover, wake, reserve, refund, cancelled."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._origin = secrets.token_hex(6)
        self._claims = count()
        self._due: dict[str, Millis] = {}
        self._wakers: dict[tuple[int, str], asyncio.Task[None]] = {}
        # Verdicts that were sent and not answered: sent again, they may find their work done.
        self._unanswered: set[tuple[str, str]] = set()
        self._failing: dict[str, list[Failed]] = {}
        self._listening: Counter[tuple[int, str]] = Counter()
        self._shown: dict[str, tuple[str, asyncio.AbstractEventLoop]] = {}

    def close(self) -> None:
        for waker in self._wakers.values():
            waker.cancel()

    # ── Settling and claiming ─────────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        if want:
            self._show(queue, worker)
        try:
            got = await self._exchange(queue, verdicts, want, lease, worker)
        except EngineUnavailable:
            self._unanswered.update(map(_mark, verdicts))
            raise
        self._unanswered.update(map(_mark, got.unsettled))
        await self._fail_deferred(queue, got)
        return got

    async def _fail_deferred(self, queue: str, got: Exchange) -> None:
        """End claimed jobs that are to fail; if that does not succeed, the next exchange tries again."""
        deferred = {id(held): verdict for held in got.claims if (verdict := self._deferred_failure(held))}
        got.claims = [held for held in got.claims if id(held) not in deferred]
        failing = [*self._failing.pop(queue, []), *deferred.values()]
        if not failing:
            return
        try:
            await self._exchange(queue, failing, 0, 0, "")
        except EngineError as error:
            self._failing[queue] = failing
            log.warning(
                f"[{queue}:bull] {len(failing)} jobs that are to fail could not be settled yet: {error}"
            )
            return
        for verdict in failing:
            job = verdict.claim.job
            log.error(f"[{queue}:bull] failed {job.name} {job.id}: {verdict.error}")

    async def _exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        base, token = self._base(queue), f"{self._origin}-{next(self._claims)}"
        exchange, now = script("exchange"), self._clock.now()
        options = packed({"token": token, "lockDuration": lease, "name": worker})
        parts = [
            (verdicts[start : start + CHUNK], min(max(want - start, 0), CHUNK))
            for start in range(0, max(len(verdicts), want, 1), CHUNK)
        ]
        calls = [
            (exchange, exchange.call(base, share, options, isoformat(now), *encode(base, part, now)))
            for part, share in parts
        ]
        answers = await self._connections.try_many(calls, self._connections.idlest("work", "work-too"))
        got, replies = Exchange(), []
        for (part, _), answer in zip(parts, answers, strict=True):
            if isinstance(answer, EngineError):
                got.unsettled.extend(part)
            else:
                got.settled.extend(self._settled(queue, part, answer[0]))
                replies.append(answer)
        self._raise_or_log(queue, answers, has_any=bool(replies))
        found = [claim for reply in replies for claim in reply[1]]
        if want:
            due = replies[-1][2] if len(found) < want else 0
            self._due[queue] = now + due if due else 0
        self._log_refused(queue, replies)
        hashes = [(one[0], as_hash(one[1])) for one in found]
        await self._follow_up(queue, hashes)
        got.claims = [self._claim(queue, key, fields, token, worker) for key, fields in hashes]
        return got

    def _raise_or_log(self, queue: str, answers: Sequence[Any], *, has_any: bool) -> None:
        """An exchange of which a part succeeded has succeeded: what that part claimed must be handed over."""
        for answer in answers:
            if not isinstance(answer, EngineError):
                continue
            if not has_any:
                raise answer
            log.warning(f"[{queue}:bull] a part of an exchange failed, and is tried again: {answer}")

    async def _follow_up(self, queue: str, taken: Sequence[tuple[bytes, Hash]]) -> None:
        """What claimed jobs ask for that others have handled: the next run of a schedule, a dead letter made void.

        And what others wrote that BullMQ's scripts would fail on later. Whatever goes wrong here, the jobs are claimed.
        """
        base, now = self._base(queue), self._clock.now()
        calls: list[tuple[Script, bytes]] = []
        runs = [next_run(queue, key, fields, now) for key, fields in taken if b"rjk" in fields]
        calls += [(script("next_run"), script("next_run").call(base, *args)) for args in runs if args]
        if revived := [key for key, fields in taken if b"ymLetter" in fields]:
            calls.append((script("revived"), script("revived").call(base, *revived)))
        if unsound := [key for key, fields in taken if not is_sound(fields)]:
            calls.append((script("mend"), script("mend").call(base, *unsound)))
        if calls:
            try:
                await self._connections.run_many(calls)
            except EngineError as error:
                log.error(
                    f"[{queue}:bull] jobs are claimed, but the next run of a schedule or a repair could not be written: {error}"
                )

    def _log_refused(self, queue: str, replies: Sequence[Any]) -> None:
        for *_, refused, trouble in replies:
            for job_id, why in refused:
                said = f"{foreign.text(job_id, 255)} {foreign.text(why)}; its raw value is a dead letter"
                log.error(f"[{queue}:bull] {said}")
            if trouble:
                log.error(f"[{queue}:bull] no jobs can be claimed: {foreign.text(trouble)}")

    def _settled(self, queue: str, verdicts: Sequence[Verdict], codes: Sequence[int | bytes]) -> list[str]:
        settled = []
        for verdict, code in zip(verdicts, codes, strict=True):
            claim = verdict.claim
            if code == 0 or (code in _OVER and _mark(verdict) in self._unanswered):
                settled.append(claim.job.id)
            elif code not in _GONE:
                why = code.decode() if isinstance(code, bytes) else f"code {code}"
                log.error(f"[{queue}:bull] job {claim.job.id} could not be settled: {why}")
        if self._unanswered:
            self._unanswered.difference_update(map(_mark, verdicts))
        return settled

    def _claim(self, queue: str, key: bytes, fields: Hash, token: str, worker: str) -> Claim:
        bull_options = bull_options_of(fields, key)
        job = claimed(queue, key.decode(), fields, bull_options, worker)
        held = Held(bull_options, failures(fields), fields.get(b"stacktrace"), deferred=fields.get(b"defa"))
        return Claim(job, token, held, fields.get(b"ymSlotted") == b"1")

    def _deferred_failure(self, claim: Claim) -> Failed | None:
        """BullMQ marks jobs that are to fail when they are next taken: stalled too often, or a child of theirs failed."""
        held: Held = claim.key
        if held.deferred is None:
            return None
        error = held.deferred.decode("utf-8", "backslashreplace")
        return Failed(claim, error, DeadLetter.of_job(claim.job, error, self._clock.now()))

    # ── Leases ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def renew(self, queue: str, claims: Sequence[Claim], lease: Millis) -> list[str]:
        base = self._base(queue)
        tokens = packed([held.token for held in claims])
        ids = packed([held.job.id for held in claims])
        lost = await self._connections.run(script("renew"), base, base, tokens, ids, lease)
        gone = {job_id.decode() for job_id in lost}
        return [held.job.id for held in claims if held.job.id not in gone]

    async def recover(self, queue: str) -> list[tuple[JobRecord, bool]]:
        base, token = self._base(queue), f"{self._origin}-{next(self._claims)}"
        now = self._clock.now()
        found = await self._connections.run(
            script("recover"), base, token, TAKEOVER, STALLED_AT_ONCE, isoformat(now)
        )
        if not found:
            return []
        verdicts = [stalled_verdict(self._stalled(queue, one, token), now) for one in found]
        got = await self._exchange(queue, verdicts, 0, 0, "")
        mine = set(got.settled)
        return [(v.claim.job, isinstance(v, Failed)) for v in verdicts if v.claim.job.id in mine]

    def _stalled(self, queue: str, found: list[Any], token: str) -> Claim:
        fields: Hash = as_hash(found[1])
        job = record(queue, found[0].decode(), fields, "active")
        job.attempts_made -= 1  # the delivery that was lost is in the count of stalls already
        bull_options = bull_options_of(fields, found[0])
        if not bull_options.says_attempts and fields.get(b"stc") == b"1":
            job.options = replace(job.options, attempts=2)  # where nobody says, BullMQ forgives one stall
        held = Held(bull_options, failures(fields), fields.get(b"stacktrace"), stalled=True)
        return Claim(job, token, held)

    async def cancelled(self, queue: str, claims: Sequence[Claim]) -> list[str]:
        asked = await self._connections.run(script("cancelled"), self._base(queue))
        tokens = dict(zip(asked[::2], asked[1::2], strict=True))
        return [held.job.id for held in claims if tokens.get(held.job.id.encode()) == held.token.encode()]

    # ── Waking ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def wake(self, queue: str, timeout: Millis) -> None:
        key = id(asyncio.get_running_loop()), queue
        waker = self._wakers.get(key)
        if waker is None or waker.done():
            waker = self._wakers[key] = asyncio.create_task(self._wait(queue, timeout), name=f"wake-{queue}")
        self._listening[key] += 1
        try:
            await asyncio.shield(waker)
        except asyncio.CancelledError:
            if self._listening[key] == 1:
                # Nobody would hear the marker that this call may still take away from other workers.
                waker.cancel()
                self._connections.drop(f"wake:{queue}")
            raise
        finally:
            self._listening[key] -= 1

    async def _wait(self, queue: str, timeout: Millis) -> None:
        """One BZPOPMIN on the marker: score 0 says that a job waits, any other when the next delayed one is due."""
        until = self._clock.now() + timeout
        if due := self._due.get(queue):
            until = min(until, due)
        while (left := until - self._clock.now()) > 0:
            connection = await self._connections.get(f"wake:{queue}", self._client_name(queue))
            seconds = max(left / 1000, 0.001)
            reply = await connection.call(
                "BZPOPMIN", f"{self._base(queue)}marker", f"{seconds:.3f}", timeout=seconds + 10
            )
            due = foreign.whole(reply[2], 0, 0, foreign.LATEST) if reply else 0
            if due <= self._clock.now():
                return
            until = min(until, due)

    def _show(self, queue: str, worker: str) -> None:
        """BullMQ and Bull Board list workers by the names of their connections: see that the waking one has its name."""
        shown = worker, asyncio.get_running_loop()
        if self._shown.get(queue) == shown and self._connections.is_open(f"wake:{queue}"):
            return
        self._shown[queue] = shown
        self._begin(self._introduce(queue))

    async def _introduce(self, queue: str) -> None:
        try:
            connection = await self._connections.get(f"wake:{queue}", self._client_name(queue))
            await connection.call("CLIENT", "SETNAME", self._client_name(queue))
        except EngineUnavailable:
            self._shown.pop(queue, None)  # at the next exchange then
        except EngineError as error:
            log.info(f"[{queue}:bull] Bull Board will not list this worker: {error}")

    def hide(self, worker: str) -> None:
        """The worker is gone, so its named connections must not be listed any more. From the lease keeper's thread."""
        for queue, (name, loop) in list(self._shown.items()):
            if name == worker and not loop.is_closed():
                loop.call_soon_threadsafe(self._connections.drop, f"wake:{queue}")
                self._shown.pop(queue, None)

    def _client_name(self, queue: str) -> str:
        worker, _ = self._shown.get(queue, ("", None))
        return _client_name(self._prefix, queue, worker)

    # ── Permits under a rate limit ──────────────────────────────────────────────────────────────────────────────────

    async def reserve(self, queue: str, limit: RateLimit, keys: Sequence[str]) -> list[Millis]:
        permits = await self._connections.run(
            script("reserve"), self._base(queue), limit.spacing, limit.slack, *keys
        )
        return [int(permit) for permit in permits]

    async def refund(self, queue: str, limit: RateLimit, key: str, permits: int) -> None:
        await self._connections.run(script("refund"), self._base(queue), key, limit.spacing * permits)


def _mark(verdict: Verdict) -> tuple[str, str]:
    """Tells a claim from every other; jobs that were claimed together share a token."""
    return verdict.claim.job.id, verdict.claim.token


@lru_cache
def _client_name(prefix: str, queue: str, worker: str) -> str:
    """As BullMQ names its workers' connections: bull:<base64 of the queue>:w:<name>."""
    name = f"{prefix}:{base64.b64encode(queue.encode()).decode()}"
    shown = "".join(char if "!" <= char <= "~" else "_" for char in worker)
    return f"{name}:w:{shown}" if shown else name
