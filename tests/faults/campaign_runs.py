"""A campaign under test: people in a database, workers that send to them, and what both cost.

    campaigns = CampaignRuns(tmp_path)
    await campaigns.populate(10_000)
    cost = await campaigns.send("first", workers=2)            # CPU and wall-clock time per person
    cost = await campaigns.send("second", workers=2, kills=3)  # the same, with SIGKILL in between
    await campaigns.ledger()                                   # lines, jobs, people

Cost is the processor time of the workers, user and system, from the moment they are ready: other programs on the machine
change it far less than the time on the clock.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import insert

from tests.notifications.ledger import count_ledger
from tests.processes import DEADLINE, Process
from yamchi import Yamchi
from yamchi.notifications.campaigns.model import CampaignIn
from yamchi.notifications.schemas.notification_job import derived_id
from yamchi.notifications.tables import users
from yamchi.settings import Settings
from yamchi.testing import eventually

APPLICATION = Path(__file__).with_name("campaign_app.py")
TICK = os.sysconf("SC_CLK_TCK")
POLL_SECONDS = 0.1
"""Seconds between two looks at the workers."""


@dataclass
class Cost:
    """What a campaign cost its workers."""

    people: int
    kills: int = 0
    cpu: float = 0.0
    wall: float = 0.0
    memory: list[int] = field(default_factory=list)
    """Of the largest worker, in MB, each time another tenth of the people was reached."""

    @property
    def per_person(self) -> float:
        """Microseconds of processor time."""
        return self.cpu / self.people * 1e6

    def __str__(self) -> str:
        return (
            f"{self.people:,} people, {self.kills} kills: {self.wall:.1f} s, {self.people / self.wall:,.0f}/s, "
            f"{self.per_person:.0f} µs of processor time each, memory by tenths {self.memory} MB"
        )


class Worker:
    """A worker process and what it has used since it was ready."""

    def __init__(self, home: Path, **environment: str) -> None:
        settings = {"LEASE": "5s", "LOG_LEVEL": "warning", "QUEUE_FALLBACK": "off", **environment}
        self.process = Process(home, "worker", "--app", str(APPLICATION), **settings)
        self.pid = self.process.process.pid
        self._before: float | None = None
        self.cpu = 0.0

    @property
    def has_begun(self) -> bool:
        return self._before is not None

    def begin(self) -> None:
        self._before = self._used()

    def look(self) -> None:
        """Note what it has used so far, while it can still be asked."""
        self.cpu = 0.0 if self._before is None else self._used() - self._before

    @property
    def memory(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))

    def kill(self) -> None:
        self.look()
        self.process.process.kill()
        self.process.process.wait()

    def _used(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK


class CampaignRuns:
    """One home, its people, and the workers that send to them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        folder = home / "templates" / "news"
        folder.mkdir(parents=True)
        (folder / "null.en.txt").write_text("Hello {{ user.first_name }}")
        self.app = Yamchi(Settings(home=home))
        self.campaigns = self.app.notifications.campaigns
        self.people = 0
        self._workers: list[Worker] = []
        self._gone: list[Worker] = []

    async def populate(self, total: int) -> None:
        """Make people until there are so many."""
        now = self.app.clock.now()
        while self.people < total:
            numbers = range(self.people, min(self.people + 10_000, total))
            rows = [_person(number, now) for number in numbers]
            await self.app.database.write(lambda c, rows=rows: c.execute(insert(users), rows).rowcount)
            self.people = numbers.stop

    async def send(self, campaign_id: str, *, workers: int = 2, kills: int = 0) -> Cost:
        """A campaign to everybody; each kill is SIGKILL of a worker, and another one starts."""
        await self._hire(workers)
        cost, began = Cost(self.people), time.monotonic()
        moments = sorted(random.sample(range(self.people // 20, self.people // 2), kills))
        await self._create(campaign_id)
        while (shown := await self.campaigns.show(campaign_id))["state"] != "finished":
            self._check()
            sent = shown["progress"]["sent"]
            while sent * 10 // self.people > len(cost.memory):
                cost.memory.append(max(worker.memory for worker in self._workers))
            if moments and sent >= moments[0]:
                moments.pop(0)
                cost.kills += 1
                self._replace(random.choice(self._workers))
            await self._look_who_is_ready()
            await asyncio.sleep(POLL_SECONDS)
        cost.wall = time.monotonic() - began
        cost.cpu = await self._dismiss()
        return cost

    async def die_at(self, point: str, campaign_id: str) -> None:
        """Begin a campaign with a worker that ends there, as a power cut would."""
        worker = Worker(self.home, YAMCHI_FAULT=point)
        await self._create(campaign_id)
        await eventually(lambda: worker.process.process.poll() == -signal.SIGKILL, DEADLINE)

    async def _create(self, campaign_id: str) -> None:
        wish = {"campaign_id": campaign_id, "template_code": "news", "channel": "null"}
        await self.campaigns.create(CampaignIn.model_validate({**wish, "audience": {"where": {}}}))

    async def ledger(self) -> Counter[str]:
        """Lines of the null channel, and the jobs and people they belong to."""
        return await count_ledger(self.app.database)

    async def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        await self.app.close()

    # ── Workers ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _hire(self, workers: int) -> None:
        self._workers = [Worker(self.home) for _ in range(workers)]
        while not all(worker.has_begun for worker in self._workers):
            self._check()
            await asyncio.sleep(POLL_SECONDS)
            await self._look_who_is_ready()

    async def _look_who_is_ready(self) -> None:
        """Who is among the workers that the engine lists: before that, it only reads its own code."""
        if all(worker.has_begun for worker in self._workers):
            return
        known = {one.pid for one in await self.app.notifications.queue.engine.workers()}
        for worker in self._workers:
            if worker.pid in known and not worker.has_begun:
                worker.begin()

    def _replace(self, worker: Worker) -> None:
        """Without waiting for the new one: the campaign would be over before the next kill."""
        worker.kill()
        self._workers.remove(worker)
        self._gone.append(worker)
        self._workers.append(Worker(self.home))

    async def _dismiss(self) -> float:
        """Kill what is left; the processor time of all."""
        for worker in self._workers:
            worker.kill()
        used = sum(worker.cpu for worker in (*self._workers, *self._gone))
        self._workers, self._gone = [], []
        return used

    def _check(self) -> None:
        for worker in self._workers:
            assert worker.process.process.poll() is None, worker.process.said


def _person(number: int, now: int) -> dict[str, object]:
    return {
        "user_id": str(derived_id("person", str(number))),
        "email": f"user-{number}@example.com",
        "locale": "en",
        "attributes": {"first_name": f"Person {number}", "plan": "pro"},
        "created_at": now,
        "updated_at": now,
    }
