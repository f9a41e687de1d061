"""PostgreSQL beside somebody's open transaction: what a statement looks at does not grow with what was done since.

Counted in buffers that a plan touches, not in time: a busy machine touches no more of them.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import orjson
import psycopg
import pytest
from tests.services.databases import Database

from yamchi.clock import SystemClock
from yamchi.queues.engines.pgmq import PgmqEngine, adding, leasing, management, scanning, working
from yamchi.queues.engines.pgmq.bounds import Bounds, Scan
from yamchi.queues.engines.pgmq.connections import Connection
from yamchi.queues.engines.pgmq.rows import instant
from yamchi.queues.engines.pgmq.tables import Tables
from yamchi.queues.options import JobOptions
from yamchi.queues.records import Claim, Completed, NewJob
from yamchi.testing.conformance.base import claim, failure
from yamchi.testing.waiting import eventually

ROUND, ROUNDS, BATCH = 300, 6, 50
OPTIONS = JobOptions(attempts=1, keep_completed=10, keep_failed=10)


@pytest.fixture
def database(postgres_database: Callable[[], Database]) -> Database:
    return postgres_database()


@pytest.fixture
async def engine(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PgmqEngine]:
    monkeypatch.setattr(
        "yamchi.queues.engines.pgmq.bounds.LATE", 0
    )  # else a fast machine sees the last round
    engine = PgmqEngine(database.url, SystemClock())
    await engine.open()
    await engine.counts("mail")
    yield engine
    await engine.close()


@pytest.fixture
def held(engine: PgmqEngine, database: Database) -> Iterator[None]:
    """Somebody's transaction that sees the database as it is now, and stays."""
    with psycopg.connect(database.url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pgmq.q_mail")
        yield


Round = Callable[[PgmqEngine, int], Any]


async def _ours(engine: PgmqEngine, number: int) -> None:
    priorities = (0, 5)
    await engine.add(
        "mail",
        [NewJob(f"{number}-{n}", "email", b"{}", OPTIONS, priorities[n % 2]) for n in range(ROUND)],
    )


async def _foreign(engine: PgmqEngine, number: int) -> None:
    async with engine._connections.lend() as db:
        await db.execute("SELECT pgmq.send('mail', '{}') FROM generate_series(1, %s)", (ROUND,))


async def _drain(engine: PgmqEngine, *, fail: bool = False) -> None:
    claims = await claim(engine, "mail", BATCH)
    while claims:
        verdicts = [failure(one) if fail else Completed(one) for one in claims]
        claims = (await engine.exchange("mail", verdicts, BATCH, 60_000, "w")).claims


async def _analyze(engine: PgmqEngine) -> None:
    """As PostgreSQL does by itself in time; an open transaction does not keep it from that."""
    async with engine._connections.lend() as db:
        await db.execute("ANALYZE pgmq.q_mail")


async def _analyze_empty(engine: PgmqEngine) -> None:
    """As PostgreSQL may do between two bursts; from now on it takes these tables for empty."""
    await _ours(engine, 0)
    await _drain(engine)
    async with engine._connections.lend() as db:
        await db.execute("DELETE FROM yamchi.jobs")
        await db.execute("VACUUM (ANALYZE, TRUNCATE false) pgmq.q_mail, yamchi.jobs")


async def _explain(engine: PgmqEngine, template: str, **values: Any) -> dict[str, Any]:
    """How a statement is done when it is run now; what it changes is undone."""
    plans: list[dict[str, Any]] = []

    async def work(db: Connection, tables: Tables) -> None:
        given = {"queue": "mail", **values}
        async with db.transaction(force_rollback=True):
            statement = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {tables.sql(template)}"
            row = await (await db.execute(statement.encode(), given)).fetchone()
            assert row is not None
            plans.extend(row[0])

    await engine._do("mail", work)
    plan: dict[str, Any] = plans[0]["Plan"]
    return plan


def _buffers(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _most_rows(plan: dict[str, Any]) -> int:
    """The most that it goes over in any table, whether it wants them or not."""
    rows = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    below = [_most_rows(part) for part in plan.get("Plans", ())]
    return max([int(rows) if "Index Name" in plan or plan["Node Type"] == "Seq Scan" else 0, *below])


async def _touched(engine: PgmqEngine, template: str, **values: Any) -> int:
    """How many buffers a statement touches."""
    return _buffers(await _explain(engine, template, **values))


def _claiming(scan: Scan) -> dict[str, Any]:
    return {"want": BATCH, "lease": 60_000, "worker": "{}", **scanning.span(scan)}


def _settling(engine: PgmqEngine, claims: Sequence[Claim] = (), *, keep: bool = True) -> dict[str, Any]:
    return {
        **working._completions([Completed(one) for one in claims], [keep] * len(claims)),
        "spared": 10,
        "trimmed": engine._scanner.of("mail").trimmed["completed"].since or 0,
    }


def _bounds(engine: PgmqEngine) -> Scan:
    return engine._scanner.of("mail").bounds.begin()


FIRST = Bounds(SystemClock().now()).begin()
"""A look from the very beginning: what every look was before there were bounds."""


async def _measure_claim(engine: PgmqEngine, scan: Scan) -> int:
    return await _touched(engine, working._SETTLE_AND_TAKE, **_claiming(scan), **_settling(engine))


async def _measure_due(engine: PgmqEngine, scan: Scan) -> int:
    return await _touched(
        engine, scanning._NEXT_DUE, within=scanning.LONGEST_WAIT_SECONDS, **scanning.span(scan)
    )


async def _measure_prepare(engine: PgmqEngine, scan: Scan) -> int:
    return await _touched(
        engine, adding._PREPARE, since=instant(scan.prepared), until=instant(SystemClock().now() * 1_000)
    )


@pytest.mark.parametrize(
    ("add", "measure"),
    [
        pytest.param(_ours, _measure_claim, id="claim"),
        pytest.param(_ours, _measure_due, id="next due"),
        pytest.param(_foreign, _measure_claim, id="claim what other programs wrote"),
        pytest.param(_foreign, _measure_prepare, id="prepare"),
    ],
)
@pytest.mark.usefixtures("held")
async def test_a_look_from_the_bounds_stays_as_short_as_it_was(
    engine: PgmqEngine, add: Round, measure: Callable[[PgmqEngine, Scan], Any]
) -> None:
    bounded, whole = [], []
    for number in range(ROUNDS):
        await add(engine, number)
        await _drain(engine)
        await _analyze(engine)
        bounded.append(await measure(engine, _bounds(engine)))
        whole.append(await measure(engine, FIRST))
    assert whole[-1] > 2 * whole[0], "nothing is dead: this shows nothing"
    assert bounded[-1] <= 1.3 * bounded[0] + 20, (bounded, whole)


@pytest.mark.usefixtures("held")
async def test_settling_looks_only_for_what_is_settled(engine: PgmqEngine) -> None:
    """By number and id: not among all that was ever held, nor among all ids between two of them."""
    touched = []
    for number in range(10, 20):
        await _ours(engine, number)  # so many that it would not do to look at all of them
    for number in range(ROUNDS):
        await _ours(engine, number)
        claims = await claim(engine, "mail", BATCH)
        async with engine._connections.lend() as db:
            await db.execute("VACUUM ANALYZE pgmq.q_mail")
        values = _claiming(_bounds(engine)) | _settling(engine, claims)
        plan = await _explain(engine, working._SETTLE_AND_TAKE, **values)
        assert _most_rows(plan) <= 2 * BATCH, plan
        touched.append(_buffers(plan))
        await engine.exchange("mail", [Completed(one) for one in claims], 0, 60_000, "w")
    assert touched[-1] <= 1.3 * touched[0] + 20, touched


@pytest.mark.parametrize("state", ["completed", "failed"])
@pytest.mark.usefixtures("held")
async def test_trimming_stays_as_short_as_it_was(engine: PgmqEngine, state: str) -> None:
    bounded, whole = [], []
    for number in range(ROUNDS):
        await _ours(engine, number)
        await _drain(engine, fail=state == "failed")
        since = engine._scanner.of("mail").trimmed[state].since
        for found, begin in ((bounded, since), (whole, 0)):
            found.append(await _touched(engine, working._TRIM, state=state, keep=10, trimmed=begin or 0))
    assert whole[-1] > 2 * whole[0], "nothing is dead: this shows nothing"
    assert bounded[-1] <= 1.3 * bounded[0] + 20, (bounded, whole)


@pytest.mark.usefixtures("held")
async def test_a_sweep_for_the_stalled_need_not_go_over_everything(engine: PgmqEngine) -> None:
    """What ended long ago lies behind it; a sweep goes back a moment, however much is dead before that."""
    async with engine._connections.lend() as db:
        for number in range(ROUNDS):
            await _ours(engine, number)
            await _drain(engine)
            await engine.recover("mail")
            await db.execute(
                "INSERT INTO pgmq.q_mail (vt, last_read_at, message) SELECT now() - interval '1 hour', now(), '{}' "
                "FROM generate_series(1, %s)",
                (ROUND,),
            )
            await db.execute("DELETE FROM pgmq.q_mail WHERE vt < now() - interval '50 minutes'")
    since = engine._scanner.of("mail").stalled.since
    assert since is not None
    whole = await _touched(engine, leasing._STALLED, since=instant(None))
    assert await _touched(engine, leasing._STALLED, since=instant(since)) < whole / 2


@pytest.mark.usefixtures("held")
async def test_forgetting_what_others_took_stays_as_short_as_it_was(
    engine: PgmqEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some pages at a time, round and round; what others took is forgotten in the end, wherever its row is."""
    monkeypatch.setattr("yamchi.queues.engines.pgmq.adding._PAGES", 2)
    touched = []
    for number in range(ROUNDS):
        await _ours(engine, number)
        await _drain(engine)
        touched.append(await _touched(engine, adding._TIDY, begin="(0,0)", end="(2,0)"))
    assert touched[-1] <= 1.3 * touched[0] + 20, touched
    await engine.add("mail", [NewJob("taken", "email", b"{}")])
    async with engine._connections.lend() as db:
        await db.execute("DELETE FROM pgmq.q_mail")

    async def is_forgotten() -> bool:
        await engine._tidy("mail")
        async with engine._connections.lend() as db:
            found = await db.execute("SELECT FROM yamchi.jobs WHERE id = 'taken'")
            return await found.fetchone() is None

    assert not await is_forgotten(), "one step went over everything: this shows nothing"
    await eventually(is_forgotten)


@pytest.mark.parametrize("keep", [True, False])
async def test_a_table_that_was_analyzed_empty_is_not_walked_over_when_it_is_long(
    engine: PgmqEngine, keep: bool
) -> None:
    """PostgreSQL goes on taking it for empty, and a plan that walks over all of it seems as good as any."""
    await _analyze_empty(engine)
    template = working._SETTLE_AND_TAKE if keep else working._SETTLE_DROP_AND_TAKE
    touched = []
    for number in (1, 2, 3, 4, 5, 6):
        await _ours(engine, number)
        claims = await claim(engine, "mail", BATCH)
        values = _claiming(FIRST) | _settling(engine, claims, keep=keep)
        plan = await _explain(engine, template, **values)
        assert _most_rows(plan) <= 2 * BATCH, plan
        touched.append(_buffers(plan))
    # The first has the indexes of an empty table. One that walks doubles from the second to the last.
    assert touched[-1] <= 1.3 * touched[1] + 20, touched


async def test_renewals_find_what_is_held_in_a_table_that_was_analyzed_empty(engine: PgmqEngine) -> None:
    await _analyze_empty(engine)
    for number in (1, 2, 3, 4, 5, 6):
        await _ours(engine, number)
    claims = await claim(engine, "mail", BATCH)
    held = orjson.dumps([{"key": one.key, "token": one.token} for one in claims]).decode()
    plan = await _explain(engine, leasing._RENEW, lease=60_000, held=held)
    assert _most_rows(plan) <= BATCH, plan
    assert sorted(await engine.renew("mail", claims, 60_000)) == sorted(one.job.id for one in claims)


async def test_cleaning_forgets_its_jobs_one_by_one(engine: PgmqEngine) -> None:
    await _analyze_empty(engine)
    for number in (1, 2, 3, 4, 5, 6):
        await _ours(engine, number)
    where, _ = management._IN_STATE["waiting"]
    plan = await _explain(engine, management._CLEAN_PENDING.replace("{where}", where), age=0, limit=2)
    (forgotten,) = [part for part in plan["Plans"] if part.get("Subplan Name") == "CTE forgotten"]
    assert _most_rows(forgotten) <= BATCH, plan


@pytest.mark.parametrize("change", ["_DROP_PENDING", "_CANCEL", "_PROMOTE", "_RETRY", "FORGET"])
async def test_changes_find_their_jobs_in_a_table_that_was_analyzed_empty(
    engine: PgmqEngine, change: str
) -> None:
    await _analyze_empty(engine)
    for number in (1, 2, 3, 4, 5, 6):
        await _ours(engine, number)
    plan = await _explain(engine, getattr(management, change), ids=["1-1", "2-2"])
    assert _most_rows(plan) <= BATCH, plan


def test_every_statement_of_the_hot_path_is_bounded() -> None:
    """A `vt` that is only compared with now would be looked for from the beginning."""
    for template in (
        scanning.SEEING,
        scanning.seen(),
        scanning._NEXT_DUE,
        leasing._STALLED,
        adding._PREPARE,
    ):
        for source in re.findall(r"FROM \{q\} WHERE(?! msg_id).*?ORDER BY vt", template, re.DOTALL):
            assert "vt >=" in source, source
