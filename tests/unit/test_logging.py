"""Logging: how lines look, that every library's go through the same pipe, and that no secret gets out."""

import io
import json
import logging
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from yamchi import Job, Outage, Snooze, Unrecoverable
from yamchi.observe.logging import _SECRET_TEXT, LONGEST_MASKED, MASK, _has_no_secret, configure, mask
from yamchi.testing import TestApp


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored():
    """Lines go where they went before, when the test is over. structlog stays as it is: loggers in use would not notice."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level


@pytest.fixture
def console() -> io.StringIO:
    stream = io.StringIO()
    configure("console", "info", stream)
    return stream


@pytest.fixture
def lines():
    stream = io.StringIO()
    configure("json", "info", stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def logger(name: str = "yamchi.worker"):
    return structlog.get_logger(name)


def test_requests_of_the_http_client_are_said_only_when_debugging():
    for level, expected in (("info", ""), ("debug", "[INFO] HTTP Request\n")):
        stream = io.StringIO()
        configure("console", level, stream)
        logging.getLogger("httpx2").info("HTTP Request")
        assert stream.getvalue() == expected


# ── Console ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_console_line(console):
    logger().info("Queue Worker started")
    logger().warning("Slow", queue="media-sync", waited=1.5, why="disk is busy")
    assert console.getvalue() == (
        "[INFO] Queue Worker started\n[WARN] Slow queue=media-sync waited=1.5 why='disk is busy'\n"
    )


def test_a_traceback_stands_below_its_line(console):
    try:
        raise LookupError("gone")
    except LookupError:
        logger().exception("Failed", job="42")
    first, *rest = console.getvalue().splitlines()
    assert first == "[ERROR] Failed job=42"
    assert rest[0].startswith("  Traceback")
    assert rest[-1] == "  LookupError: gone"


def test_nobody_can_forge_a_line(console):
    logger().info("Subject: hi\n[ERROR] forged", to="a\r\n[ERROR] forged", name="\x1b[2J")
    assert console.getvalue().count("\n") == 1
    assert "\x1b" not in console.getvalue()


def test_nobody_can_forge_a_line_by_an_error(console):
    try:
        raise ValueError("bad\n[INFO] all is well\x1b[2J\r\u202e")
    except ValueError:
        logger().exception("It \u2028failed")
    first, *rest = console.getvalue().split("\n")[:-1]
    assert first == r"[ERROR] It \u2028failed"
    assert all(line.startswith("  ") for line in rest)
    assert rest[-1] == r"  [INFO] all is well\x1b[2J\r\u202e"


def test_colors_are_for_terminals_only(monkeypatch, console):
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    configure("console", "info", terminal)
    logger().info("Hello")
    assert terminal.getvalue() == "\x1b[32m[INFO]\x1b[0m Hello\n"
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    configure("console", "info", plain)
    logger().info("Hello")
    assert plain.getvalue() == "[INFO] Hello\n"


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_json_line(lines):
    logger().error("Failed", queue="media-sync", attempts=3)
    (line,) = lines()
    assert datetime.fromisoformat(line.pop("timestamp")).utcoffset() is not None
    assert line == {
        "level": "error", "event": "Failed", "logger": "yamchi.worker", "queue": "media-sync", "attempts": 3,
    }  # fmt: skip


def test_whatever_is_logged_becomes_a_line(lines):
    logger().info("odd", huge=2**80, surrogate="\udc80", keys={1: "a"}, thing=object, error=ValueError("no"))
    (line,) = lines()
    assert (line["huge"], line["keys"], line["error"]) == (2**80, {"1": "a"}, "no")


def test_context_is_added_to_every_line(lines):
    with structlog.contextvars.bound_contextvars(job="42"):
        logger().info("inside")
    logger().info("outside")
    inside, outside = lines()
    assert inside["job"] == "42"
    assert "job" not in outside


# ── One pipe ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_standard_library_and_uvicorn_use_the_same_pipe(lines):
    logging.getLogger("somebody").warning("used %s", "%")
    logging.getLogger("uvicorn.access").info('%s - "%s" %d', "127.0.0.1", "GET /", 200)
    assert [(line["logger"], line["level"], line["event"]) for line in lines()] == [
        ("somebody", "warning", "used %"),
        ("uvicorn.access", "info", '127.0.0.1 - "GET /" 200'),
    ]


def test_what_a_server_left_behind_does_not_count():
    access = logging.getLogger("uvicorn.access")
    access.setLevel("WARNING")
    access.propagate = False
    stream = io.StringIO()
    configure("console", "info", stream)
    access.info("heard")
    assert stream.getvalue() == "[INFO] heard\n"


def test_configuring_again_replaces_the_pipe(console):
    again = io.StringIO()
    configure("console", "info", again)
    logger().info("once")
    logging.getLogger("somebody").info("too")
    assert console.getvalue() == ""
    assert again.getvalue() == "[INFO] once\n[INFO] too\n"


def test_lines_below_the_level_are_never_made(console):
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("rendered although the level is off")

    logger().debug("hidden", value=Costly())
    logging.getLogger("somebody").debug("hidden %s", Costly())
    assert console.getvalue() == ""


# ── Secrets ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Connection:
    password: str


@pytest.mark.parametrize(
    "value",
    [
        "redis://:hush@localhost:6379/0",
        "postgresql://user:hu@sh:hush@db/app and redis://u:hush@cache",
        "GET /ws?token=hush&x=1",
        "Authorization: Bearer hush-hush",
        "host=db password=hush dbname=app",
        "{'password': 'hush hush'}",
        '{"password": "it\'s hush"}',
        '{"password": "a \\"hush\\" b"}',
        json.dumps({"body": json.dumps({"password": "hush"})}),
        "POST https://api.telegram.org/bot12345:hush/sendMessage",
        {"nested": [{"Authorization": "hush"}, {"SMTP_PASSWORD": "hush"}], "apiKey": "hush"},
        ConnectionError("can't reach redis://:hush@localhost"),
        Connection(password="hush"),
    ],
)
def test_a_secret_never_gets_out(value):
    for kind in ("console", "json"):
        stream = io.StringIO()
        configure(kind, "info", stream)
        logger().info("Connecting", value=value, token="hush")
        logger().info(f"Connecting to {value}")
        logging.getLogger("somebody").info("Connecting to %s", value)
        assert "hush" not in stream.getvalue()
        assert stream.getvalue().count("***") >= 4


def test_a_secret_in_a_traceback_is_masked(console):
    try:
        raise ConnectionError("redis://:hush@localhost refused")
    except ConnectionError:
        logger().exception("Failed")
    assert "redis://:***@localhost refused" in console.getvalue()
    assert "hush" not in console.getvalue()


@pytest.mark.parametrize(
    "text",
    ["http://localhost:3030/a@b", "10:30 a@b.c", "Invalid token: expected a number", "redis://cache:6379/0"],
)
def test_what_is_no_secret_stays(text):
    assert mask(text) == text


def test_a_number_may_be_a_secret_too():
    assert mask('{"token": 123456, "count": 7}') == '{"token": ***, "count": 7}'


def test_what_follows_a_secret_in_quotes_stays():
    nested = json.dumps({"body": json.dumps({"password": "it's", "name": "Asel"}), "count": 7})
    assert mask(nested) == nested.replace("it's", MASK)


def test_a_text_without_end_is_cut_before_it_is_looked_through():
    assert len(mask("://a" * 1_000_000)) == LONGEST_MASKED + 1


@settings(max_examples=50, deadline=None)
@given(st.from_regex(_SECRET_TEXT))
def test_no_text_that_has_a_secret_is_taken_for_one_without(text: str) -> None:
    assert _has_no_secret(text) <= (_SECRET_TEXT.search(text) is None)


# ── What became of jobs ───────────────────────────────────────────────────────────────────────────────────────────


async def _run_some_jobs() -> None:
    async with TestApp() as app:

        @app.job("mail", attempts=2, backoff="1m")
        async def send(job: Job[str]) -> None:
            if job.data == "never":
                raise Unrecoverable("User has no email")
            if job.data == "once more" and job.attempts_made == 1:
                raise RuntimeError("busy")
            if job.data == "closed":
                raise Snooze("1h", "the office is closed")
            if job.data == "one of many":
                raise Outage("the provider is down", retry_after=timedelta(hours=1), is_said=True)

        for number, data in enumerate(("at once", "never", "once more", "closed")):
            await app.queue("mail").add(data, id=f"j{number}")
        await app.queue("mail").add("one of many", id="j5")
        late = app.clock.time - timedelta(seconds=1)
        await app.queue("mail").add("late", id="j4", expires_at=late)
        await app.clock.advance("1m")


async def test_another_level_later_is_heeded_by_loggers_in_use() -> None:
    in_use = structlog.get_logger("yamchi.in_use")
    quiet, loud = io.StringIO(), io.StringIO()
    configure("console", "warning", quiet)
    in_use.info("not said")
    configure("console", "info", loud)
    in_use.info("said")
    assert (quiet.getvalue(), "said" in loud.getvalue()) == ("", True)


async def test_outcomes_have_keys_in_json(lines) -> None:
    await _run_some_jobs()
    said = {(line["id"], line["attempt"]): line for line in lines() if "outcome" in line}
    assert all(line["queue"] == "mail" and line["job"] == "send" for line in said.values())
    assert all(isinstance(line["duration"], float) for line in said.values())
    assert {key: line["outcome"] for key, line in said.items()} == {
        ("j0", 1): "completed", ("j1", 1): "failed", ("j2", 1): "retrying", ("j2", 2): "completed",
        ("j3", 1): "put back", ("j4", 1): "expired",
    }  # fmt: skip
    assert said["j1", 1]["error"] == "User has no email"
    assert said["j2", 1]["error"] == "RuntimeError: busy"
    assert said["j2", 1]["next_at"] == "2026-01-01T00:01:00Z"
    assert said["j1", 1]["event"] == "[mail:in-memory] failed send j1 after 1 attempt: User has no email"
    assert said["j1", 1]["level"] == "error"


async def test_outcomes_on_the_console_are_sentences_alone(console) -> None:
    await _run_some_jobs()
    text = console.getvalue()
    assert "[ERROR] [mail:in-memory] failed send j1 after 1 attempt: User has no email\n" in text
    assert "fields" not in text
    assert "outcome=" not in text


def test_fields_are_masked_as_everything_else(lines) -> None:
    logger().info("hello", fields={"error": "redis://user:hunter2@host refused"})
    (line,) = lines()
    assert line["error"] == "redis://user:***@host refused"


PROGRAM = """
import asyncio, logging, sys, structlog
from yamchi import Job, Yamchi
from yamchi.settings import Settings

if sys.argv[2] == "own":
    logging.basicConfig(format="mine: %(levelname)s %(message)s", level=sys.argv[3])
app = Yamchi(Settings(home=sys.argv[1], plugins=()))

@app.job("greetings")
async def greet(job: Job) -> str:
    await job.progress(50)
    structlog.get_logger("yamchi").error("100% wrong", url="redis://user:hunter2@host", exc_info=ValueError("why"))
    return "hi"

async def main() -> None:
    async with app:
        working = asyncio.create_task(app.work())
        await (await app.queue("greetings").add(id="one")).result(timeout="60s")
        working.cancel()
        await asyncio.wait([working])

asyncio.run(main())
print(len(logging.getLogger().handlers))
"""


@pytest.mark.parametrize(("logging_of", "level"), [("nobody", ""), ("own", "INFO"), ("own", "CRITICAL")])
def test_a_program_that_works_by_itself_logs_as_the_command_does(
    tmp_path: Path, logging_of: str, level: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), logging_of, level]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n", "what the program prints is its own"
    assert "progress" not in done.stderr, "which is below the level"
    if level == "CRITICAL":
        assert done.stderr == ""
        return
    told = "mine: INFO" if logging_of == "own" else "[INFO]"
    assert f"{told} [greetings:sqlite] completed greet one in" in done.stderr
    assert "100% wrong url=redis://user:***@host\n  ValueError: why" in done.stderr
    assert "fields" not in done.stderr
