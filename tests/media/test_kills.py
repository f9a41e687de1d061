"""SIGKILL of the worker, and of its children, while pictures are worked on and copied: all end complete, with no orphan and no double."""

import asyncio
import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from tests.media import pictures
from tests.processes import DEADLINE, Process
from tests.scale import FULL
from tests.services.s3 import S3
from yamchi.testing import eventually

pytestmark = [pytest.mark.faults, pytest.mark.services, pytest.mark.timeout(900)]

FILES, KILLS = (200, 12) if FULL else (12, 3)
POINTS = ("media.stored", "media.written", "media.saved", "media.synced", "media.uploaded")

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path, s3: S3) -> Iterator[Start]:
    started: list[Process] = []
    settings = {name.upper(): value for name, value in s3.settings.items()}

    def start(**environment: str) -> Process:
        started.append(
            Process(tmp_path, "up", "--port", "0", LEASE="2s", MEDIA_PROCESSES="2", **settings, **environment)
        )
        return started[-1]

    yield start
    for process in started:
        process.process.kill()
        process.process.wait()


async def test_kills_at_random(start: Start, tmp_path: Path, s3: S3) -> None:
    chance = random.Random(7)
    process = start()
    ids = [await upload(process, number) for number in range(FILES)]
    for turn in range(KILLS):
        await eventually(lambda seen=turn: done(tmp_path) >= 3 * seen + chance.randint(0, 4), DEADLINE)
        if turn % 3:
            for child in children(process):
                os.kill(child, signal.SIGKILL)
        if turn % 3 != 1:  # in between the worker lives on, and replaces its children
            process.process.kill()
            process.process.wait()
            process = start()
    await complete(process, ids, tmp_path, s3)


@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_at_each_step(start: Start, tmp_path: Path, s3: S3, point: str) -> None:
    process = start(YAMCHI_FAULT=point)
    try:
        await upload(process, 1)
    except httpx2.TransportError:
        assert point == "media.stored"
    await eventually(lambda: process.process.poll() == -9, DEADLINE)
    a_minute_passes(tmp_path)
    process = start()
    found = await listed(process)
    await complete(process, [one["id"] for one in found], tmp_path, s3)


def a_minute_passes(home: Path) -> None:
    """After so long an upload counts as one that lost its job."""
    with closing(sqlite3.connect(home / "var" / "data.db")) as database, database:
        database.execute("UPDATE media SET updated_at = datetime(updated_at, '-1 minute') || '.000000'")


async def upload(process: Process, number: int) -> str:
    async with await client_of(process) as client:
        answer = await client.post(
            "/media/upload-async",
            data={"entityType": "user_avatar"},
            files={"file": (f"{number}.jpg", pictures.jpeg(600 + number, 400))},
        )
    assert answer.status_code == 202, answer.text
    return str(answer.json()["mediaId"])


async def listed(process: Process) -> list[dict]:
    async with await client_of(process) as client:
        return list((await client.get("/media", params={"size": 200})).json()["items"])


async def client_of(process: Process) -> httpx2.AsyncClient:
    url = await asyncio.to_thread(lambda: process.url)
    return httpx2.AsyncClient(base_url=f"{url}/api/admin", timeout=DEADLINE)


async def complete(process: Process, ids: list[str], home: Path, s3: S3) -> None:
    async def is_complete() -> bool:
        found = await listed(process)
        return len(found) == len(ids) and all(
            one["status"] == "ready" and all(v["isSynced"] for v in one["variants"].values()) for one in found
        )

    await eventually(is_complete, 600)
    names = sorted(path.name for path in (home / "public" / "uploads").rglob("*") if path.is_file())
    assert len(names) == 3 * len(ids), names
    assert not [name for name in names if name.endswith(".part")]
    await eventually(lambda: not list((home / "var" / "media" / "temp").iterdir()), DEADLINE)
    originals = {path.name for path in (home / "var" / "media" / "originals").iterdir()}
    assert originals == set(ids)
    assert await objects_of(s3, ids) == names


async def objects_of(s3: S3, ids: list[str]) -> list[str]:
    """The names of these pictures' files in the bucket."""
    import obstore
    from obstore.store import S3Store

    given = {key.removeprefix("s3_"): value for key, value in s3.settings.items()}
    store = S3Store(**given, region="us-east-1", client_options={"allow_http": True})
    listed = [Path(one["path"]).name async for page in obstore.list(store) for one in page]
    return sorted(name for name in listed if name[:36] in ids)


def done(home: Path) -> int:
    return len(list((home / "public" / "uploads").rglob("*.webp"))) // 3


def children(process: Process) -> list[int]:
    listed = Path(f"/proc/{process.process.pid}/task/{process.process.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]
