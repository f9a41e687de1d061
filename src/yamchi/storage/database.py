"""Yamchi's own tables, on SQLite or PostgreSQL: one thread writes with group commit, another reads.

`write` runs a function in a transaction, `read` one that only looks; for a single statement there are `execute`, `rows`, `first`,
`column` and `value`. `put` is for hot rows: what many callers put by the same statement at the same time becomes one `executemany`,
or one call where the statement is a function of many rows. All that write answer when the data is safe. `get` is the same for hot
looks: what many callers look up by the same function at the same time becomes one query.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson
from sqlalchemy import Connection, Engine, Executable, Insert, Table, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
    StatementError,
)

from yamchi.errors import ConfigurationError, EngineError, EngineUnavailable, StorageFull, UnstorableValue
from yamchi.perloop import PerLoop
from yamchi.storage.bulkinsert import write_rows
from yamchi.storage.forking import IMPATIENT, in_use, using
from yamchi.storage.forking import Connection as SqliteConnection
from yamchi.storage.groupcommit import GroupCommit
from yamchi.storage.migrating import upgrade
from yamchi.storage.private import make_private
from yamchi.storage.revisions import CORE, Migrations
from yamchi.storage.sqlite import write_ahead
from yamchi.storage.threads import in_own_thread
from yamchi.storage.upsert import insert_into

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Op = Callable[[Connection], T]
Row = Mapping[str, Any]
Together = Callable[[Connection, Sequence[Row]], None]
"""Writes the rows that concurrent callers put."""
Fetch = Callable[[Connection, Sequence[K]], Mapping[K, T]]
"""Finds what concurrent callers look for, by key; keys without a result are left out."""

MOST_KEYS = 500
"""The most keys of one query."""

UNREADABLE = "unreadable"
"""The field under which is shown what can't be read."""

LONGEST_UNREADABLE = 200

_PRAGMAS = (
    "synchronous=FULL",
    "busy_timeout=30000",
    "temp_store=MEMORY",
    "cache_size=-32000",  # 32 MB: the hot ends of the indexes of a million deliveries
    "wal_autocheckpoint=4000",
)


@dataclass(frozen=True, slots=True)
class Put:
    """One row for a statement; concurrent callers' rows for the same statement are written together."""

    statement: Insert | Together
    row: Row

    def __call__(self, connection: Connection) -> None:
        _put_all(connection, [self])


@dataclass(frozen=True, slots=True)
class PutAll:
    """Rows that are written together, all of them or none."""

    puts: tuple[Put, ...]

    def __call__(self, connection: Connection) -> None:
        for put in self.puts:
            put(connection)


@dataclass(frozen=True, slots=True)
class Get(Generic[K, T]):
    """One key for a function; concurrent callers' keys for the same function are looked up together."""

    fetch: Fetch[K, T]
    key: K

    def __call__(self, connection: Connection) -> T | None:
        return self.fetch(connection, [self.key]).get(self.key)


DEADLOCKS = ("40P01", "40001")
"""PostgreSQL's codes for a transaction that lost a deadlock or a serialization conflict."""

MOST_DEADLOCKS = 5

GROUP_WAITS = "200ms"
"""How long the work of several callers, done together, waits for a lock before it is done one by one. Less than the second after
which PostgreSQL looks for a deadlock: one caller's work takes locks in one order, but that of several does not."""


class Database:
    """The tables, by URL: those of the core, and of the features whose migrations are given.

    Opening it brings the schema up to date. If the role may not do that, the error says how to migrate.
    """

    def __init__(self, url: str, migrations: Iterable[Migrations] = ()) -> None:
        self._migrations = (CORE, *migrations)
        self._url = url.replace("postgresql://", "postgresql+psycopg://", 1)
        self.is_embedded = url.startswith("sqlite:")
        self._engine: Engine | None = None
        self._opening = PerLoop(asyncio.Lock)
        self._life = threading.Lock()
        self._refusal: str | None = None
        self._of_parents: list[object] = []
        """What parent processes had open when they forked: kept referenced, so that it is not closed here."""

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    def add_migrations(self, migrations: Iterable[Migrations]) -> None:
        """Add the tables of further features. It takes effect when the database is opened next."""
        self._migrations = (*self._migrations, *migrations)

    def refuse(self, why: str | None) -> None:
        """Refuse to open, with this sentence; None allows it again. For tests that must not reach the database."""
        self._refusal = why

    def begin_anew(self) -> None:
        """In a forked process: return to the state before the first use. Threads and connections are the parent's."""
        if self._engine is not None:
            self._of_parents.append((self._engine, self._connections))
        self._engine, self._opening, self._life = None, PerLoop(asyncio.Lock), threading.Lock()

    async def open(self) -> None:
        """Connect and check the schema. Opening an open database does nothing."""
        if self._engine is None:
            async with self._opening.get():
                if self._engine is None:
                    await in_own_thread(self._open)

    def _open(self) -> None:
        with self._life:  # one that closes, or that opens for a caller who gave up, may be at it still
            if self._engine is None:
                with self._in_use():
                    self._connect()

    def _connect(self) -> None:
        if self._refusal:
            raise ConfigurationError(self._refusal)
        engine = create_engine(
            self._url,
            pool_size=2,
            max_overflow=0,
            json_serializer=_write_json,
            json_deserializer=_read_json,
            connect_args={"factory": SqliteConnection} if self.is_embedded else {},
        )
        if self.is_embedded:
            event.listen(engine, "connect", _tune_sqlite)
        try:
            self._upgrade(engine)
            writing, reading = engine.connect(), engine.connect()
        except EngineError:
            engine.dispose()
            raise
        except (SQLAlchemyError, OSError) as error:
            engine.dispose()
            raise self._explain(error) from error
        transact, look = (using(_transact), using(_look)) if self.is_embedded else (_transact, _look)
        if self.is_embedded:
            writing.connection.driver_connection.execute(IMPATIENT)  # type: ignore[union-attr]
        self._writer = GroupCommit("database-writer", writing, transact, self._explain)
        self._reader = GroupCommit("database-reader", reading, look, self._explain)
        self._connections = (writing, reading)
        self._engine = engine

    def _upgrade(self, engine: Engine) -> None:
        if self.is_embedded:
            make_private(Path(engine.url.database or "data.db"))
        try:
            upgrade(engine, self._migrations)
        except ProgrammingError as error:
            raise EngineError(
                f"The database's tables are not up to date, and can't be brought so here ({_said(error)}): "
                "run 'yamchi doctor --migrate' as a role that may create tables."
            ) from error

    async def close(self) -> None:
        if self._engine is not None:
            await in_own_thread(self._close)

    def _close(self) -> None:
        with self._life:
            if self._engine is None:
                return
            self._writer.stop()
            self._reader.stop()
            with self._in_use():
                for connection in self._connections:
                    connection.close()  # to the pool: dispose leaves alone what is in use
                self._engine.dispose()
            self._engine = None

    def _in_use(self) -> AbstractContextManager[None]:
        return in_use() if self.is_embedded else nullcontext()

    async def migrate(self) -> None:
        """Bring the schema up to date, wherever it is."""
        engine = create_engine(self._url)
        try:
            await in_own_thread(self._upgrade, engine)
        finally:
            engine.dispose()

    def insert(self, table: Table) -> sqlite.Insert | postgresql.Insert:
        """An insert with `on_conflict_do_nothing` and `on_conflict_do_update`, on either database."""
        return insert_into(table, is_sqlite=self.is_embedded)

    def upsert(
        self, table: Table, key: Iterable[str], changed: Iterable[str]
    ) -> sqlite.Insert | postgresql.Insert:
        """An insert that changes these columns of the row that has the same key, if there is one."""
        new = self.insert(table)
        return new.on_conflict_do_update(
            index_elements=key, set_={name: new.excluded[name] for name in changed}
        )

    async def write(self, op: Op[T]) -> T:
        """Run this in a transaction that may be shared with others' work."""
        if self._engine is None:
            await self.open()
        return await self._writer.run(op)

    async def put(self, statement: Insert | Together, row: Row) -> None:
        """Write one row by a statement (the same object each time) that is used often."""
        await self.write(Put(statement, row))

    async def put_all(self, *puts: Put) -> None:
        """Write several such rows, all of them or none."""
        await self.write(PutAll(puts))

    async def read(self, op: Op[T]) -> T:
        """Run this on the reading connection, without waiting for writers."""
        if self._engine is None:
            await self.open()
        return await self._reader.run(op)

    async def rows(self, query: Executable) -> Sequence[Any]:
        """All that a query finds."""
        return await self.read(lambda connection: connection.execute(query).all())

    async def first(self, query: Executable) -> Any | None:
        """The first row that a query finds."""
        return await self.read(lambda connection: connection.execute(query).first())

    async def column(self, query: Executable) -> list[Any]:
        """The first column of all that a query finds."""
        return await self.read(lambda connection: list(connection.execute(query).scalars()))

    async def value(self, query: Executable) -> Any:
        """The first column of the first row that a query finds; None if it finds none."""
        return await self.read(lambda connection: connection.execute(query).scalar())

    async def execute(self, statement: Executable) -> int:
        """Run one statement that changes rows, in a transaction that may be shared; how many rows it changed."""
        return await self.write(lambda connection: connection.execute(statement).rowcount)

    async def get(self, fetch: Fetch[K, T], key: K) -> T | None:
        """Look one key up by a function (the same object each time) that is used often. Nothing is cached."""
        if self._engine is None:
            await self.open()
        return await self._reader.run(Get(fetch, key))

    async def get_all(self, fetch: Fetch[K, T], keys: Iterable[K]) -> dict[K, T]:
        """Look many keys up, for one caller."""
        asked = list(keys)
        return await self.read(lambda connection: _found(connection, fetch, asked)) if asked else {}

    def _explain(self, error: Exception) -> Exception:
        """The same error as a sentence a person can act on."""
        if _is_about_a_value(error):
            return UnstorableValue(f"The database can't keep a value that was given ({_said(error)}).")
        if not isinstance(error, SQLAlchemyError | OSError):
            return error
        said = _said(error)
        if "disk is full" in said or "No space left" in said:
            return StorageFull(
                "The disk that holds Yamchi's database is full: nothing was written. Free some room."
            )
        if isinstance(error, OperationalError | OSError):
            return EngineUnavailable(f"Yamchi's database can't be reached ({said}): check DATABASE_URL.")
        return EngineError(f"Yamchi's database refused ({said}).")


def _write_json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise UnstorableValue(f"The database can't keep a value that was given: {error}.") from error


def as_object(value: Any) -> dict[str, Any]:
    """A value of a table that is to be an object; what else another program put there is shown as the value of a field."""
    return value if isinstance(value, dict) else {UNREADABLE: value}


def _read_json(text: str | bytes) -> Any:
    """SQLite keeps any text: what is no JSON must not cost a list its other rows."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return {UNREADABLE: text[:LONGEST_UNREADABLE]}


def _is_about_a_value(error: Exception) -> bool:
    """Whether the database refused a value, such as a NUL character or a number that is too large; a retry would not help."""
    if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
        return isinstance(error.orig, TypeError | ValueError | OverflowError)  # it could not even be encoded
    return isinstance(error, DataError | OverflowError)


def _said(error: Exception) -> str:
    cause = str(error.orig) if isinstance(error, StatementError) else str(error)
    return " ".join(cause.split())


def _transact(connection: Connection, ops: Sequence[Op[Any]]) -> list[Any]:
    """Run the work in a transaction; again if PostgreSQL ended it because of a deadlock with another process.

    A group is not run again: its caller runs its work one by one, which waits for fewer locks at a time.
    """
    for _ in range(MOST_DEADLOCKS if len(ops) == 1 else 0):
        try:
            return _transact_once(connection, ops)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in DEADLOCKS:
                raise
    return _transact_once(connection, ops)


def _transact_once(connection: Connection, ops: Sequence[Op[Any]]) -> list[Any]:
    puts: dict[int, list[Put]] = defaultdict(list)
    for op in ops:
        if isinstance(op, Put | PutAll):
            for put in op.puts if isinstance(op, PutAll) else (op,):
                puts[id(put.statement)].append(put)
    with connection.begin():
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")  # the driver itself would wait for the first change
        elif len(ops) > 1 and not all(isinstance(op, Put | PutAll) for op in ops):
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{GROUP_WAITS}'")
        for group in puts.values():
            _put_all(connection, group)
        return [None if isinstance(op, Put | PutAll) else op(connection) for op in ops]


def _put_all(connection: Connection, puts: Sequence[Put]) -> None:
    statement, rows = puts[0].statement, [put.row for put in puts]
    if isinstance(statement, Insert):
        write_rows(connection, statement, rows)
    else:
        statement(connection, rows)


def _look(connection: Connection, ops: Sequence[Op[Any]]) -> list[Any]:
    try:
        found = _get_all(connection, [op for op in ops if isinstance(op, Get)])
        return [found[op.fetch].get(op.key) if isinstance(op, Get) else op(connection) for op in ops]
    finally:
        connection.rollback()  # a look that stays open would hold on to the past


def _get_all(connection: Connection, gets: Sequence[Get[Any, Any]]) -> dict[Fetch[Any, Any], dict[Any, Any]]:
    """What each function finds of the keys that are asked of it."""
    asked: dict[Fetch[Any, Any], dict[Any, None]] = defaultdict(dict)
    for get in gets:
        asked[get.fetch][get.key] = None
    return {fetch: _found(connection, fetch, list(keys)) for fetch, keys in asked.items()}


def _found(connection: Connection, fetch: Fetch[K, T], keys: Sequence[K]) -> dict[K, T]:
    found: dict[K, T] = {}
    for start in range(0, len(keys), MOST_KEYS):
        found |= fetch(connection, keys[start : start + MOST_KEYS])
    return found


def _tune_sqlite(connection: Any, record: Any) -> None:
    write_ahead(connection)
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    connection.create_function("lower", 1, _lower, deterministic=True)


def _lower(value: Any) -> Any:
    """SQLite's own knows ASCII only: `icontains` must find «Марат» by `марат`, as on PostgreSQL."""
    return value.lower() if isinstance(value, str) else value
