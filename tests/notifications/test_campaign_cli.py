"""`yamchi campaign` from a terminal: made from a CSV, watched while a worker sends, steered, and refused in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.processes import Process
from yamchi.cli import cli

LIST = "email,name\na@example.com,A\nb@example.com,B\nnonsense,C\na@example.com,again\n"


@pytest.fixture
def home(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(own_home)
    (own_home / "people.csv").write_text(LIST)
    return own_home


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["campaign", *arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def run_json(*arguments: str) -> Any:
    return json.loads(CliRunner().invoke(cli, ["campaign", *arguments, "--json"]).stdout)


CREATE = ("create", "spring", "--template", "welcome_email", "--channel", "null", "--csv", "people.csv")


def test_from_a_list_to_the_end(home: Path) -> None:
    told = run(*CREATE)
    assert "spring running" in told
    assert "row 4" in told
    assert run_json("list")[0]["progress"]["total"] == 2
    assert "is paused" in run("pause", "spring")
    assert "is running" in run("resume", "spring")
    worker = Process(home, "worker", LOG_LEVEL="warning")
    try:
        shown = run_json("show", "spring", "--wait")
    finally:
        worker.process.terminate()
        worker.process.wait()
    assert (shown["state"], shown["progress"]["sent"]) == ("finished", 2)
    assert run_json(*CREATE)["state"] == "finished"
    assert "spring" in run("list")


def test_cancelled(home: Path) -> None:
    variants = ("--variant", '{"name": "a", "percent": 100}')
    run("create", "x", "--template", "welcome_email", "--where", "{}", "--rate", "5/s", *variants)
    assert "is cancelled" in run("cancel", "x")
    assert "it is cancelled" in run("resume", "x", code=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "nothing"), "There is no campaign 'nothing'."),
        (("create", "x", "--template", "nothing", "--where", "{}"), "There is no template 'nothing'"),
        (("create", "x", "--template", "welcome_email", "--where", "{"), "is not JSON"),
        (("create", "x", "--template", "welcome_email"), "exactly one of"),
        (
            ("create", "x", "--template", "welcome_email", "--csv", "none.csv"),
            "none.csv can't be read: no such file",
        ),
        (("create", "x", "--template", "welcome_email", "--where", "{}", "--rate", "fast"), "is not a rate"),
    ],
)
def test_a_mistake_is_one_sentence(home: Path, arguments: tuple[str, ...], said: str) -> None:
    told = run(*arguments, code=1)
    assert said in told
    assert "Traceback" not in told
