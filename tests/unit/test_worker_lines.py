"""What `yamchi worker` says at its start, and when something is missing or away."""

import signal
from pathlib import Path

from tests.processes import Process
from tests.services.server import free_port


def test_the_lines_of_a_start(tmp_path: Path) -> None:
    worker = Process(tmp_path, "worker")
    worker.wait_to_say("Starting queue processing cycle")
    worker.end(signal.SIGINT)
    lines = worker.said.splitlines()
    begin = lines.index("[INFO] Queue Worker started")
    assert lines[begin : begin + 4] == [
        "[INFO] Queue Worker started",
        "[INFO] Interval: 5000ms",
        "[INFO] Max tasks per cycle: 10",
        "[INFO] Starting queue processing cycle...",
    ]
    assert worker.process.returncode == 0


def test_a_missing_key_is_one_line(tmp_path: Path) -> None:
    worker = Process(tmp_path, "worker", SUPABASE_URL="http://127.0.0.1:9")
    assert worker.process.wait(100) == 1
    assert worker.said.strip() == "✘ SUPABASE_SERVICE_ROLE_KEY must be set"


def test_a_queue_that_cannot_be_read_is_told_and_the_worker_goes_on(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    worker = Process(
        tmp_path, "worker", "--queues", "email_queue", SUPABASE_URL=url, SUPABASE_SERVICE_ROLE_KEY="key"
    )
    worker.wait_to_say(f"Error reading from queue: Supabase at {url} can't be reached")
    assert worker.process.poll() is None
    worker.end(signal.SIGTERM)
    assert worker.process.returncode == 0
