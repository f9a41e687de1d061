"""An idempotent producer whose answers come back to the event loop, one wake-up for a whole batch."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, Producer

from yamchi.clock import Millis
from yamchi.errors import ConfigurationError, EngineError, InvalidJob
from yamchi.queues.engines.kafka.address import Address
from yamchi.queues.engines.kafka.cluster import explain
from yamchi.queues.engines.kafka.envelope import Headers

DELIVERY_TIMEOUT: Millis = 10_000
"""A message that no broker has taken after this time is given up, and whoever sent it is told."""

CHUNK = 500
"""So many messages are handed over before other tasks of the event loop may run."""

SMALLER = "keep large data elsewhere and send its address, or raise message.max.bytes."
"""What to do about a message that is too large."""

Outgoing = tuple[bytes, bytes, Headers]
"""Key, value and headers."""


@dataclass(slots=True)
class DeliveryReport:
    """What became of one message: its place, or why it has none."""

    partition: int = -1
    offset: int = -1
    stamp: Millis = 0
    error: Any = None

    @property
    def is_too_large(self) -> bool:
        """Whether no broker will ever take it as it is."""
        return self.error is not None and self.error.name() == "MSG_SIZE_TOO_LARGE"


@dataclass(slots=True)
class Batch:
    """Messages on their way; `done` when the last of them is answered."""

    reports: list[DeliveryReport]
    loop: asyncio.AbstractEventLoop
    done: "asyncio.Future[None]"
    open: int = field(init=False)

    def __post_init__(self) -> None:
        self.open = len(self.reports)

    def answer(self, number: int, error: Any, message: Any) -> None:
        """From the producer's thread."""
        if error is not None:
            self.reports[number].error = error
        else:
            _, stamp = message.timestamp()
            self.reports[number] = DeliveryReport(message.partition(), message.offset(), stamp)
        self.open -= 1
        if self.open == 0 and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class MessageProducer:
    """Sends messages, and answers when the broker has written them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._producer: Any = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def longest(self) -> int:
        """Bytes of a message with its key and headers that are surely too many; a topic may permit less."""
        return int(self._address.client().get("message.max.bytes", 1_000_000))

    def open(self) -> None:
        self._stop.clear()
        self._producer = Producer(
            self._address.client(
                **{
                    "enable.idempotence": True,  # with acks=all: written by every replica in sync, once
                    "linger.ms": 0,
                    "delivery.timeout.ms": DELIVERY_TIMEOUT,
                    "compression.type": "lz4",
                    "queue.buffering.max.messages": 200_000,
                }
            )
        )
        self._thread = threading.Thread(target=self._serve, name="kafka-producer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for what is on its way, then stop. Whoever waits for the rest is told that it is given up."""
        if self._thread:
            if self._producer.flush(DELIVERY_TIMEOUT / 1000):
                self._producer.purge()
                self._producer.flush(1)
            self._stop.set()
            self._thread.join()
            self._producer = self._thread = None

    def _serve(self) -> None:
        while not self._stop.is_set():
            self._producer.poll(0.2)

    async def send(self, topic: str, outgoing: Sequence[Outgoing]) -> list[DeliveryReport]:
        """What became of each message, in their order."""
        reports = await self._send(topic, outgoing)
        if len(outgoing) > 1:
            # A broker refuses what came to it together, whoever of them is too large; and all of them may be, together.
            for number, message in enumerate(outgoing):
                if reports[number].is_too_large:
                    (reports[number],) = await self._send(topic, [message])
        return reports

    async def _send(self, topic: str, outgoing: Sequence[Outgoing]) -> list[DeliveryReport]:
        loop = asyncio.get_running_loop()
        batch = Batch([DeliveryReport() for _ in outgoing], loop, loop.create_future())
        for number, message in enumerate(outgoing):
            if number % CHUNK == CHUNK - 1:
                await asyncio.sleep(0)
            await self._hand_over(topic, message, number, batch)
        if outgoing:
            await batch.done
        return batch.reports

    async def _hand_over(self, topic: str, message: Outgoing, number: int, batch: Batch) -> None:
        key, value, headers = message
        while True:
            try:
                self._producer.produce(
                    topic, value, key, headers=headers,
                    on_delivery=lambda error, message: batch.answer(number, error, message),
                )  # fmt: skip
                return
            except BufferError:
                await asyncio.sleep(0.01)  # the producer's own queue is full: let it empty
            except KafkaException as refusal:
                batch.answer(number, refusal.args[0], None)
                return

    def first_error(
        self, reports: Sequence[DeliveryReport]
    ) -> EngineError | ConfigurationError | InvalidJob | None:
        """The first error among the reports, as a sentence."""
        for report in reports:
            if report.is_too_large:
                return InvalidJob(f"Kafka refused a message as too large ({report.error.str()}): {SMALLER}")
            if report.error is not None:
                return explain(report.error, self._address)
        return None
