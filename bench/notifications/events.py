"""`POST /api/v1/events` under load by `wrk`, one event and 500 events a call, beside a bare endpoint with one row a call."""

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.services.server import ServerMissing, free_port, program

from bench.measure import ROOT, CannotRun
from bench.notifications.letters import user_of

SINGLE, BATCH = "events: one a call", "events: 500 a call"
BARE = "rows: a bare endpoint, one a call"
SECONDS = os.environ.get("BENCH_SECONDS", "4")
START_SECONDS = 30
CONNECTIONS = {1: "32", 500: "4"}
SCRIPT = Path(__file__).with_name("events.lua")


def measure_events(folder: Path) -> dict[str, float]:
    """Events accepted a second: both servers write to the same kind of database on the same disk."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    rates = {}
    with _serving(
        ["-m", "bench.notifications.bare", str(port)], {"BENCH_DATABASE": f"{folder}/bare.db"}, url
    ):
        rates[BARE] = _load(f"{url}/events", 1)
    settings = {"YAMCHI_HOME": str(folder), "LOG_LEVEL": "warning", "QUEUE_URL": "sqlite:///var/jobs.db"}
    with _serving(["-m", "yamchi", "api", "--port", str(port)], settings, url):
        rates[SINGLE] = _load(f"{url}/api/v1/events", 1)
        rates[BATCH] = _load(f"{url}/api/v1/events/batch", 500)
    return rates


@contextmanager
def _serving(command: Sequence[str], settings: Mapping[str, str], url: str) -> Iterator[None]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings}
    server = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        await_answer(server, url)
        yield
    finally:
        server.terminate()
        server.wait()


def await_answer(server: "subprocess.Popen[bytes]", url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise CannotRun(f"the server at {url} did not start")


def _load(url: str, batch: int) -> float:
    try:
        wrk = program("wrk")
    except ServerMissing as error:
        raise CannotRun("wrk is not installed here: as root on Debian, apt-get install wrk") from error
    environment = {
        **os.environ,
        "BENCH_RUN": str(time.monotonic_ns()),
        "BENCH_USER": str(user_of(1)),
        "BENCH_BATCH": str(batch),
    }
    options = [
        "-t",
        "1",
        "-c",
        CONNECTIONS[batch],
        "-d",
        f"{SECONDS}s",
        "--timeout",
        "20s",
        "-s",
        str(SCRIPT),
    ]
    done = subprocess.run([wrk, *options, url], env=environment, capture_output=True, text=True, check=True)
    found = re.search(r"RESULT (\d+) (\d+) (\d+)", done.stdout)
    if found is None or int(found[3]):
        raise CannotRun(f"requests to {url} failed: {done.stdout[-400:]}")
    return int(found[1]) * batch / (int(found[2]) / 1e6)
