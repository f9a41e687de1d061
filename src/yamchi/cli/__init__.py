"""The command line, one file per command. `yamchi --help` lists them."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from yamchi.cli import (
    api,
    audit,
    bench,
    board,
    demo,
    dlq,
    doctor,
    jobs,
    keys,
    plugins,
    queues,
    top,
    up,
    worker,
)
from yamchi.cli.features import commands_of_features, load_command
from yamchi.cli.loading import load_app
from yamchi.console.auditing import TYPED, Typed
from yamchi.console.loading import provide_apps
from yamchi.errors import YamchiError
from yamchi.observe import logging


class Commands(TyperGroup):
    """Every error made on purpose leaves as one sentence; `--debug` shows where it came from.

    A command that is not the core's may be a feature's: those of what ships, of what is installed, and of the application
    that `--app` names are looked for, and imported, only then.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        with suppress(YamchiError):  # help is shown even where the settings are wrong
            return [*super().list_commands(ctx), *commands_of_features()]
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, name: str) -> Any:
        command = super().get_command(ctx, name)
        if command is None and (place := commands_of_features(_app_in(self._arguments)).get(name)):
            command = load_command(name, place)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A group without a command lists what it is about. What was typed is noted, for the audit."""
        self._arguments = args
        name, command, rest = super().resolve_command(ctx, args)
        words, of_group = [name or ""], getattr(command, "commands", {})
        if "list" in of_group and not (rest and (rest[0] in HELP or not rest[0].startswith("-"))):
            rest = ["list", *rest]
        if rest and rest[0] in of_group:
            words.append(rest[0])
        TYPED.set(Typed(" ".join(words), shlex.join(rest[len(words) - 1 :])))
        return name, command, rest

    _arguments: Sequence[str] = ()

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (YamchiError, OSError) as error:
            said = _said(error)
            if ctx.params.get("debug") or said is None:
                raise
            Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]✘[/] {escape(said)}")
            raise typer.Exit(1) from None


def _said(error: YamchiError | OSError) -> str | None:
    """What a person is told; nothing of an error of the system that names no file, as one of ours may be behind it."""
    if isinstance(error, YamchiError):
        return str(error)
    return None if error.filename is None else f"{error.filename}: {error.strerror}."


HELP = ["-h", "--help"]

cli = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP},
    help="Jobs, queues and workers on whatever queue you have.\n\nExample: [cyan]yamchi up[/]",
)


SERVING = ("up", "api", "worker", "board")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"yamchi {version('yamchi')}")
        raise typer.Exit


def _app_in(arguments: Sequence[str]) -> str | None:
    """The value of `--app` among arguments that nobody has parsed yet."""
    for place, argument in enumerate(arguments):
        if argument.startswith("--app="):
            return argument.partition("=")[2]
        if argument == "--app":
            return next(iter(arguments[place + 1 :]), None)
    return None


@cli.callback()
def _options(
    ctx: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""
    if ctx.invoked_subcommand not in SERVING:  # those log as the settings say
        logging.configure(level="warning")


for command in (up, api, worker, board, demo, doctor, top, bench, audit, plugins):
    cli.command(name=command.__name__.rpartition(".")[2])(command.run)
for group in (queues, jobs, dlq, keys):
    cli.add_typer(group.group, name=group.__name__.rpartition(".")[2])


provide_apps(load_app)


def main() -> None:
    """What the `yamchi` command calls."""
    cli(prog_name="yamchi" if sys.argv[0].endswith("__main__.py") else None)
