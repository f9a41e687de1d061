"""What must exist in the database: pgmq itself, Yamchi's few tables beside it, and a queue's tables on demand.

A pending job is a row of pgmq's own table: its message is the job's data, its headers are our envelope. How a row is read:

    vt <= now, last_read_at null    waiting        (a priority moves `vt` back by ten years a step, so it comes first)
    vt >  now, last_read_at null    delayed
    last_read_at not null           active; `vt` is the end of the lease, `last_read_at` the token it is held by

`yamchi.jobs` has a row per id: while a job is pending it only says which message it is; when it has ended, the message
is gone from pgmq's table and the row holds everything. Dead letters are messages of the queue `<queue>_dlq`.
"""

from importlib.resources import files

import structlog
from psycopg import errors as pg

from yamchi.errors import EngineError, MissingExtra
from yamchi.queues.engines.names import pgmq_name, second_name
from yamchi.queues.engines.pgmq.connections import Connection, Connections
from yamchi.queues.engines.pgmq.rows import STEP, micros
from yamchi.queues.engines.pgmq.tables import Tables

log = structlog.get_logger("yamchi.pgmq")

UNPREPARED = "((headers ? 'yamchi_id') IS NOT TRUE OR headers ? 'rise')"
"""Rows that need a hand before they can be claimed: messages that another program wrote, and urgent ones whose moment has come."""

LOCKED_MILLIS = 50
"""So long is waited for a lock on a table of messages, or for an id that somebody has in a transaction which is still open."""

_LOCK = 0x79616D63  # "yamc": one process at a time changes tables

# Where a statement put messages, told when it is committed: the first place in each band of priority, and the first that
# needs a hand. A process whose bound is beyond goes back to there (`bounds`).
_PLACES = f"""
    CREATE FUNCTION yamchi.wrote() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('yamchi_wake', concat_ws(' ', TG_TABLE_NAME, string_agg(concat_ws(' ', first, untended), ' ')))
        FROM (
            SELECT min(at) AS first, 'u' || min(at) FILTER (WHERE is_untended) AS untended FROM (
                SELECT {micros("vt")} AS at, {UNPREPARED} AS is_untended FROM written) AS written
            GROUP BY round(at / {STEP}e3) LIMIT 24) AS bands;
        RETURN NULL;
    END $$;
    CREATE FUNCTION yamchi.moved() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('yamchi_wake', concat_ws(' ', TG_TABLE_NAME, {micros("NEW.vt")},
            CASE WHEN {UNPREPARED.replace("headers", "NEW.headers")} THEN 'u' || {micros("NEW.vt")} END));
        RETURN NULL;
    END $$;
    CREATE FUNCTION yamchi.watch(queue text) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        EXECUTE format('CREATE OR REPLACE TRIGGER yamchi_wake AFTER INSERT ON pgmq.%1$I REFERENCING NEW TABLE AS written
            FOR EACH STATEMENT EXECUTE FUNCTION yamchi.wrote()', queue);
        EXECUTE format('CREATE OR REPLACE TRIGGER yamchi_moved AFTER UPDATE OF vt ON pgmq.%1$I
            FOR EACH ROW WHEN (NEW.last_read_at IS NULL) EXECUTE FUNCTION yamchi.moved()', queue);
    END $$;
    DO $$
    DECLARE
        q text;
    BEGIN
        FOR q IN SELECT 'q_' || pgmq_name FROM yamchi.queues WHERE to_regclass('pgmq.q_' || pgmq_name) IS NOT NULL LOOP
            BEGIN
                PERFORM yamchi.watch(q);
            EXCEPTION WHEN insufficient_privilege THEN
                NULL;  -- it is somebody else's, and only looked at, as before
            END;
        END LOOP;
    END $$;
"""

MIGRATIONS = (
    """
    CREATE TABLE yamchi.queues (
        name text PRIMARY KEY, pgmq_name text UNIQUE NOT NULL, paused boolean NOT NULL DEFAULT false
    );
    CREATE TABLE yamchi.jobs (
        queue text COLLATE "C" NOT NULL,
        id text COLLATE "C" NOT NULL,
        msg_id bigint NOT NULL,
        state text COLLATE "C",
        ended bigint,
        finished_at timestamptz,
        started_at timestamptz,
        run_at timestamptz,
        enqueued_at timestamptz,
        read_ct integer,
        message jsonb,
        headers jsonb,
        result json,
        reason text,
        stack text,
        logs text[],
        PRIMARY KEY (queue, id)
    );
    CREATE INDEX job_ended ON yamchi.jobs (queue, state, ended) WHERE ended IS NOT NULL;
    CREATE SEQUENCE yamchi.ended;
    CREATE TABLE yamchi.minutes (
        queue text, minute timestamptz, backend integer, completed integer NOT NULL, failed integer NOT NULL,
        PRIMARY KEY (queue, minute, backend)
    );
    CREATE TABLE yamchi.schedules (name text PRIMARY KEY, fired_at bigint NOT NULL);
    CREATE TABLE yamchi.turns (
        queue text, key text, next double precision NOT NULL, PRIMARY KEY (queue, key)
    );
    CREATE TABLE yamchi.workers (id text PRIMARY KEY, seen_at bigint NOT NULL, info json NOT NULL);
    CREATE TABLE yamchi.listeners (origin text PRIMARY KEY, seen_at timestamptz NOT NULL);
    CREATE FUNCTION yamchi.wake() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('yamchi_wake', TG_TABLE_NAME);
        RETURN NULL;
    END $$;
    """,
    "CREATE INDEX turn_by_time ON yamchi.turns (next);",
    """
    CREATE FUNCTION yamchi.messages(of text) RETURNS TABLE (msg_id bigint, enqueued_at timestamptz, msg jsonb)
    LANGUAGE plpgsql STABLE AS $$
    BEGIN
        IF to_regclass(format('pgmq.%I', of)) IS NOT NULL THEN
            RETURN QUERY EXECUTE format('SELECT m.msg_id, m.enqueued_at, m.message FROM pgmq.%I m', of);
        END IF;
    END $$;
    """,
    _PLACES,
)


async def install(connection: Connection, at: Connections) -> None:
    """pgmq and our tables, unless they are there. Safe when several processes start at once."""
    if await _is_complete(connection):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        if not await _exists(connection, "pgmq.meta"):
            await _allowed(connection, _pgmq_sql(), "pgmq", at)
        await _check_version(connection, at)
        await _migrate(connection, at)


async def _is_complete(connection: Connection) -> bool:
    if not await _exists(connection, "pgmq.meta") or not await _exists(connection, "yamchi.schema_version"):
        return False
    row = await (await connection.execute("SELECT version FROM yamchi.schema_version")).fetchone()
    return row is not None and row[0] == len(MIGRATIONS)


async def _exists(connection: Connection, table: str) -> bool:
    # Not to_regclass: it answers from a cache, which may be older than the lock we have just waited for.
    cursor = await connection.execute(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname || '.' || c.relname = %s",
        (table,),
    )
    return await cursor.fetchone() is not None


async def _migrate(connection: Connection, at: Connections) -> None:
    if not await _exists(connection, "yamchi.schema_version"):
        begin = "CREATE SCHEMA IF NOT EXISTS yamchi; CREATE TABLE yamchi.schema_version (version integer NOT NULL);"
        await _allowed(connection, begin + "INSERT INTO yamchi.schema_version VALUES (0)", "yamchi", at)
    row = await (await connection.execute("SELECT version FROM yamchi.schema_version FOR UPDATE")).fetchone()
    version = row[0] if row else 0
    if version > len(MIGRATIONS):
        raise EngineError(
            f"The tables of Yamchi in {at.database} were made by a newer version ({version}, known {len(MIGRATIONS)})."
        )
    for migration in MIGRATIONS[version:]:
        await _allowed(connection, migration, "yamchi", at)
    await connection.execute("UPDATE yamchi.schema_version SET version = %s", (len(MIGRATIONS),))


async def _allowed(connection: Connection, script: str, schema: str, at: Connections) -> None:
    try:
        await connection.execute(script.encode())
    except pg.InsufficientPrivilege as error:
        raise EngineError(
            f"PostgreSQL at {at.host} does not let {at.user} create the schema {schema} in {at.database}: "
            f'as its owner run GRANT CREATE ON DATABASE "{at.database}" TO "{at.user}"; and start again.'
        ) from error


async def _check_version(connection: Connection, at: Connections) -> None:
    cursor = await connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'pgmq.message_record'::regclass "
        "AND attname IN ('headers', 'last_read_at')"
    )
    if len(await cursor.fetchall()) < 2:
        raise EngineError(
            f"pgmq in {at.database} is too old: it has no last_read_at. Run ALTER EXTENSION pgmq UPDATE; (1.10 or newer)."
        )


def _pgmq_sql() -> str:
    try:
        return files("pgmq").joinpath("sql/pgmq.sql").read_text()
    except ModuleNotFoundError as error:
        raise MissingExtra("postgres", "PostgreSQL") from error


# ── A queue ───────────────────────────────────────────────────────────────────────────────────────────────────────

# Held rows by the end of their lease, and the unprepared. Both indexes are nearly empty, so they cost nothing.
_ADDITIONS = (
    "CREATE INDEX IF NOT EXISTS {name}_held ON {q} (vt) WHERE last_read_at IS NOT NULL",
    f"CREATE INDEX IF NOT EXISTS {{name}}_untended ON {{q}} (vt) WHERE {UNPREPARED}",
    "SELECT yamchi.watch({table})",
    "CREATE INDEX IF NOT EXISTS {name}_dlq_id ON {dlq} ((headers->>'yamchi_id'))",
)


_VIEW = "CREATE VIEW pgmq.{name} AS SELECT msg_id, enqueued_at, msg FROM yamchi.messages('q_{name}')"
"""What is pending, under the queue's plain name. Through a function: pgmq does not drop a table that a view stands on."""


async def prepare_queue(connection: Connection, queue: str) -> tuple[Tables, bool]:
    """The queue's tables, made if they are not there, and whether they have all that we add to them."""
    row = await (
        await connection.execute(
            "SELECT pgmq_name, pg_get_serial_sequence('pgmq.q_' || pgmq_name, 'msg_id'), "
            "to_regclass('pgmq.' || quote_ident(pgmq_name)) IS NOT NULL "
            "AND to_regclass('pgmq.q_' || pgmq_name || '_held') IS NOT NULL FROM yamchi.queues WHERE name = %s "
            "AND to_regclass('pgmq.q_' || pgmq_name) IS NOT NULL AND to_regclass('pgmq.q_' || pgmq_name || '_dlq') IS NOT NULL",
            (queue,),
        )
    ).fetchone()
    if row and row[2]:
        return Tables(queue, *row[:2]), True
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        name = await _register(connection, queue)
        for table in (name, f"{name}_dlq"):
            if not await _exists(connection, f"pgmq.q_{table}"):
                await connection.execute("SELECT pgmq.create(%s)", (table,))
        found = await connection.execute("SELECT pg_get_serial_sequence(%s, 'msg_id')", (f"pgmq.q_{name}",))
        row = await found.fetchone()
        tables = Tables(queue, name, row[0] if row else "")
        is_complete = await _add_to(connection, tables)
        await _add_view(connection, tables)
    return tables, is_complete


async def _register(connection: Connection, queue: str) -> str:
    known = await _registered(connection, queue)
    for name in () if known else (pgmq_name(queue), second_name(queue)):
        await connection.execute(
            "INSERT INTO yamchi.queues VALUES (%s, %s) ON CONFLICT DO NOTHING", (queue, name)
        )
    registered = known or await _registered(connection, queue)
    assert registered is not None
    return registered


async def _registered(connection: Connection, queue: str) -> str | None:
    found = await connection.execute("SELECT pgmq_name FROM yamchi.queues WHERE name = %s", (queue,))
    row = await found.fetchone()
    return str(row[0]) if row else None


async def _add_to(connection: Connection, tables: Tables) -> bool:
    """False if somebody writes to the table just now: who waits for them keeps all others out."""
    statements = [tables.sql(line.replace("{name}", f"q_{tables.name}")) for line in _ADDITIONS]
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = {LOCKED_MILLIS}")
            for statement in statements:
                await connection.execute(statement.encode())
    except pg.LockNotAvailable:
        return False
    except pg.InsufficientPrivilege:
        log.warning(
            f"{tables.main} belongs to another role: workers poll it, and slowly when it is long. "
            f"As its owner run: {'; '.join(statements)};"
        )
    return True


async def _add_view(connection: Connection, tables: Tables) -> None:
    """The view for people with a console, unless something else has the name or the role may not make it."""
    if await _exists(connection, f"pgmq.{tables.name}"):
        return
    try:
        async with connection.transaction():
            await connection.execute(_VIEW.replace("{name}", tables.name).encode())
    except (pg.InsufficientPrivilege, pg.DuplicateObject) as error:
        log.info(
            f"There is no view pgmq.{tables.name} ({error.diag.message_primary}); {tables.main} has the same rows."
        )
