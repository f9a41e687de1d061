"""What `yamchi up` says first: the command it tells to try is one that works when pasted."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from rich.text import Text

from yamchi import Job, Yamchi
from yamchi.cli.up import _what_to_try, typed
from yamchi.settings import Settings


class Thumb(BaseModel):
    url: str
    width: int
    tags: list[str] = []


class Greeting(BaseModel):
    name: str = "world"


class Order(BaseModel):
    number: Annotated[str, Field(pattern=r"^[A-Z]{2}-\d+$")]


class Nested(BaseModel):
    thumb: Thumb


def tried(home: Path, model: Any) -> list[str] | None:
    """The words of the command that is told for a job with this data; None if none is told."""
    app = Yamchi(Settings(home=home), plugins=[])

    @app.job("work")
    async def handle(job: Job[model]) -> None: ...

    said = Text.from_markup(_what_to_try(app, "http://localhost:3030", "my [shop]/shop.py:app")).plain
    line = next((line for line in said.splitlines() if line.startswith("Try ")), None)
    return shlex.split(line) if line else None


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (Thumb, {"url": "you", "width": 1}),
        (Greeting, {"name": "you"}),
        (dict, {}),
        (list[int], []),
        (str, "you"),
    ],
)
def test_the_command_to_try_has_data_that_fits(own_home: Path, model: Any, data: object) -> None:
    command = tried(own_home, model)
    assert command is not None
    said = command[command.index("jobs") :]  # before it, how `yamchi` is called here
    assert said[:3] == ["jobs", "add", "work"]
    assert json.loads(said[3]) == data
    assert said[4:] == ["--app", "my [shop]/shop.py:app"]


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_another_terminal_is_told_of_another_home(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, is_elsewhere: bool
) -> None:
    home = own_home / "my demo"
    home.mkdir()
    monkeypatch.setenv("YAMCHI_HOME", str(home))
    monkeypatch.chdir(own_home if is_elsewhere else home)
    lines = Text.from_markup(_what_to_try(Yamchi(Settings()), "http://localhost:3030", None)).plain
    assert (f"First   export YAMCHI_HOME='{home}'\n" in lines) == is_elsewhere


@pytest.mark.parametrize("model", [Order, Nested])
def test_no_command_is_told_that_would_be_refused(own_home: Path, model: Any) -> None:
    assert tried(own_home, model) is None


def test_a_module_is_told_as_it_was_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/yamchi/__main__.py", "up"])
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    said = subprocess.run([*shlex.split(typed()), "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("yamchi ")
