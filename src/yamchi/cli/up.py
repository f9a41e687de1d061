"""`yamchi up`: board, API and workers in one process."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from rich.markup import escape
from rich.panel import Panel

from yamchi.app import Yamchi
from yamchi.cli.loading import load_app
from yamchi.cli.serving import address_of, listen, live, make_server, start_logging, warn_of_misspelled
from yamchi.console.loading import AppOption, run_async
from yamchi.console.output import console
from yamchi.errors import InvalidJob
from yamchi.queues.handlers import Handler

log = structlog.get_logger("yamchi")

EXAMPLES = {
    "string": "you",
    "integer": 1,
    "number": 1,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}
"""A value of each kind that JSON Schema has."""

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
    """The application. It is made with its port, so that links in messages lead to it."""
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
    warn_of_misspelled(yamchi)

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
    """The command as it can be typed here: with its path if it is not on PATH, as after `make up`."""
    if shutil.which("yamchi"):
        return "yamchi"
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m yamchi"
    return shlex.quote(
        str(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program)
    )


def _what_to_try(app: Yamchi, url: str, reference: str | None) -> str:
    option, yamchi = escape(f" --app {shlex.quote(reference)}") if reference else "", escape(typed())
    lines = [f"Board   [cyan]{url}[/]", f"API     [cyan]{url}/docs[/]"]
    told = os.environ.get("YAMCHI_HOME")
    if told and Path(told).resolve() != Path.cwd():  # another terminal would work on the home it is in
        lines.append(f"First   [cyan]export YAMCHI_HOME={escape(shlex.quote(told))}[/]")
    features = {queue for name in app.plugins for queue in app.queues_of(name)}
    own = [one.definition for one in app.queues if one.name not in features and not one.definition.is_own]
    tries = {
        one.name: data
        for one in own
        if one.handlers and (data := _example(one.handler(one.default_name))) is not None
    }
    if tries:
        queue = "hello" if "hello" in tries else next(iter(tries))
        data = escape(shlex.quote(tries[queue]))
        lines.append(f"Try     [cyan]{yamchi} jobs add {queue} {data}{option}[/]")
    tips = app.brought(lambda plugin: plugin.tips(url, yamchi, option))
    lines += [f"{word:<7} [cyan]{line}[/]" for word, line in tips]
    lines += [f"Look    [cyan]{yamchi} top{option}[/]", "Stop    Ctrl+C"]
    return "\n".join(lines)


def _example(handler: Handler) -> str | None:
    """Sample data for this handler, as JSON; None if its model has rules beyond the kinds of its fields."""
    try:
        schema = TypeAdapter(handler.model).json_schema() if handler.model else {}
        properties = schema.get("properties", {})
        names = schema.get("required") or [name for name, one in properties.items() if "type" in one][:1]
        is_object = schema.get("type", "object") == "object"
        data = (
            {name: EXAMPLES[properties[name]["type"]] for name in names}
            if is_object
            else EXAMPLES[schema["type"]]
        )
        handler.encode(data)
    except (KeyError, PydanticUserError, InvalidJob):
        return None
    return json.dumps(data)
