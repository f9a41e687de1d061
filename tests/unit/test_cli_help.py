"""Every command that can be typed, those of the features too: its example is one that can be pasted, and it answers in JSON."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from yamchi.cli import SERVING, cli

PROMISED = """up api worker board demo doctor send queues jobs dlq scenario template campaign media report keys audit
plugins schema bench top"""
UNTIL_STOPPED = set(SERVING) - {"board"}
"""They answer nothing: they serve until they are stopped, and log JSON with LOG_FORMAT=json."""


def all_commands() -> dict[tuple[str, ...], Any]:
    """By their words: groups, and the commands of them."""
    shell = get_command(cli)
    return dict(commands_of(shell, typer.Context(shell)))


def commands_of(command: Any, context: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from commands_of(command.get_command(context, name), context, *words, name)


def test_every_command_that_answers_has_json() -> None:
    found = {words: one for words, one in all_commands().items() if is_run(one)}
    assert set(PROMISED.split()) <= {words[0] for words in all_commands() if words}
    options = {
        words: [name for one in command.params for name in one.opts] for words, command in found.items()
    }
    assert {words for words, names in options.items() if "--json" not in names} == {
        (name,) for name in UNTIL_STOPPED
    }


def is_run(command: Any) -> bool:
    """Whether it does something itself, which a group does not as a rule."""
    return not hasattr(command, "list_commands") or command.invoke_without_command


def test_every_help_has_an_example_that_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    commands = all_commands()
    for words, command in commands.items():
        _, _, given = (command.help or "").partition("Example: ")
        examples = re.findall(r"\[cyan\](.+?)\[/\]", given)
        assert examples, f"yamchi {' '.join(words)} --help has no example"
        meant = [parsed(example, commands) for example in examples]
        assert meant[0][: len(words)] == words, f"{examples[0]} is no example of yamchi {' '.join(words)}"


def parsed(example: str, commands: dict[tuple[str, ...], Any]) -> tuple[str, ...]:
    """The words of the command that an example runs, once all its options and arguments are found to be right."""
    line = shlex.split(example.partition(" > ")[0])
    typed = line[line.index("yamchi") + 1 :]
    words = max((tuple(typed[:length]) for length in range(3) if tuple(typed[:length]) in commands), key=len)
    assert is_run(commands[words]), example
    commands[words].make_context(" ".join(words), typed[len(words) :])
    return words


def test_what_is_to_be_typed_stands_in_capitals_and_in_brackets_where_it_may_be_left_out() -> None:
    usages = {
        words: command.collect_usage_pieces(typer.Context(command))[1:]
        for words, command in all_commands().items()
        if is_run(command) and not hasattr(command, "list_commands")
    }
    given = [(words, piece) for words, pieces in usages.items() for piece in pieces]
    assert {" ".join(words) for words, _ in given} >= {"send", "jobs show", "media sync", "schema"}
    wrong = [one for one in given if not re.fullmatch(r"(\[[A-Z]+…?\]|\{?[A-Z]+…?\}?)(\.\.\.)?", one[1])]
    assert wrong == []
