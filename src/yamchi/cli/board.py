"""`yamchi board`: opens the board in the browser."""

import socket
import webbrowser
from typing import Annotated

import typer

from yamchi.cli.up import HostOption, PortOption
from yamchi.console.output import console
from yamchi.settings import Settings


def run(
    host: HostOption = None,
    port: PortOption = None,
    open_it: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the browser, or only print.")
    ] = True,
) -> None:
    """Open the board of a running Yamchi.

    Example: [cyan]yamchi board --port 8080[/]
    """
    settings = Settings()
    where, number = host or settings.host, settings.port if port is None else port
    name = "localhost" if where in ("127.0.0.1", "0.0.0.0", "::", "::1") else where
    url = f"http://{name}:{number}"
    print(url)
    if not _answers(where, number):
        console.print("[yellow]Nothing listens there yet: start it with [cyan]yamchi up[/].[/]")
        raise typer.Exit(1)
    if open_it:
        webbrowser.open(url)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True
