"""`yamchi template` from a terminal."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from yamchi.cli import cli


def test_templates_are_listed_with_what_they_are_about(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_home)
    monkeypatch.setenv("COLUMNS", "250")
    told = CliRunner().invoke(cli, ["template", "list"])
    assert told.exit_code == 0, told.output
    for words, about in (
        (("welcome_email", " email ", " en "), "Welcome to"),
        (("new_film_recommendation", " push ", " ru "), "Новинка"),
    ):
        (line,) = [line for line in told.output.splitlines() if all(word in line for word in words)]
        assert about in line
