"""What can go wrong with PostgreSQL, each told in one sentence that says what to do; and how work goes on after it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.services.databases import Database
from tests.services.postgres import Postgres

from yamchi.clock import SystemClock
from yamchi.errors import ConfigurationError, EngineError, EngineUnavailable, InvalidJob
from yamchi.queues.engines import EngineContext, make_engine
from yamchi.queues.engines.base import WorkerInfo
from yamchi.queues.engines.pgmq import PgmqEngine, adding
from yamchi.queues.engines.pgmq.connections import Connections, explain
from yamchi.queues.options import JobOptions
from yamchi.queues.records import Completed, DeadLetter, Failed, NewJob, RetryAt
from yamchi.testing.conformance.base import claim_all, complete, settle
from yamchi.testing.waiting import eventually

Open = Callable[[str], Awaitable[PgmqEngine]]
now = SystemClock().now


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    engines: list[PgmqEngine] = []

    async def opened(url: str) -> PgmqEngine:
        engine = PgmqEngine(url, SystemClock())
        engines.append(engine)
        await engine.open()
        return engine

    yield opened
    for engine in engines:
        await engine.close()


@pytest.fixture
def database(postgres_database: Callable[[], Database]) -> Database:
    return postgres_database()


# ── Coming in ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_wrong_password(database: Database, opened: Open) -> None:
    url = urlsplit(database.url)
    wrong = url._replace(netloc=f"postgres:secret-typo@{url.hostname}:{url.port}").geturl()
    with pytest.raises(
        ConfigurationError, match="refused the password of postgres: correct it in QUEUE_URL"
    ) as error:
        await opened(wrong)
    assert "secret-typo" not in str(error.value)


async def test_a_password_that_is_changed_later_is_an_outage(database: Database, opened: Open) -> None:
    role, url = f'"{database.name}"', database.unprivileged_url()
    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute(f"GRANT CREATE ON DATABASE {role} TO {role}".encode())
        engine = await opened(url)
        owner.execute(f"ALTER ROLE {role} PASSWORD 'another'".encode())
        owner.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [database.name]
        )
    with pytest.raises(EngineUnavailable, match="refused the password"):
        await eventually(lambda: _pinged(engine))


async def _pinged(engine: PgmqEngine) -> None:
    """A connection that was ended may still be lent once."""
    try:
        await engine.ping()
    except EngineUnavailable as error:
        if "password" in str(error):
            raise


async def test_a_wrong_port(opened: Open) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(
            EngineUnavailable, match=f"127.0.0.1:{port} can't be reached .*host and port in QUEUE_URL"
        ):
            await opened(f"postgresql://postgres:secret@127.0.0.1:{port}/postgres")


async def test_a_database_that_is_not_there(database: Database, opened: Open) -> None:
    missing = urlsplit(database.url)._replace(path="/nowhere").geturl()
    with pytest.raises(EngineUnavailable, match="has no database nowhere: create it"):
        await opened(missing)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('FATAL:  role "shop" does not exist', "has no user shop: create it"),
        ("FATAL:  sorry, too many clients already", "has no free connection: raise max_connections"),
        ("FATAL:  the database system is starting up", "can't be reached"),
    ],
)
def test_what_a_server_says_at_the_door_is_told_as_something_to_do(said: str, told: str) -> None:
    at = Connections("postgresql://shop:secret@db.example:5432/jobs")
    assert told in str(explain(psycopg.OperationalError(said), at))


async def test_no_right_to_create_a_schema(database: Database, opened: Open) -> None:
    url = database.unprivileged_url()
    with pytest.raises(
        EngineError, match=f'create the schema pgmq .*GRANT CREATE ON DATABASE "{database.name}" TO'
    ):
        await opened(url)
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(f'GRANT CREATE ON DATABASE "{database.name}" TO "{database.name}"'.encode())
    engine = await opened(url)
    assert await engine.add("mail", [NewJob("a", "email", b"{}")]) == [True]


async def test_a_queue_that_belongs_to_another_role(database: Database, opened: Open) -> None:
    owner = await opened(database.url)
    url, role = database.unprivileged_url(), f'"{database.name}"'
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("SELECT pgmq.create('mail'), pgmq.create('mail_dlq')")
        for schema in ("pgmq", "yamchi"):
            connection.execute(
                f"GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role};"
                f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}".encode()
            )
    engine = await opened(url)
    assert await engine.add("mail", [NewJob("a", "email", b"{}")]) == [True]
    assert await complete(engine, "mail", await claim_all(engine, "mail", 1)) == ["a"]
    with pytest.raises(EngineError, match=r"does not let .* do this"):
        await engine.add("not-there", [NewJob("a", "email", b"{}")])
    assert await owner.add("not-there", [NewJob("a", "email", b"{}")]) == [True]


def test_a_url_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="can't be read"):
        make_engine("postgresql://host:not-a-port:1/db?nonsense=1", EngineContext(SystemClock()))


def test_a_percent_sign_in_the_password_is_told_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="in a password, write % as %25") as caught:
        PgmqEngine("postgresql://app:hunt%er@localhost/app", SystemClock())
    assert "hunt" not in str(caught.value)


async def test_an_old_pgmq(database: Database, opened: Open) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(
            "CREATE SCHEMA pgmq; CREATE TABLE pgmq.meta (queue_name text);"
            "CREATE TYPE pgmq.message_record AS (msg_id bigint)"
        )
    with pytest.raises(EngineError, match=r"pgmq .* is too old.*ALTER EXTENSION pgmq UPDATE"):
        await opened(database.url)


async def test_many_processes_start_at_once(database: Database, opened: Open) -> None:
    engines = await asyncio.gather(*(opened(database.url) for _ in range(6)))
    added = await asyncio.gather(*(one.add("mail", [NewJob("a", "email", b"{}")]) for one in engines))
    assert sum(created for (created,) in added) == 1


async def test_queues_whose_names_are_alike_stay_apart(database: Database, opened: Open) -> None:
    engine = await opened(database.url)
    for queue in ("media-sync", "media_sync", "Media-Sync"):
        await engine.add(queue, [NewJob("a", queue, b"{}")])
    for queue in ("media-sync", "media_sync", "Media-Sync"):
        assert [held.job.name for held in await claim_all(engine, queue, 1)] == [queue]
    other = await opened(database.url)
    assert (await other.counts("media_sync"))["active"] == 1


# ── What can't be kept ────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_bad_job_is_not_anothers_error(database: Database, opened: Open) -> None:
    engine = await opened(database.url)
    answers = await asyncio.gather(
        *(engine.add("mail", [NewJob(f"good-{n}", "email", b"{}")]) for n in range(5)),
        engine.add("mail", [NewJob("nul", "email", rb'{"text":"\u0000"}')]),
        engine.add("mail", [NewJob("broken", "email", b"{not json")]),
        return_exceptions=True,
    )
    assert answers[:5] == [[True]] * 5
    assert all(isinstance(answer, InvalidJob) for answer in answers[5:]), answers
    assert (await engine.counts("mail"))["waiting"] == 5


async def test_jobs_that_no_statement_can_hold_together_are_added_by_several_all_or_none(
    database: Database, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL reads 256 MB of JSON at once, as much as a few hundred jobs may be that are added at the same time."""
    monkeypatch.setattr(adding, "STATEMENT_BYTES", 100)
    engine = await opened(database.url)
    jobs = [NewJob(f"job-{n}", "email", b'{"text":"%030d"}' % n) for n in range(10)]
    with pytest.raises(InvalidJob):
        await engine.add("mail", [*jobs, NewJob("nul", "email", rb'{"text":"\u0000"}')])
    assert (await engine.counts("mail"))["waiting"] == 0
    assert await engine.add("mail", jobs[:7]) == [True] * 7
    assert await engine.add("mail", jobs) == [False] * 7 + [True] * 3
    assert [claim.job.id for claim in await claim_all(engine, "mail", 10)] == [job.id for job in jobs]


async def test_several_statements_of_two_who_add_the_same_jobs_wait_for_each_other_in_one_order(
    database: Database, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one statement does, which takes the ids in their order. A deadlock would be said to be an outage."""
    monkeypatch.setattr(adding, "STATEMENT_BYTES", 1)
    one, other = await opened(database.url), await opened(database.url)
    await asyncio.gather(one.ready("mail"), other.ready("mail"))
    jobs = [NewJob(f"job-{n:02}", "email", b"{}") for n in range(50)]
    answers = await asyncio.gather(one.add("mail", jobs), other.add("mail", jobs[::-1]))
    assert sorted(map(sum, answers)) == [0, 50]


async def test_what_is_too_large_for_postgresql_is_no_outage() -> None:
    said = psycopg.errors.ProgramLimitExceeded("total size of jsonb array elements exceeds the maximum")
    assert isinstance(explain(said, Connections("postgresql://localhost")), InvalidJob)


async def test_odd_results_and_errors_do_not_hold_up_a_verdict(database: Database, opened: Open) -> None:
    engine = await opened(database.url)
    await engine.add("mail", [NewJob(job_id, "email", b"{}") for job_id in ("done", "dead", "again")])
    held = {one.job.id: one for one in await claim_all(engine, "mail", 3)}
    error = "odd \0 \udcff"
    letter = DeadLetter("dead", "mail", "email", rb'{"job":{},"error_message":"odd \u0000"}', error, now())
    verdicts = [
        Completed(held["done"], rb'"\u0000"'),
        Failed(held["dead"], error, letter, error),
        RetryAt(held["again"], now(), error, error),
    ]
    assert sorted(await settle(engine, "mail", verdicts)) == ["again", "dead", "done"]
    done, dead = await engine.get("mail", "done"), await engine.get("mail", "dead")
    assert done is not None
    assert done.result == b'""'
    assert dead is not None
    assert dead.failed_reason == "odd  ?"


async def test_a_late_urgent_job_comes_before_those_that_wait(database: Database, opened: Open) -> None:
    engine = await opened(database.url)
    await engine.add("mail", [NewJob(f"plain-{n}", "email", b"{}") for n in range(3)])
    await engine.add("mail", [NewJob("urgent", "email", b"{}", priority=9, run_at=now() + 100)])
    job = await engine.get("mail", "urgent")
    assert job is not None
    assert abs(job.run_at - now()) < 60_000
    await eventually(lambda: _waiting(engine, 4))
    first = await claim_all(engine, "mail", 1)
    second = await claim_all(engine, "mail", 1)
    assert "urgent" in (first[0].job.id, second[0].job.id), "the first look finds it due, the next takes it"


async def test_a_retried_urgent_job_keeps_its_place(database: Database, opened: Open) -> None:
    engine = await opened(database.url)
    await engine.add("mail", [NewJob("urgent", "email", b"{}", priority=5)])
    (held,) = await claim_all(engine, "mail", 1)
    await engine.add("mail", [NewJob("plain", "email", b"{}")])
    await settle(engine, "mail", [RetryAt(held, now() - 1, "again")])
    assert [one.job.id for one in await claim_all(engine, "mail", 2)] == ["urgent", "plain"]


# ── Outages ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_work_goes_on_after_a_restart(private_postgres: Callable[..., Postgres], opened: Open) -> None:
    server = private_postgres()
    engine = await opened(server.url)
    await engine.add("mail", [NewJob("kept", "email", b"{}", JobOptions(keep_completed=5))])
    waking = asyncio.create_task(engine.wake("other", 60_000))
    await engine._loops.get().listener.ready()
    server.kill()
    with pytest.raises(EngineUnavailable, match="can't be reached"):
        await engine.add("mail", [NewJob("lost", "email", b"{}")])
    server.start()
    held = await claim_all(engine, "mail", 1)
    assert [one.job.id for one in held] == ["kept"]
    assert await complete(engine, "mail", held) == ["kept"]
    waking.cancel()
    await engine._loops.get().listener.ready()
    listening = asyncio.create_task(engine.wake("mail", 60_000))
    await engine.add("mail", [NewJob("new", "email", b"{}")])
    await asyncio.wait_for(listening, 20)


async def test_connections_serve_each_event_loop(database: Database, opened: Open) -> None:
    engine = await opened(database.url)
    await engine.add("mail", [NewJob("a", "email", b"{}")])
    held = await claim_all(engine, "mail", 1)
    renewed = await asyncio.to_thread(lambda: asyncio.run(engine.renew("mail", held, 5_000)))
    assert renewed == ["a"]
    assert await asyncio.to_thread(lambda: asyncio.run(engine.cancelled("mail", held))) == []


async def test_a_call_that_waits_in_the_server_can_be_cancelled(database: Database, opened: Open) -> None:
    """A worker that stops cancels it once."""
    engine = await opened(database.url)
    await engine.counts("mail")
    worker = WorkerInfo("w", "host", 1, ("mail",), (), now(), now())
    calls = {
        "yamchi.workers": lambda: engine.heartbeat(worker),
        "yamchi.jobs": lambda: engine.recover("mail"),
        "pgmq.q_mail": lambda: engine.exchange("mail", [], 1, 5_000, "w"),
    }
    for locked, call in calls.items():
        async with await psycopg.AsyncConnection.connect(database.url) as other:
            await other.execute(f"LOCK TABLE {locked} IN ACCESS EXCLUSIVE MODE")
            task = asyncio.ensure_future(call())
            await eventually(partial(_is_anybody_blocked, other))
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled(), (locked, task)
    assert await engine.recover("mail") == []


async def _is_anybody_blocked(db: psycopg.AsyncConnection[tuple[int]]) -> bool:
    found = await db.execute(
        "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database AND datname = current_database() "
        "WHERE NOT granted"
    )
    return (await found.fetchall())[0][0] > 0


async def test_an_error_of_a_call_that_was_cancelled_does_not_hide_that(
    database: Database, opened: Open
) -> None:
    """Seen of psycopg: "cannot exit pipeline mode while busy". The task that was to end would go on for ever."""
    engine = await opened(database.url)
    begun = asyncio.Event()

    async def call() -> None:
        async with engine._connections.lend() as db:
            try:
                begun.set()
                await db.execute("SELECT pg_sleep(60)")
            except asyncio.CancelledError:
                raise psycopg.OperationalError("cannot exit pipeline mode while busy") from None

    task = asyncio.create_task(call())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_message_whose_id_somebody_holds_in_an_open_transaction_holds_up_nobody(
    database: Database, opened: Open
) -> None:
    """What was claimed meanwhile would stall, and be over in the end without having been run."""
    engine = await opened(database.url)
    await engine.ready("mail")
    async with await psycopg.AsyncConnection.connect(database.url) as other:
        assert await engine.add_within(other, "mail", [NewJob("taken", "work", b"{}")]) == [True]
        async with await psycopg.AsyncConnection.connect(database.url, autocommit=True) as program:
            await program.execute("""SELECT pgmq.send('mail', '{"job_id": "taken"}')""")
            await program.execute("""SELECT pgmq.send('mail', '{"job_id": "free"}')""")
        await engine.add("mail", [NewJob("ours", "work", b"{}")])
        exchange = asyncio.create_task(engine.exchange("mail", [], 2, 5_000, "w"))
        recovery = asyncio.create_task(engine.recover("mail"))
        await eventually(lambda: exchange.done() and recovery.done())
        assert [held.job.id for held in exchange.result().claims] == ["ours"]
        assert recovery.result() == []
    held = await claim_all(engine, "mail", 2)
    assert sorted(one.job.id for one in held) == ["free", "taken"]
    assert await _waiting(engine, 0), "the message with an id that is taken is that very job"


async def test_a_first_worker_does_not_wait_for_a_transaction_that_adds_to_a_new_queue(
    database: Database, opened: Open
) -> None:
    producer = await opened(database.url)
    async with await psycopg.AsyncConnection.connect(database.url) as other:
        assert await producer.add_within(other, "mail", [NewJob("pending", "work", b"{}")]) == [True]
        worker = await opened(database.url)
        await producer.add("mail", [NewJob("ready", "work", b"{}")])
        exchange = asyncio.create_task(worker.exchange("mail", [], 2, 5_000, "w"))
        await eventually(exchange.done)
        assert [held.job.id for held in exchange.result().claims] == ["ready"]
    assert [held.job.id for held in await claim_all(worker, "mail", 1)] == ["pending"]


async def test_a_first_worker_does_not_wait_for_a_program_that_writes_to_a_queue_of_its_own(
    database: Database, opened: Open
) -> None:
    """Nor do those who write after it: what is made for the queue would lock them out until that transaction ends."""
    worker = await opened(database.url)
    async with await psycopg.AsyncConnection.connect(database.url, autocommit=True) as program:
        await program.execute("SELECT pgmq.create('mail')")
        async with await psycopg.AsyncConnection.connect(database.url) as other:
            await other.execute("""SELECT pgmq.send('mail', '{"job_id": "pending"}')""")
            exchange = asyncio.create_task(worker.exchange("mail", [], 2, 5_000, "w"))
            await program.execute("""SELECT pgmq.send('mail', '{"job_id": "ready"}')""")
            await eventually(exchange.done)
            held = exchange.result().claims or await claim_all(worker, "mail", 1)
            assert [one.job.id for one in held] == ["ready"]
    assert [one.job.id for one in await claim_all(worker, "mail", 1)] == ["pending"]
    assert not await _has_indexes(database.url)
    assert await worker.recover("mail") == []
    assert await _has_indexes(database.url)


async def _has_indexes(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url) as db:
        found = await db.execute(
            "SELECT count(*) FROM pg_indexes WHERE indexname ~ '^q_mail_(held|untended)$'"
        )
        return (await found.fetchall())[0][0] == 2


async def test_an_engine_closes_though_the_server_hangs_up_on_its_listener_meanwhile(
    database: Database, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when both are stopped together: psycopg tells of the hang-up, and of nothing else."""
    engine = await opened(database.url)
    monkeypatch.setattr("yamchi.queues.engines.pgmq.connections._SESSION", "SELECT pg_sleep(600)")
    engine._loops.get().listener.start()
    asleep = f"datname = '{database.name}' AND query = 'SELECT pg_sleep(600)' AND state = 'active'"
    with psycopg.connect(database.url, autocommit=True) as server:

        def count() -> int:
            (row,) = server.execute(
                f"SELECT count(*) FROM pg_stat_activity WHERE {asleep}".encode()
            ).fetchall()
            return int(row[0])

        await eventually(lambda: count() == 1)
        server.execute(
            f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE {asleep}".encode()
        )
        assert count() == 0
    closing = asyncio.create_task(engine.close())
    await eventually(closing.done)
    await closing


async def _waiting(engine: PgmqEngine, count: int) -> bool:
    return (await engine.counts("mail"))["waiting"] == count


# ── After the claim ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_was_claimed_is_handed_over_though_a_message_beside_it_can_not_be_taken_up(
    database: Database, opened: Open
) -> None:
    engine = await opened(database.url)
    await engine.add("mail", [NewJob("a", "email", b"{}"), NewJob("b", "email", b"{}")])
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;"
            "CREATE TRIGGER refuse BEFORE UPDATE ON pgmq.q_mail FOR EACH ROW"
            " WHEN (NOT coalesce(OLD.headers ? 'yamchi_id', false)) EXECUTE FUNCTION refuse()"
        )
        connection.execute("SELECT pgmq.send('mail', '{}')")
    got = await engine.exchange("mail", [], 3, 30_000, "tester")
    assert [held.job.id for held in got.claims] == ["a", "b"]


async def test_what_was_claimed_and_settled_is_told_though_the_listeners_can_not_be(
    database: Database, opened: Open
) -> None:
    engine = await opened(database.url)
    await engine.add("mail", [NewJob("a", "email", b"{}"), NewJob("b", "email", b"{}")])
    (held,) = await claim_all(engine, "mail", 1)
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("DROP TABLE yamchi.listeners")
    got = await engine.exchange("mail", [Completed(held)], 1, 30_000, "tester")
    assert got.settled == ["a"]
    assert [held.job.id for held in got.claims] == ["b"]


@pytest.mark.parametrize("change", ["vt = vt - interval '1 microsecond'", "headers = headers"])
async def test_what_another_program_changes_while_it_is_claimed_is_run_once(
    database: Database, opened: Open, change: str
) -> None:
    """Claims are taken where they were locked: a row that moves in between is left for a later exchange."""
    jobs, engines = 1_000, [await opened(database.url) for _ in range(2)]
    await engines[0].add("mail", [NewJob(f"j{n}", "email", b"{}") for n in range(jobs)])
    claimed: list[str] = []

    async def disturb() -> None:
        first = "SELECT msg_id FROM pgmq.q_mail WHERE last_read_at IS NULL ORDER BY vt LIMIT 20 FOR UPDATE SKIP LOCKED"
        async with await psycopg.AsyncConnection.connect(database.url, autocommit=True) as db:
            while True:
                await db.execute(f"UPDATE pgmq.q_mail SET {change} WHERE msg_id IN ({first})")

    async def work(engine: PgmqEngine) -> None:
        verdicts: list[Completed] = []
        while verdicts or len(claimed) < jobs:
            got = await engine.exchange("mail", verdicts, 10, 60_000, "w")
            claimed.extend(one.job.id for one in got.claims)
            verdicts = [Completed(one) for one in got.claims]

    disturbing = asyncio.create_task(disturb())
    async with asyncio.timeout(60):
        await asyncio.gather(*map(work, engines))
    assert not disturbing.done(), "nothing was disturbed to the end: this shows little"
    disturbing.cancel()
    await asyncio.wait([disturbing])
    assert sorted(claimed) == sorted(f"j{n}" for n in range(jobs))
