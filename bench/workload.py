"""What `before` measures on an engine, run by the Python of each version: it uses only what both of them offer.

`python workload.py drain|adds JOBS QUEUE`, with QUEUE_URL; the answer is a line of JSON: microseconds for a job, of our own CPU
and of time.
"""

import asyncio
import json
import sys
import time

import uvloop

from yamchi import Job, Yamchi

SLOTS = 100
CALLERS = 100
BATCH = 1_000
WARM_UP = 0.2
"""The part of the jobs that are not measured: connections are made, code is loaded."""

PAYLOAD = {"id": 1, "email": "nurzhan@example.com", "kind": "welcome", "tags": ["a", "b"], "pad": "x" * 100}


class Stopwatch:
    """From the first measured job to the last."""

    def __init__(self, jobs: int) -> None:
        self._left, self._measured = jobs, jobs - int(jobs * WARM_UP)
        self._cpu = self._time = 0.0
        self.ended = asyncio.Event()
        self.figures: dict[str, float] = {}

    def tick(self) -> None:
        self._left -= 1
        if self._left == self._measured:
            self._cpu, self._time = time.process_time(), time.perf_counter()
        elif self._left == 0:
            spent = {"µs of CPU": time.process_time() - self._cpu, "µs": time.perf_counter() - self._time}
            self.figures = {name: seconds / self._measured * 1e6 for name, seconds in spent.items()}
            self.ended.set()


async def drain(app: Yamchi, queue: str, jobs: int) -> dict[str, float]:
    watch = Stopwatch(jobs)

    @app.job(queue, concurrency=SLOTS)
    async def done(job: Job[dict]) -> None:  # type: ignore[type-arg]
        watch.tick()

    async with app:
        for start in range(0, jobs, BATCH):
            await app.queue(queue).add_many([PAYLOAD] * min(BATCH, jobs - start))
        working = asyncio.create_task(app.work([queue]))
        await watch.ended.wait()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    return watch.figures


async def adds(app: Yamchi, queue: str, jobs: int) -> dict[str, float]:
    """Callers who add one job at a time, all at once."""
    watch, payloads = Stopwatch(jobs), iter([PAYLOAD] * jobs)
    app.define(queue)

    async def call() -> None:
        for payload in payloads:
            await app.queue(queue).add(payload)
            watch.tick()

    async with app:
        await asyncio.gather(*(call() for _ in range(CALLERS)))
    return watch.figures


if __name__ == "__main__":
    what, number, name = sys.argv[1:]
    print(json.dumps(uvloop.run({"drain": drain, "adds": adds}[what](Yamchi(), name, int(number)))))
