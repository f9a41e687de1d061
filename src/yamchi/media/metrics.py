"""What media adds to the metrics, by the names that dashboards of the earlier media service already use."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from yamchi.media.model import Operation
from yamchi.observe.metrics import OTHER_NAMES, STATUSES, Metrics, Timing, counter, gauge, histogram
from yamchi.queues.handlers import PoisonMessage, decode_json
from yamchi.queues.queue import Queue
from yamchi.queues.runner import Outcome

if TYPE_CHECKING:
    from prometheus_client import Metric

PROCESSING, SYNC = "media-processing", "media-sync"
OPERATIONS: tuple[Operation, ...] = ("upload", "download", "delete")


class SyncCounter:
    """Syncs by how they ended and by what their data asks for: others add jobs without a name.

    It begins with zeros, for Prometheus sees no increase where a row begins with its first event.
    """

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, ...]] = Counter(
            {(status, operation): 0 for status in ("completed", "failed") for operation in OPERATIONS}
        )

    def observe(self, queue: Queue, outcomes: Sequence[Outcome]) -> None:
        """An observer for `app.observers`."""
        if queue.name == SYNC:
            for outcome in outcomes:
                status = STATUSES[type(outcome.verdict).__name__]
                self.ended[status, _operation_in(outcome.job.payload)] += 1


def _operation_in(payload: bytes) -> str:
    """What is counted is kept for ever, so whatever else a stranger's job asks for counts as one."""
    try:
        data = decode_json(payload)
    except PoisonMessage:
        return OTHER_NAMES
    wanted = data.get("operation") if isinstance(data, dict) else None
    return next((one for one in OPERATIONS if one == wanted), OTHER_NAMES)


def collect(metrics: Metrics, syncs: SyncCounter) -> "Iterator[Metric]":
    """Sizes, runs and how long they took."""
    yield from _size(metrics, "media_processing_queue_size", PROCESSING)
    by_status: Counter[tuple[str, ...]] = Counter()
    for (queue, _, status), count in metrics.jobs.items():
        if queue == PROCESSING:
            by_status[status,] += count
    yield counter("media_processing_jobs", "Processed media.", ["status"], by_status.items())
    ran = Timing.sum_of(timing for (queue, _), timing in metrics.durations.items() if queue == PROCESSING)
    yield histogram("media_processing_duration_seconds", "How long processing took.", [], [((), ran)])
    yield from _size(metrics, "media_sync_queue_size", SYNC)
    labels = ["status", "operation"]
    yield counter("media_sync_jobs", "Files moved to and from S3.", labels, syncs.ended.items())


def _size(metrics: Metrics, name: str, queue: str) -> "Iterator[Metric]":
    if (size := metrics.pending(queue)) is not None:
        yield gauge(name, f"Jobs that wait in {queue}.", [], [((), size)])
