"""Long-running commands as real processes: they start, they serve, and they stop when told, by every road."""

import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from tests.processes import DEADLINE, Process

LONG = "1h"
"""What running jobs are granted: a process that waits for it at its end does not end in time for the test."""

APP = """
import asyncio, ctypes, threading, time
from pathlib import Path
from yamchi import Job, Yamchi

app = Yamchi()

@app.job("slow", attempts=1)
async def slow(job: Job) -> str:
    Path("started").touch()
    await asyncio.sleep(float(job.data))
    Path("finished").touch()
    return "done"

@app.job("stuck")
def stuck(job: Job) -> None:
    Path("started").touch()
    threading.Event().wait()

@app.job("blocking")
async def blocking(job: Job) -> None:
    Path("started").touch()
    while True:
        time.sleep(0.1)

@app.job("locking")
async def locking(job: Job) -> None:
    Path("started").touch()
    try:
        await asyncio.sleep(600)
    finally:
        ctypes.PyDLL(None).pause()  # with Python's lock
"""


Start = Callable[..., Process]


@pytest.fixture
def start(own_home: Path) -> Iterator[Start]:
    (own_home / "shop.py").write_text(APP)
    started: list[Process] = []

    def run(*arguments: str, **environment: str) -> Process:
        started.append(Process(own_home, *arguments, **environment))
        return started[-1]

    yield run
    for process in started:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait()


def add(home: Path, *arguments: str) -> None:
    said_by(home, "add", *arguments)


def state(home: Path, queue: str, job_id: str) -> str:
    return said_by(home, "show", queue, job_id)


def said_by(home: Path, *arguments: str) -> str:
    command = Process(home, "jobs", *arguments, "--app", "shop:app")
    assert command.process.wait(DEADLINE) == 0, command.said
    return command.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_serves_everything_and_stops_at_once_when_idle(start, number):
    process = start("up", "--port", "0", SHUTDOWN_TIMEOUT=LONG)
    url = process.url
    assert "<title>Yamchi</title>" in httpx2.get(f"{url}/").text
    assert httpx2.get(f"{url}/healthz").json() == {"status": "ok"}
    assert httpx2.get(f"{url}/readyz").status_code == 200
    assert "yamchi_queue_jobs" in httpx2.get(f"{url}/metrics").text
    assert "jobs add hello" in process.said
    process.end(number)
    assert process.process.returncode == 0


def test_up_runs_the_jobs_that_come_in_over_http(start):
    process = start("up", "--port", "0")
    jobs = f"{process.url}/api/queues/hello/jobs"
    job = httpx2.post(jobs, json={"data": {"name": "you"}}).json()
    process.wait_to_say(rf"\[INFO\] \[hello:sqlite\] completed greet {job['id']}")
    assert httpx2.get(f"{jobs}/{job['id']}").json()["result"] == {"greeting": "Hello, you!"}
    workers = httpx2.get(f"{process.url}/api/workers").json()
    assert [worker["pid"] for worker in workers] == [process.process.pid]


def test_api_runs_no_jobs(start):
    process = start("api", "--port", "0", SHUTDOWN_TIMEOUT=LONG)
    jobs = f"{process.url}/api/queues/hello/jobs"
    httpx2.post(jobs, json={"data": {}, "id": "h1"})
    assert httpx2.get(f"{process.url}/api/workers").json() == []
    process.end(signal.SIGTERM)


def test_a_port_in_use_is_one_sentence(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("up", "--port", str(port))
        process.process.wait(DEADLINE)
    assert process.process.returncode == 1
    assert f"Port {port} on 127.0.0.1 can't be used (address already in use)" in process.said
    assert "Traceback" not in process.said


def test_a_worker_says_the_four_lines(start):
    process = start("worker", SHUTDOWN_TIMEOUT=LONG)
    process.wait_to_say(r"Starting queue processing cycle\.\.\.")
    assert process.said.splitlines()[:4] == [
        "[INFO] Queue Worker started",
        "[INFO] Interval: 5000ms",
        "[INFO] Max tasks per cycle: 10",
        "[INFO] Starting queue processing cycle...",
    ]
    process.end(signal.SIGTERM)
    assert process.process.returncode == 0


def test_a_worker_serves_its_metrics(start):
    process = start("worker", "--metrics-port", "0", SHUTDOWN_TIMEOUT=LONG)
    url = process.wait_to_say(r"Metrics on (http://localhost:\d+)/metrics")[1]
    process.wait_to_say("Starting queue processing cycle")
    assert "yamchi_queue_jobs" in httpx2.get(f"{url}/metrics").text
    assert httpx2.get(f"{url}/api/queues").status_code == 404
    process.end(signal.SIGTERM)


def test_json_logs_are_json_from_the_first_line(start):
    process = start("up", "--port", "0", LOG_FORMAT="json")
    url = process.wait_to_say(r"Listening on (http://localhost:\d+)")
    assert url
    assert all(line.startswith("{") for line in process.said.splitlines())
    process.end(signal.SIGTERM)


def test_a_running_job_is_finished_before_the_end(start, own_home):
    add(own_home, "slow", "1.5", "--id", "s1")
    process = start("worker", "--app", "shop:app", "--queues", "slow")
    process.wait_for((own_home / "started").exists, "the job")
    process.end(signal.SIGTERM)
    assert process.process.returncode == 0
    assert (own_home / "finished").exists()
    assert "completed" in state(own_home, "slow", "s1")
    assert "waiting for 1 job to finish" in process.said


def test_a_job_that_takes_too_long_goes_back_without_costing_an_attempt(start, own_home):
    add(own_home, "slow", "600", "--id", "s1")
    process = start("worker", "--app", "shop:app", "--queues", "slow", SHUTDOWN_TIMEOUT="0.2s")
    process.wait_for((own_home / "started").exists, "the job")
    process.end(signal.SIGTERM)
    shown = state(own_home, "slow", "s1")
    assert "waiting" in shown
    assert re.search(r"attempts_made\s+0", shown)


def test_a_second_signal_ends_at_once(start, own_home):
    add(own_home, "slow", "600", "--id", "s1")
    process = start("worker", "--app", "shop:app", "--queues", "slow", SHUTDOWN_TIMEOUT=LONG)
    process.wait_for((own_home / "started").exists, "the job")
    process.process.send_signal(signal.SIGINT)
    process.wait_to_say("Ctrl.C again ends at once")
    process.end(signal.SIGINT)
    assert process.process.returncode == 130


def test_a_thread_that_never_ends_does_not_keep_the_process(start, own_home):
    add(own_home, "stuck", "null", "--id", "s1")
    process = start("worker", "--app", "shop:app", "--queues", "stuck", SHUTDOWN_TIMEOUT="0.2s")
    process.wait_for((own_home / "started").exists, "the job")
    process.end(signal.SIGTERM)
    assert process.process.returncode == 0


def test_a_handler_that_blocks_the_loop_can_still_be_ended(start, own_home):
    add(own_home, "blocking", "null")
    process = start("worker", "--app", "shop:app", "--queues", "blocking")
    process.wait_for((own_home / "started").exists, "the job")
    process.process.send_signal(signal.SIGINT)
    end = time.monotonic() + DEADLINE
    while process.process.poll() is None and time.monotonic() < end:
        process.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    assert process.process.returncode == 130


def test_a_stop_that_hangs_is_ended_and_says_so(start, own_home):
    add(own_home, "blocking", "null")
    process = start("worker", "--app", "shop:app", "--queues", "blocking", SHUTDOWN_TIMEOUT="0.2s")
    process.wait_for((own_home / "started").exists, "the job")
    process.end(signal.SIGTERM)
    assert process.process.returncode == 1
    assert "[ERROR] Ended: the stop took 5 s longer than SHUTDOWN_TIMEOUT" in process.said


def test_a_stop_in_which_a_library_keeps_the_lock_of_python_is_ended(start, own_home):
    add(own_home, "locking", "null")
    process = start("worker", "--app", "shop:app", "--queues", "locking", SHUTDOWN_TIMEOUT="0.2s")
    process.wait_for((own_home / "started").exists, "the job")
    process.end(signal.SIGTERM)
    assert process.process.returncode == 1
    assert "in locking" in process.said, "the stacks of all threads are shown"
