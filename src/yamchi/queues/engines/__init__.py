"""Engines by URL. Each is imported only when it is asked for, so a missing package matters only to who uses it."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from yamchi.clock import Clock
from yamchi.errors import ConfigurationError
from yamchi.queues.engines.base import Engine


def make_engine(url: str, clock: Clock) -> Engine:
    """The engine a URL names; not yet opened."""
    scheme = urlsplit(url).scheme
    match scheme:
        case "memory":
            from yamchi.queues.engines.memory import MemoryEngine

            return MemoryEngine(clock)
        case "sqlite":
            from yamchi.queues.engines.sqlite import SqliteEngine

            return SqliteEngine(_sqlite_path(url), clock)
    raise ConfigurationError(
        f"QUEUE_URL {scheme or url}://… is not known: use sqlite:///var/yamchi.db or memory://"
    )


def _sqlite_path(url: str) -> Path:
    """sqlite:///relative.db and sqlite:////absolute.db, as SQLAlchemy writes them."""
    path = unquote(urlsplit(url).path.removeprefix("/"))
    if not path:
        raise ConfigurationError(f"{url} names no file: write it as sqlite:///var/yamchi.db")
    return Path(path)
