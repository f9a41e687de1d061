"""The control topic: a machine writes each pause, cancellation and removal to it, and every machine reads it.

What one machine cancels may wait on another, be running there, or be parked there until tomorrow. Each state store keeps
the offset it has read to, so that a machine that was off catches up when it is back. A cancelled job that a store does not
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
from yamchi.queues.engines import statestore
from yamchi.queues.engines.kafka.address import Address
from yamchi.queues.engines.statestore import Db
from yamchi.storage.sqlite import SqliteFile

log = structlog.get_logger("yamchi.kafka")

COMMANDS_KEPT: Millis = 7 * 86_400_000
"""How long commands are kept: a machine that was off for longer has missed them."""

RETRY_SECONDS = 1.0


def command(db: Db, verb: str, queue: str, job_ids: Sequence[str]) -> bytes:
    """A command for the other machines; each machine skips its own."""
    (origin,) = db.execute("SELECT id FROM bulletin").fetchone()
    return orjson.dumps({"origin": origin, "do": verb, "queue": queue, "ids": list(job_ids)})


def apply(db: Db, raws: Sequence[Any], now: Millis) -> set[str]:
    """Carry out the commands of other machines; the queues concerned."""
    (mine,) = db.execute("SELECT id FROM bulletin").fetchone()
    concerned = set()
    for raw in raws:
        command = _read(raw)
        if command and command["origin"] != mine:
            _do(db, command["do"], command["queue"], command["ids"], raw.timestamp()[1], now)
            concerned.add(command["queue"])
    db.execute("UPDATE bulletin SET next = ?", (raws[-1].offset() + 1,))
    db.execute("DELETE FROM tombstones WHERE moment < ?", (now - COMMANDS_KEPT,))
    return concerned


def _read(raw: Any) -> dict[str, Any] | None:
    """A command; None for what others may have written there, which is skipped."""
    try:
        said = orjson.loads(raw.value() or b"")
    except orjson.JSONDecodeError:
        return None
    return said if isinstance(said, dict) and _is_command(said) else None


def _is_command(said: dict[str, Any]) -> bool:
    ids = said.get("ids")
    are_texts = all(isinstance(said.get(field), str) for field in ("origin", "do", "queue"))
    return are_texts and isinstance(ids, list) and all(isinstance(one, str) for one in ids)


def _do(db: Db, verb: str, queue: str, job_ids: Sequence[str], moment: Millis, now: Millis) -> None:
    match verb:
        case "pause":
            db.execute("INSERT OR IGNORE INTO paused VALUES (?)", (queue,))
        case "resume":
            db.execute("DELETE FROM paused WHERE queue = ?", (queue,))
        case "cancel":
            _write_tombstones(db, queue, job_ids, moment)
            statestore.cancel(db, queue, job_ids, now)
        case "remove":
            _write_tombstones(db, queue, job_ids, moment)
            statestore.remove(db, queue, job_ids)


def _write_tombstones(db: Db, queue: str, job_ids: Sequence[str], moment: Millis) -> None:
    db.execute(
        "INSERT OR REPLACE INTO tombstones SELECT ?1, value, ?2 FROM json_each(?3) "
        "WHERE value NOT IN (SELECT id FROM jobs WHERE queue = ?1 AND id IN (SELECT value FROM json_each(?3)))",
        (queue, moment, statestore.among(job_ids)),
    )


class ControlTopicReader:
    """A thread that reads the control topic and applies what other machines wrote."""

    def __init__(
        self, address: Address, file: SqliteFile, clock: Clock, wake_up: Callable[[str], object]
    ) -> None:
        self._address = address
        self._file = file
        self._clock = clock
        self._wake_up = wake_up
        self._stop = threading.Event()
        self._consumer: Any = None
        self._thread = threading.Thread(target=self._run, name="kafka-control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        try:
            while not self._stop.is_set():
                self._follow()
        finally:
            if self._consumer is not None:
                self._consumer.close()
            self._loop.close()

    def _make_consumer(self) -> Any:
        settings = {
            "group.id": self._address.control_topic,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        return Consumer(self._address.client(**settings))

    def _follow(self) -> None:
        """Read from the stored offset; after an error, from there again."""
        try:
            if self._consumer is None:
                self._consumer = self._make_consumer()
            (start,) = self._loop.run_until_complete(
                self._file.read(lambda db: db.execute("SELECT next FROM bulletin").fetchone())
            )
            self._consumer.assign([TopicPartition(self._address.control_topic, 0, start)])
            while not self._stop.is_set():
                raws = [self._consumer.poll(0.2), *self._consumer.consume(500, 0)]
                self._take([raw for raw in raws if raw is not None and not raw.error()])
        except (YamchiError, KafkaException) as error:
            log.warning(f"[kafka] the control topic can't be read now: {error}")
            self._stop.wait(RETRY_SECONDS)
        except Exception:
            log.exception("[kafka] reading the control topic failed; it is tried again in a second")
            self._stop.wait(RETRY_SECONDS)

    def _take(self, raws: Sequence[Any]) -> None:
        if raws:
            now = self._clock.now()
            for queue in self._loop.run_until_complete(self._file.write(lambda db: apply(db, raws, now))):
                self._wake_up(queue)
