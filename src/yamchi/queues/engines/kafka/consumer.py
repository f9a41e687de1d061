"""A consumer: a thread that reads one queue's topic into the state store, a little ahead of the workers.

It polls always, so the group never takes it for dead, however long the jobs run; while enough jobs wait here it
reads no further. Offsets are committed behind what is done, never behind what is read: if this machine dies, Kafka
delivers what it had not finished to another one.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, TypeVar

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from yamchi.clock import Clock, Millis
from yamchi.errors import YamchiError
from yamchi.observe.lasting import LastingTrouble
from yamchi.queues.engines.kafka import envelope, ingest, offsets, partitions
from yamchi.queues.engines.kafka.address import Address
from yamchi.queues.engines.kafka.cluster import explain
from yamchi.queues.engines.statestore import Db
from yamchi.storage.sqlite import SqliteFile

log = structlog.get_logger("yamchi.kafka")
T = TypeVar("T")

SHORTEST_SESSION: Millis = 6_000
"""Brokers allow no shorter one, unless told to."""

LONGEST_SESSION: Millis = 300_000
AHEAD = 4
"""So many times the workers' slots are read ahead, or half a second's work if that is more."""

LEAST_AHEAD, MOST_AHEAD = 50, 5_000
COMMIT_SECONDS = 0.25
DONE_AFTER_SECONDS = 2.0
HEARTBEAT_SECONDS = 1.0
FULL_SECONDS = 1.0
"""How long to stay full without polling; after that partitions are paused and polled."""

NEW_TOPIC_SECONDS = 30.0
"""How long after its topic was made a consumer may be told that there is none: brokers hear of it one by one."""

REBALANCE_GRACE_SECONDS = 5.0
"""How long running jobs may hold up a rebalance, so that they are not run a second time elsewhere."""

LEAVING_SECONDS = 5.0


class QueueConsumer:
    """Reads a queue's topic as a member of its group."""

    def __init__(
        self,
        queue: str,
        owner: str,
        address: Address,
        file: SqliteFile,
        clock: Clock,
        lease: Millis,
        wake_up: Callable[[], object],
    ) -> None:
        self._queue = queue
        self._owner = owner
        self._address = address
        self._topic = address.topic(queue)
        self._file = file
        self._clock = clock
        self._session = min(max(lease, SHORTEST_SESSION), LONGEST_SESSION)
        self._wake_up = wake_up
        self._slots = 0  # the most jobs a worker has asked for at once
        self._taken = self._pace = 0  # jobs claimed since the last heartbeat, and in the second before it
        self._gone = 0  # jobs claimed since the topic was last read
        self._positions: dict[int, int] = {}
        self._unbegun = set[int]()  # partitions of ours of which Kafka has not said yet how far they are done
        self._committed: dict[int, tuple[int, str]] = {}
        self._forgotten: dict[int, int] = {}
        self._uncommitted: set[int] = set()
        self._heartbeat_at = self._committed_at = self._done_after_at = self._full_since = 0.0
        self._paused = False
        self._joined_at = 0.0
        self._trouble = LastingTrouble(log)
        self._has_room = threading.Event()
        self._stop = threading.Event()
        self._consumer: Any = None
        self._thread = threading.Thread(target=self._run, name=f"kafka-consumer-{queue}", daemon=True)

    # ── From the event loop ───────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; `join` waits until it has."""
        self._stop.set()
        self._has_room.set()

    def join(self) -> None:
        self._thread.join()

    def took(self, claimed: int, wanted: int) -> None:
        """A worker has claimed jobs: there is room again."""
        self._slots = max(self._slots, wanted)
        self._taken += claimed
        self._gone += claimed
        if self._gone >= self._target // 2 or claimed < wanted:
            self._has_room.set()

    # ── The thread ────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        while not self._stop.is_set():
            self._guard(self._poll_once)
        if self._consumer is not None:
            self._guard(lambda: self._give_up(list(self._positions), grace_seconds=0))
            self._guard(self._leave_group)
        self._loop.close()

    def _join_group(self) -> Any:
        settings = {
            "group.id": self._address.group_of(self._queue),
            "enable.auto.commit": False,
            "on_commit": self._on_commit,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": self._session,
            "heartbeat.interval.ms": 1_000,  # how soon a member hears that another one has come
            "max.poll.interval.ms": max(self._session, 300_000),
            "queued.max.messages.kbytes": 32_768,
            "fetch.error.backoff.ms": 100,
            "fetch.wait.max.ms": 100,  # a partition that has just been assigned waits for the fetch before its own
        }
        consumer = Consumer(self._address.client(**settings))
        consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        return consumer

    def _leave_group(self) -> None:
        """Give the partitions up before closing: `close` may wait for ever, and keeps Python's lock meanwhile, where the group
        assigns some at that moment (librdkafka #4884)."""
        self._consumer.unsubscribe()
        deadline, is_member = monotonic() + LEAVING_SECONDS, True
        while is_member and monotonic() < deadline:
            self._consumer.poll(0.05)
            is_member = bool(self._consumer.assignment())
        self._consumer.close()

    def _guard(self, work: Callable[[], object]) -> None:
        """Log an error and go on: Kafka and the disk come back, and the thread must be there then."""
        try:
            work()
            self._trouble.end()
        except YamchiError as error:
            self._trouble.meet(f"[{self._queue}:kafka] {error}")
            self._stop.wait(0.5)
        except KafkaException as error:
            self._trouble.meet(f"[{self._queue}:kafka] {explain(error.args[0], self._address)}")
            self._stop.wait(0.5)
        except Exception:
            log.exception(f"[{self._queue}:kafka] reading failed; it is tried again")
            self._stop.wait(0.5)

    def _poll_once(self) -> None:
        if self._consumer is None:
            self._consumer = self._join_group()
            self._joined_at = monotonic()
        self._heartbeat()
        room = self._room()
        if room > 0:
            self._take(self._read(room))
        else:
            self._stay_full()
        self._commit_if_due()

    def _do(self, op: Callable[[Db], T]) -> T:
        """Write to the state store from this thread. It need not outlast a power failure: Kafka delivers all of it again."""
        return self._loop.run_until_complete(self._file.write(op, durable=False))

    def _see(self, op: Callable[[Db], T]) -> T:
        return self._loop.run_until_complete(self._file.read(op))

    def _heartbeat(self) -> None:
        """Show the other processes on this state store that this member lives; they take it for dead when Kafka does."""
        if monotonic() - self._heartbeat_at >= HEARTBEAT_SECONDS:
            self._pace, self._taken = self._taken, 0
            self._heartbeat_at = monotonic()
            dead_at = self._clock.now() + self._session
            if not self._do(lambda db: partitions.heartbeat(db, self._owner, dead_at)):
                # Others here took this member for dead and gave its jobs back, but Kafka did not.
                self._unbegun |= self._positions.keys()
            if self._unbegun:
                self._read_again(list(self._unbegun))

    def _read_again(self, numbers: Sequence[int]) -> None:
        """Have Kafka deliver again what is not done; tried each second until it does."""
        self._learn(self._consumer, numbers)
        for number in numbers:
            floor, _ = self._committed[number]
            self._consumer.seek(
                TopicPartition(self._topic, number, floor if floor >= 0 else OFFSET_BEGINNING)
            )
            self._begin([number])

    # ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _target(self) -> int:
        return min(max(AHEAD * self._slots, self._pace // 2, LEAST_AHEAD), MOST_AHEAD)

    def _room(self) -> int:
        """None until half of what was read ahead is gone: few large transactions instead of many small ones."""
        self._gone = 0
        waiting = self._see(lambda db: partitions.waiting(db, self._queue))
        return self._target - waiting if waiting <= self._target // 2 else 0

    def _stay_full(self) -> None:
        """Enough jobs wait: be still until some are taken, and show the group that we live if that takes long."""
        self._full_since = self._full_since or monotonic()
        if monotonic() - self._full_since > FULL_SECONDS and not self._paused:
            self._consumer.pause(self._consumer.assignment())
            self._paused = True
        if self._paused:
            self._take(self._usable([self._consumer.poll(0)]))
        self._has_room.clear()
        self._has_room.wait(0.05)

    def _read(self, room: int) -> list[Any]:
        self._full_since = 0.0
        if self._paused:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False
        # The first one is waited for; the others are taken as far as they are here already.
        first = self._consumer.poll(0.1)
        if first is None:
            return []
        return self._usable([first, *(self._consumer.consume(room - 1, 0) if room > 1 else ())])

    def _usable(self, raws: Sequence[Any]) -> list[Any]:
        for raw in raws:
            if raw is not None and raw.error() and not self._is_passing(raw.error().code()):
                log.warning(f"[{self._queue}:kafka] {explain(raw.error(), self._address)}")
        return [raw for raw in raws if raw is not None and not raw.error()]

    def _is_passing(self, code: int) -> bool:
        """Nothing to speak of: the end of a partition, or a topic that was just made, of which not every broker knows yet."""
        is_new = monotonic() - self._joined_at < NEW_TOPIC_SECONDS
        return code == KafkaError._PARTITION_EOF or (code == KafkaError.UNKNOWN_TOPIC_OR_PART and is_new)

    def _take(self, raws: Sequence[Any]) -> None:
        self._take_in(envelope.read_all(raws))

    def _take_in(self, messages: Sequence[envelope.Message]) -> None:
        """Write messages to the state store. A batch that can't be written now is tried again, for it is not delivered twice."""
        while messages:
            mine = [message for message in messages if message.partition in self._positions]
            try:
                now = self._clock.now()
                self._do(lambda db: ingest.ingest(db, self._queue, self._owner, mine, now))  # noqa: B023
            except YamchiError as error:
                log.warning(f"[{self._queue}:kafka] {error}")
                if self._stop.wait(1):
                    return
                continue
            except Exception:
                self._take_one_by_one(messages)
                return
            for message in mine:
                self._positions[message.partition] = message.offset + 1
            self._wake_up()
            return

    def _take_one_by_one(self, messages: Sequence[envelope.Message]) -> None:
        """One of these can't be written at all, for a reason nobody foresaw: it must not take its neighbors along."""
        if len(messages) > 1:
            for message in messages:
                self._take_in([message])
            return
        (message,) = messages
        log.exception(
            f"[{self._queue}:kafka] {message.id} at {message.partition}:{message.offset} could not be stored and is skipped"
        )
        self._positions[message.partition] = message.offset + 1

    # ── Committing ────────────────────────────────────────────────────────────────────────────────────────────────

    def _commit_if_due(self) -> None:
        if monotonic() - self._committed_at >= COMMIT_SECONDS:
            self._committed_at = monotonic()
            self._commit(list(self._positions), wait=False)

    def _commit(self, numbers: Sequence[int], *, wait: bool) -> None:
        """Tell Kafka how far everything is done, and now and then what is done beyond that.

        Nobody waits for most of these, so one may have come to nothing: what is waited for is told in full.
        """
        anew = set(numbers) if wait else self._uncommitted
        read = [
            number
            for number in numbers
            if self._positions[number] > (-1 if number in anew else self._committed[number][0])
        ]
        if not read:
            return
        floors = self._do(lambda db: {number: self._floor(db, number) for number in read})
        is_time = wait or monotonic() - self._done_after_at > DONE_AFTER_SECONDS
        self._done_after_at = monotonic() if is_time else self._done_after_at
        marks = {
            number: (floor, self._done_after(number, floor) if is_time else "")
            for number, floor in floors.items()
        }
        fresh = {
            number: mark
            for number, mark in marks.items()
            if number in anew
            or mark[0] > self._committed[number][0]
            or (is_time and mark != self._committed[number])
        }
        if fresh:
            self._uncommitted -= fresh.keys()
            places = [TopicPartition(self._topic, number, *mark) for number, mark in fresh.items()]
            self._consumer.commit(offsets=places, asynchronous=not wait)
            self._committed |= fresh
            self._forget({number: floor for number, (floor, _) in fresh.items()})

    def _on_commit(self, error: Any, places: Sequence[Any]) -> None:
        """A commit that nobody waited for came to nothing, as in the middle of a rebalance: tell it anew."""
        if error:
            self._uncommitted |= {place.partition for place in places} & self._positions.keys()

    def _floor(self, db: Db, number: int) -> int:
        return partitions.first_undone(
            db, self._queue, number, max(self._committed[number][0], 0), self._positions[number]
        )

    def _done_after(self, number: int, floor: int) -> str:
        position = self._positions[number]
        if floor >= position:
            return ""
        done = self._see(lambda db: partitions.done_after(db, self._queue, number, floor, position))
        return offsets.encode(floor, done)

    def _forget(self, floors: dict[int, int]) -> None:
        """Every few thousand messages, let the oldest fade."""
        stale = {
            number: floor
            for number, floor in floors.items()
            if floor - self._forgotten.get(number, 0) > 2_000
        }
        if stale:
            self._do(lambda db: partitions.forget(db, self._queue, stale))
            self._forgotten |= stale

    # ── Rebalancing ───────────────────────────────────────────────────────────────────────────────────────────────

    def _on_assign(self, consumer: Any, places: Sequence[Any]) -> None:
        if places and not self._stop.is_set():
            numbers = [place.partition for place in places]
            self._unbegun.update(numbers)
            self._guard(lambda: self._take_over(consumer, numbers))

    def _take_over(self, consumer: Any, numbers: Sequence[int]) -> None:
        self._learn(consumer, numbers)
        self._begin(numbers)

    def _learn(self, consumer: Any, numbers: Sequence[int]) -> None:
        """Ask Kafka how far these partitions are done. Nothing of them is taken in before that is known."""
        answers = consumer.committed([TopicPartition(self._topic, number) for number in numbers], timeout=10)
        known = {place.partition: place for place in answers if place.offset >= 0}
        floors = {number: place.offset for number, place in known.items()}
        done = {number: offsets.decode(place.offset, place.metadata) for number, place in known.items()}
        self._do(lambda db: partitions.assign(db, self._queue, self._owner, numbers, floors, done))
        self._committed |= dict.fromkeys(numbers, (-1, ""))
        self._committed |= {number: (place.offset, place.metadata or "") for number, place in known.items()}

    def _begin(self, numbers: Sequence[int]) -> None:
        self._positions |= dict.fromkeys(numbers, -1)
        self._unbegun.difference_update(numbers)
        log.debug(f"[{self._queue}:kafka] reading partitions {sorted(self._positions)}")

    def _on_revoke(self, consumer: Any, places: Sequence[Any]) -> None:
        mine = self._begun(places)
        self._guard(lambda: self._give_up(mine, grace_seconds=REBALANCE_GRACE_SECONDS))

    def _on_lost(self, consumer: Any, places: Sequence[Any]) -> None:
        mine = self._begun(places)
        self._guard(lambda: self._leave(mine))

    def _begun(self, places: Sequence[Any]) -> list[int]:
        """Those of the places we leave that were begun; the others no longer will be."""
        self._unbegun.difference_update(place.partition for place in places)
        return [place.partition for place in places if place.partition in self._positions]

    def _give_up(self, numbers: Sequence[int], grace_seconds: float) -> None:
        """Another member reads these partitions next: let running jobs end, commit what is done, keep nothing."""
        if not numbers:
            return
        self._do(lambda db: partitions.give_back(db, self._queue, numbers))
        deadline = monotonic() + grace_seconds
        while monotonic() < deadline and self._see(lambda db: partitions.running(db, self._queue, numbers)):
            if self._stop.wait(0.02):
                break
        try:
            self._commit(numbers, wait=True)
        finally:
            self._leave(numbers)

    def _leave(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._positions.pop(number, None)
            self._committed.pop(number, None)
            self._uncommitted.discard(number)
        dead_at = self._clock.now() + self._session
        self._do(lambda db: partitions.revoke(db, self._queue, self._owner, numbers, dead_at))
