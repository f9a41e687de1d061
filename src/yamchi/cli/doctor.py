"""`yamchi doctor`: checks everything Yamchi stands on, and says what to fix."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from typing import Annotated

import typer

from yamchi.app import Yamchi
from yamchi.cli.loading import load_app
from yamchi.cli.serving import listen, misspelled_in
from yamchi.cli.up import HostOption, PortOption
from yamchi.console.loading import AppOption, JsonOption, run_async, using
from yamchi.console.output import console, print_json, text
from yamchi.errors import ConfigurationError, YamchiError
from yamchi.installation import install_command
from yamchi.observe.logging import mask
from yamchi.plugins import Check, load_attribute, look_at
from yamchi.queues.overview import unattended
from yamchi.queues.probes import EngineState, probe_engines
from yamchi.settings import Settings

EXTRAS = {"redis": "bullmq", "postgres": "psycopg", "kafka": "confluent_kafka", "supabase": "httpx2"}
"""Those of the engines; a feature names its own."""

Migrate = Annotated[bool, typer.Option("--migrate", help="First bring Yamchi's tables up to date.")]
MakeQueues = Annotated[
    bool, typer.Option("--make-queues", help="First make the queues that are not there, where we may.")
]
Make = Annotated[
    str | None,
    typer.Option("--make", metavar="NAME", help="Make something to keep, such as vapid, print it, and stop."),
]
MakeVapid = Annotated[
    bool, typer.Option("--make-vapid", help="The same as --make vapid: a key for Web Push.")
]


def run(
    app: AppOption = None,
    host: HostOption = None,
    port: PortOption = None,
    migrate: Migrate = False,
    make_queues: MakeQueues = False,
    make: Make = None,
    make_vapid: MakeVapid = False,
    as_json: JsonOption = False,
) -> None:
    """Check the settings, the folders, every engine, the tables, the providers, the extras and the port.

    Example: [cyan]yamchi doctor --app mymodule:app[/]
    """
    if wanted := "vapid" if make_vapid else make:
        _make(wanted, app, as_json)
        return
    if migrate:
        loaded = load_app(app)
        run_async(using(loaded, loaded.database.migrate()))
    if make_queues:
        loaded = load_app(app)
        run_async(using(loaded, _make_queues(loaded)))
    checks = run_async(_all(app, host, port))
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        _print(checks)
    if any(check.ok is False for check in checks):
        raise typer.Exit(1)


def _make(name: str, app: str | None, as_json: bool) -> None:
    """Print what a feature makes."""
    plugins = load_app(app).plugins.values()
    makers = {what: place for plugin in plugins for what, place in plugin.makes.items()}
    if name not in makers:
        known = ", ".join(sorted(makers)) or "nothing"
        raise ConfigurationError(f"There is no {name!r} to make; there is: {known}.")
    load_attribute(makers[name])(as_json=as_json)


async def _make_queues(app: Yamchi) -> None:
    """Make a queue by asking for its counts. If that fails, the checks that follow say so."""
    for queue in app.queues:
        with suppress(YamchiError):
            await queue.stats()


async def _all(reference: str | None, host: str | None, port: int | None) -> list[Check]:
    checks, extras = [_python()], dict(EXTRAS)
    try:
        settings = Settings()
    except YamchiError as error:
        return [*checks, Check("settings", False, str(error))]
    checks += [Check("settings", True, f"read for home {settings.home}"), _home(settings)]
    try:
        app = load_app(reference)
    except YamchiError as error:
        checks.append(Check("application", False, str(error)))
    else:
        checks.append(
            Check("application", True, f"{reference or 'the one that ships'}: {len(app.queues)} queues")
        )
        checks += _misspelled(app)
        extras |= {extra: module for one in app.plugins.values() for extra, module in one.extras.items()}
        try:
            checks += await using(app, _everything(app))
        except ConfigurationError as error:  # an engine can't even be made: its extra or its key is missing
            checks.append(Check("engines", False, str(mask(str(error)))))
    checks += [*_extras(extras), _port(settings, host, port)]
    return checks


def _misspelled(app: Yamchi) -> list[Check]:
    return [
        Check("setting", None, f"{one}; nothing reads it, so correct its name if it is Yamchi's")
        for one in misspelled_in(app)
    ]


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", sys.version_info >= (3, 11), f"{version} at {sys.executable}")


def _home(settings: Settings) -> Check:
    """Whether var/ can be written. Does not create it."""
    place = next(folder for folder in (settings.var, *settings.var.parents) if folder.exists())
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return Check("home", True, f"{settings.var} can be written")
    return Check(
        "home", False, f"{place} can't be written: change its owner, or set YAMCHI_HOME to another folder."
    )


async def _everything(app: Yamchi) -> list[Check]:
    queues = [Check(f"queue {name}", None, why) for name, why in (await unattended(app.queues)).items()]
    engines = [_engine(state) for state in await probe_engines(app.queues)]
    return [*engines, *queues, *await _tables(app), *await _plugins(app)]


async def _tables(app: Yamchi) -> list[Check]:
    where = "SQLite in var/" if app.database.is_embedded else "DATABASE_URL"
    try:
        await app.database.open()
    except YamchiError as error:
        return [Check("tables", False, str(mask(str(error))))]
    return [Check("tables", True, f"up to date, {where}")]


async def _plugins(app: Yamchi) -> list[Check]:
    """The checks of the features, and the features that were left out."""
    checks = [Check(f"plugin {name}", False, why) for name, why in app.failed_plugins.items()]
    for plugin in app.plugins.values():
        checks += await look_at(plugin, plugin.checks, plugin.probes)
    return checks


def _engine(state: EngineState) -> Check:
    found = f"{len(state.queues)} queues"
    found += " are there" if state.took is None else f"; a job went through in {state.took} ms"
    return Check(
        f"engine {state.type}", state.error is None, found if state.error is None else str(mask(state.error))
    )


def _extras(extras: Mapping[str, str]) -> Iterator[Check]:
    for extra, module in extras.items():
        is_there = find_spec(module) is not None
        how = "installed" if is_there else f"not installed; if you want it: {install_command(extra)}"
        yield Check(f"extra {extra}", is_there or None, how)


def _port(settings: Settings, host: str | None, port: int | None) -> Check:
    from yamchi.web import check_address

    address, number = host or settings.host, settings.port if port is None else port
    try:
        check_address(settings, address)
        listen(address, number).close()
    except ConfigurationError as error:
        if _is_ours(address, number):
            return Check("port", True, f"{number} on {address}: Yamchi is running there")
        return Check("port", False, str(error))
    return Check("port", True, f"{number} on {address} is free")


def _is_ours(host: str, port: int) -> bool:
    """Whether what answers there is a Yamchi."""
    connection = HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", "/healthz", headers={"host": "localhost"})
        return connection.getresponse().read(65536) == b'{"status":"ok"}'
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _print(checks: list[Check]) -> None:
    marks = {True: "[green]✔[/]", False: "[red]✘[/]", None: "[dim]·[/]"}
    width = max(len(check.what) for check in checks)
    for check in checks:  # each on a line of its own, however long: what it says to type can be pasted
        line = f"{marks[check.ok]}  [bold]{check.what:<{width}}[/]  {text(check.found, 400)}"
        console.print(line, soft_wrap=True)
    wrong = sum(check.ok is False for check in checks)
    console.print(f"[red]{wrong} to fix[/]" if wrong else "[green]All is well.[/]")
