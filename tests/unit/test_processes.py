"""Child processes beyond what every engine shows: how they are declared, and that they never outlive their worker."""

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
import structlog
from tests.processes import DEADLINE

from yamchi import Job, Yamchi
from yamchi.errors import ConfigurationError, JobFailed, MissingExtra, Outage, Snooze, Unrecoverable
from yamchi.observe import logging
from yamchi.queues.processes.limits import ProcessLimits, to_bytes
from yamchi.queues.processes.pool import ProcessPool
from yamchi.queues.records import JobRecord
from yamchi.settings import Settings
from yamchi.testing import TestApp
from yamchi.testing.conformance.handlers import Task, behave, count
from yamchi.testing.conformance.worker import working
from yamchi.testing.waiting import eventually

SCRIPT = """
import asyncio, os, sys, time
from yamchi import Job, Yamchi

app = Yamchi()

@app.job("slow", processes=2)
def dawdle(job: Job[dict]) -> None:
    with open(job.data["file"], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)

async def main():
    for file in sys.argv[1:]:
        await app.queue("slow").add({"file": file})
    await app.work()

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_children_end_when_their_worker_is_killed(tmp_path):
    script, files = tmp_path / "shop.py", [tmp_path / "first", tmp_path / "second"]
    script.write_text(SCRIPT)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, script, *files, cwd=tmp_path, env={**os.environ, "YAMCHI_HOME": str(tmp_path)}
    )
    try:
        children = [int(await eventually(lambda file=file: _read(file), within=DEADLINE)) for file in files]
        assert len(set(children)) == 2
    finally:
        worker.kill()
        await worker.wait()
    await eventually(lambda: not any(_is_alive(child) for child in children))


async def test_a_program_may_have_a_file_named_like_one_of_pythons_modules(tmp_path):
    script, told = tmp_path / "shop.py", tmp_path / "told"
    (tmp_path / "queue.py").write_text("raise SystemExit('this is not what Python calls queue')")
    script.write_text(SCRIPT)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "yamchi", "worker", "--app", "shop:app", cwd=tmp_path,
        env={**os.environ, "YAMCHI_HOME": str(tmp_path)},
    )  # fmt: skip
    try:
        async with Yamchi(Settings(home=tmp_path)) as app:
            app.define("slow")
            await app.queue("slow").add({"file": str(told)}, name="dawdle")
            assert int(await eventually(lambda: _read(told), within=DEADLINE)) != worker.pid
    finally:
        worker.terminate()
        await worker.wait()


UNGUARDED = """
import asyncio
from yamchi import Job, Yamchi

app = Yamchi()

@app.job("slow", processes=1)
def dawdle(job: Job[dict]) -> None:
    pass

async def main():
    {adds}
    await app.work()

asyncio.run(main())
"""


@pytest.mark.parametrize("adds", ['await app.queue("slow").add({})', "pass"])
async def test_a_script_without_a_guard_is_told_so(tmp_path, adds):
    """Its main program would run again in each child."""
    script = tmp_path / "shop.py"
    script.write_text(UNGUARDED.format(adds=adds))
    async with Yamchi(Settings(home=tmp_path, plugins=())) as app:
        app.define("slow")
        job = await app.queue("slow").add({})
        env = {**os.environ, "YAMCHI_HOME": str(tmp_path)}
        worker = await asyncio.create_subprocess_exec(sys.executable, script, cwd=tmp_path, env=env)
        try:
            with pytest.raises(JobFailed, match='put that below `if __name__ == "__main__":`'):
                await job.result(timeout=DEADLINE)
            assert len(await app.queue("slow").jobs()) == (1 if adds == "pass" else 2), "none of a child's"
        finally:
            worker.kill()
            await worker.wait()


async def test_a_test_application_runs_them_too():
    app = TestApp()
    app.job("sums", processes=1)(count)
    job = await app.queue("sums").add({"to": 5})
    await app.drain()
    done = await job.refresh()
    await app.close()
    assert done.returned["sum"] == 10
    assert done.returned["pid"] != os.getpid()
    assert not _is_alive(done.returned["pid"])


async def test_a_child_that_dies_while_it_waits_costs_no_job():
    app = TestApp()
    app.job("sums", processes=1, attempts=1)(count)
    first = await app.queue("sums").add({"to": 5})
    await app.drain()
    child = (await first.refresh()).returned["pid"]
    os.kill(child, signal.SIGKILL)
    await eventually(lambda: not _is_alive(child))
    second = await app.queue("sums").add({"to": 6})
    await app.drain()
    done = await second.refresh()
    await app.close()
    assert (done.state, done.returned["sum"]) == ("completed", 15)


async def test_whoever_waits_for_a_child_gets_it_before_the_job_that_had_it_goes_on():
    app, pool, heard = TestApp(), ProcessPool("sums", "count", count, ProcessLimits(processes=1)), []
    app.job("sums")(count)

    async def run(name):
        def within(running):
            heard.append(f"{name} begins")
            return running

        record = JobRecord(name, "sums", "count", b'{"to": 5}', "active", 0, 0)
        await pool.run(Job(app.queue("sums"), record), within=within)
        heard.append(f"{name} goes on")

    await asyncio.gather(run("first"), run("second"))
    await pool.close()
    await app.close()
    assert heard == ["first begins", "second begins", "first goes on", "second goes on"]


async def test_jobs_that_wait_for_a_child_keep_their_leases_and_their_time(tmp_path):
    settings = Settings(home=tmp_path, lease="1500ms", job_timeout="3s", plugins=())
    app, busy = Yamchi(settings), tmp_path / "busy"
    app.job("thumbs", processes=1, concurrency=3, attempts=1)(behave)
    queue = app.queue("thumbs")
    await queue.add(
        Task(do="block", file=str(busy)), timeout="1m"
    )  # longer than the time of the others and a lease
    async with working(app):
        await eventually(busy.exists, within=60)
        waiting = [await queue.add(Task(do="answer"), timeout=timeout) for timeout in ("3s", None)]
        taken = list[str]()

        async def are_over() -> bool:
            taken.extend(found.id for found, _ in await queue.engine.recover("thumbs"))
            return not {(await job.refresh()).state for job in waiting} & {"waiting", "active"}

        await eventually(are_over, within=60)
        ended = [await job.refresh() for job in waiting]
    assert [(job.state, job.failed_reason) for job in ended] == [("completed", None)] * 2
    assert [job.returned["attempt"] for job in ended] == [1, 1]
    assert taken == []


async def test_children_write_their_lines_as_the_worker_does(capfd):
    app = TestApp()
    app.job("sums", processes=1)(speak)
    logging.configure("json", "info")  # after the application was made, as the command line does
    try:
        await app.queue("sums").add({})
        await app.drain()
    finally:
        logging.configure("console", "info")
        await app.close()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if '"spoken"' in line]
    assert [(line["event"], line["level"], line["word"]) for line in lines] == [("spoken", "info", "hello")]


def speak(job: Job[dict]) -> None:
    structlog.get_logger("shop").info("spoken", word="hello")


async def test_what_a_handler_raises_in_a_child_means_what_it_means_elsewhere():
    async with TestApp() as app:
        app.job("here", attempts=2, backoff="1h")(misbehave)
        app.job("there", attempts=2, backoff="1h", processes=1)(misbehave)
        ended = {}
        for queue in ("here", "there"):
            jobs = await app.queue(queue).add_many([*MISBEHAVIOR, "a line"])
            await app.drain()
            ended[queue] = [await job.refresh() for job in jobs]
    here, there = (
        [(job.data, job.state, job.attempts_made, job.run_at, job.failed_reason, job.logs) for job in jobs]
        for jobs in ended.values()
    )
    assert there == here
    assert {job.data: job.state for job in ended["there"]} == {
        "a name that is no text": "failed",
        "an outage in seconds": "delayed",
        "an outage in text": "delayed",
        "a snooze without a zone": "delayed",
        "what can't be shown": "delayed",
        "much": "delayed",
        "an extra": "failed",
        "a line": "completed",
    }


class CannotBeShown(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


MISBEHAVIOR = {
    "a name that is no text": Unrecoverable("can't read caf\udce9.jpg"),
    "an outage in seconds": Outage("busy", retry_after=60),
    "an outage in text": Outage("busy", retry_after="1m"),
    "a snooze without a zone": Snooze(datetime(2026, 1, 2)),
    "what can't be shown": CannotBeShown(),
    "much": ValueError("x" * 20_000_000),
    "an extra": MissingExtra("media", "Pictures"),
}


async def misbehave(job: Job[str]) -> None:
    if job.data in MISBEHAVIOR:
        raise MISBEHAVIOR[job.data]
    await job.log("made caf\udce9.jpg")


async def test_a_result_too_large_for_a_child_says_so():
    async with TestApp() as app:
        app.job("large", processes=1)(answer_much)
        job = await app.queue("large").add({})
        await app.drain()
        failed = await job.refresh()
    assert (failed.state, failed.attempts_made) == ("failed", 1)
    assert failed.failed_reason.startswith(
        "A child process may say 16,777,216 bytes at once, and this has 20,0"
    )


def answer_much(job: Job[dict]) -> str:
    return "x" * 20_000_000


def test_a_function_that_no_child_can_import_is_refused():
    with pytest.raises(ConfigurationError, match="define it at the top level of a module"):
        Yamchi(Settings()).job("thumbs", processes=2)(lambda job: None)


def test_memory_is_a_size_of_a_process():
    assert [to_bytes(size) for size in ("512MB", "1.5 GiB", 4096, "64k")] == [2**29, 3 * 2**29, 4096, 65536]
    for wrong in ("much", "-1MB", "0", ""):
        with pytest.raises(ConfigurationError, match="is not a size"):
            to_bytes(wrong)
    with pytest.raises(ConfigurationError, match="only a child process can be limited"):
        Yamchi(Settings()).job("thumbs", memory="1GB")


def test_the_queue_runs_as_many_jobs_as_it_has_processes():
    app = Yamchi(Settings())
    app.job("thumbs", processes=3)(count)
    assert app.queue("thumbs").definition.concurrency == 3


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    return False
