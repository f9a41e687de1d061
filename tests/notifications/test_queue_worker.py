"""The queue worker as its page describes it: a process, psql, a mail server; and the same over REST."""

import itertools
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from tests.processes import Process
from tests.services import postgrest
from tests.services.databases import Database
from tests.services.mail import MailServer

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

ADDRESS = "user@example.com"
TASK = {"to": ADDRESS, "subject": "Ваш чекап завершен", "html": "<p>Результаты готовы</p>"}
STARTED = [
    "[INFO] Queue Worker started",
    "[INFO] Interval: 5000ms",
    "[INFO] Max tasks per cycle: 10",
    "[INFO] Starting queue processing cycle...",
]
SENT = [
    f"[INFO] Processing email task: {ADDRESS} - Ваш чекап завершен",
    f"[INFO] Email sent via SMTP to {ADDRESS}",
    f"[INFO] Email sent successfully to {ADDRESS}",
]
LOOK = """
SELECT
  msg_id,
  enqueued_at,
  msg->>'to' as email_to,
  msg->>'subject' as subject
FROM pgmq.email_queue
ORDER BY enqueued_at DESC
LIMIT 10;
"""
QUEUES = ("email_queue", "notifications", "report_queue", "payment_queue")

Start = Callable[..., Process]


@pytest.fixture
def database(postgres_database: Callable[[], Database]) -> str:
    return postgres_database().url


@pytest.fixture
def start(mail_server: MailServer, tmp_path: Path) -> Iterator[Start]:
    """`yamchi worker` with an `.env`, as the page has it."""
    started: list[Process] = []

    def start(*arguments: str, **settings: str) -> Process:
        mail = {"SMTP_HOST": mail_server.host, "SMTP_PORT": str(mail_server.port), "SMTP_SECURITY": "none"}
        lines = [f"{name}={value}" for name, value in {**mail, **settings}.items()]
        (tmp_path / ".env").write_text("\n".join(lines))
        started.append(Process(tmp_path, "worker", *arguments))
        return started[-1]

    yield start
    for process in started:
        process.process.kill()
        process.process.wait()


def psql(url: str, statement: str) -> str:
    command = ["psql", "--no-psqlrc", "--tuples-only", "--no-align", "--command", statement, url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def lines_about_mail(worker: Process) -> list[str]:
    return re.findall(r"^\[INFO\] (?:Processing email|Email) .*$", worker.said, re.MULTILINE)


def arrives(worker: Process, mail_server: MailServer) -> None:
    worker.wait_for(lambda: len(lines_about_mail(worker)) == 3, "the three lines")
    assert lines_about_mail(worker) == SENT
    ((recipient, letter),) = mail_server.letters
    assert (recipient, letter["Subject"]) == (ADDRESS, TASK["subject"])


def test_a_letter_by_psql(database: str, start: Start, mail_server: MailServer) -> None:
    worker = start(DATABASE_URL=database)
    worker.wait_to_say(r"Starting queue processing cycle\.\.\.")
    lines = worker.said.splitlines()
    begin = lines.index(STARTED[0])
    assert lines[begin : begin + 4] == STARTED
    worker.wait_for(lambda: set(QUEUES) <= set(made(database)), "the queues are made")
    text = json.dumps(TASK, ensure_ascii=False).replace("'", "''")
    assert psql(database, f"SELECT pgmq.send('email_queue', '{text}')") == "1"
    arrives(worker, mail_server)
    worker.wait_for(lambda: psql(database, LOOK) == "", "the task leaves the queue")


class ReadsNoted(postgrest.Postgrest):
    """Notes when `email_queue` was read, and how many messages were wanted at most."""

    def __init__(self, database_url: str) -> None:
        self.reads: list[tuple[float, int]] = []
        super().__init__(database_url)

    def call(self, function: str, arguments: dict[str, Any]) -> str:
        if function == "read" and arguments["queue_name"] == "email_queue":
            self.reads.append((time.monotonic(), arguments["n"]))
        return super().call(function, arguments)


def test_a_letter_over_rest(database: str, start: Start, mail_server: MailServer) -> None:
    postgrest.prepare(database)
    with psycopg.connect(database, autocommit=True) as connection:
        for queue in QUEUES:
            connection.execute("SELECT pgmq.create(%s), pgmq.create(%s)", [queue, f"{queue}_dlq"])
    server = ReadsNoted(database)
    try:
        worker = start(
            "--queues",
            ",".join(QUEUES),
            SUPABASE_URL=server.url,
            SUPABASE_SERVICE_ROLE_KEY=postgrest.KEY,
            WORKER_INTERVAL_MS="200",
            WORKER_MAX_TASKS="3",
        )
        worker.wait_to_say(r"Starting queue processing cycle\.\.\.")
        assert "[INFO] Interval: 200ms\n[INFO] Max tasks per cycle: 3\n" in worker.said
        sent = httpx2.post(
            f"{server.url}/rest/v1/rpc/send",
            json={"queue_name": "email_queue", "message": TASK, "sleep_seconds": 0},
            headers={
                "apikey": postgrest.KEY,
                "Authorization": f"Bearer {postgrest.KEY}",
                "Content-Profile": "pgmq_public",
            },
        )
        assert sent.json() == [1]
        arrives(worker, mail_server)
        # A slot that comes free while the others are asked for is asked for alone: the looks of an idle worker come later.
        worker.wait_for(
            lambda: psql(database, "SELECT msg_id FROM pgmq.q_email_queue") == "", "the task leaves the queue"
        )
        server.reads.clear()
        worker.wait_for(lambda: len(server.reads) > 2, "the worker is idle")
        server.reads.clear()
        worker.wait_for(lambda: len(server.reads) > 5, "an idle worker looks now and then")
        moments = [moment for moment, _ in server.reads]
        assert min(after - before for before, after in itertools.pairwise(moments)) > 0.15
        assert {wanted for _, wanted in server.reads} == {3}
    finally:
        server.stop()


def test_a_wrong_key_is_one_clear_line(database: str, start: Start) -> None:
    postgrest.prepare(database)
    server = postgrest.Postgrest(database)
    try:
        worker = start(
            "--queues", "email_queue", SUPABASE_URL=server.url, SUPABASE_SERVICE_ROLE_KEY="sb_secret_wrong"
        )
        worker.wait_to_say("Error reading from queue")
        said = re.findall(r"^\[(?:WARN|ERROR)\] .*$", worker.said, re.MULTILINE)
        why = f"Supabase at {server.url} refused the key: correct SUPABASE_SERVICE_ROLE_KEY."
        assert said[0] == f"[ERROR] [email_queue:pgmq] Error reading from queue: {why}"
        assert "switched" not in worker.said
    finally:
        server.stop()


def made(url: str) -> list[str]:
    try:
        return psql(url, "SELECT queue_name FROM pgmq.list_queues()").split()
    except subprocess.CalledProcessError:  # pgmq itself is not there yet
        return []
