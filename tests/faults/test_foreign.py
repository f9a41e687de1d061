"""What somebody else writes to a broker costs nobody anything: good jobs run in their time, and every page can be shown."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from secrets import token_hex
from statistics import median
from time import monotonic
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tests.faults.foreign import PRODUCERS, Producer
from tests.faults.harness import ROOT, TIMEOUT_SECONDS
from tests.processes import Process
from tests.scale import FULL
from tests.services.postgrest import KEY, Postgrest, prepare
from yamchi.queues.records import STATES as JOB_STATES
from yamchi.testing import eventually

ROUNDS, MOST_ROUNDS = (12, 12) if FULL else (3, 12)
"""How many are compared, and how many if the machine is so busy that a few say nothing."""
GOOD, BAD = (450, 150) if FULL else (150, 50)
STATES = ["", *(f"state={state}" for state in JOB_STATES)]


@dataclass
class Place:
    """A running `yamchi up` whose queue others write to."""

    process: Process
    queue: str
    journal: Path
    producer: Producer
    client: httpx2.AsyncClient
    refused: list[str] = field(default_factory=list)

    @property
    def ran(self) -> set[str]:
        return set(self.journal.read_text().splitlines()) if self.journal.exists() else set()

    async def round(self, name: str, chance: random.Random | None) -> float:
        """Good jobs, with nonsense among them if there is chance; how many seconds until all of them have run.

        What it takes to write the nonsense is not counted: that is its writer's time.
        """
        ids = [f"{name}-{number}" for number in range(GOOD)]
        began = monotonic()
        for start in range(0, GOOD, 15):
            if chance:
                paused = monotonic()
                await asyncio.to_thread(self.producer.bad, chance, BAD * 15 // GOOD)
                began += monotonic() - paused
            await asyncio.to_thread(self.producer.good, ids[start : start + 15])
        wanted = {repr(job_id) for job_id in ids}
        await eventually(lambda: wanted <= self.ran, TIMEOUT_SECONDS)
        return monotonic() - began

    async def look(self, path: str) -> Any:
        """A page, which must be there."""
        answer = await self.client.get(f"/api/queues/{self.queue}{path}")
        if answer.status_code != 200:
            self.refused.append(f"{path}: {answer.status_code} {answer.text[:300]}")
        return answer.json() if answer.status_code == 200 else {}

    async def is_idle(self) -> bool:
        """Nothing waits: whatever it was, it has come to an end. (What others say they hold is theirs.)"""
        return not (await self.look(""))["counts"]["waiting"]

    async def keep_looking(self) -> None:
        while True:
            for path in ("", "/jobs", "/jobs?state=failed", "/dlq", "/jobs?state=waiting&q=bad"):
                await self.look(path)
            await asyncio.sleep(0.05)

    async def look_at_everything(self) -> None:
        for state in STATES:
            async for job in self._all(f"/jobs?{state}", "jobs"):
                await self._look_at(f"/jobs/{quote(job['id'], safe='')}")
        async for letter in self._all("/dlq?", "letters"):
            await self._look_at(f"/dlq/{quote(letter['id'], safe='')}")

    async def act_on_everything(self) -> None:
        """Every act on many, none of which stops at what others wrote."""
        acts = [f"/retry-all?state={state}" for state in ("failed", "cancelled", "expired")]
        acts += [f"/clean?state={state}" for state in ("delayed", "failed", "completed")]
        for path in ("/dlq/replay-all", *acts):
            answer = await self.client.post(f"/api/queues/{self.queue}{path}")
            if answer.status_code != 200:
                self.refused.append(f"{path}: {answer.status_code} {answer.text[:300]}")

    async def _all(self, path: str, what: str) -> AsyncIterator[dict[str, Any]]:
        """Each page, and of each page a few to be looked at by themselves."""
        for page in count(1):
            found = await self.look(f"{path}&size=100&page={page}")
            for one in found.get(what, ())[:5]:
                yield one
            if page >= found.get("pages", 0):
                return

    async def _look_at(self, path: str) -> None:
        """One may be gone by now, or have an id that no address can carry."""
        try:
            answer = await self.client.get(f"/api/queues/{self.queue}{path}")
        except httpx2.TransportError as error:
            self.refused.append(f"{path[:200]}: {error!r}")
            return
        if answer.status_code not in (200, 404, 422):
            self.refused.append(f"{path[:200]}: {answer.status_code} {answer.text[:300]}")


@pytest.fixture
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def a_place(home: Path, engine: str, url: str, **settings: str) -> AsyncIterator[Place]:
    queue, journal = f"foreign_{token_hex(4)}", home / "journal"
    environment = {
        "QUEUE_URL": url,
        "QUEUE_FALLBACK": "off",
        "FAULTS_QUEUE": queue,
        "FAULTS_JOURNAL": str(journal),
        "PYTHONPATH": str(ROOT),
        "RATE_LIMIT_READ": "100000/s",
        **settings,
    }
    process = Process(home, "up", "--port", "0", "--app", "tests.faults.foreign_app:app", **environment)
    try:
        base = await asyncio.to_thread(lambda: process.url)
        async with httpx2.AsyncClient(base_url=base, timeout=60) as client:
            await eventually(lambda: _is_ready(client, queue), TIMEOUT_SECONDS)
            producer = PRODUCERS[engine](url, queue)
            place = Place(process, queue, journal, producer, client)
            try:
                yield place
            finally:
                producer.close()
    finally:
        process.process.kill()
        process.process.wait()


async def _is_ready(client: httpx2.AsyncClient, queue: str) -> bool:
    return (await client.get(f"/api/queues/{queue}")).status_code == 200


@pytest.fixture
def project(postgres_url: str) -> Iterator[Postgrest]:
    """A project of Supabase: the same tables, asked over REST."""
    prepare(postgres_url)
    server = Postgrest(postgres_url)
    yield server
    server.stop()


@pytest.mark.services
@pytest.mark.timeout(1_800)
@pytest.mark.skipif(
    not FULL, reason="a message at Supabase is a request each to read and delete: FAULTS=full"
)
async def test_nonsense_of_others_costs_good_jobs_at_supabase_nothing(
    project: Postgrest, postgres_url: str, own_home: Path
) -> None:
    asked = {"WORKER_INTERVAL_MS": "100", "WORKER_MAX_TASKS": "1000"}
    there = {"QUEUE_URL": "supabase", "SUPABASE_URL": project.url, "SUPABASE_SERVICE_ROLE_KEY": KEY}
    async with a_place(own_home, "pgmq", postgres_url, **there, **asked) as place:
        await _compare(place, "supabase")


@pytest.mark.services
@pytest.mark.parametrize("engine_name", ["bull", "pgmq", "kafka"], indirect=True)
async def test_nonsense_of_others_costs_good_jobs_nothing(
    engine_name: str, engine_url: str, own_home: Path
) -> None:
    async with a_place(own_home, engine_name, engine_url) as place:
        await _compare(place, engine_name)


async def _compare(place: Place, engine_name: str) -> None:
    """Good jobs with and without nonsense between them, in turns."""
    seed = int(os.environ.get("FAULTS_SEED", random.randrange(10**6)))
    print(f"FAULTS_SEED={seed}")
    chance = random.Random(seed)
    await place.round("warm", None)
    looking = asyncio.create_task(place.keep_looking())
    usual: list[float] = []
    among_nonsense: list[float] = []
    try:
        while len(usual) < ROUNDS or (_ratio(among_nonsense, usual) > 2 and len(usual) < MOST_ROUNDS):
            number = len(usual)
            usual.append(await place.round(f"usual-{number}", None))
            among_nonsense.append(await place.round(f"among-{number}", chance))
            assert place.process.process.poll() is None, place.process.said[-3_000:]
    finally:
        looking.cancel()
    await eventually(place.is_idle, TIMEOUT_SECONDS)
    await place.look_at_everything()
    assert place.refused == [], place.process.said[-5_000:]
    letters = (await place.look("/dlq?size=100"))["letters"]
    assert any("raw_value" in str(letter) for letter in letters)
    await place.act_on_everything()
    assert place.refused == [], place.process.said[-5_000:]
    print(f"{engine_name}: {median(usual):.2f} s, {median(among_nonsense):.2f} s among nonsense")
    assert _ratio(among_nonsense, usual) <= 2


def _ratio(some: list[float], others: list[float]) -> float:
    return median(some) / median(others)
