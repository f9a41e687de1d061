"""A producer and a worker for the failover tests: numbers go in one by one, and come out in the order they were taken.

    python -m tests.faults.spool_app produce FIRST      until it is ended
    python -m tests.faults.spool_app work

What was acknowledged and what was run is written to ACKED and RAN, a number a line.
"""

import asyncio
import os
import sys
from pathlib import Path

from yamchi import Job, Yamchi
from yamchi.observe.logging import configure
from yamchi.settings import Settings

QUEUE = os.environ["SPOOL_QUEUE"]
ACKED, RAN = Path(os.environ["ACKED"]), Path(os.environ["RAN"])
app = Yamchi(Settings(plugins=()))


@app.job(QUEUE, concurrency=1, keep_completed=100_000)
async def count(job: Job[int]) -> None:
    _append(RAN, job.data)


async def produce(first: int) -> None:
    number = first
    while True:
        await app.queue(QUEUE).add(number, id=f"number-{number}")
        _append(ACKED, number)
        number += 1
        await asyncio.sleep(0.002)


def _append(path: Path, number: int) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(b"%d\n" % number)


if __name__ == "__main__":
    configure("console", "warning", stream=sys.stdout)
    asyncio.run(produce(int(sys.argv[2])) if sys.argv[1] == "produce" else app.work())
