"""The SQLite file: what is wrong with it is said in one sentence, and several processes may open and write it at once."""

import asyncio
import multiprocessing
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from yamchi.clock import SystemClock
from yamchi.errors import EngineError, EngineUnavailable, StorageCorrupt
from yamchi.queues.engines.sqlite import SqliteEngine
from yamchi.queues.engines.sqlite.schema import MIGRATIONS
from yamchi.queues.records import NewJob
from yamchi.storage.sqlite import SqliteFile, write_ahead
from yamchi.testing import eventually

TIMEOUT_SECONDS = 10.0


def engine_at(path: Path) -> SqliteEngine:
    return SqliteEngine(path, SystemClock())


async def refusal(path: Path, kind: type[EngineError]) -> str:
    engine = engine_at(path)
    with pytest.raises(kind) as refused:
        await engine.open()
    said = str(refused.value)
    assert "\n" not in said
    assert str(path) in said
    return said


async def fill(path: Path, jobs: int = 500) -> None:
    engine = engine_at(path)
    await engine.open()
    await engine.add("q", [NewJob(f"job-{n}", "work", b'"' + b"x" * 200 + b'"') for n in range(jobs)])
    await engine.close()


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.write_text("Dear diary, this is not a database at all. " * 100)
    assert "is not a SQLite database" in await refusal(path, StorageCorrupt)
    assert path.read_text().startswith("Dear diary"), "what somebody else wrote is left alone"


async def test_a_directory_in_place_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.mkdir()
    assert "directory" in await refusal(path, EngineUnavailable)


async def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "var").write_text("")
    assert "can't be opened" in await refusal(tmp_path / "var" / "jobs.db", EngineUnavailable)


async def test_a_database_of_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    await fill(path)
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    db.close()
    said = await refusal(path, EngineError)
    assert f"schema {len(MIGRATIONS) + 1}" in said
    assert "newer Yamchi" in said


async def test_a_damaged_page_is_said_when_it_is_met(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    await fill(path, 2_000)
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        for page in range(2 * 4096, size, 4096):
            file.seek(page)
            file.write(b"\xde\xad\xbe\xef" * 1024)
    engine = engine_at(path)

    async def use() -> None:
        await engine.open()
        await engine.exchange("q", [], 10, 30_000, "tester")

    with pytest.raises(StorageCorrupt) as refused:
        await use()
    await engine.close()
    assert str(path) in str(refused.value)


async def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    await fill(path, 1)


async def test_closing_twice_and_without_opening_is_nothing(tmp_path: Path) -> None:
    engine = engine_at(tmp_path / "jobs.db")
    await engine.close()
    await engine.open()
    await engine.open()
    await engine.close()
    await engine.close()
    await engine.open()
    assert await engine.add("q", [NewJob("a", "work", b"1")]) == [True]
    await engine.close()


async def test_one_failing_function_of_a_group_fails_alone(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "some.db", ["CREATE TABLE notes (n INTEGER PRIMARY KEY)"])
    file.open()

    def insert(n: int) -> Callable[[sqlite3.Connection], int]:
        return lambda db: db.execute("INSERT INTO notes VALUES (?)", (n,)).rowcount

    asked: list[Awaitable[Any]] = [file.write(insert(n)) for n in (1, 2, 2, 3)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [answer for answer in answers if isinstance(answer, int)] == [1, 1, 1]
    assert [type(answer) for answer in answers if not isinstance(answer, int)] == [EngineError]
    assert await file.read(lambda db: db.execute("SELECT n FROM notes").fetchall()) == [(1,), (2,), (3,)]
    await asyncio.to_thread(file.close)


async def test_a_disk_that_is_gone_is_told_to_everybody_who_asks(tmp_path: Path) -> None:
    path = tmp_path / "mounted" / "some.db"
    file = SqliteFile(path, [])
    file.open()
    path.parent.rename(tmp_path / "away")

    def write(db: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    for _ in range(2):
        with pytest.raises(EngineError, match="disk I/O error"):
            await asyncio.wait_for(file.write(write), TIMEOUT_SECONDS)
    (tmp_path / "away").rename(path.parent)
    assert await asyncio.wait_for(file.write(lambda db: True), TIMEOUT_SECONDS)
    await asyncio.to_thread(file.close)


async def test_what_is_asked_for_while_it_closes_is_answered(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "some.db", [])
    file.open()
    is_writing, may_end = threading.Event(), threading.Event()

    def write(db: sqlite3.Connection) -> bool:
        is_writing.set()
        return may_end.wait(TIMEOUT_SECONDS)

    writing = asyncio.create_task(file.write(write))
    await eventually(is_writing.is_set)
    closing = asyncio.create_task(asyncio.to_thread(file.close))
    await eventually(lambda: not file._writer._inbox.empty())
    late = asyncio.create_task(file.write(lambda db: db.execute("SELECT 1").fetchone()))
    await asyncio.sleep(0)
    may_end.set()
    assert await writing, "what was handed over before is finished"
    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(late, TIMEOUT_SECONDS)
    await closing


# ── Several processes ─────────────────────────────────────────────────────────────────────────────────────────────


def open_and_add(path: Path, name: str, jobs: int, start: Any, answers: Any) -> None:
    """What each process does: wait for the others, open, add one by one, say how it went."""

    async def add() -> int:
        engine = engine_at(path)
        await engine.open()
        for n in range(jobs):
            await engine.add("q", [NewJob(f"{name}-{n}", "work", b"1")])
        await engine.close()
        return jobs

    start.wait()
    try:
        answers.put(asyncio.run(add()))
    except Exception as error:
        answers.put(f"{type(error).__name__}: {error}")


def race(path: Path, processes: int, jobs: int) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(processes), context.Queue()
    running = [
        context.Process(target=open_and_add, args=(path, f"p{n}", jobs, start, answers))
        for n in range(processes)
    ]
    for process in running:
        process.start()
    said = [answers.get(timeout=100) for _ in running]
    for process in running:
        process.join()
    return said


async def test_processes_that_open_a_fresh_file_and_write_it_at_once_all_get_through(tmp_path: Path) -> None:
    path = tmp_path / "busy.db"
    assert race(path, processes=4, jobs=300) == [300] * 4
    engine = engine_at(path)
    await engine.open()
    assert (await engine.counts("q"))["waiting"] == 1_200
    await engine.close()


async def test_another_process_that_comes_and_goes_takes_nothing_from_two_applications_in_this_one(
    tmp_path: Path,
) -> None:
    """The last one who leaves empties SQLite's log of writes: others must see that somebody is still there."""
    path = tmp_path / "shared.db"
    first, second = engine_at(path), engine_at(path)
    await first.open()
    await second.open()
    assert race(path, processes=1, jobs=1) == [1]
    await first.add("q", [NewJob("mine", "work", b"1")])
    assert race(path, processes=1, jobs=2) == [2]
    await second.add("q", [NewJob("mine too", "work", b"1")])
    await first.close()
    await second.close()
    again = engine_at(path)
    await again.open()
    assert (await again.counts("q"))["waiting"] == 4
    await again.close()


def test_who_makes_a_file_waits_while_another_process_makes_it(tmp_path: Path) -> None:
    path, tried = tmp_path / "new.db", threading.Semaphore(0)

    class Told(sqlite3.Connection):
        def execute(self, *given: Any) -> sqlite3.Cursor:
            tried.release()
            return super().execute(*given)

    with closing(sqlite3.connect(path)) as other, ThreadPoolExecutor(1) as thread:
        other.execute("BEGIN EXCLUSIVE")

        def make() -> str:
            with closing(sqlite3.connect(path, timeout=0, factory=Told)) as connection:
                write_ahead(connection)
                return connection.execute("PRAGMA journal_mode").fetchone()[0]

        making = thread.submit(make)
        for _ in range(2):
            assert tried.acquire(timeout=20)
        other.rollback()
        assert making.result(20) == "wal"
