"""The command line, one file per command. `yamchi --help` lists them."""

import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from yamchi.cli import api, bench, board, campaign, dlq, doctor, jobs, queues, send, template, top, up, worker
from yamchi.errors import YamchiError
from yamchi.observe import logging


class Commands(TyperGroup):
    """Every error made on purpose leaves as one sentence; `--debug` shows where it came from."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except YamchiError as error:
            if ctx.params.get("debug"):
                raise
            Console(stderr=True, highlight=False, soft_wrap=True).print(
                f"[bold red]✘[/] {_escaped(str(error))}"
            )
            raise typer.Exit(1) from None


cli = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Jobs, queues and workers on whatever queue you have.\n\nExample: [cyan]yamchi up[/]",
)


SERVING = ("up", "api", "worker", "board")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"yamchi {version('yamchi')}")
        raise typer.Exit


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")


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


for command in (up, api, worker, board, send, doctor, top, bench):
    cli.command(name=command.__name__.rpartition(".")[2])(command.run)
for group in (queues, jobs, dlq, template, campaign):
    cli.add_typer(group.group, name=group.__name__.rpartition(".")[2])


def main() -> None:
    """What the `yamchi` command calls."""
    cli(prog_name="yamchi" if sys.argv[0].endswith("__main__.py") else None)
