"""What media adds to the metrics, by the names that dashboards of the earlier media service already use."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from yamchi.observe.metrics import Metrics, Timing, counter, gauge, histogram

if TYPE_CHECKING:
    from prometheus_client import Metric

PROCESSING, SYNC = "media-processing", "media-sync"


def collect(metrics: Metrics) -> "Iterator[Metric]":
    """Sizes, runs and how long they took."""
    yield from _size(metrics, "media_processing_queue_size", PROCESSING)
    by_status: Counter[tuple[str, ...]] = Counter()
    by_operation: Counter[tuple[str, ...]] = Counter()
    for (queue, name, status), count in metrics.jobs.items():
        if queue == PROCESSING:
            by_status[status,] += count
        elif queue == SYNC:
            by_operation[status, name] += count
    yield counter("media_processing_jobs", "Processed media.", ["status"], by_status.items())
    ran = Timing.sum_of(timing for (queue, _), timing in metrics.durations.items() if queue == PROCESSING)
    yield histogram("media_processing_duration_seconds", "How long processing took.", [], [((), ran)])
    yield from _size(metrics, "media_sync_queue_size", SYNC)
    labels = ["status", "operation"]
    yield counter("media_sync_jobs", "Files moved to and from S3.", labels, by_operation.items())


def _size(metrics: Metrics, name: str, queue: str) -> "Iterator[Metric]":
    if (size := metrics.pending(queue)) is not None:
        yield gauge(name, f"Jobs that wait in {queue}.", [], [((), size)])
