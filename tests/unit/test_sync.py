"""`app.sync`: queues for code without an event loop, in a script, a thread, a plain handler, a forked process."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from yamchi import Job, JobFailed, Yamchi
from yamchi.clock import SystemClock
from yamchi.errors import EngineUnavailable, InvalidJob, UnknownJob
from yamchi.queues import blocking
from yamchi.queues.blocking import TOO_LATE, _run
from yamchi.queues.engines.sqlite import SqliteEngine
from yamchi.queues.engines.sqlite.schema import MIGRATIONS
from yamchi.settings import Settings
from yamchi.storage import forking
from yamchi.storage.sqlite import SqliteFile
from yamchi.testing import eventually


@pytest.fixture
def app(tmp_path: Path) -> Yamchi:
    app = Yamchi(Settings(home=tmp_path, plugins=()))

    @app.job("sums")
    def add_up(job: Job[list[int]]) -> int:
        if not job.data:
            raise ValueError("nothing to add up")
        return sum(job.data)

    @app.job("chains")
    def begin(job: Job[list[int]]) -> str:
        """A plain handler, in its thread, adds to a queue of the application whose worker runs it."""
        return str(app.sync.queue("sums").add(job.data, id=f"of-{job.id}").id)

    return app


def test_a_job_is_added_looked_at_and_acted_on(app: Yamchi) -> None:
    sums = app.sync.queue("sums")
    job = sums.add([1, 2], id="three", delay="1h")
    assert (job.id, job.state, job.data) == ("three", "delayed", [1, 2])
    assert [one.id for one in sums.jobs("delayed")] == ["three"]
    job.promote()
    assert sums.job("three").state == "waiting"
    sums.add_many([[1], [2]])
    assert sums.stats()["waiting"] == 3
    job.remove()
    assert sums.stats() == {
        "waiting": 2,
        "active": 0,
        "delayed": 0,
        "completed": 0,
        "failed": 0,
        "type": "sqlite",
    }
    with pytest.raises(InvalidJob, match="does not fit"):
        sums.add({"no": "list"})
    app.sync.close()


def test_what_may_be_called_is_listed_for_who_types_it(app: Yamchi) -> None:
    assert {"add", "stats", "job", "dead_letters"} <= set(dir(app.sync.queue("sums")))
    assert repr(app.sync.queue("sums")) == repr(app.queue("sums")) == "<Queue sums>"


def test_many_threads_share_one(app: Yamchi) -> None:
    with ThreadPoolExecutor(8) as threads:
        added = list(threads.map(lambda number: app.sync.queue("sums").add([number]), range(100)))
    assert len({job.id for job in added}) == 100
    assert app.sync.queue("sums").stats()["waiting"] == 100
    app.sync.close()


def test_who_uses_the_application_first_makes_no_difference(app: Yamchi) -> None:
    """A thread may call before anything was awaited: it is served where the application is used, or, before that, by a loop apart."""

    async def main(calls_before: int) -> None:
        for _ in range(calls_before):
            early = await asyncio.to_thread(app.sync.queue("sums").add, [1])
            with pytest.raises(TimeoutError):  # who waits for a result follows events
                await asyncio.to_thread(early.result, timeout="10ms")
        async with app:
            job = await asyncio.to_thread(lambda: app.sync.queue("sums").add([2, 3]))
            if not calls_before:
                assert app.queue("sums").engine.home is asyncio.get_running_loop()  # type: ignore[attr-defined]
            async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                worker = app.worker()
                group.create_task(worker.run())
                assert await asyncio.to_thread(lambda: job.result(timeout="20s")) == 5
                worker.stop()

    for calls_before in (0, 1):
        asyncio.run(main(calls_before))
        app.sync.close()


def test_it_can_be_used_again_right_after_it_was_closed(app: Yamchi) -> None:
    for number in range(20):
        app.sync.queue("sums").add([number])
        app.sync.close()
    assert app.sync.queue("sums").stats()["waiting"] == 20
    app.sync.close()


def test_what_is_handed_to_a_loop_that_never_runs_again_is_given_up() -> None:
    """As by a thread that is too late for the application's loop, and too early to see that it is closed."""
    loop, outcomes = asyncio.new_event_loop(), SimpleQueue[object]()

    async def work() -> None:
        """Never run."""

    def wait() -> None:
        try:
            outcomes.put(_run(work, loop))
        except RuntimeError as error:
            outcomes.put(str(error))

    threading.Thread(target=wait, daemon=True).start()
    asyncio.run(eventually(lambda: loop._ready))
    loop.close()
    assert outcomes.get(timeout=20) == "app.sync was closed before this was done."


def test_who_waits_while_it_is_closed_is_told(app: Yamchi) -> None:
    job = app.sync.queue("sums").add([1])
    told: SimpleQueue[str] = SimpleQueue()

    def wait() -> None:
        try:
            job.result()
        except (RuntimeError, EngineUnavailable) as error:
            told.put(str(error))

    threading.Thread(target=wait, daemon=True).start()
    asyncio.run(eventually(lambda: app.queue("sums").listeners.wants("completed")))
    app.sync.close()
    assert told.get(timeout=20)


async def test_threads_that_call_while_the_application_begins(app: Yamchi) -> None:
    def call(number: int) -> str:
        return str(app.sync.queue("sums").add([number]).id)

    first = asyncio.create_task(asyncio.to_thread(call, 0))
    await first
    calls = [asyncio.create_task(asyncio.to_thread(call, number)) for number in range(1, 30)]
    async with app:
        await app.queue("sums").add([99])
        async with asyncio.timeout(20):
            assert len(set(await asyncio.gather(*calls))) == 29
        assert (await app.queue("sums").stats())["waiting"] == 31


async def test_a_call_that_was_on_its_way_as_the_application_began_is_served_there(app: Yamchi) -> None:
    await asyncio.to_thread(app.sync.queue("sums").add, [1])
    engine: Any = app.queue("sums").engine
    apart, here = engine.home, asyncio.get_running_loop()
    is_held, may_go_on, has_called = threading.Event(), threading.Event(), threading.Event()
    apart.call_soon_threadsafe(lambda: (is_held.set(), may_go_on.wait(20)))
    assert await asyncio.to_thread(is_held.wait, 20)
    hand_over = apart.call_soon_threadsafe
    apart.call_soon_threadsafe = lambda *given, **options: (hand_over(*given, **options), has_called.set())
    calling = asyncio.create_task(asyncio.to_thread(app.sync.queue("sums").add, [2]))
    assert await asyncio.to_thread(has_called.wait, 20)
    beginning = asyncio.create_task(app.__aenter__())
    await eventually(lambda: engine.home is here)
    may_go_on.set()
    async with asyncio.timeout(20), await beginning:
        await calling
        assert (await app.queue("sums").stats())["waiting"] == 2


def test_results_and_plain_handlers_while_a_worker_runs(app: Yamchi) -> None:
    def ask() -> tuple[int, int]:
        chained = app.sync.queue("chains").add([20, 22]).result(timeout="20s")
        with pytest.raises(JobFailed, match="nothing to add up"):
            app.sync.queue("sums").add([], attempts=1).result(timeout="20s")
        return app.sync.queue("sums").job(chained).result(timeout="20s"), app.sync.queue("sums").add(
            [1]
        ).result(timeout="20s")

    async def main() -> tuple[int, int]:
        async with app:
            worker = app.worker()
            working = asyncio.create_task(worker.run())
            answers = await asyncio.to_thread(ask)
            worker.stop()
            await working
        return answers

    assert asyncio.run(main()) == (42, 1)


async def test_within_an_event_loop_it_is_refused(app: Yamchi) -> None:
    with pytest.raises(RuntimeError, match="would stop the event loop"):
        app.sync.queue("sums").add([1])
    await app.close()


@pytest.mark.parametrize("is_used_before", [False, True])
def test_a_forked_process_has_a_thread_of_its_own(tmp_path: Path, is_used_before: bool) -> None:
    app = Yamchi(Settings(home=tmp_path, plugins=()))
    app.define("sums")
    before = app.sync._background.loop()
    if is_used_before:
        app.sync.queue("sums").add([1], id="parent")
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # one that hangs is ended
        os._exit(0 if app.sync.queue("sums").add([1], id="child").id == "child" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert app.sync._background.loop() is before
    assert app.sync.queue("sums").job("child").state == "waiting"
    app.sync.queue("sums").add([1], id="after")
    assert app.sync.queue("sums").stats()["waiting"] == 2 + is_used_before
    app.sync.close()


AT_THE_VERY_END = """
import sys
from yamchi import Yamchi
from yamchi.settings import Settings

app = Yamchi(Settings(home=sys.argv[1], plugins=()))
app.define("sums")
app.sync.queue("sums").add([1])

class Last:
    def __del__(self):
        app.sync.queue("sums").add([2])

last = Last()
sys.modules["kept until modules are taken apart"] = last
"""


def test_who_calls_when_the_interpreter_has_stopped_its_threads_is_told(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AT_THE_VERY_END, str(tmp_path)], capture_output=True, text=True
    )
    assert "RuntimeError: app.sync can't be used any more: the interpreter ends" in ended.stderr


async def test_a_loop_whose_thread_waits_for_the_call_does_not_hold_it_for_ever(
    app: Yamchi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a plain endpoint does behind a TestClient in an async test."""
    monkeypatch.setattr(blocking, "BLOCKED_SECONDS", 0.2)
    async with app:
        await app.queue("sums").stats()
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(lambda: app.sync.queue("sums").add([1], id="never"))
            with pytest.raises(RuntimeError, match=r"begun nothing for 0\.2 s.* Nothing was done\."):
                waits.result()
        assert (await app.queue("sums").stats())["waiting"] == 0
        with ThreadPoolExecutor(1) as pool:
            added = await asyncio.wrap_future(pool.submit(lambda: app.sync.queue("sums").add([1], id="then")))
        assert added.is_new


FIRST_AT_EXIT = """
import atexit
import sys
from yamchi import Yamchi
from yamchi.settings import Settings

app = Yamchi(Settings(home=sys.argv[1], plugins=()))
app.define("sums")

@atexit.register
def last():
    for number in range(2):
        try:
            app.sync.queue("sums").add([number])
        except RuntimeError as error:
            print(error)
"""


def test_who_begins_when_the_program_has_ended_is_told(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FIRST_AT_EXIT, str(tmp_path)], capture_output=True, text=True
    )
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [TOO_LATE, TOO_LATE]


def test_an_error_is_told_by_itself(app: Yamchi) -> None:
    with pytest.raises(UnknownJob) as told:
        app.sync.queue("sums").job("nope")
    assert told.value.__context__ is None
    app.sync.close()


def fork(work: Callable[[], object]) -> int:
    """A process that does this and ends; one that hangs or fails ends otherwise."""
    if pid := os.fork():
        return pid
    signal.alarm(20)
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def has_ended_well(pid: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("is_used_before", [False, True])
def test_a_forked_process_has_an_engine_of_its_own_though_one_was_given(
    tmp_path: Path, is_used_before: bool
) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db", SystemClock())
    app = Yamchi(Settings(home=tmp_path, plugins=()), engine=engine)
    app.define("sums")
    if is_used_before:
        app.sync.queue("sums").add([1], id="parent")
    child = fork(lambda: app.sync.queue("sums").add([1], id="child"))
    assert has_ended_well(child)
    app.sync.queue("sums").add([1], id="after")
    assert app.sync.queue("sums").stats()["waiting"] == 2 + is_used_before
    app.sync.close()


def test_what_a_forked_process_adds_stays_when_its_parent_has_closed(tmp_path: Path) -> None:
    """The last one who leaves empties SQLite's log of writes: the parent must see that its child is still there."""
    app = Yamchi(Settings(home=tmp_path, plugins=()))
    app.define("sums")
    app.sync.queue("sums").add([1], id="parent")
    (opened, has_opened), (closed, has_closed) = os.pipe(), os.pipe()

    def add_before_and_after() -> None:
        app.sync.queue("sums").add([1], id="before")
        os.write(has_opened, b"1")
        os.read(closed, 1)
        app.sync.queue("sums").add([1], id="after")

    child = fork(add_before_and_after)
    os.read(opened, 1)
    app.sync.close()
    os.write(has_closed, b"1")
    assert has_ended_well(child)
    assert app.sync.queue("sums").stats()["waiting"] == 3
    app.sync.close()


def test_a_process_that_is_forked_while_its_parent_writes_can_write_too(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "jobs.db", MIGRATIONS)
    file.open()
    app = Yamchi(Settings(home=tmp_path, default_queue_url=f"sqlite:///{tmp_path}/jobs.db", plugins=()))
    app.define("sums")
    is_writing = threading.Event()

    def write(db: sqlite3.Connection) -> None:
        is_writing.set()
        threading.Event().wait(0.5)

    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(asyncio.run, file.write(write))
        assert is_writing.wait(20)
        child = fork(lambda: app.sync.queue("sums").add([1]))
        writing.result()
    assert has_ended_well(child)
    assert app.sync.queue("sums").stats()["waiting"] == 1
    app.sync.close()
    file.close()


@pytest.mark.parametrize("what", ["jobs", "tables"])
def test_a_fork_does_not_wait_for_a_transaction_that_waits_for_another_process(
    tmp_path: Path, what: str
) -> None:
    app = Yamchi(Settings(home=tmp_path, plugins=()))
    app.define("sums")
    write = {
        "jobs": lambda: app.queue("sums").add([1]),
        "tables": lambda: app.keys.incr("uses"),
    }[what]
    asyncio.run(write())
    path = {"jobs": tmp_path / "var" / "yamchi.db", "tables": tmp_path / "var" / "data.db"}[what]
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # as another process that writes for long
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(asyncio.run, write())
        asyncio.run(eventually(lambda: forking._uses._number))
        assert has_ended_well(fork(lambda: None))
        assert not writing.done(), "the lock is there still"
        other.execute("COMMIT")
        writing.result(20)
    other.close()
    asyncio.run(app.close())


def test_a_forked_process_uses_the_tables_though_its_parent_did(tmp_path: Path) -> None:
    app = Yamchi(Settings(home=tmp_path, plugins=()))

    def use() -> None:
        asyncio.run(app.keys.incr("uses"))

    use()
    assert has_ended_well(fork(use))
    use()
    assert asyncio.run(app.keys.get("uses")) == "3"
    asyncio.run(app.close())
