"""Queues of Supabase over REST pass the contract, several engines on one database beside them standing for several processes."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from tests.services import postgrest
from tests.services.postgrest import KEY, NEW_KEY, Postgrest, prepare
from yamchi.app import Yamchi
from yamchi.clock import SystemClock
from yamchi.errors import ConfigurationError, EngineError, EngineUnavailable, InvalidJob
from yamchi.queues.engines.names import pgmq_name
from yamchi.queues.engines.supabase import SupabaseEngine
from yamchi.queues.job import Job
from yamchi.queues.records import Completed, NewJob, new_id
from yamchi.settings import Settings
from yamchi.testing.conformance import EngineSuite, ManagementSuite, ProcessSuite, WorkerSuite
from yamchi.testing.conformance.base import Connect, claim_all, complete, failure, settle
from yamchi.testing.conformance.worker import working
from yamchi.testing.waiting import eventually

Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def project(postgres_url: str) -> Iterator[Postgrest]:
    prepare(postgres_url)
    server = Postgrest(postgres_url)
    yield server
    server.stop()


@pytest.fixture
def sql(project: Postgrest) -> Sql:
    def run(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(project.database_url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
async def reach(project: Postgrest, tmp_path: Path) -> AsyncIterator[Connect]:
    engines: list[SupabaseEngine] = []

    async def connect(folder: str = "here") -> SupabaseEngine:
        engine = SupabaseEngine(
            project.url, KEY, tmp_path / folder / "supabase.db", SystemClock(), interval=100, at_most=1_000
        )
        await engine.open()
        engines.append(engine)
        return engine

    yield connect
    for engine in engines:
        await engine.close()


@pytest.fixture
def own_queue(sql: Sql) -> str:
    queue = f"own_{new_id(0)[-16:]}"
    sql("SELECT pgmq.create(%s), pgmq.create(%s)", queue, f"{queue}_dlq")
    return queue


class TestSupabase(EngineSuite, ManagementSuite, WorkerSuite, ProcessSuite):
    @pytest.fixture
    async def connect(self, reach: Connect) -> Connect:
        return reach

    @pytest.fixture
    def queue(self, sql: Sql) -> str:
        queue = f"q-{new_id(0)[-16:]}"
        sql("SELECT pgmq.create(%s), pgmq.create(%s)", pgmq_name(queue), f"{pgmq_name(queue)}_dlq")
        return queue


# ── What is Supabase's own ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_of_another_program_is_a_job(
    reach: Connect, own_queue: str, sql: Sql, tmp_path: Path
) -> None:
    app = Yamchi(Settings(home=tmp_path, plugins=()), engine=await reach())
    seen: list[tuple[str, Any]] = []

    @app.job(own_queue, name="email")
    async def email(job: Job[dict[str, Any]]) -> None:
        seen.append((job.id, job.data))

    sql("SELECT pgmq.send(%s, %s::jsonb)", own_queue, '{"to": "user@example.com"}')
    sql("SELECT pgmq.send(%s, %s::jsonb)", own_queue, '{"job_id": "mail-7"}')
    async with working(app):
        await eventually(lambda: len(seen) == 2)
        await eventually(lambda: sql(f"SELECT * FROM pgmq.q_{own_queue}") == [])
    assert sorted(seen) == [("1", {"to": "user@example.com"}), ("mail-7", {"job_id": "mail-7"})]
    await app.close()


async def test_a_payload_is_the_message_and_is_deleted_when_done(
    reach: Connect, own_queue: str, sql: Sql
) -> None:
    engine = await reach()
    await engine.add(own_queue, [NewJob("a", "email", b'{"to":"x"}')])
    assert sql(f"SELECT message FROM pgmq.q_{own_queue}") == [({"to": "x"},)]
    held = await claim_all(engine, own_queue, 1)
    assert len(sql(f"SELECT 1 FROM pgmq.q_{own_queue}")) == 1, "it stays there, hidden, until it is done"
    assert await complete(engine, own_queue, held) == ["a"]
    assert sql(f"SELECT message FROM pgmq.q_{own_queue}") == []


async def test_a_cancelled_job_is_taken_off(reach: Connect, own_queue: str, sql: Sql) -> None:
    engine = await reach()
    await engine.add(own_queue, [NewJob("a", "email", b"{}")])
    assert await engine.cancel(own_queue, ["a"]) == {"a": "cancelled"}
    assert sql(f"SELECT message FROM pgmq.q_{own_queue}") == []


async def test_a_verdict_stands_though_supabase_is_away(
    reach: Connect, own_queue: str, project: Postgrest, sql: Sql
) -> None:
    engine = await reach()
    await engine.add(own_queue, [NewJob("a", "email", b"{}")])
    (held,) = await claim_all(engine, own_queue, 1)
    project.exposed = False
    try:
        got = await engine.exchange(own_queue, [Completed(held)], 5, 1_000, "w")
        assert (got.settled, got.claims) == (["a"], [])
        with pytest.raises(EngineError):
            await engine.exchange(own_queue, [], 5, 1_000, "w")
    finally:
        project.exposed = True
    await eventually(lambda: sql(f"SELECT 1 FROM pgmq.q_{own_queue}") == [])


async def test_another_machine_takes_the_job(reach: Connect, own_queue: str) -> None:
    here, there = await reach("here"), await reach("there")
    await here.add(own_queue, [NewJob("a", "email", b'{"job_id":"a"}')])
    held = await claim_all(there, own_queue, 1)
    assert [(one.job.id, one.job.name) for one in held] == [("a", "")]
    assert (await here.exchange(own_queue, [], 1, 1_000, "w")).claims == []


async def test_a_delayed_job_goes_to_supabase_when_nobody_here_takes_it(
    reach: Connect, own_queue: str, sql: Sql
) -> None:
    engine = await reach()
    await engine.add(own_queue, [NewJob("a", "email", b"{}", run_at=SystemClock().now() + 50)])
    await eventually(lambda: len(sql(f"SELECT 1 FROM pgmq.q_{own_queue}")) == 1)
    assert [one.job.id for one in await claim_all(engine, own_queue, 1)] == ["a"]


async def test_dead_letters_go_to_the_queue_beside(reach: Connect, own_queue: str, sql: Sql) -> None:
    engine = await reach()
    await engine.add(own_queue, [NewJob("a", "email", b'{"to":"nobody"}')])
    (held,) = await claim_all(engine, own_queue, 1)
    await settle(engine, own_queue, [failure(held, "User has no email")])
    ((letter,),) = await eventually(lambda: sql(f"SELECT message FROM pgmq.q_{own_queue}_dlq"))
    assert (letter["job"], letter["error_message"]) == ({"to": "nobody"}, "User has no email")


# ── What can be wrong ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def strangers(tmp_path: Path) -> Callable[[str, str], SupabaseEngine]:
    return lambda url, key: SupabaseEngine(url, key, tmp_path / "other.db", SystemClock())


@pytest.mark.parametrize(
    ("key", "exposed", "sentence"),
    [
        ("wrong", True, "refused the key: correct SUPABASE_SERVICE_ROLE_KEY"),
        (KEY, False, "does not expose pgmq_public: switch on"),
        (KEY, True, "has no queue nowhere: create it"),
    ],
)
async def test_each_trouble_is_a_sentence(
    project: Postgrest,
    strangers: Callable[[str, str], SupabaseEngine],
    key: str,
    exposed: bool,
    sentence: str,
) -> None:
    engine = strangers(project.url, key)
    await engine.open()
    project.exposed = exposed
    try:
        with pytest.raises(EngineError, match=sentence):
            await engine.add("nowhere", [NewJob("a", "email", b"{}")])
    finally:
        project.exposed = True
    assert await engine.get("nowhere", "a") is None, "nothing half-written"
    await engine.close()


async def test_a_key_that_was_wrong_from_the_start_is_told_to_who_adds_and_spools_nothing(
    project: Postgrest, tmp_path: Path
) -> None:
    there = {"supabase_url": project.url, "supabase_service_role_key": "wrong"}
    async with Yamchi(Settings(home=tmp_path, plugins=(), default_queue_url="supabase", **there)) as app:
        app.define("mail")
        for _ in range(2):
            with pytest.raises(EngineError, match="refused the key: correct SUPABASE_SERVICE_ROLE_KEY"):
                await app.queue("mail").add({})
        assert app.queue("mail").type == "pgmq"
        assert await app.queue("mail").jobs() == []


@pytest.mark.parametrize("name", ["yamchi", "own"])
async def test_a_key_that_is_changed_later_on_is_an_outage(
    project: Postgrest,
    strangers: Callable[[str, str], SupabaseEngine],
    monkeypatch: pytest.MonkeyPatch,
    own_queue: str,
    name: str,
) -> None:
    engine = strangers(project.url, KEY)
    await engine.open()
    if name == "own":
        await engine.add(own_queue, [NewJob("a", "email", b"{}")])
    else:
        await engine.ping()
    monkeypatch.setattr(postgrest, "KEY", "another")
    with pytest.raises(EngineUnavailable, match="refused the key: correct SUPABASE_SERVICE_ROLE_KEY"):
        await engine.add(own_queue, [NewJob("b", "email", b"{}")])
    await engine.close()


async def test_ping_needs_no_queue(
    project: Postgrest, strangers: Callable[[str, str], SupabaseEngine]
) -> None:
    await strangers(project.url, KEY).ping()
    with pytest.raises(EngineError, match="refused the key"):
        await strangers(project.url, "wrong").ping()


@pytest.mark.parametrize("key", [KEY, NEW_KEY], ids=["service_role", "sb_secret"])
async def test_both_makes_of_keys_send_and_read(
    project: Postgrest, strangers: Callable[[str, str], SupabaseEngine], own_queue: str, key: str
) -> None:
    engine = strangers(project.url, key)
    await engine.open()
    await engine.add(own_queue, [NewJob("a", "email", b"{}")])
    assert len(await claim_all(engine, own_queue, 1)) == 1
    await engine.close()


async def test_a_project_that_is_away(strangers: Callable[[str, str], SupabaseEngine]) -> None:
    engine = strangers("http://127.0.0.1:9", KEY)
    await engine.open()
    with pytest.raises(EngineUnavailable, match=r"can't be reached .*check SUPABASE_URL"):
        await engine.add("mail", [NewJob("a", "email", b"{}")])
    await engine.close()


async def test_data_that_postgresql_cannot_keep(reach: Connect, own_queue: str) -> None:
    with pytest.raises(InvalidJob, match="can't keep this data"):
        await (await reach()).add(own_queue, [NewJob("a", "email", rb'{"text":"\u0000"}')])


async def test_nonsense_of_others_spoils_no_batch(reach: Connect, sql: Sql, own_queue: str) -> None:
    """What can't be read or written again is a job all the same, for the worker to put among the dead letters."""
    odd = ["5", "null", '"text"', '{"job_id": {}}', '{"job_id": "a b:c"}', '{"big": 1e300}']
    odd += ["[" * deep + "]" * deep for deep in (100, 250, 300, 1_000, 3_000)]
    for number, message in enumerate(odd):
        sql("SELECT pgmq.send(%s, %s::jsonb)", own_queue, message)
        sql("SELECT pgmq.send(%s, %s::jsonb)", own_queue, f'{{"job_id": "good-{number}"}}')
    engine = await reach()
    claims = []
    while got := (await engine.exchange(own_queue, [], 10, 10_000, "tester")).claims:
        claims += got
    assert len(claims) == 2 * len(odd)
    assert {claim.job.id for claim in claims} >= {f"good-{number}" for number in range(len(odd))}
    deepest = max((claim.job.payload for claim in claims), key=len)
    assert deepest == b"[" * 3_000 + b"]" * 3_000
    verdicts = [failure(claim) for claim in claims]
    assert len((await engine.exchange(own_queue, verdicts, 0, 0, "tester")).settled) == len(claims)
    for letter in (await engine.letters(own_queue, "", 0, 100)).letters:
        assert orjson.loads(letter.body)


def test_no_key(tmp_path: Path) -> None:
    app = Yamchi(Settings(home=tmp_path, default_queue_url="supabase", supabase_url="http://127.0.0.1:9"))
    app.define("mail")
    with pytest.raises(ConfigurationError, match=r"^SUPABASE_SERVICE_ROLE_KEY must be set$"):
        app.queue("mail").engine.type  # noqa: B018 - an engine is made when it is first asked for something


async def test_a_message_that_can_not_be_counted_keeps_none_behind_it(
    reach: Connect, own_queue: str, sql: Sql
) -> None:
    engine = await reach()
    for number in range(7):
        sql("SELECT pgmq.send(%s, %s::jsonb)", own_queue, f'{{"job_id": "job-{number}"}}')
    sql(f"UPDATE pgmq.q_{own_queue} SET read_ct = 2147483647 WHERE msg_id IN (3, 4)")
    held = []
    for _ in range(7):
        held += (await engine.exchange(own_queue, [], 10, 30_000, "tester")).claims
    assert sorted(claim.job.id for claim in held) == [f"job-{number}" for number in range(7)]
