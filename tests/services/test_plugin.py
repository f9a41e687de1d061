"""The fixtures: one server per run, fresh places in it, nothing left behind, and a reason where it can't be had."""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INNER_TEST = """
from pathlib import Path
import pytest
import redis

@pytest.mark.parametrize("turn", range(4))
def test_redis(redis_url, turn):
    with redis.Redis.from_url(redis_url) as client:
        pid = client.info()["process_id"]
        Path(f"pid-{turn}").write_text(str(pid))
"""
NODE_TEST = """
import asyncio
from tests.interop.node import running

def test_bullmq():
    asyncio.run(running("peer.mjs").__aenter__())
"""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A small test suite of its own, for a pytest of its own."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.services.plugin"]')
    (tmp_path / "test_inner.py").write_text(INNER_TEST)
    return tmp_path


def start_pytest(folder: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """Its temporary files go into the folder too, for a killed run can't remove them."""
    outer = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TEST_", "CI"))
    }
    inner = outer | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)} | environment
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *options]
    return subprocess.Popen(command, cwd=folder, env=inner, stdout=subprocess.PIPE, text=True)


def run_pytest(folder: Path, *options: str, **environment: str) -> str:
    return start_pytest(folder, *options, **environment).communicate(timeout=60)[0]


def pids(folder: Path) -> set[int]:
    return {int(file.read_text()) for file in folder.glob("pid-*")}


def wait_until_gone(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone, _, _ = select.select([process], [], [], 10)
    os.close(process)
    assert gone, f"process {pid} still runs"


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one process", "two processes"])
def test_one_server_serves_the_whole_run_and_ends_with_it(run_folder, redis_url, options):
    output = run_pytest(run_folder, *options)
    assert "4 passed" in output, output
    (pid,) = pids(run_folder)
    wait_until_gone(pid)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_server(run_folder, redis_url, end):
    (run_folder / "test_inner.py").write_text(INNER_TEST + "        print('ready', flush=True); input()")
    run = start_pytest(run_folder, "-s", "-n", "0")
    assert run.stdout is not None
    for line in run.stdout:
        if "ready" in line:
            break
    run.send_signal(end)
    run.communicate(timeout=30)
    wait_until_gone(pids(run_folder).pop())


def test_a_missing_server_skips_with_the_reason(run_folder):
    output = run_pytest(run_folder, PATH="/nowhere")
    assert "4 skipped" in output
    assert "redis-server is not installed here: run python -m tests.services install" in output


def test_a_missing_server_fails_in_ci(run_folder):
    output = run_pytest(run_folder, PATH="/nowhere", CI="true")
    assert "4 errors" in output
    assert "redis-server is not installed here: run python -m tests.services install" in output


@pytest.mark.parametrize(("environment", "outcome"), [({}, "1 skipped"), ({"CI": "true"}, "1 failed")])
def test_a_missing_node_is_as_a_missing_server(tmp_path, environment, outcome):
    (tmp_path / "test_inner.py").write_text(NODE_TEST)
    output = run_pytest(tmp_path, PATH="/nowhere", **environment)
    assert outcome in output
    assert "run python -m tests.services install" in output


def test_a_server_that_already_runs_is_used(run_folder, private_redis):
    server = private_redis()
    own_database = server.url.removesuffix("/0") + "/5"
    assert "4 passed" in run_pytest(run_folder, TEST_REDIS_URL=own_database)
    assert pids(run_folder) == {server.pid}


@pytest.mark.parametrize("turn", [1, 2])
def test_redis_is_empty_before_each_test(redis_url, turn):
    redis = pytest.importorskip("redis")
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_every_database_is_fresh(postgres_url, postgres_database):
    psycopg = pytest.importorskip("psycopg")
    urls = {postgres_url, postgres_database().url, postgres_database().url}
    assert len(urls) == 3
    for url in urls:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE SCHEMA pgmq")


def test_an_unprivileged_role_can_connect_but_not_create(postgres_database):
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres_database().unprivileged_url()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE SCHEMA pgmq")


def test_kafka_creates_no_topic_by_itself(kafka_bootstrap):
    confluent_kafka = pytest.importorskip("confluent_kafka")
    from confluent_kafka.admin import AdminClient

    topics = AdminClient({"bootstrap.servers": kafka_bootstrap}).list_topics("unheard-of", timeout=30).topics
    assert topics["unheard-of"].error.code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART


def test_by_hand_all_servers_run_until_ctrl_c(redis_url, postgres_url, kafka_bootstrap):
    command = [sys.executable, "-m", "tests.services"]
    by_hand = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert by_hand.stdout is not None
    exports = dict(by_hand.stdout.readline().removeprefix("export ").strip().split("=", 1) for _ in range(3))
    assert exports.keys() == {"TEST_REDIS_URL", "TEST_POSTGRES_URL", "TEST_KAFKA_BOOTSTRAP"}
    ports = [int(url.partition("127.0.0.1:")[2].partition("/")[0]) for url in exports.values()]
    for port in ports:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    by_hand.send_signal(signal.SIGINT)
    assert "Stopping" in by_hand.communicate(timeout=60)[0]
    assert by_hand.returncode == 0
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
