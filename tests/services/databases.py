"""Fresh databases in a PostgreSQL that several test processes share."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import psycopg


class Database:
    """An empty database, and on demand a role that may connect to it but create nothing in it."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self.name = f"yamchi_{uuid.uuid4().hex[:12]}"
        self._execute(f"CREATE DATABASE {self.name}")

    @property
    def url(self) -> str:
        return urlsplit(self._server_url)._replace(path=f"/{self.name}").geturl()

    def unprivileged_url(self) -> str:
        """The same database for a role without rights of its own, which this call makes."""
        self._execute(
            f"DROP ROLE IF EXISTS {self.name}", f"CREATE ROLE {self.name} LOGIN PASSWORD '{self.name}'"
        )
        address = urlsplit(self._server_url).netloc.rpartition("@")[2]
        return urlsplit(self.url)._replace(netloc=f"{self.name}:{self.name}@{address}").geturl()

    def drop(self) -> None:
        self._execute(f"DROP DATABASE {self.name} WITH (FORCE)", f"DROP ROLE IF EXISTS {self.name}")

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self._server_url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


@contextmanager
def fresh_databases(server_url: str) -> Iterator[Callable[[], Database]]:
    """Makes a database per call and drops them all in the end."""
    with ExitStack() as made:

        def make() -> Database:
            database = Database(server_url)
            made.callback(database.drop)
            return database

        yield make
