"""Adding jobs in a transaction of the caller's: they are added if it commits, and not if it is rolled back.

That works where the jobs lie in the caller's own database: with SQLite in the same file, with PostgreSQL in the same database.
"""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from yamchi.errors import ConfigurationError, InvalidJob
from yamchi.queues.engines.base import Engine, broker_of
from yamchi.queues.records import NewJob

T = TypeVar("T")


@runtime_checkable
class Transactional(Protocol):
    """An engine whose jobs are in a database that the caller may be connected to."""

    async def ready(self, queue: str) -> None:
        """Make what must exist before a job can be added."""

    async def add_within(self, connection: Any, queue: str, jobs: Sequence[NewJob]) -> list[bool]:
        """Add jobs through this connection, and neither commit nor roll back."""


def transactional(engine: Engine) -> Transactional:
    """The engine behind a queue, if its jobs can be part of a transaction."""
    broker = broker_of(engine)
    if not isinstance(broker, Transactional):
        raise ConfigurationError(
            f"A job on {engine.type} can't be part of a transaction: add it after the commit, or keep its queue in the "
            "database of the transaction (QUEUE_URL_<QUEUE>=postgresql://… or sqlite:///…)."
        )
    return broker


async def driver_connection(connection: Any) -> Any:
    """The connection of the driver, given that or a connection or a session of SQLAlchemy."""
    if hasattr(connection, "get_bind"):  # a session, which knows its connection
        connection = await _awaited(connection.connection())
    if (
        hasattr(connection, "in_transaction")
        and hasattr(connection, "begin")
        and not connection.in_transaction()
    ):
        await _awaited(connection.begin())  # else SQLAlchemy would have nothing to commit
    if hasattr(connection, "get_raw_connection"):
        return (await connection.get_raw_connection()).driver_connection
    if hasattr(connection, "exec_driver_sql"):
        return connection.connection.driver_connection
    return connection


async def _awaited(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


def refuse(connection: Any, wanted: str) -> InvalidJob:
    kind = type(connection)
    inner = ", such as its .connection" if hasattr(connection, "connection") else ""  # as Django's has
    return InvalidJob(
        f"connection is a {kind.__module__}.{kind.__name__}: the queue is in {wanted}, so give a connection to that{inner}."
    )


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, because the connection behind it is a blocking one."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    work.close()
    raise InvalidJob("connection needs an event loop: without one, give a blocking connection.")
