"""The Kafka engine: Kafka carries the jobs between machines, a state store beside it keeps what becomes of them.

What Kafka lacks (delays, retries, cancellation, dedup by id, pause, progress, statistics) the SQLite engine has, so
this engine is one, on a file of its own, whose jobs come and go over Kafka:

- `add` writes a job to the store and produces it; it is claimed only where its message arrives.
- A `QueueConsumer` reads a queue's topic into the state store a little ahead of the workers, and commits offsets behind what
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
from yamchi.errors import ConfigurationError, EngineUnavailable, InvalidJob, YamchiError
from yamchi.observe.lasting import LastingTrouble
from yamchi.queues.engines import statestore
from yamchi.queues.engines.base import Capabilities, Exchange, describe_stalled
from yamchi.queues.engines.kafka import control, messages, partitions, sending
from yamchi.queues.engines.kafka.address import Address
from yamchi.queues.engines.kafka.cluster import Cluster
from yamchi.queues.engines.kafka.consumer import QueueConsumer
from yamchi.queues.engines.kafka.control import ControlTopicReader
from yamchi.queues.engines.kafka.envelope import Message
from yamchi.queues.engines.kafka.letters import LetterSender
from yamchi.queues.engines.kafka.producer import SMALLER, DeliveryReport, MessageProducer
from yamchi.queues.engines.sqlite import management
from yamchi.queues.records import Completed, Failed, JobRecord, NewJob, State, Verdict, new_id
from yamchi.storage.threads import in_own_thread

log = structlog.get_logger("yamchi.kafka")

MAINTENANCE_SECONDS = 1.0
SEND_ON_AFTER: Millis = 2_000
"""A job that is due in the state store and not claimed for this long goes to Kafka, where others may have time for it."""

SEND_AGAIN_AFTER: Millis = 15_000
"""What was on its way to Kafka for this long was cut short, and is sent again."""

MARK_PASSED_SECONDS = 10.0
BATCH = 1_000
BACKLOG_SECONDS = 0.5
"""How long an answer about what lies on Kafka is good enough for statistics."""


class KafkaEngine(statestore.StateStoreEngine):
    """Jobs on Kafka topics, their state in a SQLite file."""

    broker = "kafka"
    type = "kafka"
    can = Capabilities(priorities=False, in_order=False, overlaps=False)

    def __init__(self, address: Address, path: Path, clock: Clock) -> None:
        super().__init__(path, clock)
        self._address = address
        self._cluster = Cluster(address)
        self._producer = MessageProducer(address)
        self._letters = LetterSender(address, self._file, self._producer, self._prepare)
        self._consumers: dict[str, QueueConsumer] = {}
        self._backlogs: dict[str, tuple[float, dict[int, int], dict[int, int]]] = {}
        self._stalled: dict[str, list[tuple[JobRecord, bool]]] = defaultdict(list)
        self._marked_passed_at = 0.0
        self._may_lack_topics = False
        self._background: set[asyncio.Task[None]] = set()
        self._maintenance: asyncio.Task[None] | None = None
        self._control: ControlTopicReader | None = None

    async def open(self) -> None:
        if self._maintenance:
            return
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def _open(self) -> None:
        await in_own_thread(self._cluster.connect)
        await super().open()
        await self._file.write(messages.prepare)
        await in_own_thread(self._producer.open)
        self._loop = asyncio.get_running_loop()
        await self._follow_control_topic()
        self._maintenance = asyncio.create_task(self._maintain(), name="kafka-maintenance")

    async def _follow_control_topic(self) -> None:
        try:
            await in_own_thread(self._cluster.prepare_control_topic)
        except ConfigurationError as error:
            log.warning(f"[kafka] pauses and cancellations do not reach other machines: {error}")
            return
        self._control = ControlTopicReader(
            self._address,
            self._file,
            self._clock,
            lambda queue: self._loop.call_soon_threadsafe(self._wake_up, queue),
        )
        self._control.start()

    async def close(self) -> None:
        """What was opened, also by an opening that failed on its way."""
        if self._maintenance:
            self._maintenance.cancel()
            with suppress(asyncio.CancelledError):
                await self._maintenance
            self._maintenance = None
        if self._control:
            await in_own_thread(self._control.stop)
            self._control = None
        for consumer in self._consumers.values():
            consumer.stop()
        for consumer in self._consumers.values():
            await in_own_thread(consumer.join)
        self._consumers.clear()
        await in_own_thread(self._producer.close)
        await asyncio.gather(*self._background, return_exceptions=True)
        await in_own_thread(self._cluster.close)
        await super().close()

    async def ping(self) -> None:
        await in_own_thread(self._cluster.ping)

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(self, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        now = self._clock.now()
        round = new_id(now)
        self._check_sizes(jobs, round)
        await self._prepare(queue)
        created = await self._file.write(lambda db: sending.add(db, queue, jobs, now, round))
        messages = [
            Message.of(job, round)
            for job, is_new in zip(jobs, created, strict=True)
            if is_new and (job.run_at or now) <= now
        ]
        if messages:
            await self._produce_or_withdraw(queue, messages, round)
        if len(messages) < len(jobs):
            self._wake_up(queue)
        return created

    def _check_sizes(self, jobs: Sequence[NewJob], round: str) -> None:
        """One that can't be sent is refused now: a delayed job would only be found to be too large when it is due."""
        longest = self._producer.longest
        for job in jobs:
            if len(job.payload) > longest // 2 and (size := Message.of(job, round).size()) > longest:
                raise InvalidJob(
                    f"Job {job.id} is too large for Kafka ({size:,} bytes of at most {longest:,}): {SMALLER}"
                )

    async def fire(self, schedule: str, moment: Millis, queue: str, job: NewJob) -> bool:
        """The scheduler of each machine sends the job, under one id and round: the second is dropped where it arrives.

        Whoever gives up waiting finds the moment fired: the job is kept, and sent again if Kafka has not got it.
        """
        await self._prepare(queue)
        now, round = self._clock.now(), f"fired-{moment}"
        fired = await self._file.write(lambda db: sending.fire(db, schedule, moment, queue, job, now, round))
        if fired and (job.run_at or now) <= now:
            try:
                await self._produce(queue, [Message.of(job, round)])
            except EngineUnavailable as error:
                log.warning(
                    f"[{queue}:kafka] job {job.id} could not be sent to Kafka, and is sent later: {error}"
                )
        return fired

    async def _produce_or_withdraw(self, queue: str, messages: Sequence[Message], round: str) -> None:
        """Send new jobs. Those that Kafka does not take are forgotten: whoever adds them is told, or waits no longer."""
        try:
            reports = await self._send(queue, messages)
        except asyncio.CancelledError:
            await self._withdraw(queue, [message.id for message in messages], round)
            raise
        if trouble := self._trouble(reports):
            answers = zip(messages, reports, strict=True)
            refused = [message.id for message, report in answers if report.error is not None]
            await self._withdraw(queue, refused, round)
            raise trouble

    async def _withdraw(self, queue: str, job_ids: Sequence[str], round: str) -> None:
        now = self._clock.now()
        await asyncio.shield(
            self._file.write(lambda db: sending.withdraw(db, queue, job_ids, round, now)),
        )

    async def _produce(self, queue: str, messages: Sequence[Message]) -> None:
        """Send jobs that are kept here whatever Kafka says: what it does not take is tried again later. But one that is
        too large has failed."""
        reports = await self._send(queue, messages)
        answers = zip(messages, reports, strict=True)
        await self._fail(queue, [message.id for message, report in answers if report.is_too_large])
        if trouble := self._trouble([report for report in reports if not report.is_too_large]):
            raise trouble

    async def _send(self, queue: str, messages: Sequence[Message]) -> list[DeliveryReport]:
        """What became of jobs that are written down as sent; the places of those that Kafka has are noted."""
        outgoing = [(message.key(), message.payload, message.headers()) for message in messages]
        reports = await self._producer.send(self._address.topic(queue), outgoing)
        answers = zip(messages, reports, strict=True)
        places = {(m.id, m.round): (r.partition, r.offset, r.stamp) for m, r in answers if r.error is None}
        self._in_background(self._file.write(lambda db: sending.confirm(db, queue, places), durable=False))
        return reports

    def _trouble(self, reports: Sequence[DeliveryReport]) -> Exception | None:
        trouble = self._producer.first_error(reports)
        self._may_lack_topics |= trouble is not None
        return trouble

    async def _fail(self, queue: str, too_large: Sequence[str]) -> None:
        """Jobs that no broker will take, and that nobody here has run."""
        if not too_large:
            return
        error = f"It is too large for the topic {self._address.topic(queue)} of Kafka: {SMALLER}"
        token, now = self._new_token(), self._clock.now()

        def op(db: statestore.Db) -> list[str]:
            outcome = sending.refuse(db, queue, too_large, error, token, now)
            self._write_events(db, outcome.events())
            return outcome.settled

        for job_id in await self._file.write(op):
            log.error(f"[{queue}:kafka] failed {job_id}: {error}")
        await self._letters.send_now(queue)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Nobody waits for this: without it a message would only be sent again, and dropped where it arrives."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning(f"[kafka] {error}")

    # ── Working ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self, queue: str, verdicts: Sequence[Verdict], want: int, lease: Millis, worker: str
    ) -> Exchange:
        if want and queue not in self._consumers:
            await self._read(queue, lease)
        got = await super().exchange(queue, verdicts, want, lease, worker)
        if want:
            self._consumers[queue].took(len(got.claims), want)
        if any(isinstance(verdict, Failed) for verdict in verdicts):
            await self._letters.send_now(queue)
        return got

    def _must_be_durable(self, verdicts: Sequence[Verdict]) -> bool:
        """A job that is claimed or completed is on Kafka still; what is parked, or dead, only the state store knows."""
        return not all(isinstance(verdict, Completed) for verdict in verdicts)

    async def recover(self, queue: str) -> list[tuple[JobRecord, bool]]:
        stalled = self._stalled.pop(queue, []) + await super().recover(queue)
        if any(has_failed for _, has_failed in stalled):
            await self._letters.send_now(queue)
        return stalled

    async def _read(self, queue: str, lease: Millis) -> None:
        await self._prepare(queue)
        if queue in self._consumers:
            return
        consumer = self._consumers[queue] = QueueConsumer(
            queue,
            f"{self._origin}-{queue}",
            self._address,
            self._file,
            self._clock,
            lease,
            lambda: self._loop.call_soon_threadsafe(self._wake_up, queue),
        )
        consumer.start()

    async def _prepare(self, queue: str) -> None:
        if not self._cluster.is_ready(queue):
            await in_own_thread(self._cluster.prepare, queue)

    # ── Managing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def counts(self, queue: str) -> dict[State, int]:
        """What waits is what the state store holds, and what lies on the topic beyond where we and the group have read."""
        ends, committed = await self._backlog(queue)

        def op(db: statestore.Db) -> tuple[dict[State, int], int, dict[int, int]]:
            return management.counts(db, queue), statestore.sent(db, queue), partitions.positions(db, queue)

        kept, sent, read = await self._file.read(op)
        unread = sum(max(end - max(committed.get(n, 0), read.get(n, 0)), 0) for n, end in ends.items())
        kept["waiting"] += max(sent, unread)
        return kept

    async def _backlog(self, queue: str) -> tuple[dict[int, int], dict[int, int]]:
        """The ends of the queue's partitions, and how far its group has come."""
        asked_at, ends, committed = self._backlogs.get(queue, (0.0, {}, {}))
        if monotonic() - asked_at > BACKLOG_SECONDS:
            await self._prepare(queue)
            ends = await in_own_thread(self._cluster.ends, queue)
            committed = await in_own_thread(self._cluster.committed, queue)
            self._backlogs[queue] = monotonic(), ends, committed
        return ends, committed

    async def remove(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        removed = await self._file.write(lambda db: statestore.remove(db, queue, job_ids))
        await self._broadcast("remove", queue, job_ids)
        return removed

    async def cancel(self, queue: str, job_ids: Sequence[str]) -> dict[str, State]:
        now = self._clock.now()
        cancelled = await self._file.write(lambda db: statestore.cancel(db, queue, job_ids, now))
        await self._broadcast("cancel", queue, job_ids)
        return cancelled

    async def pause(self, queue: str) -> None:
        await super().pause(queue)
        await self._broadcast("pause", queue)

    async def resume(self, queue: str) -> None:
        await super().resume(queue)
        await self._broadcast("resume", queue)

    async def _broadcast(self, verb: str, queue: str, job_ids: Sequence[str] = ()) -> None:
        """Send a command to the control topic, so that the other machines do the same."""
        if self._control:
            said = await self._file.read(lambda db: control.command(db, verb, queue, job_ids))
            reports = await self._producer.send(self._address.control_topic, [(queue.encode(), said, [])])
            if trouble := self._producer.first_error(reports):
                raise trouble

    async def retry(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return await self._change(queue, lambda db, now: messages.retry(db, queue, job_ids, now))

    async def replay(self, queue: str, jobs: Mapping[str, NewJob]) -> list[str]:
        return await self._change(queue, lambda db, now: messages.replay(db, queue, jobs, now))

    # ── Maintenance ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _maintain(self) -> None:
        """Once a second: what became due goes on its way, what was cut short is sent again, and dead owners give up their jobs."""
        trouble = LastingTrouble(log)
        while True:
            await asyncio.sleep(MAINTENANCE_SECONDS)
            try:
                now = self._clock.now()
                await self._release_dead_owners(now)
                if self._may_lack_topics:
                    await in_own_thread(self._cluster.forget_deleted)
                    self._may_lack_topics = False
                for queue in await self._file.read(management.queues):
                    await self._forward(queue, now)
                if monotonic() - self._marked_passed_at > MARK_PASSED_SECONDS:
                    self._marked_passed_at = monotonic()
                    await self._mark_passed()
                trouble.end()
            except YamchiError as error:
                trouble.meet(f"[kafka] {error}")
            except Exception:
                log.exception("[kafka] maintenance failed; it is tried again in a second")

    async def _release_dead_owners(self, now: Millis) -> None:
        if not await self._file.read(lambda db: partitions.any_dead_owner(db, now)):
            return
        for job, has_failed in await self._file.write(lambda db: partitions.release_dead_owners(db, now)):
            if job.queue in self._consumers:
                self._stalled[job.queue].append((job, has_failed))  # told by who works on the queue
            else:
                log.warning(f"[{job.queue}:kafka] {describe_stalled(job, has_failed)}")

    async def _forward(self, queue: str, now: Millis) -> None:
        due, stuck = now - SEND_ON_AFTER, now - SEND_AGAIN_AFTER
        await self._unless_refused(self._send_on(queue, due))
        await self._unless_refused(self._send_again(queue, stuck))
        await self._unless_refused(self._letters.send(queue, stuck))

    async def _send_on(self, queue: str, due: Millis) -> None:
        if await self._file.read(lambda db: sending.any_to_send_on(db, queue, due)):
            await self._prepare(queue)
            await self._produce(
                queue,
                await self._file.write(lambda db: sending.send_on(db, queue, due, BATCH)),
            )

    async def _send_again(self, queue: str, stuck: Millis) -> None:
        if again := await self._file.read(lambda db: sending.unconfirmed(db, queue, stuck, BATCH)):
            await self._prepare(queue)
            await self._produce(queue, again)

    async def _mark_passed(self) -> None:
        """Jobs of ours that another machine has finished are not waiting any more."""
        queues, now = await self._file.read(management.queues), self._clock.now()
        await self._file.write(lambda db: sending.forget_withdrawn(db, queues, now), durable=False)
        for queue in queues:
            if await self._file.read(lambda db: statestore.sent(db, queue)):  # noqa: B023
                await self._prepare(queue)
                committed = await in_own_thread(self._cluster.committed, queue)
                await self._file.write(lambda db: partitions.mark_passed(db, queue, committed))  # noqa: B023
                await self._file.write(lambda db: partitions.forget(db, queue, committed))  # noqa: B023


__all__ = ["Address", "KafkaEngine"]
