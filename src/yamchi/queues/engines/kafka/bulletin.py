"""Word to all machines: a pause, a cancellation or a removal is told on a topic that every ledger follows.

What one machine cancels may wait on another, be running there, or be parked there until tomorrow. Each ledger keeps
how far it has followed, so that a machine that was off hears of it when it is back. A cancelled job that a ledger does not
know yet leaves a tombstone, checked when its message arrives; a job added later under the same id is not affected.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition

from yamchi.clock import Clock, Millis
from yamchi.errors import YamchiError
from yamchi.queues.engines import ledger
from yamchi.queues.engines.kafka.address import Address
from yamchi.queues.engines.statestore import Db
from yamchi.storage.sqlite import SqliteFile

log = structlog.get_logger("yamchi.kafka")

KEPT: Millis = 7 * 86_400_000
"""How long word is kept: a machine that was off for longer has missed it."""


def word(db: Db, verb: str, queue: str, job_ids: Sequence[str]) -> bytes:
    """What is told to the others; each ledger passes over its own words."""
    (origin,) = db.execute("SELECT id FROM bulletin").fetchone()
    return orjson.dumps({"origin": origin, "do": verb, "queue": queue, "ids": list(job_ids)})


def heed(db: Db, raws: Sequence[Any], now: Millis) -> set[str]:
    """Do here what others say; the queues concerned."""
    (mine,) = db.execute("SELECT id FROM bulletin").fetchone()
    concerned = set()
    for raw in raws:
        said = _read(raw)
        if said and said["origin"] != mine:
            _do(db, said["do"], said["queue"], said["ids"], raw.timestamp()[1], now)
            concerned.add(said["queue"])
    db.execute("UPDATE bulletin SET next = ?", (raws[-1].offset() + 1,))
    db.execute("DELETE FROM tombstones WHERE moment < ?", (now - KEPT,))
    return concerned


def _read(raw: Any) -> dict[str, Any] | None:
    try:
        said = orjson.loads(raw.value() or b"")
        return said if isinstance(said, dict) and {"origin", "do", "queue", "ids"} <= said.keys() else None
    except orjson.JSONDecodeError:
        return None  # not ours: nothing to heed


def _do(db: Db, verb: str, queue: str, job_ids: Sequence[str], moment: Millis, now: Millis) -> None:
    match verb:
        case "pause":
            db.execute("INSERT OR IGNORE INTO paused VALUES (?)", (queue,))
        case "resume":
            db.execute("DELETE FROM paused WHERE queue = ?", (queue,))
        case "cancel":
            _bury_unknown(db, queue, job_ids, moment)
            ledger.cancel(db, queue, job_ids, now)
        case "remove":
            _bury_unknown(db, queue, job_ids, moment)
            ledger.remove(db, queue, job_ids)


def _bury_unknown(db: Db, queue: str, job_ids: Sequence[str], moment: Millis) -> None:
    db.execute(
        "INSERT OR REPLACE INTO tombstones SELECT ?1, value, ?2 FROM json_each(?3) "
        "WHERE value NOT IN (SELECT id FROM jobs WHERE queue = ?1 AND id IN (SELECT value FROM json_each(?3)))",
        (queue, moment, ledger.among(job_ids)),
    )


class Bulletin:
    """A thread that follows the topic of word from the other machines."""

    def __init__(
        self, address: Address, file: SqliteFile, clock: Clock, ring: Callable[[str], object]
    ) -> None:
        self._address = address
        self._file = file
        self._clock = clock
        self._ring = ring
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-bulletin", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        settings = {
            "group.id": self._address.bulletin,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(self._address.client(**settings))
        try:
            while not self._stop.is_set():
                self._follow(consumer)
        finally:
            consumer.close()
            self._loop.close()

    def _follow(self, consumer: Any) -> None:
        """Read from where this ledger stopped; begins again there after any trouble."""
        try:
            (start,) = self._loop.run_until_complete(
                self._file.read(lambda db: db.execute("SELECT next FROM bulletin").fetchone())
            )
            consumer.assign([TopicPartition(self._address.bulletin, 0, start)])
            while not self._stop.is_set():
                raws = [consumer.poll(0.2), *consumer.consume(500, 0)]
                self._take([raw for raw in raws if raw is not None and not raw.error()])
        except (YamchiError, KafkaException) as error:
            log.warning(f"[kafka] word from other machines can't be read now: {error}")
            self._stop.wait(1)

    def _take(self, raws: Sequence[Any]) -> None:
        if raws:
            now = self._clock.now()
            for queue in self._loop.run_until_complete(self._file.write(lambda db: heed(db, raws, now))):
                self._ring(queue)
