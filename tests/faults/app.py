"""The application that the fault tests start, kill, stop and stall, each time as a process of its own.

    python -m tests.faults.app work
    python -m tests.faults.app produce FIRST LAST

A handler writes a line to the journal for every run: what, job id, attempt, process, moment. A line is one write to a
file opened for appending, so it is there whole or not at all, whatever happens to the process a moment later.
Settings come from the environment as in any application; FAULTS_QUEUE and FAULTS_JOURNAL say which queue and file.
"""

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from yamchi import Job, New, Yamchi
from yamchi.observe.logging import configure
from yamchi.settings import Settings

QUEUE = os.environ.get("FAULTS_QUEUE", "faults")
JOURNAL = Path(os.environ.get("FAULTS_JOURNAL", "journal"))
ATTEMPTS = int(os.environ.get("FAULTS_ATTEMPTS", "20"))
KEPT = 1_000_000
POLL = 0.01

app = Yamchi(Settings(plugins=()))


def note(what: str, job: Job[Any]) -> None:
    line = f"{what} {job.id} {job.attempts_made} {os.getpid()} {time.time_ns() // 1_000_000}\n"
    journal = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(journal, line.encode())
    os.close(journal)


@app.job(QUEUE, concurrency=10, attempts=ATTEMPTS, backoff="fixed", keep_completed=KEPT, keep_failed=KEPT)
async def work(job: Job[dict[str, Any]]) -> None:
    """An ordinary job: takes a moment, then is done."""
    await asyncio.sleep(random.uniform(0, 2 * job.data.get("pause", 0)))
    note("ran", job)


@app.job(QUEUE)
async def suicide(job: Job[Any]) -> None:
    """A job that takes its worker with it, as a crash in a C library does."""
    note("began", job)
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(QUEUE)
async def hold(job: Job[Any]) -> dict[str, int]:
    """A job that goes on until the test opens the gate."""
    note("began", job)
    while not JOURNAL.with_suffix(".gate").exists():  # noqa: ASYNC110
        await asyncio.sleep(POLL)
    note("ran", job)
    return {"pid": os.getpid()}


@app.job(QUEUE)
async def block(job: Job[dict[str, float]]) -> None:
    """A job that does not let the event loop turn, as a long calculation does not."""
    note("began", job)
    time.sleep(job.data["seconds"])  # noqa: ASYNC251
    note("ran", job)


async def run_worker() -> None:
    worker = app.worker()
    for stop in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(stop, worker.stop)
    async with app:
        await worker.run()


async def produce(first: int, last: int) -> None:
    """Add jobs one by one and in batches, noting each id once it is acknowledged."""
    queue, pause = app.queue(QUEUE), float(os.environ.get("FAULTS_PAUSE", "0"))
    async with app:
        while first < last:
            size = min(random.choice([1, 1, 10, 50]), last - first)
            batch = [New({"pause": pause}, id=f"job-{n}", name="work") for n in range(first, first + size)]
            for job in await queue.add_many(batch):
                note("acked", job)
            first += size


if __name__ == "__main__":
    configure(app.settings.log_format, app.settings.log_level)
    match sys.argv[1:]:
        case ["work"]:
            asyncio.run(run_worker())
        case ["produce", first, last]:
            asyncio.run(produce(int(first), int(last)))
