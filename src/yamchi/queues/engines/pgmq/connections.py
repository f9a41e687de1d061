"""Connections to PostgreSQL, kept for reuse by each event loop for itself, and its errors as sentences.

A worker's lease keeper has a loop of its own; connections of psycopg belong to the loop they were made in.
"""

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from yamchi.errors import (
    ConfigurationError,
    EngineError,
    EngineUnavailable,
    InvalidJob,
    StorageFull,
    StorageReadOnly,
    YamchiError,
)
from yamchi.perloop import PerLoop

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

MOST_CONNECTIONS = 8
"""Connections of one event loop at the same time; a worker's two exchanges per queue share them."""

ANSWER_SECONDS = 60.0
"""A call that has not answered by then never will, in seconds."""

POOLER_LOOKS = 3
"""Where others use a pooler too, one look may find each of our connections with a session of its own."""

# A network that swallows packets is noticed in half a minute, not in PostgreSQL's two hours.
_NETWORK = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
    "application_name": "yamchi",
}

# Plans are kept per connection and must stay right while a table grows from nothing to millions of rows:
# every statement of the hot path finds its rows through an index, whatever the table's size was at first.
_SESSION = (
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; "
    "SET enable_mergejoin = off; SET jit = off"
)


@dataclass(slots=True)
class _Pool:
    """The connections of one event loop."""

    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_CONNECTIONS))
    idle: list[Connection] = field(default_factory=list)

    def finish(self) -> None:
        """Close the idle connections, whether or not their event loop still runs."""
        for connection in self.idle:
            connection.pgconn.finish()


class Refused(EngineUnavailable):
    """PostgreSQL is there, but does not let us in."""


class Connections:
    """Lends connections; a broken one is not lent again."""

    def __init__(self, url: str) -> None:
        try:
            given: dict[str, Any] = conninfo_to_dict(url)
        except psycopg.Error as error:
            said = _first_line(error)
            if "percent-encoded" in said:  # it shows the password
                said = "in a password, write % as %25"
            raise ConfigurationError(f"The PostgreSQL URL can't be read: {said}.") from None
        self._conninfo = make_conninfo(**{**_NETWORK, **given})
        self.host = f"{given.get('host') or 'localhost'}:{given.get('port') or 5432}"
        self.user = str(given.get("user") or "the current user")
        self.database = str(given.get("dbname") or self.user)
        self._pools: PerLoop[_Pool] = PerLoop(_Pool, _Pool.finish)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """A connection in autocommit mode, for one statement or one `transaction()`."""
        pool = self._pools.get()
        async with pool.free:
            with self.explained():
                connection = self._reuse(pool) or await self.connect()
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        yield connection
                except BaseException:
                    # Whatever was under way on it is over: only a connection in a known state is lent again.
                    if not _is_ready(connection):
                        await connection.close()
                    raise
                finally:
                    if not connection.closed:
                        pool.idle.append(connection)

    async def connect(self) -> Connection:
        """A connection of one's own, for listening."""
        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        connection.prepared_max = 1_000
        await connection.execute(_SESSION)
        return connection

    async def refuse_shared_sessions(self) -> None:
        """A pooler that lends a session for one transaction would mix up the statements that its users have prepared."""
        async with self.lend() as one:
            if await _backend(one) == one.info.backend_pid:
                return  # PostgreSQL itself
            async with self.lend() as other:
                for _ in range(POOLER_LOOKS):
                    first, second, again = [await _backend(session) for session in (one, other, one)]
                    if first == second or first != again:
                        raise ConfigurationError(
                            f"PostgreSQL at {self.host} is reached through a pooler that lends a session for one "
                            "transaction or statement: connect to PostgreSQL itself, or to a pooler in session mode."
                        )

    async def close(self) -> None:
        here, others = self._pools.take_all()
        for pool in [*others, *([here] if here else [])]:
            pool.finish()

    def _reuse(self, pool: _Pool) -> Connection | None:
        while pool.idle:
            connection = pool.idle.pop()
            if not _has_data(connection):
                return connection
            connection.pgconn.finish()  # an idle connection has data only when the server hung up
        return None

    def explained(self) -> "_Explained":
        """Errors of PostgreSQL that leave this block are sentences; a task that was asked to end meanwhile does so."""
        return _Explained(self)


class _Explained:
    """Turns errors of PostgreSQL that leave a block into sentences."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def __enter__(self) -> None:
        self._cancellations = _cancellations()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, psycopg.Error | OSError | TimeoutError):
            # psycopg may meet an error while it ends a call that was cancelled, and raise that instead.
            if _cancellations() > self._cancellations:
                raise asyncio.CancelledError from error
            raise explain(error, self._connections) from error


def _cancellations() -> int:
    """How often the running task was asked to end."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def explain(error: Exception, at: Connections) -> YamchiError:
    """The same error as a sentence a person can act on. No sentence holds a password."""
    said = _first_line(error)
    where = f"PostgreSQL at {at.host}"
    match error:
        case pg.DiskFull() | pg.OutOfMemory():
            return StorageFull(
                f"{where} is out of room ({said}): nothing was written. Work resumes by itself."
            )
        case pg.ReadOnlySqlTransaction():
            return StorageReadOnly(f"{where} may only be read (a replica?): point QUEUE_URL at the primary.")
        case pg.InsufficientPrivilege():
            return EngineError(
                f"{where} does not let {at.user} do this ({said}): grant the right, or use the owner."
            )
        case pg.UndefinedTable() | pg.InvalidSchemaName():
            return EngineUnavailable(f"{where} has lost a table ({said}); it is made again at the next call.")
        case psycopg.DataError() | pg.ProgramLimitExceeded() | pg.StatementTooComplex():
            return InvalidJob(f"PostgreSQL can't keep this data as JSON ({said}): nothing was written.")
        case TimeoutError():
            return EngineUnavailable(
                f"{where} has not answered for {ANSWER_SECONDS:.0f} s: check the server and the network."
            )
        case psycopg.OperationalError() | psycopg.InterfaceError() | OSError():
            return _explain_connection(said, where, at)
    return EngineError(f"{where} refused ({said}).")


def _explain_connection(said: str, where: str, at: Connections) -> EngineUnavailable:
    if "password authentication failed" in said or "no password supplied" in said:
        return Refused(f"{where} refused the password of {at.user}: correct it in QUEUE_URL.")
    if "does not exist" in said and "database" in said:
        return EngineUnavailable(f"{where} has no database {at.database}: create it, or correct QUEUE_URL.")
    if "does not exist" in said and "role" in said:
        return Refused(f"{where} has no user {at.user}: create it, or correct QUEUE_URL.")
    if "too many clients" in said or "remaining connection slots" in said:
        return EngineUnavailable(
            f"{where} has no free connection: raise max_connections, or run fewer workers."
        )
    if "SSL" in said or "certificate" in said:
        return Refused(
            f"{where} can't be reached by TLS ({said}): correct sslmode and sslrootcert in QUEUE_URL."
        )
    return EngineUnavailable(
        f"{where} can't be reached ({said}): check that it runs, and the host and port in QUEUE_URL."
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].removesuffix(".") if lines else type(error).__name__


def _is_ready(connection: Connection) -> bool:
    return connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def _backend(connection: Connection) -> int:
    """The process of the server that answers; a pooler has given a number of its own when it was connected to."""
    cursor = await connection.execute("SELECT pg_backend_pid()", prepare=False)
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


def _has_data(connection: Connection) -> bool:
    """Whether there is something to read on a connection that nobody asked anything."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
