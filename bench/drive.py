"""One process of one contender: `python -m bench.drive NAME add PLAN` or `… NAME work`.

PLAN is JSON, for example {"single": 500, "concurrent": 2000, "bulk": 5000} or {"paced": 300}: so many jobs that way,
in that order. Prints a JSON object of jobs a second; a way the contender does not have is null, but its jobs are added.
"""

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic
from typing import Any

import uvloop

from bench.contenders.base import AsyncContender, SyncContender
from bench.hits import payload

BATCH = 1_000
TOGETHER = 100
PACE = 0.005

Rates = dict[str, float | None]


def main(name: str, what: str, plan: str = "{}") -> None:
    contender = importlib.import_module(f"bench.contenders.{name}").Contender()
    if what == "work":
        contender.work()
    elif isinstance(contender, AsyncContender):
        print(json.dumps(uvloop.run(_add_async(contender, json.loads(plan)))))
    else:
        print(json.dumps(_add_sync(contender, json.loads(plan))))


def _batches(jobs: int, size: int) -> Iterator[range]:
    return (range(start, min(start + size, jobs)) for start in range(0, jobs, size))


def _shown(contender: AsyncContender | SyncContender, rates: Rates) -> Rates:
    if not contender.times_adds:
        return {}
    return rates if contender.has_bulk else rates | {"bulk": None}


# ── Contenders of coroutines ──────────────────────────────────────────────────────────────────────────────────────


async def _add_async(contender: AsyncContender, plan: dict[str, int]) -> Rates:
    ways: dict[str, Callable[[AsyncContender, int], Awaitable[Any]]] = {
        "warm": _one_by_one,
        "single": _one_by_one,
        "concurrent": _together,
        "bulk": _in_bulk if contender.has_bulk else _together,
        "paced": _paced,
    }
    await contender.open()
    try:
        rates: Rates = {}
        for way, jobs in plan.items():
            start = monotonic()
            await ways[way](contender, jobs)
            rates[way] = jobs / (monotonic() - start)
    finally:
        await contender.close()
    return _shown(contender, rates)


async def _one_by_one(contender: AsyncContender, jobs: int) -> None:
    for number in range(jobs):
        await contender.add(payload(number))


async def _together(contender: AsyncContender, jobs: int) -> None:
    """So many coroutines, each of which adds one job after another."""
    numbers = iter(range(jobs))

    async def add_on() -> None:
        for number in numbers:
            await contender.add(payload(number))

    await asyncio.gather(*(add_on() for _ in range(TOGETHER)))


async def _in_bulk(contender: AsyncContender, jobs: int) -> None:
    for batch in _batches(jobs, BATCH):
        await contender.add_many([payload(number) for number in batch])


async def _paced(contender: AsyncContender, jobs: int) -> None:
    start = monotonic()
    for number in range(jobs):
        await asyncio.sleep(max(start + number * PACE - monotonic(), 0))
        await contender.add(payload(number))


# ── Contenders of plain calls ─────────────────────────────────────────────────────────────────────────────────────


def _add_sync(contender: SyncContender, plan: dict[str, int]) -> Rates:
    ways: dict[str, Callable[[SyncContender, int], Any]] = {
        "warm": _one_by_one_sync,
        "single": _one_by_one_sync,
        "concurrent": _in_bulk_sync,
        "bulk": _in_bulk_sync,
        "paced": _paced_sync,
    }
    contender.open()
    rates: Rates = {}
    for way, jobs in plan.items():
        start = monotonic()
        ways[way](contender, jobs)
        rates[way] = jobs / (monotonic() - start)
    contender.close()
    return _shown(contender, rates | {"concurrent": None})


def _one_by_one_sync(contender: SyncContender, jobs: int) -> None:
    for number in range(jobs):
        contender.add(payload(number))


def _in_bulk_sync(contender: SyncContender, jobs: int) -> None:
    if not contender.has_bulk:
        return _one_by_one_sync(contender, jobs)
    for batch in _batches(jobs, BATCH):
        contender.add_many([payload(number) for number in batch])
    return None


def _paced_sync(contender: SyncContender, jobs: int) -> None:
    start = monotonic()
    for number in range(jobs):
        time.sleep(max(start + number * PACE - monotonic(), 0))
        contender.add(payload(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
