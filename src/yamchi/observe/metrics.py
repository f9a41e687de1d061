"""What an application counts, for Prometheus: jobs by queue and state, how they ended, how long they ran and waited.

One `Metrics` per application, never a global one. Counting a job costs a few dictionary look-ups and no lock: the
worker's event loop is the only writer. Everything else is done when somebody scrapes.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import structlog

if TYPE_CHECKING:
    from prometheus_client import Metric

log = structlog.get_logger("yamchi.metrics")

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Upper bounds of the histograms, in seconds."""

STATUSES = {
    "Completed": "completed",
    "RetryAt": "retrying",
    "Failed": "failed",
    "Expired": "expired",
    "Cancelled": "cancelled",
    "Released": "released",
}
"""The name of each verdict in `yamchi_jobs_total{status}`."""

OTHER_NAMES = "(other)"
"""The name under which jobs without a handler of their own are counted."""

PENDING = ("waiting", "delayed")

QueueCounts = Mapping[str, Mapping[str, int]]


class _Job(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def run_at(self) -> int: ...
    @property
    def started_at(self) -> int | None: ...


class _Outcome(Protocol):
    @property
    def job(self) -> _Job: ...
    @property
    def verdict(self) -> object: ...
    @property
    def seconds(self) -> float: ...


class _Definition(Protocol):
    @property
    def handlers(self) -> Mapping[str, object]: ...


class _Queue(Protocol):
    name: str

    @property
    def definition(self) -> _Definition: ...


class Timing:
    """A histogram: how many fell under each bound, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def add(self, seconds: Sequence[float]) -> None:
        counts = self.counts
        for one in seconds:
            counts[bisect_left(BUCKETS, one)] += 1
        self.sum += sum(seconds)

    @classmethod
    def sum_of(cls, timings: "Iterable[Timing]") -> "Timing":
        whole = cls()
        for timing in timings:
            whole.counts = [one + other for one, other in zip(whole.counts, timing.counts, strict=True)]
            whole.sum += timing.sum
        return whole

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them."""
        total, rows = 0, []
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows


class Metrics:
    """The numbers of one application."""

    def __init__(self) -> None:
        self.jobs: Counter[tuple[str, str, str]] = Counter()
        self.durations: dict[tuple[str, str], Timing] = {}
        self.waits: dict[str, Timing] = {}
        self.switches: Counter[tuple[str, str]] = Counter()
        self.service_failures: Counter[str] = Counter()
        self.loop_pauses = Timing()
        self.longest_pause = self.longest_busy = 0.0
        self.counts: QueueCounts = {}
        """The jobs of each queue by state, as of the scrape under way."""

    def observe(self, queue: _Queue, outcomes: Sequence[_Outcome]) -> None:
        """Count settled jobs. An observer for `app.observers`."""
        name = queue.name
        # Others may write jobs of any name, and what is counted by name is kept for ever.
        known = {*queue.definition.handlers, name}
        ended: dict[tuple[str, type], list[_Outcome]] = defaultdict(list)
        for outcome in outcomes:
            job = outcome.job.name
            ended[job if job in known else OTHER_NAMES, type(outcome.verdict)].append(outcome)
        for (job, verdict), some in ended.items():
            status = STATUSES[verdict.__name__]
            self.jobs[name, job, status] += len(some)
            if status in ("completed", "retrying", "failed"):
                self.durations.setdefault((name, job), Timing()).add([outcome.seconds for outcome in some])
                self.waits.setdefault(name, Timing()).add(_waits(some))

    def show_zeros(self, queues: Iterable[_Queue], services: Iterable[str]) -> None:
        """Rows for what may yet happen: Prometheus sees no increase where a row begins with its first event."""
        for queue in queues:
            for handler in queue.definition.handlers:
                for status in ("completed", "failed"):
                    self.jobs[queue.name, handler, status] += 0
        for service in services:
            self.service_failures[service] += 0

    def expect_switches(self, one: str, other: str) -> None:
        """Queues may move between these types of engines: rows for it, which begin with zero."""
        for pair in ((one, other), (other, one)):
            self.switches[pair] += 0

    def count_switch(self, origin: str, target: str) -> None:
        """A queue moved from one type of engine to another, because a broker went away or came back."""
        self.switches[origin, target] += 1

    def pending(self, queue: str) -> int | None:
        """Jobs that waited in a queue when the scrape began; None if the queue is not there."""
        kept = self.counts.get(queue)
        return None if kept is None else sum(kept.get(state, 0) for state in PENDING)

    def observe_loop(self, pause: float, busy: float) -> None:
        """The event loop was late by so many seconds, of which this process worked so many."""
        self.loop_pauses.add((pause,))
        self.longest_pause = max(self.longest_pause, pause)
        self.longest_busy = max(self.longest_busy, busy)

    def count_service_failure(self, service: str) -> None:
        """A background service failed, and starts again."""
        self.service_failures[service] += 1

    def render(
        self,
        counts: QueueCounts,
        engines_up: Mapping[str, bool],
        more: "Iterable[Callable[[], Iterable[Metric]]]" = (),
    ) -> bytes:
        """The page that Prometheus reads. `counts` are the jobs of each queue by state, as of now; `more` is what features add."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        self.counts = counts
        registry.register(_Page(self, counts, engines_up, tuple(more)))
        return bytes(generate_latest(registry))


def _waits(outcomes: Sequence[_Outcome]) -> list[float]:
    """How many seconds each job waited after it was due."""
    jobs = [outcome.job for outcome in outcomes]
    return [max(job.started_at - job.run_at, 0) / 1000 for job in jobs if job.started_at is not None]


class _Page:
    """One scrape."""

    def __init__(
        self,
        metrics: Metrics,
        counts: QueueCounts,
        engines_up: Mapping[str, bool],
        more: "Sequence[Callable[[], Iterable[Metric]]]",
    ) -> None:
        self.metrics, self.counts, self.engines_up, self.more = metrics, counts, engines_up, more

    def collect(self) -> "Iterator[Metric]":
        yield from self._of_every_queue()
        yield from self._of_the_process()
        yield from self._of_switches()
        for metrics in self.more:
            yield from _of_feature(metrics)

    def _of_every_queue(self) -> "Iterator[Metric]":
        states = [((queue, state), n) for queue, kept in self.counts.items() for state, n in kept.items()]
        yield gauge("yamchi_queue_jobs", "Jobs in a queue by state.", ["queue", "state"], states)
        up = [((engine,), int(is_up)) for engine, is_up in self.engines_up.items()]
        yield gauge("yamchi_engine_up", "Whether the engine answers.", ["engine"], up)
        labels = ["queue", "name", "status"]
        yield counter("yamchi_jobs", "Runs of jobs by how they ended.", labels, self.metrics.jobs.items())
        ran = self.metrics.durations.items()
        yield histogram("yamchi_job_duration_seconds", "How long handlers ran.", ["queue", "name"], ran)
        waits = [((queue,), timing) for queue, timing in self.metrics.waits.items()]
        yield histogram("yamchi_job_wait_seconds", "How long due jobs waited for a worker.", ["queue"], waits)

    def _of_switches(self) -> "Iterator[Metric]":
        """By the name that dashboards of the earlier service already use, whatever the queue."""
        switches = self.metrics.switches.items()
        yield counter("notification_queue_switches", "Moves between engines.", ["from", "to"], switches)

    def _of_the_process(self) -> "Iterator[Metric]":
        failures = [((name,), n) for name, n in self.metrics.service_failures.items()]
        yield counter(
            "yamchi_service_failures",
            "Failures of background services, started again.",
            ["service"],
            failures,
        )
        pauses = [((), self.metrics.loop_pauses)]
        yield histogram("yamchi_event_loop_pause_seconds", "How late the event loop was.", [], pauses)
        longest = [(("any",), self.metrics.longest_pause), (("busy",), self.metrics.longest_busy)]
        yield gauge(
            "yamchi_event_loop_longest_pause_seconds",
            "The longest pause of the event loop since the start: of any cause, and by its own work.",
            ["cause"],
            longest,
        )


def _of_feature(metrics: "Callable[[], Iterable[Metric]]") -> "list[Metric]":
    """The metrics of a feature. If it fails, only its own numbers are missing."""
    try:
        return list(metrics())
    except Exception:
        log.exception("the metrics of a feature could not be read")
        return []


Rows = Iterable[tuple[Sequence[str], float]]


def gauge(name: str, text: str, labels: list[str], rows: Rows) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(name, text, labels=labels), rows)


def counter(name: str, text: str, labels: list[str], rows: Rows) -> "Metric":
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(name, text, labels=labels), rows)


def _filled(family: Any, rows: Rows) -> "Metric":
    for values, number in rows:
        family.add_metric(list(values), number)
    return family  # type: ignore[no-any-return]


def histogram(
    name: str, text: str, labels: list[str], timings: Iterable[tuple[Sequence[str], Timing]]
) -> "Metric":
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text, labels=labels)
    for values, timing in timings:
        family.add_metric(list(values), timing.buckets(), timing.sum)
    return family
