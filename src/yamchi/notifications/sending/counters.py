"""The metrics of notifications: deliveries by status, providers by answer, the length of the queue."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from yamchi.observe.metrics import counter, gauge

if TYPE_CHECKING:
    from prometheus_client import Metric


class Counters:
    """Counted in this process; the event loop is the only writer."""

    def __init__(self) -> None:
        self.deliveries: Counter[tuple[str, str]] = Counter()
        self.answers: Counter[tuple[str, str, str]] = Counter()

    def count_delivery(self, channel: str, status: str) -> None:
        """A delivery got a status: SENT, FAILED, RETRYING …"""
        self.deliveries[channel, status] += 1

    def count_answer(self, channel: str, provider: str, answer: str) -> None:
        """A provider answered: sent, retryable, permanent, outage, or unknown where the answer was lost."""
        self.answers[channel, provider, answer] += 1

    def metrics(self, pending: int | None) -> "Iterator[Metric]":
        if pending is not None:
            yield gauge("notification_queue_size", "Jobs that wait in notifications.", [], [((), pending)])
        labels = ["channel", "status"]
        yield counter(
            "yamchi_deliveries", "Deliveries by what became of them.", labels, self.deliveries.items()
        )
        labels = ["channel", "provider", "answer"]
        yield counter("yamchi_provider_answers", "What providers answered.", labels, self.answers.items())
