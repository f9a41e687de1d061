"""`yamchi board`: opens the board in the browser."""

import socket
import webbrowser
from typing import Annotated

import typer
from rich.console import Console

from yamchi.cli.serving import url_of
from yamchi.console.loading import JsonOption
from yamchi.console.output import print_json
from yamchi.settings import Settings


def run(
    host: Annotated[str | None, typer.Option(help="Where it listens; HOST or 127.0.0.1 by default.")] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Its port; PORT or 3030 by default.")
    ] = None,
    open_it: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the browser, or only print.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Open the board of a running Yamchi.

    Example: [cyan]yamchi board --port 8080[/]
    """
    settings = Settings()
    where, number = host or settings.host, settings.port if port is None else port
    url = url_of(where, number)
    is_there = _answers(where, number)
    if as_json:
        print_json({"url": url, "answers": is_there})
    else:
        print(url)
    if not is_there:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            "[yellow]Nothing listens there yet: start it with [cyan]yamchi up[/].[/]"
        )
        raise typer.Exit(1)
    if open_it:
        webbrowser.open(url)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True
