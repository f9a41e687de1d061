"""Yamchi on PostgreSQL beside somebody else's open transaction, in turns with clean runs.

While a transaction is open, PostgreSQL keeps every row that it might still see, dead or not. One worker drains a stream
of rounds: the question is whether the rate falls while the dead rows become more.
"""

import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import psycopg

from bench.checks import Check
from bench.contenders import ENTRIES
from bench.hits import Hits
from bench.measure import DRAIN_SECONDS, START_SECONDS, Target, Worker, add
from bench.stores import store_of

YAMCHI = next(entry for entry in ENTRIES if entry.suite == "postgres" and entry.role == "us")
ROUND = 10_000
ROUNDS = 13
"""The last three come after 100,000 jobs."""
LAST = 3
READERS = 4
READ_EVERY = 1.0

CLEAN = "clean"
HELD = "beside a held transaction"
READ = "beside a held transaction with four readers"

Rates = dict[str, list[float]]
"""Jobs a second in each round, by what went on beside."""


def measure(repetitions: int, rounds: int, say: Callable[[str, str], None]) -> Rates:
    """Medians of each round over the repetitions."""
    samples: dict[str, list[list[float]]] = defaultdict(list)
    situations = [CLEAN, HELD, READ]
    with store_of("postgres") as fresh:
        for repetition in range(repetitions):
            for situation in situations if repetition % 2 == 0 else situations[::-1]:
                rates = _stream(fresh(), situation, rounds)
                samples[situation].append(rates)
                say(situation, " ".join(f"{rate:,.0f}" for rate in rates))
    return {
        situation: [statistics.median(each) for each in zip(*samples[situation], strict=True)]
        for situation in situations
    }


def _stream(target: Target, situation: str, rounds: int) -> list[float]:
    rates = []
    with Worker(YAMCHI, target) as worker:
        add(YAMCHI, target, {"warm": 20})
        worker.await_hits(20, START_SECONDS)
        with _beside(target, situation):
            for number in range(rounds):
                add(YAMCHI, target, {"bulk": ROUND})
                done = 20 + (number + 1) * ROUND
                worker.await_hits(done, DRAIN_SECONDS)
                rates.append(Hits.last(worker.hits_file, ROUND).rate())
    return rates


# ── Somebody else ─────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _beside(target: Target, situation: str) -> Iterator[None]:
    if situation == CLEAN:
        yield
        return
    with ExitStack() as stack:
        holder = stack.enter_context(_snapshot(target))
        ((snapshot,),) = holder.execute("SELECT pg_export_snapshot()").fetchall()
        if situation == READ:
            over = threading.Event()
            for _ in range(READERS):
                reader = threading.Thread(target=_read, args=(target, snapshot, over))
                reader.start()
                stack.callback(reader.join)
            stack.callback(over.set)
        yield


@contextmanager
def _snapshot(target: Target) -> Iterator[psycopg.Connection]:
    """A transaction that sees the database as it was now, until it is left."""
    with psycopg.connect(target.url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield connection


def _read(target: Target, snapshot: str, over: threading.Event) -> None:
    """As `pg_dump --jobs` reads: all in one snapshot, each in a transaction of its own."""
    with _snapshot(target) as connection:
        connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        while not over.wait(READ_EVERY):
            connection.execute("SELECT count(*) FROM yamchi.queues").fetchall()
            connection.execute("SELECT count(*) FROM yamchi.minutes").fetchall()


# ── For people ────────────────────────────────────────────────────────────────────────────────────────────────────


def table(rates: Mapping[str, Sequence[float]]) -> str:
    lines = [
        f"{situation:44} {' '.join(f'{rate:>7,.0f}' for rate in each)}" for situation, each in rates.items()
    ]
    return "\n".join(["", f"PostgreSQL beside open transactions: jobs/s, rounds of {ROUND:,} jobs", *lines])


def markdown(rates: Mapping[str, Sequence[float]]) -> str:
    clean = _end(rates.get(CLEAN, ()))
    lines = ["| | first round/s | last three rounds/s | of the clean rate |", "|---|---:|---:|---:|"]
    for situation, each in rates.items():
        last = ", ".join(f"{rate:,.0f}" for rate in each[-LAST:])
        lines.append(f"| {situation} | {each[0]:,.0f} | {last} | {(_end(each) or 0) / (clean or 1):.2f} |")
    jobs = ROUND * len(next(iter(rates.values())))
    said = (
        f"One worker, {jobs:,} jobs in rounds of {ROUND:,}, added while it works. Beside it somebody's `repeatable read` "
        "transaction is open the whole time, as a `pg_dump` has it, so that PostgreSQL can't remove one dead row."
    )
    return "\n".join([said, "", *lines])


def checks(rates: Mapping[str, Sequence[float]]) -> list[Check]:
    clean = _end(rates.get(CLEAN, ()))
    found = []
    for situation in (HELD, READ):
        last = rates.get(situation, ())[-LAST:]
        found.append(Check(f"PostgreSQL {situation}: last rounds / clean", _end(last), clean, 0.8))
        if last:
            found.append(
                Check(
                    f"PostgreSQL {situation}: slowest of the last three / fastest", min(last), max(last), 0.85
                )
            )
    return found


def _end(rates: Sequence[float]) -> float | None:
    return statistics.median(rates[-LAST:]) if rates else None
