"""`yamchi up`: board, API and workers in one process."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.panel import Panel

from yamchi.app import Yamchi
from yamchi.cli.loading import load_app
from yamchi.cli.serving import address_of, listen, live, make_server, start_logging
from yamchi.console.loading import AppOption, run_async
from yamchi.console.output import console

log = structlog.get_logger("yamchi")

HostOption = Annotated[
    str | None, typer.Option(help="The address to listen on; HOST or 127.0.0.1 by default.")
]
PortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="The port; PORT or 3030 by default, 0 takes a free one.")
]


def run(app: AppOption = None, host: HostOption = None, port: PortOption = None) -> None:
    """Start everything: board, API and workers.

    Example: [cyan]yamchi up --app mymodule:app --port 8080[/]
    """
    serve(load_at(app, port), app, host, port, works=True)


def load_at(reference: str | None, port: int | None) -> Yamchi:
    """The application, which is told its port before it is made, so that links in its messages lead to it."""
    if port:
        os.environ["PORT"] = str(port)
    return load_app(reference)


def serve(yamchi: Yamchi, reference: str | None, host: str | None, port: int | None, *, works: bool) -> None:
    """Serve the board and the API, with a worker beside them if asked."""
    from yamchi.web import check_address, create_app

    if works:
        yamchi.serve()
    settings = yamchi.settings
    address = settings.host if host is None else host
    check_address(settings, address)
    start_logging(settings)

    async def body() -> None:
        listener = listen(address, settings.port if port is None else port)
        server = make_server(create_app(yamchi), settings)
        worker = yamchi.worker() if works and _has_handlers(yamchi) else None
        url = address_of(listener)
        await live(
            yamchi,
            worker=worker,
            server=(server, listener),
            on_start=lambda: _welcome(yamchi, url, reference, works=works),
        )

    run_async(body())


def _has_handlers(app: Yamchi) -> bool:
    return any(queue.definition.handlers for queue in app.queues)


def _welcome(app: Yamchi, url: str, reference: str | None, *, works: bool) -> None:
    engines = ", ".join(sorted({queue.type for queue in app.queues})) or "no queues"
    if app.settings.log_format == "console":
        console.print(
            Panel.fit(_what_to_try(app, url, reference), title="Yamchi is up", border_style="green")
        )
    log.info(f"Listening on {url}", engine=engines, workers=works)


def typed() -> str:
    """The command as it can be typed here: by its path where it is not on PATH, as after `make up`."""
    if shutil.which("yamchi"):
        return "yamchi"
    program = Path(sys.argv[0])
    return str(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program)


def _what_to_try(app: Yamchi, url: str, reference: str | None) -> str:
    option, yamchi = f" --app {reference}" if reference else "", typed()
    lines = [f"Board   [cyan]{url}[/]", f"API     [cyan]{url}/docs[/]"]
    features = {queue for name in app.plugins for queue in app.queues_of(name)}
    handled = [queue.name for queue in app.queues if queue.definition.handlers and queue.name not in features]
    if handled:
        queue = "hello" if "hello" in handled else handled[0]
        data = '\'{"name": "you"}\'' if queue == "hello" else "'{}'"
        lines.append(f"Try     [cyan]{yamchi} jobs add {queue} {data}{option}[/]")
    for plugin in app.plugins.values():
        lines += [f"{word:<7} [cyan]{line}[/]" for word, line in plugin.tips(url, yamchi, option)]
    lines += [f"Look    [cyan]{yamchi} top{option}[/]", "Stop    Ctrl+C"]
    return "\n".join(lines)
