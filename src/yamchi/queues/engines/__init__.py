"""Engines by URL. Each is imported only when it is asked for, so a missing package matters only to who uses it."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from yamchi.clock import Clock, Millis
from yamchi.errors import ConfigurationError, MissingExtra
from yamchi.queues.engines.base import Engine
from yamchi.storage.keys import Keys

if TYPE_CHECKING:
    from yamchi.queues.engines.memory import MemoryEngine
    from yamchi.queues.engines.sqlite import SqliteEngine


REDIS = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")


def make_engine(url: str, clock: Clock, var: Path = Path("var")) -> Engine:
    """The engine a URL names; not yet opened. What a broker lacks is kept in a database in `var`."""
    scheme = urlsplit(url).scheme
    match scheme:
        case "memory":
            from yamchi.queues.engines.memory import MemoryEngine

            return MemoryEngine(clock)
        case "sqlite":
            from yamchi.queues.engines.sqlite import SqliteEngine

            return SqliteEngine(_sqlite_path(url), clock)
        case _ if scheme in REDIS:
            try:
                from yamchi.queues.engines.bull import BullEngine
            except ImportError as error:
                raise MissingExtra("redis", "Redis") from error
            return BullEngine(url, clock)
        case _ if scheme.startswith("postgres"):
            try:
                from yamchi.queues.engines.pgmq import PgmqEngine
            except ImportError as error:
                raise MissingExtra("postgres", "PostgreSQL") from error
            return PgmqEngine(f"postgresql:{url.partition(':')[2]}", clock)
        case "kafka":
            try:
                from yamchi.queues.engines.kafka import Address, KafkaEngine
            except ImportError as error:
                raise MissingExtra("kafka", "Kafka") from error
            address = Address.parse(url)
            return KafkaEngine(address, Path(address.ledger or var / f"kafka-{address.group}.db"), clock)
    raise ConfigurationError(
        f"QUEUE_URL {scheme}://… is not known: use sqlite:///var/yamchi.db, redis://host:6379, postgresql://host/db, kafka://host:9092 or memory://"
    )


def make_supabase(
    project: str, key: str, var: Path, clock: Clock, *, interval: Millis, at_most: int
) -> Engine:
    """The engine on a Supabase project; it asks every `interval` for at most so many jobs. Not yet opened."""
    try:
        from yamchi.queues.engines.supabase import SupabaseEngine
    except ImportError as error:
        raise MissingExtra("supabase", "Supabase") from error
    return SupabaseEngine(project, key, var / "supabase.db", clock, interval=interval, at_most=at_most)


def make_keys(url: str) -> Keys | None:
    """Where keys with a lifetime lie on the broker a URL names; None if it has no place for them."""
    if urlsplit(url).scheme not in REDIS:
        return None
    try:
        from yamchi.queues.engines.bull.address import read_address
        from yamchi.queues.engines.bull.keys import RedisKeys
    except ImportError as error:
        raise MissingExtra("redis", "Redis") from error
    if "{" in read_address(url).prefix:
        return None  # a cluster would spread keys of such names over all its nodes
    return RedisKeys(url)


def is_embedded(url: str) -> bool:
    """Whether the engine needs no server, and so can't be out of reach."""
    return urlsplit(url).scheme in ("memory", "sqlite")


def make_spool(kind: Literal["sqlite", "memory"], path: Path, clock: Clock) -> "MemoryEngine | SqliteEngine":
    """Where jobs wait while their broker can't be reached."""
    if kind == "memory":
        from yamchi.queues.engines.memory import MemoryEngine

        return MemoryEngine(clock)
    from yamchi.queues.engines.sqlite import SqliteEngine

    return SqliteEngine(path, clock)


def _sqlite_path(url: str) -> Path:
    """sqlite:///relative.db and sqlite:////absolute.db, as SQLAlchemy writes them."""
    path = unquote(urlsplit(url).path.removeprefix("/"))
    if not path:
        raise ConfigurationError(f"{url} names no file: write it as sqlite:///var/yamchi.db")
    return Path(path)
