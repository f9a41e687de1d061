"""The commands that look and act, on a real SQLite file: tables for people, JSON for programs, one sentence on a mistake."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.processes import Process
from typer.testing import CliRunner, Result

from yamchi import Yamchi
from yamchi.cli import cli
from yamchi.cli.top import sparkline
from yamchi.queues.engines.base import Minute

APP = """
from pydantic import BaseModel
from yamchi import Job, Unrecoverable, Yamchi

app = Yamchi()
not_an_app = 3


class Thumb(BaseModel):
    url: str


@app.job("thumbnails")
async def make(job: Job[Thumb]) -> str:
    if job.data.url == "bad":
        raise Unrecoverable("not an image")
    return job.data.url


def make_app() -> Yamchi:
    return app
"""


class Command:
    """`yamchi …` in this process, in the test's own home."""

    def __call__(self, *arguments: str, given: str | None = None, code: int = 0) -> str:
        return self._run(arguments, given, code).output

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self._run([*arguments, "--json"], code=code).stdout)

    def _run(self, arguments: Sequence[str], given: str | None = None, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, list(arguments), input=given)
        assert result.exit_code == code, result.output + repr(result.exception)
        return result


@pytest.fixture
def yamchi(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(own_home)
    return Command()


@pytest.fixture
def failed(yamchi: Command, own_home: Path, request: pytest.FixtureRequest) -> str:
    """A module whose queue has two dead letters, worked on by a real worker."""
    name = f"shop_{abs(hash(request.node.name))}"
    (own_home / f"{name}.py").write_text(APP)
    for number in ("n1", "n2"):
        yamchi("jobs", "add", "thumbnails", '{"url": "bad"}', "--id", number, "--app", f"{name}:app")
    work(name)
    return f"{name}:app"


def work(module: str) -> None:
    """Run everything that is due."""

    async def body(app: Yamchi) -> None:
        async with app:
            await app.worker().drain()

    asyncio.run(body(__import__(module).app))


def test_the_shipped_queues_are_there_without_any_setting(yamchi):
    queues = {queue["name"]: queue for queue in yamchi.json("queues")}
    assert queues["media-processing"]["concurrency"] == 5
    assert queues["watermark"]["concurrency"] == 3
    assert {"notifications", "emailChain", "reminders", "email_queue", "report_queue"} < queues.keys()
    assert queues["payment_queue"]["type"] == "sqlite"
    assert "hello" in yamchi("queues")


def test_a_job_is_added_listed_shown_and_removed(yamchi):
    assert "added" in yamchi("jobs", "add", "hello", '{"name": "you"}', "--id", "h1", "--delay", "1h")
    assert "was there already" in yamchi("jobs", "add", "hello", '{"name": "you"}', "--id", "h1")
    assert yamchi.json("jobs", "list", "hello", "--state", "delayed")["total"] == 1
    assert "h1" in yamchi("jobs", "list", "hello", "--search", "you")
    shown = yamchi.json("jobs", "show", "hello", "h1")
    assert (shown["data"], shown["state"], shown["attempts"]) == ({"name": "you"}, "delayed", 3)
    assert "delayed" in yamchi("jobs", "show", "hello", "h1")
    yamchi("jobs", "promote", "hello", "h1")
    yamchi("jobs", "cancel", "hello", "h1")
    yamchi("jobs", "retry", "hello", "h1")
    assert yamchi.json("jobs", "show", "hello", "h1")["state"] == "waiting"
    yamchi("jobs", "remove", "hello", "h1")
    assert yamchi.json("jobs", "list", "hello")["total"] == 0


def test_a_group_by_itself_lists_what_it_is_about(yamchi, failed):
    yamchi("jobs", "add", "hello", '{"name": "you"}', "--id", "h1")
    assert [job["id"] for job in yamchi.json("jobs")["jobs"]] == ["h1", "n2", "n1"], (
        "of all queues, newest first"
    )
    assert [job["id"] for job in yamchi.json("jobs", "--page", "2", "--size", "2")["jobs"]] == ["n1"]
    assert {letter["queue"] for letter in yamchi.json("dlq")["letters"]} == {"thumbnails"}
    assert "thumbnails" in yamchi("dlq", "--search", "not an image")
    assert yamchi.json("keys") == []
    assert "welcome_email" in yamchi("template")
    assert "jobs [OPTIONS] COMMAND" in yamchi("jobs", "--help")


def test_a_page_leads_to_the_next_one_only_if_there_is_one(yamchi, failed):
    first = ("list", "thumbnails", "--size", "1")
    second = (*first, "--page", "2")
    for group in ("jobs", "dlq"):
        assert "page 1: 1 of 2; --page 2 shows more" in yamchi(group, *first, "--app", failed)
        assert "page 2: 1 of 2\n" in yamchi(group, *second, "--app", failed)
        assert "page" not in yamchi(group, "list", "thumbnails", "--app", failed)


def test_data_may_come_from_standard_input(yamchi):
    yamchi("jobs", "add", "hello", "-", "--id", "h1", given='{"name": "pipe"}')
    assert yamchi.json("jobs", "show", "hello", "h1")["data"] == {"name": "pipe"}


def test_options_of_a_job(yamchi):
    options = ["--priority", "7", "--attempts", "9", "--backoff", "1m,5m", "--timeout", "30s"]
    options += ["--expires-at", "2099-01-02T00:00:00Z", "--keep-completed", "7", "--keep-failed", "8"]
    added = yamchi.json("jobs", "add", "hello", "{}", *options, "--run-at", "2099-01-01T00:00:00+05:00")
    assert (added["priority"], added["attempts"], added["timeout"]) == (7, 9, 30_000)
    assert added["backoff"]["steps"] == [60_000, 300_000]
    assert added["run_at"] == "2098-12-31T19:00:00Z"
    assert added["expires_at"] == "2099-01-02T00:00:00Z"
    assert (added["keep_completed"], added["keep_failed"]) == (7, 8)


def test_a_queue_is_paused_resumed_cleaned_and_drained(yamchi):
    yamchi("queues", "pause", "hello")
    assert "paused" in yamchi("queues")
    yamchi("queues", "resume", "hello")
    for number in range(3):
        yamchi("jobs", "add", "hello", "{}", "--id", f"h{number}")
    yamchi("jobs", "cancel", "hello", "h0")
    assert "1 cancelled jobs of hello removed" in yamchi("queues", "clean", "hello", "--state", "cancelled")
    assert "2 waiting jobs of hello removed" in yamchi("queues", "drain", "hello")


def test_what_is_done_to_a_queue_is_told_to_programs_too(yamchi):
    assert yamchi.json("queues", "pause", "hello") == {"name": "hello", "paused": True}
    assert yamchi.json("queues", "resume", "hello") == {"name": "hello", "paused": False}
    for number in range(3):
        yamchi("jobs", "add", "hello", "{}", "--id", f"h{number}", "--delay", "1h")
    assert yamchi.json("jobs", "promote", "hello", "h0", "h1") == {"done": ["h0", "h1"], "problems": []}
    assert yamchi.json("jobs", "cancel", "hello", "h0", "h0") == {"done": ["h0"], "problems": []}
    assert yamchi.json("jobs", "retry", "hello", "h0")["done"] == ["h0"]
    assert yamchi.json("jobs", "remove", "hello", "h0")["done"] == ["h0"]
    assert yamchi.json("queues", "drain", "hello", "--delayed") == {"count": 2}
    assert yamchi.json("queues", "clean", "hello") == {"count": 0}


def test_of_several_jobs_programs_are_told_which_were_done_and_which_not(yamchi):
    yamchi("jobs", "add", "hello", "{}", "--id", "h1")
    told = yamchi.json("jobs", "remove", "hello", "nope", "h1", code=1)
    (problem,) = told["problems"]
    assert (told["done"], problem["id"]) == (["h1"], "nope")
    assert "Queue hello has no job 'nope'" in problem["error"]


def test_dead_letters_for_programs(yamchi, failed):
    of = ["--app", failed]
    told = yamchi.json("dlq", "replay", "thumbnails", "nope", "n1", *of, code=1)
    assert (told["done"], [one["id"] for one in told["problems"]]) == (["n1"], ["nope"])
    mended = yamchi.json("dlq", "edit", "thumbnails", "n2", '{"url": "bad"}', *of)
    assert mended == {"done": ["n2"], "problems": []}
    work(failed.partition(":")[0])
    assert yamchi.json("dlq", "replay-all", "thumbnails", *of) == {"count": 2}
    work(failed.partition(":")[0])
    assert yamchi.json("jobs", "retry-all", "thumbnails", *of) == {"count": 2}
    work(failed.partition(":")[0])
    assert yamchi.json("dlq", "purge", "thumbnails", "--all", *of) == {"count": 2}


def test_dead_letters_from_the_command_line(yamchi, failed):
    of = ["--app", failed]
    assert yamchi.json("dlq", "list", "thumbnails", *of)["total"] == 2
    assert "not an image" in yamchi("dlq", "list", "thumbnails", *of)
    assert yamchi.json("dlq", "show", "thumbnails", "n1", *of)["body"]["job"] == {"url": "bad"}
    yamchi("dlq", "edit", "thumbnails", "n1", '{"url": "good.jpg"}', *of)
    assert "1 of thumbnails replayed" in yamchi("dlq", "replay-all", "thumbnails", *of)
    work(failed.partition(":")[0])
    assert yamchi.json("jobs", "show", "thumbnails", "n1", *of)["result"] == "good.jpg"
    assert "1 dead letters of thumbnails purged" in yamchi("dlq", "purge", "thumbnails", "--all", *of)


def test_retry_all(yamchi, failed):
    assert "2 failed jobs of thumbnails put back" in yamchi(
        "jobs", "retry-all", "thumbnails", "--app", failed
    )


def test_a_letter_is_mended_in_the_editor(yamchi, failed, monkeypatch):
    monkeypatch.setenv("EDITOR", """sed -i 's/"bad"/"good.jpg"/'""")
    assert "replayed with new data" in yamchi("dlq", "edit", "thumbnails", "n1", "--app", failed)


def test_queues_of_another_program_are_seen(yamchi, failed):
    """Without --app the queue is not declared, but it is in the database."""
    assert yamchi.json("jobs", "list", "thumbnails")["total"] == 2
    assert "thumbnails" in yamchi("queues")


def test_an_app_may_be_a_file_or_a_function(yamchi, failed, own_home):
    module = failed.partition(":")[0]
    for reference in (f"{module}:make_app", module, f"{own_home}/{module}.py", f"{own_home}/{module}.py:app"):
        assert "thumbnails" in yamchi("queues", "--app", reference)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["jobs", "show", "hello", "nope"], "Queue hello has no job 'nope'"),
        (["jobs", "list", "nope"], "There is no queue 'nope'"),
        (["jobs", "add", "nope"], "There is no queue 'nope'"),
        (["jobs", "add", "hello", "{"], "'{' is not JSON"),
        (["jobs", "add", "hello", '{"name": 3}'], "name: Input should be a valid string"),
        (["jobs", "add", "hello", "{}", "--delay", "soon"], "'soon' is not a span of time"),
        (["jobs", "add", "hello", "{}", "--delay", "-5s"], "'-5s'"),
        (["jobs", "add", "hello", "{}", "--run-at", "noon"], "--run-at 'noon' is not a moment"),
        (["jobs", "add", "hello", "{}", "--expires-at", "noon"], "--expires-at 'noon' is not a moment"),
        (["jobs", "add", "hello", "{}", "--expires-at", "2099-01-01"], "has no time zone"),
        (["jobs", "add", "hello", "{}", "--keep-failed", "-1"], "keep_failed"),
        (["jobs", "add", "hello", "{}", "--name", "nope"], "Queue hello has no job 'nope'"),
        (["jobs", "add", "hello", "{}", "--priority", "11"], "priority must be a whole number"),
        (["jobs", "list", "hello", "--state", "sleeping"], "There is no state 'sleeping'"),
        (["jobs", "retry", "hello", "a", "b"], "Queue hello has no job 'a'"),
        (["send", "pigeon", "a"], "There is no channel 'pigeon': choose from email"),
        (["media", "sync", "move"], "There is no operation 'move': choose from upload, download, delete."),
        (
            ["report", "request", "x", "--format", "doc"],
            "There is no format 'doc': choose from pdf, xlsx, csv.",
        ),
        (
            ["report", "request", "x", "--params", "[]"],
            '--params should be a JSON object, such as \'{"locale": "en"}\'.',
        ),
        (["scenario", "simulate", "email_chain", "--data", "1"], "--data should be a JSON object"),
        (["dlq", "show", "hello", "nope"], "no dead letter 'nope'"),
        (["dlq", "purge", "hello"], "Name the dead letters to purge, or say --all."),
        (["queues", "--app", "nowhere:app"], "there is no module 'nowhere'"),
        (["queues", "--app", "broken:app"], "broken can't be imported: No module named 'not_installed'"),
        (["queues", "--app", "crashing:app"], "crashing can't be imported: ZeroDivisionError"),
        (["queues", "--app", "crashing:app"], "division by zero (crashing.py, line 2)"),
        (
            ["queues", "--app", "asking:app"],
            "asking can't be imported: KeyError: 'NO_SUCH' (asking.py, line 3)",
        ),
        (
            ["queues", "--app", "empty:fail"],
            "empty:fail can't be made: ValueError: no settings (empty.py, line 3)",
        ),
        (["queues", "--app", "empty:wants"], "empty:wants can't be made: TypeError: "),
        (
            ["queues", "--app", "queue.py"],
            "queue.py: there is another module 'queue' already; rename the file",
        ),
        (["queues", "--app", "empty:app"], "the module has no 'app'"),
        (["queues", "--app", "empty:number"], "is a int, not a Yamchi application"),
        (
            ["queues", "--app", "site_of_ours"],
            "site_of_ours: app is a FastAPI, not a Yamchi application: write --app site_of_ours:background.",
        ),
        (
            ["queues", "--app", "site_of_ours:background_"],
            "site_of_ours: the module has no 'background_': write --app site_of_ours:background.",
        ),
        (["worker", "--queues", "nope"], "There is no queue 'nope'"),
        (["worker", "--app", "bare:app", "--queues", "idle"], "Queue idle has no handlers"),
        (["up", "--host", "0.0.0.0"], "ADMIN_TOKEN must be set to listen on 0.0.0.0"),
        (["up", "--host", "no.such.host.invalid", "--port", "0"], "ADMIN_TOKEN must be set"),
    ],
)
def test_a_mistake_is_one_sentence(yamchi, own_home, arguments, sentence):
    (own_home / "broken.py").write_text("import not_installed")
    (own_home / "crashing.py").write_text("\n1 / 0")
    (own_home / "asking.py").write_text("import os\n\nos.environ['NO_SUCH']")
    (own_home / "empty.py").write_text(
        "number = 3\ndef fail():\n    raise ValueError('no settings')\ndef wants(one): ..."
    )
    (own_home / "site_of_ours.py").write_text(
        "from fastapi import FastAPI\nfrom yamchi import Yamchi\napp = FastAPI()\nbackground = Yamchi()"
    )
    (own_home / "queue.py").write_text("from yamchi import Yamchi\napp = Yamchi()")
    (own_home / "bare.py").write_text("from yamchi import Yamchi\napp = Yamchi()\napp.define('idle')")
    said = yamchi(*arguments, code=1)
    assert sentence in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("template", "preview", "welcome_email", "--html", "none/x.html"), "none/x.html: No such file"),
        (("scenario", "show", "email_chain", "--svg", "none/x.svg"), "none/x.svg: No such file"),
        (("demo", "--home", "/proc/x"), "/proc/x: No such file or directory."),
        (("scenario", "simulate", "email_chain", "--zone", "Mars/Base"), "'Mars/Base' is not a time zone"),
        (("scenario", "runs", "--status", "odd"), "choose from running, finished, stopped, failed"),
        (("media", "list", "--status", "odd"), "choose from processing, ready, failed, soft_deleted"),
        (("payment", "list", "--status", "odd"), "There is no status 'odd'"),
        (("jobs", "retry-all", "hello", "--state", "waiting"), "choose from completed, failed"),
        (("dlq", "purge", "hello", "nope"), "1 of those named are no dead letters of hello"),
    ],
)
def test_a_word_or_a_file_that_is_not_there_is_one_sentence(
    yamchi: Command, arguments: tuple[str, ...], sentence: str
) -> None:
    said = yamchi(*arguments, code=1)
    assert sentence in said
    assert "Traceback" not in said


def test_a_page_that_no_table_can_have_is_refused(yamchi: Command) -> None:
    assert "Invalid value for '--page'" in yamchi("jobs", "list", "hello", "--page", "9" * 21, code=2)


def test_without_a_provider_there_is_nothing_to_compare(yamchi: Command) -> None:
    assert "no payment provider is set up; set YOOKASSA_SHOP_ID" in yamchi("payment", "reconcile")
    assert yamchi.json("payment", "reconcile") == []


def test_a_bar_is_for_terminals(yamchi: Command) -> None:
    assert yamchi("queues", "clean", "hello") == "✔ 0 completed jobs of hello removed.\n"


def test_a_wrong_setting_is_one_sentence(yamchi, monkeypatch):
    monkeypatch.setenv("PORT", "http")
    assert "PORT has a value that can't be used" in yamchi("queues", code=1)


def test_debug_shows_the_traceback(yamchi):
    result = CliRunner().invoke(cli, ["--debug", "jobs", "show", "hello", "nope"])
    assert type(result.exception).__name__ == "UnknownJob"


def test_the_doctor_finds_all_well(yamchi):
    checks = {check["what"]: check for check in yamchi.json("doctor", "--port", "0")}
    assert checks["engine sqlite"]["ok"] is True
    assert "a job went through" in checks["engine sqlite"]["found"]
    assert "All is well" in yamchi("doctor", "--port", "0")
    assert "_doctor" not in yamchi("queues")


def test_the_doctor_says_what_to_fix(yamchi, monkeypatch):
    monkeypatch.setenv("LEASE", "soon")
    assert "LEASE has a value that can't be used" in yamchi("doctor", code=1)


def test_the_doctor_goes_on_where_an_engine_can_not_be_made(yamchi, monkeypatch):
    monkeypatch.setenv("QUEUE_URL_HELLO", "supabase")
    monkeypatch.setenv("SUPABASE_URL", "https://shop.supabase.co")
    found = {check["what"]: check for check in yamchi.json("doctor", "--port", "0", code=1)}
    assert (found["engines"]["ok"], found["engines"]["found"]) == (
        False,
        "SUPABASE_SERVICE_ROLE_KEY must be set",
    )
    assert found["port"]["ok"]
    assert "1 to fix" in yamchi("doctor", "--port", "0", code=1)


def test_the_doctor_knows_yamchi_from_another_that_listens(yamchi, own_home):
    process = Process(own_home, "api", "--port", "0")
    port = process.url.rpartition(":")[2]
    for _ in range(3):  # its answer comes in one piece, or in two
        found = {check["what"]: check for check in yamchi.json("doctor", "--port", port)}["port"]
        assert (found["ok"], found["found"]) == (True, f"{port} on 127.0.0.1: Yamchi is running there")
    process.end(signal.SIGTERM)
    with socket.create_server(("127.0.0.1", 0)) as another:
        taken = str(another.getsockname()[1])
        assert f"Port {taken} on 127.0.0.1 can't be used" in yamchi("doctor", "--port", taken, code=1)


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self").exists(), reason="needs /proc")
def test_the_doctor_sees_a_home_that_can_not_be_used(yamchi, monkeypatch):
    monkeypatch.setenv("YAMCHI_HOME", "/proc/self")
    said = yamchi("doctor", "--port", "0", code=1)
    assert "✘" in said


def test_top_prints_a_frame(yamchi):
    yamchi("jobs", "add", "hello", "{}")
    frame = yamchi("top", "--once")
    assert "hello" in frame
    assert "No worker is running" in frame
    assert yamchi.json("top")["workers"] == []


def test_a_sparkline_has_a_character_for_each_minute():
    now = 100 * 60_000
    history = [Minute(90 * 60_000, 5, 0), Minute(100 * 60_000, 8, 2)]
    assert sparkline(history, now) == " " * 9 + "▄" + " " * 9 + "█"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder like Yamchi's own, with a benchmark that only says that it ran."""
    for name, text in {
        "bench/__init__.py": "",
        "bench/checks.py": "SAID = 'measured the peers'",
        "bench/run.py": "from bench import checks\nprint(checks.SAID)",
        ".venv-bench/bin/python": f'#!/bin/sh\nexec {sys.executable} "$@"',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".venv-bench/bin/python").chmod(0o755)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("repository")
def test_bench_measures_the_peers_in_the_repository(yamchi, capfd):
    yamchi("bench")
    assert "measured the peers" in capfd.readouterr().out
    assert "drain" in yamchi("bench", "--jobs", "500")
    assert "measured the peers" not in capfd.readouterr().out


def test_bench_measures_the_engine(yamchi):
    works = {speed["work"]: speed for speed in yamchi.json("bench", "--jobs", "500")}
    assert works["drain"]["jobs"] == 500
    assert works["drain"]["rate"] > 0


def test_the_board_command_prints_the_address(yamchi):
    said = yamchi("board", "--port", "1", "--no-open", code=1)
    assert "http://localhost:1" in said
    assert "yamchi up" in said
    told = yamchi.json("board", "--port", "1", "--no-open", code=1)
    assert told == {"url": "http://localhost:1", "answers": False}


def test_a_revoked_key_a_report_and_a_picture_of_a_scenario_for_programs(yamchi, own_home):
    yamchi("keys", "create", "--name", "shop", "--scope", "send")
    revoked = yamchi.json("keys", "revoke", "shop")
    assert revoked["state"] == "revoked"
    assert revoked == yamchi.json("keys", "list")[0]
    made = yamchi.json("report", "make", "deliveries", "--out", "sent.csv", "--format", "csv")
    size = (own_home / "sent.csv").stat().st_size
    assert made == {"file": "sent.csv", "kind": "deliveries", "format": "csv", "size": size}
    shown = yamchi.json("scenario", "show", "email_chain", "--svg", "chain.svg")
    assert shown["scenario"] == "email_chain"
    assert yamchi.json("schema", "rule") == json.loads(yamchi("schema", "rule"))


# ── send ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_send_queues_a_template_or_words_of_ones_own(yamchi: Command) -> None:
    by_template = yamchi.json(
        "send", "email", "a@example.com", "--template", "welcome_email", "--subject", "Hi"
    )
    own_words = yamchi.json("send", "email", "a@example.com", "--text", "Hello", "--subject", "Hi")
    waiting = yamchi.json("jobs", "list", "notifications", "--state", "waiting")["jobs"]
    assert [job["priority"] for job in waiting] == [5, 5], "as those of events: none would go first on Redis"
    assert by_template["job_id"] != own_words["job_id"]


def test_send_has_something_to_say(yamchi: Command) -> None:
    said = yamchi("send", "email", "a@example.com", "--text", " ", code=1)
    assert "options: there is nothing to say" in " ".join(said.split())


def test_send_names_a_template_that_is_not_there(yamchi: Command) -> None:
    said = yamchi("send", "email", "a@example.com", "--template", "welcom", code=1)
    assert "There is no template 'welcom' for the channel 'email'" in " ".join(said.split())


@pytest.mark.parametrize("words", [(), ("--template", "welcome_email", "--text", "Hello")])
def test_send_wants_one_of_them(yamchi: Command, words: tuple[str, ...]) -> None:
    said = yamchi("send", "email", "a@example.com", *words, code=1)
    assert "either --template CODE, or --text with --subject" in " ".join(said.split())
