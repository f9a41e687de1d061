"""Schema versions: Alembic runs what the database has not seen. A database that is up to date never loads Alembic."""

import logging
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

HEAD = "0002"
"""The newest revision in `migrations/versions`; a test checks it."""

FOLDER = Path(__file__).parent / "migrations"
_LOCK = 0x79616D636869


def is_current(engine: Engine) -> bool:
    with engine.connect() as connection:
        return _version(connection) == HEAD


def upgrade(engine: Engine) -> None:
    """Bring the schema to the newest revision, once, however many processes start at the same time."""
    if is_current(engine):
        return
    with engine.connect() as connection:
        _lock(connection)
        if _version(connection) != HEAD:
            _run(connection)
        connection.commit()


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    else:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    row = connection.execute(text("SELECT version_num FROM alembic_version")).fetchone()
    return row[0] if row else None


def _run(connection: Connection) -> None:
    logging.getLogger("alembic").setLevel(
        logging.WARNING
    )  # its steps are of no interest to who starts Yamchi
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
