"""Which application a command works on, and how its work is run.

A command of a feature asks for the application with `load_app`; who starts the command line says where it comes from.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Annotated, Any, TypeVar

import orjson
import typer

from yamchi.console.auditing import audited
from yamchi.errors import ConfigurationError, InvalidJob
from yamchi.plugins import Application, Plugin

T = TypeVar("T")
P = TypeVar("P", bound=Plugin)
Loader = Callable[[str | None], Application]

AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        help="Your application, such as mymodule:app; without it, the queues that ship.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


PageOption = Annotated[int, typer.Option("--page", min=1, max=1_000_000, help="Which page.")]
SizeOption = Annotated[int, typer.Option("--size", min=1, max=1000, help="Rows of a page.")]


def load_app(reference: str | None) -> Application:
    """The application a command was asked to work on: the user's own, or the one that ships."""
    return _load(reference)


def provide_apps(load: Loader) -> None:
    """Set where applications come from. Called at the start of the command line."""
    global _load
    _load = load


def _nowhere(reference: str | None) -> Application:
    raise ConfigurationError("No command line was started, so no application can be loaded.")


_load: Loader = _nowhere


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


async def using(app: Application, work: Coroutine[Any, Any, T]) -> T:
    """Do something with an application, and close it. Commands that may change something are audited."""
    async with app, audited(app):
        return await work


def with_plugin(kind: type[P], reference: str | None, act: Callable[[P], Awaitable[T]]) -> T:
    """Do something with a feature of the application that a command was asked to work on."""
    app = load_app(reference)
    feature = app.plugin(kind)

    async def body() -> T:
        return await act(feature)

    return run_async(using(app, body()))


def check_choice(what: str, given: str | None, choices: Sequence[str]) -> Any:
    """The given word, if it is one of the choices; None if none was given."""
    if given is not None and given not in choices:
        raise InvalidJob(f"There is no {what} {given!r}: choose from {', '.join(choices)}.")
    return given


def read_json(source: str) -> Any:
    """JSON from an argument, or from standard input if it is `-`."""
    given = typer.get_text_stream("stdin").read() if source == "-" else source
    try:
        return orjson.loads(given)
    except orjson.JSONDecodeError as error:
        raise InvalidJob(
            f'{given[:60]!r} is not JSON ({error}): quote it, as in \'{{"name": "you"}}\'.'
        ) from error


def read_object(source: str, option: str, example: str) -> dict[str, Any]:
    """A JSON object from an option, or from standard input if it is `-`."""
    found = read_json(source)
    if not isinstance(found, dict):
        raise InvalidJob(f"{option} should be a JSON object, such as '{example}'.")
    return found
