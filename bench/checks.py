"""What we promise, as ratios within one run. Printed as PASS, FAIL or, where somebody did not run, as not measured."""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.contenders import entries_of
from bench.results import Results, SuiteResults


@dataclass(frozen=True, slots=True)
class Check:
    """`ours` against `theirs` times `factor`: at least, or at most."""

    what: str
    ours: float | None
    theirs: float | None
    factor: float
    at_most: bool = False

    @property
    def ratio(self) -> float | None:
        return None if self.ours is None or not self.theirs else self.ours / self.theirs

    @property
    def passed(self) -> bool | None:
        if self.ratio is None:
            return None
        return self.ratio <= self.factor if self.at_most else self.ratio >= self.factor

    def __str__(self) -> str:
        if self.ratio is None:
            return f"  -     {self.what}: not measured"
        mark = "PASS" if self.passed else "FAIL"
        bound = "at most" if self.at_most else "at least"
        return f"  {mark}  {self.what}: {self.ratio:.2f} ({bound} {self.factor:g})"


def print_all(results: Results) -> bool:
    """Print every check; whether none failed."""
    checks = all_checks(results)
    print("\nGoals, as ratios within this run")
    for check in checks:
        print(check)
    return all(check.passed is not False for check in checks)


def all_checks(results: Results) -> list[Check]:
    from bench import held
    from bench.media import run as media
    from bench.notifications import run as notifications

    queues = [check for suite, found in results.suites.items() for check in CHECKS[suite](found)]
    if results.held:
        queues += held.checks(results.held)
    queues += notifications.checks(results.notifications) if results.notifications else []
    return queues + (media.checks(results.media) if results.media else [])


def _embedded(found: SuiteResults) -> Iterator[Check]:
    ours = found.figures.get("yamchi", {})
    drain, extra = ours.get("drain"), found.extra
    yield Check("SQLite: drain / raw batched loop", drain, found.get("raw_sqlite", "drain"), 0.25)
    # With as many threads as everybody who has threads; what Huey does with one is a row of the table.
    yield Check("SQLite: drain / Huey's with 8 threads", drain, found.get("huey_sqlite", "drain"), 10)
    yield Check("SQLite: 100 concurrent adds / one add per transaction", ours.get("add_concurrent"), found.get("raw_sqlite", "add_single"), 5)  # fmt: skip
    yield Check("SQLite: claim rate with 1,000,000 waiting / with 10,000", extra.get("claim_large"), extra.get("claim_small"), 0.8)  # fmt: skip
    yield Check("SQLite: memory after 1,000,000 jobs / after 100,000", extra.get("rss_last"), extra.get("rss_first"), 1.2, at_most=True)  # fmt: skip
    yield Check("SQLite: idle memory / 80 MB", ours.get("rss_idle"), 80, 1, at_most=True)


def _redis(found: SuiteResults) -> Iterator[Check]:
    ours, node = found.figures.get("yamchi", {}), found.figures.get("bullmq_node", {})
    best = found.best_peer("redis", "drain", python_only=True)
    yield Check("Redis: drain / Node BullMQ's", ours.get("drain"), node.get("drain"), 1)
    name = f" ({best[0].label})" if best else ""
    yield Check(f"Redis: drain / best Python peer's{name}", ours.get("drain"), best and best[1], 5)
    for entry in entries_of("redis"):
        if entry.role == "peer" and entry.runtime != "node" and entry.acks and not entry.tuned:
            yield Check(f"Redis: single adds / {entry.label}'s", ours.get("add_single"), found.get(entry.name, "add_single"), 1)  # fmt: skip
    yield Check("Redis: 100 concurrent adds / Node BullMQ's", ours.get("add_concurrent"), node.get("add_concurrent"), 1)  # fmt: skip
    yield Check("Redis: bulk adds / Node BullMQ's", ours.get("add_bulk"), node.get("add_bulk"), 1)
    for figure in ("p50", "p99"):
        yield Check(f"Redis: {figure} enqueue to start / Node BullMQ's", ours.get(figure), node.get(figure), 1.1, at_most=True)  # fmt: skip
    yield Check("Redis: idle memory / 80 MB", ours.get("rss_idle"), 80, 1, at_most=True)


def _postgres(found: SuiteResults) -> Iterator[Check]:
    drain = found.get("yamchi", "drain")
    yield Check("PostgreSQL: drain / Procrastinate's", drain, found.get("procrastinate", "drain"), 8)
    yield Check("PostgreSQL: drain / raw pgmq loop of 100", drain, found.get("raw_pgmq", "drain"), 0.5)


def _kafka(found: SuiteResults) -> Iterator[Check]:
    drain = found.get("yamchi", "drain")
    yield Check("Kafka: drain / FastStream's", drain, found.get("faststream", "drain"), 3)


CHECKS = {"embedded": _embedded, "redis": _redis, "postgres": _postgres, "kafka": _kafka}
