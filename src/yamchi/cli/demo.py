"""`yamchi demo`: every feature shows what it does, without a server, a provider or a minute of waiting."""

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from yamchi.cli.serving import listen
from yamchi.cli.up import typed
from yamchi.clock import as_datetime
from yamchi.console.loading import JsonOption, run_async
from yamchi.console.output import console, print_json, text
from yamchi.demo import Step, play
from yamchi.errors import ConfigurationError
from yamchi.observe import logging

PORT = 3030


def run(
    home: Annotated[
        Path, typer.Option(help="The folder that it is played in; an earlier demo there is replaced.")
    ] = Path("yamchi-demo"),
    as_json: JsonOption = False,
) -> None:
    """Play every flow on the embedded default: letters, pictures, follow-ups, reports, payments. Ten days pass in seconds.

    Nothing leaves this machine: your settings are not used, and letters stay in the mailbox of the demo.

    Example: [cyan]yamchi demo[/], then [cyan]YAMCHI_HOME=yamchi-demo yamchi up[/]
    """
    logging.configure(level="critical")  # what goes wrong in it goes wrong on purpose, and is told
    steps: list[Step] = []

    def tell(step: Step) -> None:
        if not as_json:
            _print(step, is_first=not steps or steps[-1].feature != step.feature)
        steps.append(step)

    port = _free_port()
    places = run_async(play(home.resolve(), tell, port))
    if as_json:
        look = [{"path": path, "what": what} for path, what in places]
        print_json({"home": str(home), "steps": [step.to_dict() for step in steps], "look": look})
        return
    option = "" if port == PORT and "PORT" not in os.environ else f" --port {port}"
    command = escape(f"YAMCHI_HOME={shlex.quote(str(home))} {typed()} up{option}")
    console.print(f"\nLook at all of it: [cyan]{command}[/]", soft_wrap=True)
    for path, what in places:
        console.print(f"  [cyan]http://localhost:{port}{path}[/]  {what}", soft_wrap=True)


def _free_port() -> int:
    """The usual port, or one after it: `make up` may be running in another terminal."""
    for port in range(PORT, PORT + 10):
        with suppress(ConfigurationError):
            listen("127.0.0.1", port).close()
            return port
    return PORT


def _print(step: Step, *, is_first: bool) -> None:
    if is_first:
        console.print(f"\n[bold]{step.feature}[/]")
    moment = as_datetime(step.moment).strftime("%d %b %H:%M")
    console.print(f"  [dim]{moment}[/]  {text(step.text, 400)}")
