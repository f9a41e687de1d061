"""How far a worker has come in a queue: what its looks skip, and that nothing below is skipped for long."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest
from tests.services.databases import Database

from yamchi.clock import SystemClock
from yamchi.queues.engines.pgmq import PgmqEngine
from yamchi.queues.engines.pgmq.bounds import BANDS, LATE, MANY_PUT, SCAN_SECONDS, Bounds, Place, ScanResult
from yamchi.queues.engines.pgmq.listening import Listener, read_places
from yamchi.queues.engines.pgmq.rows import STEP, given_instant, instants, micros
from yamchi.queues.records import Claim, Completed, NewJob, Released, RetryAt
from yamchi.storage.sweeping import FULL_SWEEP_FACTOR, Sweep
from yamchi.testing.conformance.base import claim, claim_all, complete, failure, settle
from yamchi.testing.waiting import eventually

NOW = 1_800_000_000_000
AT = NOW * 1_000
EMPTY: list[int | None] = [None] * BANDS
now = SystemClock().now


# ── The bounds themselves ─────────────────────────────────────────────────────────────────────────────────────────


def moved(firsts: list[int | None] = EMPTY, taken: list[int] | None = None) -> Bounds:
    """Bounds after one scan."""
    bounds = Bounds(NOW)
    bounds.finish(bounds.begin(), ScanResult(AT, firsts, None), taken or [])
    return bounds


def banded(first: int, priority: int = 0) -> list[int | None]:
    """Messages seen in one band only."""
    return [first if band == BANDS - 1 - priority else None for band in range(BANDS)]


def test_a_bound_reaches_postgresql_to_the_microsecond(postgres_database: Callable[[], Database]) -> None:
    """One that is rounded up would leave out the message it stands at."""
    exact = [
        -30_000_000_000_000_001,
        -62_135_596_800_000,
        -1_500_001,
        -1,
        0,
        1,
        AT + 1,
        9_007_199_254_740_993,
    ]
    selected = f"SELECT n, {micros(given_instant('given', 'infinity'))} FROM unnest(%s::bigint[]) WITH ORDINALITY AS x(given, n)"
    with psycopg.connect(postgres_database().url) as db:
        rows = db.execute(selected, (instants([*exact, None]),)).fetchall()
        assert [given for _, given in sorted(rows)][:-1] == exact
        beyond = f"SELECT {given_instant('given', '-infinity')} = '-infinity' FROM unnest(%s::bigint[]) AS x(given)"
        assert db.execute(beyond, (instants([None, -40_000_000_000_000_000]),)).fetchall() == [(True,)] * 2


def test_a_quarter_of_a_second_is_kept() -> None:
    assert SCAN_SECONDS < 0.25


def test_the_first_look_begins_at_the_beginning() -> None:
    scan = Bounds(NOW).begin()
    assert scan.lows[0] is None
    assert scan.highs[-1] is None
    assert scan.lows[1:] == scan.highs[:-1], "the bands leave no gap"


def test_an_empty_band_is_skipped_up_to_what_may_be_under_way() -> None:
    lows = moved().begin().lows
    assert [AT - LATE - low for low in lows if low is not None] == [
        priority * STEP * 1_000 for priority in range(BANDS - 1, -1, -1)
    ]


def test_a_band_begins_with_what_was_taken_and_the_others_stay() -> None:
    bounds = moved(banded(AT - 9_000_000), [AT - 9_000_000, AT - 8_000_000])
    assert bounds.begin().lows[-1] == AT - 9_000_000, "it may be rolled back"
    assert bounds.begin().lows[-2] == AT - LATE - STEP * 1_000


def test_what_others_have_locked_does_not_hold_up_the_bound_but_is_looked_at_again() -> None:
    bounds = moved(banded(AT - 9_000_000), [AT - 1_000_000])
    assert bounds.begin().lows[-1] == AT - 1_000_000
    assert bounds.scan_in(0.0) < float("inf")
    assert moved().scan_in(0.0) == float("inf"), "an empty queue owes nothing"


def test_a_look_does_not_pass_what_was_put_back_meanwhile() -> None:
    bounds = moved()
    scan = bounds.begin()
    bounds.lower(AT - 5_000_000)
    bounds.finish(scan, ScanResult(AT + 1_000_000, EMPTY, None), [])
    assert bounds.begin().lows[-1] == AT - 5_000_000
    bounds.finish(bounds.begin(), ScanResult(AT + 1_000_000, EMPTY, None), [])
    assert bounds.begin().lows[-1] == AT + 1_000_000 - LATE


def test_a_look_moves_on_although_something_is_put_all_the_time() -> None:
    bounds = moved()
    scan = bounds.begin()
    bounds.lower(AT + 900_000)
    bounds.lower(AT - 7 * STEP * 1_000 - 5_000_000, is_unprepared=True)
    bounds.finish(scan, ScanResult(AT + 1_000_000, EMPTY, None), [])
    lows = bounds.begin().lows
    assert lows[-1] == AT + 900_000, "as far as what was put there last"
    assert lows[-8] == AT - 7 * STEP * 1_000 - 5_000_000
    assert lows[-2] == AT + 1_000_000 - LATE - STEP * 1_000, "another band is not held up"
    assert bounds.prepared == AT - 7 * STEP * 1_000 - 5_000_000


def test_a_look_that_missed_more_than_is_remembered_is_not_heeded() -> None:
    bounds = moved()
    scan, lows = bounds.begin(), bounds.begin().lows
    for _ in range(MANY_PUT + 1):
        bounds.lower(AT + 900_000)
    bounds.finish(scan, ScanResult(AT + 1_000_000, EMPTY, None), [])
    assert bounds.begin().lows == lows


def test_an_older_look_that_comes_late_counts_no_more() -> None:
    bounds = moved()
    older, newer = bounds.begin(), bounds.begin()
    bounds.finish(newer, ScanResult(AT, banded(AT - 7_000_000), None), [])
    bounds.finish(older, ScanResult(AT, EMPTY, None), [])
    assert bounds.begin().lows[-1] == AT - 7_000_000


def test_looks_below_come_in_time_and_one_after_another() -> None:
    assert Bounds(NOW).begin_below(0.0) is None, "nothing is below yet"
    bounds = moved()
    below = bounds.begin_below(1.0)
    assert below is not None
    assert (below.lows, below.highs) == (Bounds(NOW).begin().lows, bounds.begin().lows)
    assert bounds.begin_below(9.0) is None, "one is under way"
    assert bounds.finish_below(ScanResult(AT, EMPTY, None), 1.0) is False
    assert bounds.begin_below(1.0 + SCAN_SECONDS / 2) is None
    assert bounds.begin_below(1.0 + SCAN_SECONDS) is not None


def test_long_looks_below_take_no_more_than_their_share_of_time() -> None:
    bounds = moved()
    bounds.begin_below(1.0)
    bounds.finish_below(ScanResult(AT, EMPTY, None), 1.1)
    assert bounds.begin_below(1.1 + 0.09 * FULL_SWEEP_FACTOR) is None
    assert bounds.begin_below(1.1 + 0.11 * FULL_SWEEP_FACTOR) is not None
    bounds.finish_below(ScanResult(AT, EMPTY, None), 30.0)
    bounds.scan_soon()
    assert bounds.begin_below(30.0) is not None, "what was not heard may be anywhere"


def test_what_a_look_below_finds_is_in_reach_again() -> None:
    bounds = moved()
    bounds.begin_below(1.0)
    assert bounds.finish_below(ScanResult(AT, banded(AT - 60_000_000, priority=0), AT - 50_000_000), 1.0)
    scan = bounds.begin()
    assert (scan.lows[-1], scan.prepared) == (AT - 60_000_000, AT - 50_000_000)


def test_a_look_below_that_failed_is_owed() -> None:
    bounds = moved()
    bounds.begin_below(1.0)
    bounds.finish_below(None, 1.0)
    assert bounds.scan_in(1.0) == pytest.approx(SCAN_SECONDS)


@pytest.mark.parametrize(
    ("note", "places"),
    [
        ("q_mail", []),
        ("q_mail 1800000000000000", [Place(1_800_000_000_000_000)]),
        ("q_mail -30610224000000000 u5", [Place(-30_610_224_000_000_000), Place(5, is_unprepared=True)]),
        ("q_mail now u 1e9 99999999999999999999 \N{ARABIC-INDIC DIGIT FIVE}", []),
    ],
)
def test_a_note_says_where_something_was_put(note: str, places: list[Place]) -> None:
    assert read_places(note) == ("q_mail", places)


def test_a_sweep_goes_over_everything_again_when_that_costs_little() -> None:
    sweep = Sweep()
    assert sweep.begin(0.0) is None
    sweep.finish(None, 7, 0.0, 1.0)
    assert sweep.begin(FULL_SWEEP_FACTOR - 1.0) == 7
    sweep.finish(7, 8, FULL_SWEEP_FACTOR - 1.0, FULL_SWEEP_FACTOR - 1.0)
    assert sweep.begin(FULL_SWEEP_FACTOR + 0.5) == 8, "a short one does not put the next long one off"
    assert sweep.begin(FULL_SWEEP_FACTOR + 1.0) is None


# ── In a database, beside others ──────────────────────────────────────────────────────────────────────────────────

Open = Callable[[], Awaitable[PgmqEngine]]


@pytest.fixture
def database(postgres_database: Callable[[], Database]) -> Database:
    return postgres_database()


@pytest.fixture
async def opened(database: Database) -> AsyncIterator[Open]:
    engines: list[PgmqEngine] = []

    async def opened() -> PgmqEngine:
        engine = PgmqEngine(database.url, SystemClock())
        engines.append(engine)
        await engine.open()
        return engine

    yield opened
    for engine in engines:
        await engine.close()


@pytest.fixture
async def engine(opened: Open, monkeypatch: pytest.MonkeyPatch) -> PgmqEngine:
    """A worker that has come far, hears nothing, and looks below only when a test lets it."""
    monkeypatch.setattr(Listener, "start", lambda listener: None)
    monkeypatch.setattr("yamchi.queues.engines.pgmq.bounds.SCAN_SECONDS", float("inf"))
    engine = await opened()
    await engine.add("mail", [NewJob("first", "email", b"{}")])
    await complete(engine, "mail", await claim_all(engine, "mail", 1))
    assert await claim(engine, "mail") == []
    bounds = engine._scanner.of("mail").bounds
    await eventually(lambda: bounds._next_full == float("inf") and not bounds._is_scanning)
    return engine


@pytest.fixture
def other(database: Database) -> Any:
    """Another program, in a transaction of its own."""
    with psycopg.connect(database.url) as connection:
        yield connection


async def passed(engine: PgmqEngine) -> None:
    """The bounds move on beyond the present moment."""
    bounds, present = engine._scanner.of("mail").bounds, now() * 1_000 + 1_000

    async def is_beyond() -> bool:
        assert await claim(engine, "mail") == []
        low = bounds.begin().lows[-1]
        return low is not None and low > present

    await eventually(is_beyond)


async def found(engine: PgmqEngine, job_id: str) -> Claim:
    """The bound hides it, and a look below brings it."""
    assert await claim(engine, "mail") == [], "it would have been found anyway: this shows nothing"
    engine._scanner.of("mail").bounds._next_full = 0.0
    assert await engine._scanner.scan_below("mail") is True
    (held,) = await claim(engine, "mail")
    assert held.job.id == job_id
    return held


def insert(connection: Any, job_id: str, vt: str = "clock_timestamp()", priority: int = 0) -> None:
    """Ours by its headers, wherever somebody put it."""
    connection.execute(
        f"INSERT INTO pgmq.q_mail (vt, message, headers) VALUES ({vt}, '{{}}', jsonb_build_object('yamchi_id', %s::text, "
        "'name', 'email', 'priority', %s::int))".encode(),
        (job_id, priority),
    )


async def test_a_late_commit(engine: PgmqEngine, other: Any) -> None:
    insert(other, "late")
    await passed(engine)
    other.commit()
    await found(engine, "late")


async def test_a_late_commit_in_a_band_of_its_own(engine: PgmqEngine, other: Any) -> None:
    insert(other, "late", f"clock_timestamp() - 7 * {STEP} * interval '1 ms'", 7)
    await passed(engine)
    other.commit()
    assert (await found(engine, "late")).job.priority == 7


async def test_a_late_commit_of_another_programs_message(engine: PgmqEngine, other: Any) -> None:
    other.execute("""SELECT pgmq.send('mail', '{"job_id": "foreign"}')""")
    await passed(engine)
    other.commit()
    await found(engine, "foreign")


async def test_a_message_with_an_old_time(engine: PgmqEngine, other: Any) -> None:
    other.execute("""INSERT INTO pgmq.q_mail (vt, message) VALUES ('1999-12-31', '{"job_id": "old"}')""")
    other.commit()
    await found(engine, "old")


async def test_a_delay_that_another_program_ends_late(engine: PgmqEngine, other: Any) -> None:
    await engine.add("mail", [NewJob("set", "email", b"{}", run_at=now() + 600_000)])
    other.execute("SELECT pgmq.set_vt('mail', msg_id, 0) FROM pgmq.q_mail")
    await passed(engine)
    other.commit()
    await found(engine, "set")


async def test_a_job_that_another_worker_gives_back(engine: PgmqEngine, opened: Open) -> None:
    another = await opened()
    await engine.add("mail", [NewJob("back", "email", b"{}")])
    held = await claim_all(another, "mail", 1)
    await passed(engine)
    await settle(another, "mail", [Released(held[0])])
    assert (await found(engine, "back")).job.attempts_made == 1


async def test_a_lock_that_is_let_go_of(engine: PgmqEngine, other: Any) -> None:
    await engine.add("mail", [NewJob("locked", "email", b"{}", run_at=now() - 5_000)])
    other.execute("SELECT FROM pgmq.q_mail FOR UPDATE")
    await engine.add("mail", [NewJob("free", "email", b"{}")])
    assert [held.job.id for held in await claim(engine, "mail", 5)] == ["free"]
    await passed(engine)
    other.rollback()
    await found(engine, "locked")


async def test_an_urgent_job_that_another_process_lifts_to_its_place(
    engine: PgmqEngine, opened: Open
) -> None:
    another = await opened()
    await engine.add("mail", [NewJob("urgent", "email", b"{}", priority=9, run_at=now() + 50)])
    await asyncio.sleep(0.05 + 2 * LATE / 1e6)  # nobody looks: it is due, and its place in its band is passed
    bounds = engine._scanner.of("mail").bounds
    bounds.finish(bounds.begin(), ScanResult(now() * 1_000, EMPTY, now() * 1_000), [])
    await another.get("mail", "none")
    await found(engine, "urgent")


@pytest.mark.parametrize("priority", [0, 4])
async def test_ones_own_changes_are_in_reach_at_once(engine: PgmqEngine, priority: int) -> None:
    """Put back, promoted, retried, recovered, added for a moment that has passed: no look below is needed."""
    past = now() - 3_600_000
    await engine.add("mail", [NewJob("past", "email", b"{}", priority=priority, run_at=past)])
    (held,) = await claim(engine, "mail")
    await passed(engine)
    await settle(engine, "mail", [Released(held)])
    (held,) = await claim(engine, "mail")
    await settle(engine, "mail", [RetryAt(held, past, "again")])
    (held,) = await claim(engine, "mail")
    await settle(engine, "mail", [failure(held)])
    assert await engine.retry("mail", ["past"]) == ["past"]
    (held,) = (await engine.exchange("mail", [], 1, 1, "dies")).claims
    assert [job.id for job, _ in await eventually(lambda: engine.recover("mail"))] == ["past"]
    (held,) = await claim(engine, "mail")
    await settle(engine, "mail", [RetryAt(held, now() + 600_000, "later")])
    assert await engine.promote("mail", ["past"]) == ["past"]
    (held,) = await claim(engine, "mail")
    assert held.job.id == "past"


# ── What is told ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def listening(opened: Open, monkeypatch: pytest.MonkeyPatch) -> PgmqEngine:
    """A worker that has come far and hears, but never looks below: beside many dead rows that may take long."""
    monkeypatch.setattr(Bounds, "is_time", lambda bounds, now: False)
    engine = await opened()
    await engine.add("mail", [NewJob("first", "email", b"{}")])
    await complete(engine, "mail", await claim_all(engine, "mail", 1))
    await engine._loops.get().listener.ready()
    return engine


async def heard(engine: PgmqEngine, job_id: str) -> Claim:
    async def claimed() -> Sequence[Claim]:
        return await claim(engine, "mail")

    (held,) = await eventually(claimed)
    assert held.job.id == job_id
    return held


@pytest.mark.parametrize("priority", [0, 7])
async def test_a_late_commit_is_told(listening: PgmqEngine, other: Any, priority: int) -> None:
    insert(other, "late", f"clock_timestamp() - {priority} * {STEP} * interval '1 ms'", priority)
    await passed(listening)
    other.commit()
    assert (await heard(listening, "late")).job.priority == priority


async def test_a_late_commit_of_every_band_is_told(listening: PgmqEngine, other: Any) -> None:
    other.execute(
        "INSERT INTO pgmq.q_mail (vt, message, headers) SELECT clock_timestamp() - n * %s * interval '1 ms', '{}', "
        "jsonb_build_object('yamchi_id', n::text, 'name', 'email', 'priority', n) FROM generate_series(0, 10) AS n",
        (STEP,),
    )
    await passed(listening)
    other.commit()
    claims: list[Claim] = []

    async def has_all() -> bool:
        claims.extend(await claim(listening, "mail", 20))
        return len(claims) == BANDS

    await eventually(has_all)


@pytest.mark.parametrize("vt", ["clock_timestamp()", "'1999-12-31'", "'0044-03-15 BC'", "'-infinity'"])
async def test_another_programs_message_below_is_told(listening: PgmqEngine, other: Any, vt: str) -> None:
    other.execute(
        f"""INSERT INTO pgmq.q_mail (vt, message) VALUES ({vt}, '{{"job_id": "foreign"}}')""".encode()
    )
    await passed(listening)
    other.commit()
    await heard(listening, "foreign")


async def test_messages_of_many_times_are_no_burden_to_who_writes_them(
    listening: PgmqEngine, other: Any
) -> None:
    """A notification holds 8,000 bytes; more would make their statement fail."""
    other.execute(
        "INSERT INTO pgmq.q_mail (vt, message) SELECT now() - n * interval '1 year', '{}' FROM generate_series(1, 2000) AS n"
    )
    other.commit()
    await eventually(lambda: claim(listening, "mail", 2_000))


async def test_a_delay_that_another_program_ends_late_is_told(listening: PgmqEngine, other: Any) -> None:
    await listening.add("mail", [NewJob("set", "email", b"{}", run_at=now() + 600_000)])
    other.execute("SELECT pgmq.set_vt('mail', msg_id, 0) FROM pgmq.q_mail")
    await passed(listening)
    other.commit()
    await heard(listening, "set")


@pytest.mark.parametrize("way", ["given back", "promoted", "retried"])
async def test_what_another_process_puts_back_is_told(listening: PgmqEngine, opened: Open, way: str) -> None:
    another = await opened()
    past = now() - 3_600_000
    await another.add("mail", [NewJob("back", "email", b"{}", priority=3, run_at=past)])
    (held,) = await claim_all(another, "mail", 1)
    if way == "promoted":
        await settle(another, "mail", [RetryAt(held, now() + 600_000, "later")])
    elif way == "retried":
        await settle(another, "mail", [failure(held)])
    await passed(listening)
    if way == "given back":
        await settle(another, "mail", [RetryAt(held, past, "again")])
    elif way == "promoted":
        assert await another.promote("mail", ["back"]) == ["back"]
    else:
        assert await another.retry("mail", ["back"]) == ["back"]
    await heard(listening, "back")


async def test_tables_of_before_tell_too(listening: PgmqEngine, opened: Open, other: Any) -> None:
    """A database of the version before: its triggers are made anew when the first process starts."""
    other.execute(
        "DROP TRIGGER yamchi_moved ON pgmq.q_mail; DROP FUNCTION yamchi.wrote CASCADE; DROP FUNCTION yamchi.moved"
    )
    other.execute("DROP FUNCTION yamchi.watch; UPDATE yamchi.schema_version SET version = 3")
    other.commit()
    await opened()
    insert(other, "late")
    await passed(listening)
    other.commit()
    await heard(listening, "late")


async def test_an_idle_worker_is_woken_for_what_is_due_since_ever(opened: Open, other: Any) -> None:
    engine = await opened()
    await engine.add("mail", [NewJob("first", "email", b"{}")])
    await complete(engine, "mail", await claim_all(engine, "mail", 1))
    other.execute("""INSERT INTO pgmq.q_mail (vt, message) VALUES ('-infinity', '{"job_id": "old"}')""")
    other.commit()
    fresh = await opened()
    await asyncio.wait_for(fresh.wake("mail", 60_000), 30)
    (held,) = await claim(fresh, "mail")
    assert held.job.id == "old"


async def test_an_idle_worker_is_woken_for_what_is_below(opened: Open, other: Any) -> None:
    engine = await opened()
    await engine.add("mail", [NewJob("first", "email", b"{}")])
    await complete(engine, "mail", await claim_all(engine, "mail", 1))
    insert(other, "late")
    await passed(engine)
    waking = asyncio.create_task(engine.wake("mail", 60_000))
    await engine._loops.get().listener.ready()
    other.commit()
    await asyncio.wait_for(waking, 30)

    async def comes() -> bool:
        """As a runner does it: claim, and wait when there was nothing."""
        if [held.job.id for held in await claim(engine, "mail")] == ["late"]:
            return True
        await asyncio.wait_for(engine.wake("mail", 60_000), 30)
        return False

    await eventually(comes)


async def test_bounds_of_several_workers_lose_and_double_nothing(opened: Open, other: Any) -> None:
    """Three workers at once, jobs of all priorities, and some that are committed late or given back on the way."""
    workers = [await opened() for _ in range(3)]
    jobs = [NewJob(f"{n}", "email", b"{}", priority=n % 11) for n in range(300)]
    await workers[0].add("mail", jobs[:100])
    for n in range(20):
        insert(other, f"late-{n}", priority=n % 2)
    done: list[str] = []

    async def work(engine: PgmqEngine) -> None:
        verdicts: list[Completed | Released] = []
        given_back = 0
        while len(done) < 320:
            got = await engine.exchange("mail", verdicts, 7, 30_000, "w")
            done.extend(got.settled)
            verdicts = [Completed(held) for held in got.claims]
            if verdicts and given_back < 5:
                given_back += 1
                await settle(engine, "mail", [Released(verdicts.pop().claim)])

    async def add_more() -> None:
        await workers[1].add("mail", jobs[100:200])
        other.commit()
        await workers[2].add("mail", jobs[200:])

    async with asyncio.timeout(60):
        await asyncio.gather(add_more(), *(work(engine) for engine in workers))
    assert sorted(done) == sorted([*(job.id for job in jobs), *(f"late-{n}" for n in range(20))])
