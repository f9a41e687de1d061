"""Which application a command works on: the user's own (`--app module:app`), or the one that ships."""

import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from yamchi.app import Yamchi
from yamchi.console.loading import run_async, using
from yamchi.discovery import find_queue
from yamchi.errors import ConfigurationError, YamchiError
from yamchi.queues.queue import Queue
from yamchi.settings import Settings
from yamchi.shipped import shipped_app


def load_app(reference: str | None, settings: Settings | None = None) -> Yamchi:
    """The application a command was asked to work on."""
    if reference is None:
        return shipped_app(settings)
    where, _, attribute = reference.partition(":")
    found = _attribute(_module(where), where, attribute or "app")
    if not isinstance(found, Yamchi) and callable(found):
        found = found()
    if not isinstance(found, Yamchi):
        raise ConfigurationError(
            f"--app {reference}: {attribute or 'app'} is a {type(found).__name__}, not a Yamchi application."
        )
    return found


def _module(where: str) -> Any:
    """`package.module`, or a path such as `examples/quickstart.py`."""
    path = Path(where)
    is_file = path.suffix == ".py"
    sys.path.insert(0, str(path.parent.resolve() if is_file else Path.cwd()))
    name = path.stem if is_file else where
    try:
        return import_module(name)
    except YamchiError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            place = path.parent.resolve() if is_file else Path.cwd()
            raise ConfigurationError(f"--app {where}: there is no module {name!r} in {place}.") from error
        raise ConfigurationError(f"--app {where} can't be imported: {error}.") from error
    except (Exception, SystemExit) as error:
        kind = type(error).__name__
        raise ConfigurationError(f"--app {where} can't be imported: {kind}: {error}") from error


def _attribute(module: Any, where: str, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        here = [key for key, value in vars(module).items() if isinstance(value, Yamchi)]
        hint = f"; it has {', '.join(here)}" if here else ""
        raise ConfigurationError(
            f"--app {where}: the module has no {name!r}{hint}. Write --app {where}:name."
        ) from None


def with_queue(reference: str | None, name: str, act: Callable[[Queue], Awaitable[Any]]) -> Any:
    """Do something with one queue of the application."""
    app = load_app(reference)

    async def body() -> Any:
        return await act(await find_queue(app, name))

    return run_async(using(app, body()))
