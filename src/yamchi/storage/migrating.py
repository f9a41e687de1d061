"""Schema versions: Alembic runs what the database has not seen. A database that is up to date never loads Alembic.

Every feature has a folder of revisions and a version table of its own, so that a feature that is switched off, or that another
process runs, is nobody else's concern, and revision ids need to be unique only within a feature.
"""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from yamchi.errors import EngineError
from yamchi.storage.revisions import ENVIRONMENT, Migrations

_LOCK = 0x79616D636869


class _OneAtATime:
    """Alembic keeps what it works on in globals: two applications of one process must not migrate at the same moment."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """In a forked process: whoever held the lock is not there."""
        self._lock = threading.Lock()

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Alembic's steps are of no interest to who starts Yamchi; those of the user's own migrations are the user's to hear."""
        logger = logging.getLogger("alembic")
        with self._lock:
            before = logger.level
            logger.setLevel(logging.WARNING)
            try:
                yield
            finally:
                logger.setLevel(before)


_alembic = _OneAtATime()
os.register_at_fork(after_in_child=_alembic.begin_anew)


def missing(engine: Engine, features: Sequence[Migrations]) -> list[Migrations]:
    """Those of which the database has not seen the newest revision."""
    with engine.connect() as connection:
        return _missing(connection, features)


def upgrade(engine: Engine, features: Sequence[Migrations]) -> None:
    """Bring the schema to the newest revisions, once, however many processes start at the same time."""
    if not missing(engine, features):
        return
    with engine.connect() as connection:
        _lock(connection)
        for feature in _missing(connection, features):
            _run(connection, feature)
        connection.commit()


def _missing(connection: Connection, features: Sequence[Migrations]) -> list[Migrations]:
    tables = set(inspect(connection).get_table_names())
    found = []
    for one in features:
        version = _version(connection, one.version_table, tables)
        if version is not None and version not in one.revisions:
            raise EngineError(
                f"The database is newer than this version of Yamchi ({one.version_table} is at {version}): update Yamchi."
            )
        if version != one.head:
            found.append(one)
    return found


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    else:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _version(connection: Connection, version_table: str, tables: set[str]) -> str | None:
    if version_table not in tables:
        return None
    row = connection.exec_driver_sql(f"SELECT version_num FROM {version_table}").fetchone()
    return row[0] if row else None


def _run(connection: Connection, feature: Migrations) -> None:
    with _alembic.quietly():  # it has something to say already when it is imported
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", _escaped(ENVIRONMENT))
        config.set_main_option("version_locations", _escaped(feature.folder))
        config.set_main_option("path_separator", "newline")  # a folder's name may hold anything else
        config.attributes["connection"] = connection
        config.attributes["version_table"] = feature.version_table
        command.upgrade(config, "head")


def _escaped(path: Path) -> str:
    """A path as Alembic's configuration file would write it."""
    return str(path).replace("%", "%%")
