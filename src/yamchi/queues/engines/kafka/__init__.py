"""The Kafka engine: Kafka carries the jobs between machines, a ledger beside it remembers what becomes of them.

What Kafka lacks (delays, retries, cancellation, dedup by id, pause, progress, statistics) the SQLite engine has, so
this engine is one, on a file of its own, whose jobs come and go over Kafka:

- `add` writes a job down and produces it; it is claimed only where its message arrives.
- An `Intake` reads a queue's topic into the ledger a little ahead of the workers, and commits offsets behind what
  is done: if a machine dies, what it had not finished is delivered to another.
- A job that is due here and that no message stands for (a delay, a long retry, a job retried by hand) can be claimed
  here at once; if nobody does, it goes to Kafka.
- A dead letter is written with its verdict, and produced to the queue's dead-letter topic right after it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import structlog

from yamchi.clock import Clock, Millis
from yamchi.errors import ConfigurationError, YamchiError
from yamchi.queues.engines import ledger
from yamchi.queues.engines.base import Capabilities, Exchange, describe_stalled
from yamchi.queues.engines.kafka import bulletin, holding, messages, sending
from yamchi.queues.engines.kafka.address import Address
from yamchi.queues.engines.kafka.bulletin import Bulletin
from yamchi.queues.engines.kafka.cluster import Cluster
from yamchi.queues.engines.kafka.envelope import Message
from yamchi.queues.engines.kafka.intake import Intake
from yamchi.queues.engines.kafka.outlet import Outlet
from yamchi.queues.engines.sqlite import keeping
from yamchi.queues.records import Completed, DeadLetter, Failed, JobRecord, NewJob, State, Verdict, new_id

log = structlog.get_logger("yamchi.kafka")

TEND_EVERY = 1.0
SEND_ON_AFTER: Millis = 2_000
"""A job that is due in the ledger and not claimed for this long goes to Kafka, where others may have time for it."""

SEND_AGAIN_AFTER: Millis = 15_000
"""What was on its way to Kafka for this long was cut short, and is sent again."""

PASS_BY_EVERY = 10.0
BATCH = 1_000
BACKLOG_LIFE = 0.5
"""How long an answer about what lies on Kafka is good enough for statistics, in seconds."""


class KafkaEngine(ledger.LedgerEngine):
    """Jobs on Kafka topics, their state in a ledger."""

    type = "kafka"
    can = Capabilities(priorities=False, in_order=False, overlaps=False)

    def __init__(self, address: Address, path: Path, clock: Clock) -> None:
        super().__init__(path, clock)
        self._address = address
        self._cluster = Cluster(address)
        self._outlet = Outlet(address)
        self._intakes: dict[str, Intake] = {}
        self._backlogs: dict[str, tuple[float, dict[int, int], dict[int, int]]] = {}
        self._stalled: dict[str, list[tuple[JobRecord, bool]]] = defaultdict(list)
        self._passed_by = 0.0
        self._loose: set[asyncio.Task[None]] = set()
        self._tender: asyncio.Task[None] | None = None
        self._bulletin: Bulletin | None = None

    async def open(self) -> None:
        if self._tender:
            return
        await asyncio.to_thread(self._cluster.connect)
        await super().open()
        await self._file.write(messages.prepare)
        await asyncio.to_thread(self._outlet.open)
        self._loop = asyncio.get_running_loop()
        await self._follow_bulletin()
        self._tender = asyncio.create_task(self._tend(), name="kafka-tend")

    async def _follow_bulletin(self) -> None:
        try:
            await asyncio.to_thread(self._cluster.prepare_bulletin)
        except ConfigurationError as error:
            log.warning(f"[kafka] machines can't tell each other of pauses and cancellations: {error}")
            return
        self._bulletin = Bulletin(
            self._address,
            self._file,
            self._clock,
            lambda queue: self._loop.call_soon_threadsafe(self._ring, queue),
        )
        self._bulletin.start()

    async def close(self) -> None:
        if self._tender is None:
            return
        self._tender.cancel()
        with suppress(asyncio.CancelledError):
            await self._tender
        self._tender = None
        if self._bulletin:
            await asyncio.to_thread(self._bulletin.stop)
            self._bulletin = None
        for intake in self._intakes.values():
            intake.stop()
        for intake in self._intakes.values():
            await asyncio.to_thread(intake.join)
        self._intakes.clear()
        await asyncio.to_thread(self._outlet.close)
        await asyncio.gather(*self._loose, return_exceptions=True)
        await asyncio.to_thread(self._cluster.close)
        await super().close()

    async def ping(self) -> None:
        await asyncio.to_thread(self._cluster.ping)

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        await self._prepare(queue)
        now = self._clock.now()
        round = new_id(now)
        created = await self._file.write(lambda db: sending.add(db, queue, jobs, now, round))
        messages = [
            Message(
                job.id, job.name, job.payload, job.options.encode(), job.priority, job.expires_at, 0, round
            )
            for job, is_new in zip(jobs, created, strict=True)
            if is_new and (job.run_at or now) <= now
        ]
        if messages:
            await self._produce(queue, messages, withdraw=True)
        if len(messages) < len(jobs):
            self._ring(queue)
        return created

    async def _produce(self, queue: str, messages: Sequence[Message], *, withdraw: bool) -> None:
        """Send jobs that are written down as sent. What Kafka refuses is forgotten, or else tried again later."""
        parcels = [(message.key(), message.payload, message.headers()) for message in messages]
        receipts = await self._outlet.send(self._address.topic(queue), parcels)
        answers = list(zip(messages, receipts, strict=True))
        places = {(m.id, m.round): (r.partition, r.offset, r.stamp) for m, r in answers if r.error is None}
        self._later(self._file.write(lambda db: sending.confirm(db, queue, places), lasting=False))
        trouble = self._outlet.trouble(receipts)
        if trouble and withdraw:
            refused = [message.id for message, receipt in answers if receipt.error is not None]
            await self._file.write(lambda db: sending.withdraw(db, queue, refused))
        if trouble:
            raise trouble

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Nobody waits for this: without it a message would only be sent again, and dropped where it arrives."""
        task = asyncio.create_task(work)
        self._loose.add(task)
        task.add_done_callback(self._tie_up)

    def _tie_up(self, task: "asyncio.Task[None]") -> None:
        self._loose.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning(f"[kafka] {error}")

    # ── Working ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        if want and queue not in self._intakes:
            await self._read(queue, lease)
        got = await super().exchange(queue, verdicts, want, lease, worker)
        if want:
            self._intakes[queue].took(len(got.claims), want)
        if any(isinstance(verdict, Failed) for verdict in verdicts):
            await self._send_letters_now(queue)
        return got

    def _must_last(self, verdicts: Sequence[Verdict]) -> bool:
        """A job that is claimed or completed is on Kafka still; what is parked, or dead, only the ledger knows."""
        return not all(isinstance(verdict, Completed) for verdict in verdicts)

    async def recover(self, queue: str) -> list[tuple[JobRecord, bool]]:
        stalled = self._stalled.pop(queue, []) + await super().recover(queue)
        if any(has_failed for _, has_failed in stalled):
            await self._send_letters_now(queue)
        return stalled

    async def _read(self, queue: str, lease: Millis) -> None:
        await self._prepare(queue)
        if queue in self._intakes:
            return
        intake = self._intakes[queue] = Intake(
            queue,
            f"{self._origin}-{queue}",
            self._address,
            self._file,
            self._clock,
            lease,
            lambda: self._loop.call_soon_threadsafe(self._ring, queue),
        )
        intake.start()

    async def _prepare(self, queue: str) -> None:
        if not self._cluster.is_ready(queue):
            await asyncio.to_thread(self._cluster.prepare, queue)

    # ── Keeping ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def counts(self, queue: str) -> dict[State, int]:
        """What waits is what the ledger holds, and what lies on the topic beyond where we and the group have read."""
        ends, committed = await self._backlog(queue)

        def op(db: ledger.Db) -> tuple[dict[State, int], int, dict[int, int]]:
            return keeping.counts(db, queue), ledger.sent(db, queue), holding.positions(db, queue)

        kept, sent, read = await self._file.read(op)
        unread = sum(max(end - max(committed.get(n, 0), read.get(n, 0)), 0) for n, end in ends.items())
        kept["waiting"] += max(sent, unread)
        return kept

    async def _backlog(self, queue: str) -> tuple[dict[int, int], dict[int, int]]:
        """The ends of the queue's partitions, and how far its group has come."""
        asked_at, ends, committed = self._backlogs.get(queue, (0.0, {}, {}))
        if monotonic() - asked_at > BACKLOG_LIFE:
            await self._prepare(queue)
            ends = await asyncio.to_thread(self._cluster.ends, queue)
            committed = await asyncio.to_thread(self._cluster.committed, queue)
            self._backlogs[queue] = monotonic(), ends, committed
        return ends, committed

    async def remove(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        removed = await self._file.write(lambda db: ledger.remove(db, queue, job_ids))
        await self._tell_all("remove", queue, job_ids)
        return removed

    async def cancel(self, queue: str, job_ids: Sequence[str]) -> dict[str, State]:
        now = self._clock.now()
        cancelled = await self._file.write(lambda db: ledger.cancel(db, queue, job_ids, now))
        await self._tell_all("cancel", queue, job_ids)
        return cancelled

    async def pause(self, queue: str) -> None:
        await super().pause(queue)
        await self._tell_all("pause", queue)

    async def resume(self, queue: str) -> None:
        await super().resume(queue)
        await self._tell_all("resume", queue)

    async def _tell_all(self, verb: str, queue: str, job_ids: Sequence[str] = ()) -> None:
        """What was done here, to be done on the other machines too."""
        if self._bulletin:
            said = await self._file.read(lambda db: bulletin.word(db, verb, queue, job_ids))
            receipts = await self._outlet.send(self._address.bulletin, [(queue.encode(), said, [])])
            if trouble := self._outlet.trouble(receipts):
                raise trouble

    async def retry(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._change(queue, lambda db, now: messages.retry(db, queue, job_ids, now))

    async def replay(self, queue: str, jobs: Mapping[str, NewJob]) -> list[str]:
        return await self._change(queue, lambda db, now: messages.replay(db, queue, jobs, now))

    # ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _send_letters_now(self, queue: str) -> None:
        """The verdict stands whether or not Kafka answers: a letter that can't be sent now is sent by `_tend`."""
        try:
            await self._send_letters(queue, 1 << 62)
        except YamchiError as error:
            log.warning(f"[{queue}:kafka] dead letters wait to be sent: {error}")

    async def _send_letters(self, queue: str, failed_before: Millis) -> None:
        letters = await self._file.read(lambda db: ledger.unsent_letters(db, queue, failed_before, BATCH))
        if not letters:
            return
        await self._prepare(queue)
        parcels = [(letter.id.encode(), letter.body, _letter_headers(letter)) for letter in letters]
        receipts = await self._outlet.send(self._address.dead_letters(queue), parcels)
        sent = [letter for letter, receipt in zip(letters, receipts, strict=True) if receipt.error is None]
        await self._file.write(lambda db: ledger.letters_sent(db, sent))
        if trouble := self._outlet.trouble(receipts):
            raise trouble

    # ── Tending ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _tend(self) -> None:
        """Once a second: what became due goes on its way, what was cut short is sent again, the dead are buried."""
        while True:
            await asyncio.sleep(TEND_EVERY)
            try:
                now = self._clock.now()
                await self._bury(now)
                for queue in await self._file.read(keeping.queues):
                    await self._forward(queue, now)
                if monotonic() - self._passed_by > PASS_BY_EVERY:
                    self._passed_by = monotonic()
                    await self._pass_by()
            except YamchiError as error:
                log.warning(f"[kafka] {error}")
            except Exception:
                log.exception("[kafka] tending stumbled; going on")

    async def _bury(self, now: Millis) -> None:
        if not await self._file.read(lambda db: holding.any_dead(db, now)):
            return
        for job, has_failed in await self._file.write(lambda db: holding.bury(db, now)):
            if job.queue in self._intakes:
                self._stalled[job.queue].append((job, has_failed))  # told by who works on the queue
            else:
                log.warning(f"[{job.queue}:kafka] {describe_stalled(job, has_failed)}")

    async def _forward(self, queue: str, now: Millis) -> None:
        due, stuck = now - SEND_ON_AFTER, now - SEND_AGAIN_AFTER
        if await self._file.read(lambda db: sending.any_to_send_on(db, queue, due)):
            await self._prepare(queue)
            await self._produce(
                queue,
                await self._file.write(lambda db: sending.send_on(db, queue, due, BATCH)),
                withdraw=False,
            )
        if again := await self._file.read(lambda db: sending.cut_short(db, queue, stuck, BATCH)):
            await self._prepare(queue)
            await self._produce(queue, again, withdraw=False)
        await self._send_letters(queue, stuck)

    async def _pass_by(self) -> None:
        """Jobs of ours that another machine has finished are not waiting any more."""
        for queue in await self._file.read(keeping.queues):
            if await self._file.read(lambda db: ledger.sent(db, queue)):  # noqa: B023
                await self._prepare(queue)
                committed = await asyncio.to_thread(self._cluster.committed, queue)
                await self._file.write(lambda db: holding.pass_by(db, queue, committed))  # noqa: B023
                await self._file.write(lambda db: holding.forget(db, queue, committed))  # noqa: B023


def _letter_headers(letter: DeadLetter) -> list[tuple[str, bytes]]:
    return [("yamchi-id", letter.id.encode()), ("yamchi-name", (letter.name or "").encode())]


__all__ = ["Address", "KafkaEngine"]
