"""Which application a command works on: the user's own (`--app module:app`), or the one that ships."""

import inspect
import sys
import sysconfig
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from yamchi.app import Yamchi
from yamchi.clock import Millis
from yamchi.console.loading import run_async, using
from yamchi.discovery import all_queues, find_queue
from yamchi.errors import ConfigurationError, YamchiError
from yamchi.queues.queue import Queue
from yamchi.shipped import shipped_app

T = TypeVar("T")
ReadPage = Callable[[Queue, int, int], Awaitable[tuple[list[T], int]]]
"""Reads items of a queue from an offset, at most a number of them; and their total."""

_PATHS = sysconfig.get_paths()
_FOLDERS_OF_OTHERS = [
    *(Path(_PATHS[kind]) for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    Path(__file__).parent.parent,
]
"""The folders of Python's modules, of installed packages, and of our own code."""


def load_app(reference: str | None) -> Yamchi:
    """The application a command was asked to work on."""
    if reference is None:
        return shipped_app()
    where, _, attribute = reference.partition(":")
    module = _module(where)
    found = _attribute(module, where, attribute or "app")
    if inspect.isroutine(found) or isinstance(found, type | partial):
        found = _made_by(found, reference)
    if not isinstance(found, Yamchi):
        raise ConfigurationError(
            f"--app {reference}: {attribute or 'app'} is a {type(found).__name__}, not a Yamchi application"
            f"{_hint(module, where)}"
        )
    return found


def _made_by(factory: Callable[[], Any], reference: str) -> Any:
    try:
        return factory()
    except YamchiError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"--app {reference} can't be made: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """An error with the line of the user's own code, not that of a library it called."""
    is_plain = isinstance(error, ModuleNotFoundError)
    said = str(error) if is_plain else f"{type(error).__name__}: {error}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_the_users(frame)]
    if isinstance(error, SyntaxError) or not frames:
        return said
    return f"{said} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def _is_the_users(frame: traceback.FrameSummary) -> bool:
    """Whether a file is the user's own: not of Python, an installed package, or ours."""
    place = Path(frame.filename)
    return place.is_file() and not any(place.is_relative_to(folder) for folder in _FOLDERS_OF_OTHERS)


def _module(where: str) -> Any:
    """`package.module`, or a path such as `examples/quickstart.py`."""
    path = Path(where)
    is_file = path.suffix == ".py"
    folder = str(path.parent.resolve() if is_file else Path.cwd())
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    name = path.stem if is_file else where
    try:
        module = import_module(name)
    except YamchiError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            place = path.parent.resolve() if is_file else Path.cwd()
            raise ConfigurationError(f"--app {where}: there is no module {name!r} in {place}.") from error
        raise ConfigurationError(f"--app {where} can't be imported: {_said(error)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"--app {where} can't be imported: {_said(error)}") from error
    if is_file and not _is_of(module, path):
        raise ConfigurationError(f"--app {where}: there is another module {name!r} already; rename the file.")
    return module


def _is_of(module: Any, path: Path) -> bool:
    """`queue.py` is not what `import queue` gives once Python has imported its own."""
    return getattr(module, "__file__", None) is not None and Path(module.__file__).resolve() == path.resolve()


def _attribute(module: Any, where: str, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        raise ConfigurationError(f"--app {where}: the module has no {name!r}{_hint(module, where)}") from None


def _hint(module: Any, where: str) -> str:
    """What to write instead: the applications of a module."""
    here = [f"--app {where}:{key}" for key, value in vars(module).items() if isinstance(value, Yamchi)]
    return f": write {' or '.join(here)}." if here else f". Write --app {where}:name."


def with_queue(reference: str | None, name: str, act: Callable[[Queue], Awaitable[Any]]) -> Any:
    """Do something with one queue of the application."""
    app = load_app(reference)

    async def body() -> Any:
        return await act(await find_queue(app, name))

    return run_async(using(app, body()))


async def _read_page(
    queues: Sequence[Queue], read: ReadPage[T], moment: Callable[[T], Millis], page: int, size: int
) -> tuple[list[T], int]:
    first = (page - 1) * size
    if len(queues) == 1:
        return await read(queues[0], first, size)
    found = [await read(queue, 0, first + size) for queue in queues]
    rows = sorted(chain.from_iterable(rows for rows, _ in found), key=moment, reverse=True)
    return rows[first : first + size], sum(total for _, total in found)


def page_of(
    reference: str | None,
    name: str | None,
    read: ReadPage[T],
    moment: Callable[[T], Millis],
    page: int,
    size: int,
) -> tuple[list[T], int]:
    """A page of the items of one queue, or of all queues together, newest first; and their total."""
    app = load_app(reference)

    async def body() -> tuple[list[T], int]:
        queues = await all_queues(app) if name is None else [await find_queue(app, name)]
        return await _read_page(queues, read, moment, page, size)

    return run_async(using(app, body()))
