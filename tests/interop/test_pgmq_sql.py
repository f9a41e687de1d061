"""Other programs on the same pgmq queues, with plain SQL: they write for us, read what we wrote, and take from us."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import psycopg
import pytest

from tests.services.databases import Database
from yamchi.app import Yamchi
from yamchi.clock import SystemClock
from yamchi.errors import EngineUnavailable
from yamchi.queues.engines.pgmq import PgmqEngine
from yamchi.queues.job import Job
from yamchi.queues.records import NewJob, RetryAt
from yamchi.settings import Settings
from yamchi.testing.conformance.base import claim_all, complete, settle
from yamchi.testing.conformance.worker import working
from yamchi.testing.waiting import eventually

pytestmark = pytest.mark.interop
now = SystemClock().now

Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def database(postgres_database: Callable[[], Database]) -> Database:
    return postgres_database()


@pytest.fixture
def sql(database: Database) -> Sql:
    """Another program: its own connection for each statement."""

    def run(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(database.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
async def engine(database: Database) -> AsyncIterator[PgmqEngine]:
    engine = PgmqEngine(database.url, SystemClock())
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def app(engine: PgmqEngine, tmp_path: Any) -> Yamchi:
    return Yamchi(Settings(home=tmp_path, plugins=()), engine=engine)


async def test_a_message_written_with_plain_sql_is_a_job(app: Yamchi, sql: Sql) -> None:
    seen: list[tuple[str, str, Any]] = []

    @app.job("email_queue", name="email", attempts=7)
    async def email(job: Job[dict[str, Any]]) -> None:
        seen.append((job.id, job.name, job.data))

    @app.job("email_queue", name="another")
    async def another(job: Job[dict[str, Any]]) -> None:
        raise AssertionError("a message without a name is for the queue's default job")

    await app.queue("email_queue").stats()  # makes the queue
    mail = {"to": "user@example.com", "subject": "Привет"}
    async with working(app):
        ((number,),) = sql("SELECT pgmq.send('email_queue', %s::jsonb)", orjson.dumps(mail).decode())
        await eventually(lambda: len(seen) == 1)
        sql("SELECT pgmq.send('email_queue', %s::jsonb)", orjson.dumps({**mail, "job_id": "mail-7"}).decode())
        await eventually(lambda: len(seen) == 2)
        await eventually(lambda: not sql("SELECT msg_id, enqueued_at, msg_id FROM pgmq.q_email_queue"))
    assert seen == [(str(number), "email", mail), ("mail-7", "email", {**mail, "job_id": "mail-7"})]
    done = await app.queue("email_queue").job("mail-7")
    assert (done.state, done.name, done.attempts) == ("completed", "email", 7)
    assert {job.name for job in await app.queue("email_queue").jobs()} == {"email"}


async def test_the_same_job_id_is_the_same_job(engine: PgmqEngine, sql: Sql) -> None:
    await engine.add("mail", [NewJob("twice", "email", b'{"n":1}')])
    for _ in range(2):
        sql("""SELECT pgmq.send('mail', '{"job_id": "twice"}')""")
    sql("""SELECT pgmq.send('mail', '{"job_id": "other"}')""")
    held = await claim_all(engine, "mail", 2)
    assert sorted(one.job.id for one in held) == ["other", "twice"]
    assert (await engine.exchange("mail", [], 5, 1_000, "w")).claims == []


async def test_a_strange_job_id_is_not_taken_for_an_id(engine: PgmqEngine, sql: Sql) -> None:
    await engine.counts("mail")
    for job_id in ('"a b"', '"a:b"', "7", "null", '""', '{"x": 1}'):
        sql("SELECT pgmq.send('mail', %s::jsonb)", f'{{"job_id": {job_id}}}')
    held = await claim_all(engine, "mail", 6)
    assert sorted(one.job.id for one in held) == sorted(str(one.key) for one in held)


async def test_a_number_that_is_taken_loses_no_message(engine: PgmqEngine, sql: Sql) -> None:
    await engine.add("mail", [NewJob("2", "email", b'{"whose":"ours"}')])
    sql("""SELECT pgmq.send('mail', '{"whose": "theirs"}')""")
    held = await claim_all(engine, "mail", 2)
    assert sorted(one.job.payload for one in held) == [b'{"whose":"ours"}', b'{"whose":"theirs"}']


@pytest.mark.parametrize(
    "headers",
    [
        '{"id": 5, "options": 7, "priority": "high", "expires_at": "soon", "rise": 1, "name": 3}',
        "[1, 2]",
        '"text"',
        "null",
        '{"slotted": true, "cancelling": true, "worker": {}}',
    ],
)
async def test_headers_of_another_program_do_no_harm(engine: PgmqEngine, sql: Sql, headers: str) -> None:
    await engine.counts("mail")
    sql("SELECT pgmq.send('mail', '{}'::jsonb, %s::jsonb)", headers)
    assert [job.state for job in (await engine.page("mail", None, "", 0, 5)).jobs] == ["waiting"]
    (held,) = await claim_all(engine, "mail", 1)
    assert (held.job.name, held.job.priority, held.has_permit, held.job.expires_at) == ("", 0, False, None)
    assert await settle(engine, "mail", [RetryAt(held, now(), "again")]) == [held.job.id]
    assert await complete(engine, "mail", await claim_all(engine, "mail", 1)) == [held.job.id]


async def test_another_program_may_name_the_job(engine: PgmqEngine, sql: Sql) -> None:
    await engine.counts("media-sync")
    sql("""SELECT pgmq.send('media_sync', '{}'::jsonb, '{"name": "upload", "trace": "abc"}'::jsonb)""")
    (held,) = await claim_all(engine, "media-sync", 1)
    assert held.job.name == "upload"
    assert sql("SELECT headers->>'trace' FROM pgmq.q_media_sync") == [("abc",)], "what is theirs stays"


async def test_a_foreign_message_can_be_looked_at_and_cancelled(engine: PgmqEngine, sql: Sql) -> None:
    await engine.counts("mail")
    sql("""SELECT pgmq.send('mail', '{"job_id": "theirs", "to": "someone"}')""")
    assert (await engine.counts("mail"))["waiting"] == 1
    assert [job.payload for job in (await engine.page("mail", "waiting", "someone", 0, 5)).jobs]
    job = await engine.get("mail", "theirs")
    assert job is not None
    assert (job.state, job.name, job.options.attempts) == ("waiting", "", 3)
    assert await engine.cancel("mail", ["theirs"]) == {"theirs": "cancelled"}
    assert sql("SELECT * FROM pgmq.q_mail") == []


async def test_a_delayed_foreign_message_waits(engine: PgmqEngine, sql: Sql) -> None:
    await engine.counts("mail")
    sql("""SELECT pgmq.send('mail', '{"job_id": "later"}', 60)""")
    assert (await engine.exchange("mail", [], 1, 1_000, "w")).claims == []
    assert (await engine.counts("mail"))["delayed"] == 1


async def test_others_read_what_we_wrote(engine: PgmqEngine, sql: Sql) -> None:
    await engine.add("media-processing", [NewJob("m-1", "process", b'{"path":"a.png"}', priority=5)])
    ((message, headers),) = sql("SELECT message, headers FROM pgmq.read('media_processing', 30, 10)")
    assert message == {"path": "a.png"}
    assert (headers["yamchi_id"], headers["name"], headers["priority"]) == ("m-1", "process", 5)


async def test_a_console_sees_rows_come_and_go(app: Yamchi, sql: Sql) -> None:
    @app.job("email_queue", name="email")
    async def email(job: Job[dict[str, Any]]) -> None: ...

    await app.queue("email_queue").add({"to": "user@example.com", "subject": "Hi"})
    query = """
        SELECT msg_id, enqueued_at, msg->>'to' as email_to, msg->>'subject' as subject
        FROM pgmq.email_queue ORDER BY enqueued_at DESC LIMIT 10
    """
    assert [row[2:] for row in sql(query)] == [("user@example.com", "Hi")]
    async with working(app):
        await eventually(lambda: sql(query) == [])


async def test_the_view_keeps_nobody_from_dropping_the_queue(engine: PgmqEngine, sql: Sql) -> None:
    await engine.add("mail", [NewJob("a", "email", b"{}")])
    assert sql("SELECT pgmq.drop_queue('mail')") == [(True,)]
    assert sql("SELECT * FROM pgmq.mail") == []


async def test_a_queue_of_an_older_version_gets_its_view(
    engine: PgmqEngine, database: Database, sql: Sql
) -> None:
    await engine.add("mail", [NewJob("a", "email", b'{"to": "user@example.com"}')])
    sql("DROP VIEW pgmq.mail")
    newer = PgmqEngine(database.url, SystemClock())
    await newer.open()
    await newer.counts("mail")
    await newer.close()
    assert sql("SELECT msg->>'to' FROM pgmq.mail") == [("user@example.com",)]


async def test_a_queue_with_a_name_of_pgmqs_own_has_no_view(engine: PgmqEngine, sql: Sql) -> None:
    for name in ("meta", "message_record"):
        assert await engine.add(name, [NewJob("a", "email", b"{}")]) == [True]
    assert sql("SELECT count(*) FROM pgmq.meta WHERE queue_name = 'meta'") == [(1,)]


async def test_what_another_program_holds_is_not_ours_until_it_lets_go(engine: PgmqEngine, sql: Sql) -> None:
    await engine.add("mail", [NewJob("shared", "email", b"{}")])
    sql("SELECT * FROM pgmq.read('mail', 60, 1)")
    assert (await engine.exchange("mail", [], 1, 1_000, "w")).claims == []
    assert (await engine.counts("mail"))["active"] == 1
    sql("SELECT * FROM pgmq.set_vt('mail', 1, 0)")
    assert [job.id for job, _ in await eventually(lambda: engine.recover("mail"))] == ["shared"]
    (held,) = await claim_all(engine, "mail", 1)
    assert held.job.attempts_made == 2, "the other program's reading was a delivery"


async def test_another_reader_past_our_lease_fences_us_off(engine: PgmqEngine, sql: Sql) -> None:
    await engine.add("mail", [NewJob("stolen", "email", b"{}")])
    held = (await engine.exchange("mail", [], 1, 1, "slow")).claims
    assert await eventually(lambda: sql("SELECT msg_id FROM pgmq.read('mail', 60, 1)"))
    assert await complete(engine, "mail", held) == []
    assert len(sql("SELECT msg_id FROM pgmq.q_mail")) == 1


async def test_an_id_is_free_again_when_another_program_took_its_message(
    engine: PgmqEngine, sql: Sql
) -> None:
    assert await engine.add("mail", [NewJob("a", "email", b"{}")]) == [True]
    sql("SELECT pgmq.delete('mail', msg_id) FROM pgmq.q_mail")
    assert await engine.get("mail", "a") is None
    assert await engine.add("mail", [NewJob("a", "email", b"{}"), NewJob("b", "email", b"{}")]) == [
        True,
        True,
    ]
    sql("SELECT pgmq.archive('mail', msg_id) FROM pgmq.q_mail")
    await engine._tidy("mail")
    assert sql("SELECT id FROM yamchi.jobs") == []


async def test_dead_letters_are_messages_of_a_queue(app: Yamchi, sql: Sql) -> None:
    @app.job("mail", name="email", attempts=1)
    async def email(job: Job[dict[str, Any]]) -> None:
        raise ValueError("User has no email")

    job = await app.queue("mail").add({"to": "nobody"})
    async with working(app):
        await eventually(lambda: sql("SELECT message FROM pgmq.q_mail_dlq"))
    ((letter,),) = sql("SELECT message FROM pgmq.read('mail_dlq', 0, 1)")
    assert letter.keys() == {"job", "error_message", "failed_at"}
    assert (letter["job"], letter["error_message"]) == ({"to": "nobody"}, "ValueError: User has no email")
    assert letter["failed_at"].endswith("Z")
    assert (await app.queue("mail").dead_letters.get(job.id)).error == "ValueError: User has no email"


async def test_a_foreign_message_wakes_an_idle_worker_at_once(engine: PgmqEngine, sql: Sql) -> None:
    assert (await engine.exchange("mail", [], 1, 1_000, "w")).claims == []
    waking = asyncio.create_task(engine.wake("mail", 60_000))
    await engine._loops.get().listener.ready()
    await asyncio.to_thread(sql, """SELECT pgmq.send('mail', '{"n": 1}')""")
    await asyncio.wait_for(waking, 10)


async def test_a_table_that_is_dropped_is_made_again(engine: PgmqEngine, sql: Sql) -> None:
    await engine.add("mail", [NewJob("a", "email", b"{}")])
    for call in (
        lambda: engine.add("mail", [NewJob("b", "email", b"{}")]),
        lambda: engine.exchange("mail", [], 1, 1_000, "w"),
        lambda: engine.wake("mail", 5_000),
    ):
        sql("SELECT pgmq.drop_queue('mail')")
        with pytest.raises(EngineUnavailable, match="made again at the next call"):
            await call()
        await engine.counts("mail")
    assert await engine.add("mail", [NewJob("b", "email", b"{}")]) == [True]
    assert [one.job.id for one in await claim_all(engine, "mail", 1)] == ["b"]
