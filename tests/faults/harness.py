"""Real processes on one queue, and the arithmetic of what became of its jobs.

    site = Site(tmp_path, url, queue)
    worker = site.start_worker()
    worker.kill()
    site.tally("SIGKILL", …)       # lost, duplicates, in flight

The journal (see `tests.faults.app`) says what handlers really did; the engine says what it believes. Both must agree.
"""

import asyncio
import inspect
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from tests.launcher import launch
from yamchi import Queue, Yamchi
from yamchi.settings import Settings
from yamchi.testing import eventually

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 100.0
"""How long a test waits for what must happen, in seconds: generous, since only a failure takes that long."""


class Entry(NamedTuple):
    """A line of the journal."""

    what: str
    job_id: str
    attempt: int
    pid: int
    moment: int


@dataclass(frozen=True)
class Tally:
    """What became of the jobs of one test: a row of the table of faults."""

    fault: str
    engine: str
    jobs: int
    runs: int
    kills: int
    in_flight: int
    duplicates: int
    lost: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.engine}: {self.fault}: {self.jobs} jobs, {self.runs} runs, {self.kills} kills, "
            f"{self.in_flight} in flight at the kills, {self.duplicates} duplicates, {self.lost} lost, {self.seconds:.1f} s"
        )


class Process:
    """One process of the application."""

    def __init__(self, arguments: Iterable[str], environment: dict[str, str], log: Path) -> None:
        self.log_file = log
        self._child = launch("tests.faults.app", list(arguments), cwd=ROOT, env=environment, output=log)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def exit_code(self) -> int | None:
        return self._child.poll()

    @property
    def is_stopped(self) -> bool:
        """Whether it sleeps since a SIGSTOP."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def signal(self, which: signal.Signals) -> None:
        self._child.send_signal(which)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._child.kill()
        self._child.wait()

    async def ended(self, within: float = TIMEOUT_SECONDS) -> int:
        """Its exit code, when it has one."""
        await eventually(lambda: self.exit_code is not None, within)
        return self._child.returncode


@dataclass
class Site:
    """One queue, the processes that use it, and their journal."""

    folder: Path
    url: str
    queue_name: str
    lease: str = "2s"
    pause: float = 0.02
    attempts: int = 20
    settings: dict[str, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    in_flight: int = 0
    kills: int = 0

    def __post_init__(self) -> None:
        self._began = monotonic()
        self._read = 0
        self._entries: list[Entry] = []
        self._app = Yamchi(Settings(home=self.folder, plugins=(), default_queue_url=self.url))
        self._app.define(
            self.queue_name, attempts=self.attempts, keep_completed=1_000_000, keep_failed=1_000_000
        )

    # ── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────

    def start_worker(self) -> Process:
        return self._start("work")

    def start_producer(self, first: int, last: int) -> Process:
        return self._start("produce", str(first), str(last))

    def _start(self, *arguments: str) -> Process:
        log = self.folder / f"{arguments[0]}-{len(self.processes)}.log"
        process = Process(arguments, {**os.environ, **self._environment()}, log)
        self.processes.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        return {
            "YAMCHI_HOME": str(self.folder),
            "QUEUE_URL": self.url,
            "QUEUE_FALLBACK": "off",
            "LEASE": self.lease,
            "LOG_LEVEL": "warning",
            "FAULTS_QUEUE": self.queue_name,
            "FAULTS_JOURNAL": str(self.journal),
            "FAULTS_PAUSE": str(self.pause),
            "FAULTS_ATTEMPTS": str(self.attempts),
            **self.settings,
        }

    async def kill_worker(self, worker: Process) -> None:
        """SIGKILL a worker, and count what it held at that moment."""
        worker.kill()
        self.kills += 1
        self.in_flight += await self.held_by(worker)

    async def stall(self, worker: Process) -> None:
        """SIGSTOP a worker, but not amid a transaction: one asleep with SQLite's write lock keeps everybody waiting."""
        while True:
            worker.signal(signal.SIGSTOP)
            await self.until(lambda: worker.is_stopped)  # the signal takes its time
            try:
                async with asyncio.timeout(1):
                    return await self.queue.resume()  # changes nothing, but has to be written
            except TimeoutError:
                worker.signal(signal.SIGCONT)

    async def held_by(self, worker: Process) -> int:
        """How many jobs the engine believes this process is running."""
        page = await self.queue.engine.page(self.queue_name, "active", "", 0, 1_000)
        return sum(f"-{worker.pid}-" in (job.worker or "") for job in page.jobs)

    async def close(self) -> None:
        """End what still runs, the way a crash would: tests that want manners ask for them."""
        for process in self.processes:
            if process.exit_code is None:
                process.kill()
        await self._app.close()

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def queue(self) -> Queue:
        return self._app.queue(self.queue_name)

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def open_gate(self) -> None:
        """Let jobs named `hold` end."""
        self.journal.with_suffix(".gate").touch()

    def entries(self, what: str) -> list[Entry]:
        """Lines of one kind, so far."""
        if self.journal.exists():
            with self.journal.open("rb") as journal:
                journal.seek(self._read)
                fresh = journal.read()
            fresh = fresh[: fresh.rfind(b"\n") + 1]  # a line that is being written is read next time
            self._read += len(fresh)
            self._entries.extend(_entry(line) for line in fresh.decode().splitlines())
        return [entry for entry in self._entries if entry.what == what]

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for a condition; a process that broke down meanwhile ends the wait, and what all of them said is shown."""

        async def met() -> Any:
            broken = [process for process in self.processes if (process.exit_code or 0) > 0]
            assert not broken, f"{broken[0].log_file.name} ended with {broken[0].exit_code}"
            outcome = condition()
            return await outcome if inspect.isawaitable(outcome) else outcome

        try:
            return await eventually(met, TIMEOUT_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    async def ran(self, count: int) -> None:
        """Wait until so many runs have ended."""
        await self.until(lambda: len(self.entries("ran")) >= count)

    async def all_alive(self, workers: Sequence[Process]) -> None:
        """Wait until these processes are among the workers that the engine lists."""

        async def alive() -> bool:
            listed = {worker.pid for worker in await self.queue.engine.workers()}
            return all(worker.pid in listed for worker in workers)

        await self.until(alive)

    async def all_settled(self, jobs: int) -> None:
        """Wait until the engine has nothing left to do, and so many jobs done."""

        async def settled() -> bool:
            counts = await self.queue.engine.counts(self.queue_name)
            open_jobs = counts["waiting"] + counts["delayed"] + counts["active"]
            return open_jobs == 0 and counts["completed"] + counts["failed"] == jobs

        await self.until(settled)

    def logs(self) -> str:
        """The end of what every process said."""
        return "\n".join(f"--- {process.log_file.name}\n{process.log[-2_000:]}" for process in self.processes)

    def tally(self, fault: str, jobs: int, added: Iterable[str] = ()) -> Tally:
        """Count: of the jobs that producers or the test have added, which never ran, and which ran more than once."""
        runs = Counter(entry.job_id for entry in self.entries("ran"))
        acked = {entry.job_id for entry in self.entries("acked")}.union(added)
        tally = Tally(
            fault=fault,
            engine=self.queue.engine.type,
            jobs=jobs,
            runs=runs.total(),
            kills=self.kills,
            in_flight=self.in_flight,
            duplicates=runs.total() - len(runs),
            lost=len(acked - runs.keys()),
            seconds=round(monotonic() - self._began, 1),
        )
        print(tally)
        return tally


class Monkey:
    """Keeps some workers running and kills one of them, any of them, whenever enough jobs have been done."""

    def __init__(self, site: Site, workers: int = 2) -> None:
        self._site = site
        self._workers = [site.start_worker() for _ in range(workers)]

    async def rage(self, kills: int, jobs: int) -> None:
        """Add the jobs in parts and kill somebody at a random point of each but the last.

        So there are jobs left for those who take the place of the killed, however late they start.
        """
        parts = pairwise(jobs * part // (kills + 1) for part in range(kills + 2))
        for number, (first, last) in enumerate(parts):
            producer = self._site.start_producer(first, last)
            if number < kills:
                await self._site.ran(random.randrange(first, last))
                victim = await self._site.until(self._busy_worker)
                await self._site.kill_worker(victim)
                self._workers[self._workers.index(victim)] = self._site.start_worker()
            assert await producer.ended() == 0, producer.log

    def _busy_worker(self) -> Process | None:
        """One that has done something already: killing one that is still starting proves nothing."""
        busy = {entry.pid for entry in self._site.entries("ran")}
        return random.choice([worker for worker in self._workers if worker.pid in busy] or [None])


def _entry(line: str) -> Entry:
    what, job_id, attempt, pid, moment = line.split()
    return Entry(what, job_id, int(attempt), int(pid), int(moment))
