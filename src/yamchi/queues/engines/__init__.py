"""Engines by the scheme of their URL, in one table. Each is imported only when it is asked for, so a missing package matters only
to who uses it. An installed package adds an engine of its own with an entry point `yamchi.engines`: its name is the scheme, its
value a function like those here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from yamchi.clock import Clock
from yamchi.errors import ConfigurationError, MissingEngine
from yamchi.queues.engines.base import Engine
from yamchi.settings import Settings

if TYPE_CHECKING:
    from yamchi.queues.engines.memory.spool import MemorySpool
    from yamchi.queues.engines.sqlite.spool import SqliteSpool
    from yamchi.storage.keys import Keys

ENTRY_POINTS = "yamchi.engines"


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What an engine may use: what a broker lacks is kept in a database in `var`."""

    clock: Clock
    var: Path = Path("var")
    settings: Settings | None = None
    topic_of: Callable[[str], str | None] = lambda queue: None
    """The topic that a queue was declared with, if any."""


Make = Callable[[str, EngineContext], Engine]
"""Makes the engine of a URL; it is not yet opened."""


def make_engine(url: str, context: EngineContext) -> Engine:
    """The engine of a URL, not yet opened."""
    return find_scheme(url)(url, context)


def find_scheme(url: str) -> Make:
    """The function that makes the engine of such a URL."""
    scheme = scheme_of(url)
    make = SCHEMES.get(scheme)
    if make is None:
        offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
        if scheme not in offered:
            more = "".join(f", {name}://…" for name in sorted(offered))
            shown = f"{scheme}://…" if "://" in url else "as it is"  # what is no URL may be a secret
            raise ConfigurationError(
                f"QUEUE_URL {shown} is not known: use sqlite:///var/yamchi.db, redis://host:6379, "
                f"postgresql://host/db, kafka://host:9092, memory:// or supabase{more}."
            )
        make = offered[scheme].load()
    return make


def is_embedded(url: str) -> bool:
    """Whether the engine needs no server, so that it is always reachable."""
    return scheme_of(url) in EMBEDDED


def scheme_of(url: str) -> str:
    """redis of redis://host; supabase has no address of its own; a driver, as in postgresql+psycopg, does not matter."""
    scheme = urlsplit(url).scheme or url
    return scheme.partition("+")[0] if scheme.startswith("postgres") else scheme


def make_spool(kind: Literal["sqlite", "memory"], path: Path, clock: Clock) -> "MemorySpool | SqliteSpool":
    """Where jobs wait while their broker can't be reached."""
    if kind == "memory":
        from yamchi.queues.engines.memory.spool import MemorySpool

        return MemorySpool(clock)
    from yamchi.queues.engines.sqlite.spool import SqliteSpool

    return SqliteSpool(path, clock)


def make_keys(url: str) -> "Keys | None":
    """Keys with a lifetime on the broker of this URL; None if it has no place for them."""
    if SCHEMES.get(scheme_of(url)) is not _bull:
        return None
    try:
        from yamchi.queues.engines.bull.address import read_address
        from yamchi.queues.engines.bull.keys import RedisKeys
    except ImportError as error:
        raise MissingEngine("redis", "Redis") from error
    if "{" in read_address(url).prefix:
        return None  # a cluster would spread keys of such names over all its nodes
    return RedisKeys(url)


# ── The table ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _memory(url: str, context: EngineContext) -> Engine:
    from yamchi.queues.engines.memory import MemoryEngine

    return MemoryEngine(context.clock)


def _sqlite(url: str, context: EngineContext) -> Engine:
    """sqlite:///relative.db and sqlite:////absolute.db, as SQLAlchemy writes them."""
    from yamchi.queues.engines.sqlite import SqliteEngine

    path = unquote(urlsplit(url).path.removeprefix("/"))
    if not path:
        raise ConfigurationError(f"{url} names no file: write it as sqlite:///var/yamchi.db")
    return SqliteEngine(Path(path), context.clock)


def _bull(url: str, context: EngineContext) -> Engine:
    try:
        from yamchi.queues.engines.bull import BullEngine
    except ImportError as error:
        raise MissingEngine("redis", "Redis") from error
    return BullEngine(url, context.clock)


def _pgmq(url: str, context: EngineContext) -> Engine:
    try:
        from yamchi.queues.engines.pgmq import PgmqEngine
    except ImportError as error:
        raise MissingEngine("postgres", "PostgreSQL") from error
    return PgmqEngine(f"postgresql:{url.partition(':')[2]}", context.clock)


def _kafka(url: str, context: EngineContext) -> Engine:
    try:
        from yamchi.queues.engines.kafka import Address, KafkaEngine
    except ImportError as error:
        raise MissingEngine("kafka", "Kafka") from error
    address = Address.parse(url, context.topic_of)
    state_store = Path(address.state_store or context.var / f"kafka-{address.group}.db")
    return KafkaEngine(address, state_store, context.clock)


def _supabase(url: str, context: EngineContext) -> Engine:
    """It asks every WORKER_INTERVAL_MS for at most WORKER_MAX_TASKS jobs."""
    try:
        import httpx2  # noqa: F401 (it is asked with this, much later)

        from yamchi.queues.engines.supabase import SupabaseEngine
    except ImportError as error:
        raise MissingEngine("supabase", "Supabase") from error
    settings = context.settings or Settings()
    return SupabaseEngine(
        settings.required("SUPABASE_URL"),
        settings.required("SUPABASE_SERVICE_ROLE_KEY"),
        context.var / "supabase.db",
        context.clock,
        interval=settings.worker_interval_ms,
        at_most=settings.worker_max_tasks,
    )


SCHEMES: dict[str, Make] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "redis": _bull,
    "rediss": _bull,
    "redis+sentinel": _bull,
    "rediss+sentinel": _bull,
    "postgres": _pgmq,
    "postgresql": _pgmq,
    "kafka": _kafka,
    "supabase": _supabase,
}
EMBEDDED = ("memory", "sqlite")
