"""Producing and working: what guarantees of never losing and never doubling rest on."""

import asyncio

import orjson

from yamchi.clock import Millis, SystemClock
from yamchi.queues.engines.base import Engine, RateLimit
from yamchi.queues.options import Backoff, JobOptions
from yamchi.queues.records import Cancelled, Claim, Completed, Expired, Released, RetryAt
from yamchi.testing.conformance.base import (
    LEASE,
    SHORT,
    Connect,
    Suite,
    claim,
    claim_all,
    complete,
    failure,
    needs,
    new_job,
    once,
    settle,
    state_of,
)
from yamchi.testing.waiting import eventually

now = SystemClock().now
LONG: Millis = 3_600_000
"""A wait that ends by itself long after the test has given up."""


class EngineSuite(Suite):
    """add, exchange, renew, recover, wake, reserve, fire."""

    # ── Adding ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_job_comes_out_as_it_went_in(self, engine: Engine, queue: str) -> None:
        options = JobOptions(
            attempts=7, backoff=Backoff("fixed", 250), timeout=9_000, keep_completed=3, keep_failed=4
        )
        job = new_job(
            "the-one", '{"имя":"Нуржан","n":[1,2.5,null]}'.encode(), "greet", options=options, priority=4
        )
        assert await engine.add(queue, [job]) == [True]
        (held,) = await claim_all(engine, queue, 1)
        assert (held.job.id, held.job.name, held.job.queue) == ("the-one", "greet", queue)
        assert orjson.loads(held.job.payload) == orjson.loads(job.payload), (
            "the same JSON, spelled as the broker does"
        )
        assert held.job.options == options
        assert held.job.attempts_made == 1
        assert held.job.state == "active"
        assert held.job.worker == "tester"

    async def test_the_same_id_is_the_same_job(self, engine: Engine, queue: str) -> None:
        assert await engine.add(queue, [new_job("a")]) == [True]
        assert await engine.add(queue, [new_job("a"), new_job("b"), new_job("b")]) == [False, True, False]
        held = await claim_all(engine, queue, 2)
        assert sorted(one.job.id for one in held) == ["a", "b"]
        assert await claim(engine, queue, 5) == []
        await complete(engine, queue, held)
        assert await engine.add(queue, [new_job("a")]) == [False], "a finished job that is still kept counts"

    async def test_adds_at_the_same_time_add_once(self, connect: Connect, engine: Engine, queue: str) -> None:
        other = await connect() if engine.can.shared else engine
        answers = await asyncio.gather(*(one.add(queue, [new_job("same")]) for one in (engine, other) * 20))
        assert sum(created for (created,) in answers) == 1
        assert len(await claim_all(engine, queue, 1)) == 1
        assert await claim(engine, queue, 1) == []

    async def test_many_jobs_in_one_call(self, engine: Engine, queue: str) -> None:
        jobs = [new_job(f"j{n:04}") for n in range(1_000)]
        assert await engine.add(queue, jobs) == [True] * 1_000
        held = await claim_all(engine, queue, 1_000)
        assert {one.job.id for one in held} == {job.id for job in jobs}

    async def test_jobs_come_in_order(self, engine: Engine, queue: str) -> None:
        needs(engine, "in_order")
        for n in range(20):
            await engine.add(queue, [new_job(f"j{n:02}")])
        held = await claim_all(engine, queue, 20)
        assert [one.job.id for one in held] == [f"j{n:02}" for n in range(20)]

    async def test_higher_priorities_first(self, engine: Engine, queue: str) -> None:
        needs(engine, "priorities")
        for priority in (1, 10, 5, 10, 1):
            await engine.add(queue, [new_job(priority=priority)])
        held = await claim_all(engine, queue, 5)
        assert [one.job.priority for one in held] == [10, 10, 5, 1, 1]

    async def test_an_exchange_claims_no_more_than_it_is_asked_for(self, engine: Engine, queue: str) -> None:
        """Else a worker holds jobs that it has no slot for, and nobody else can run them."""
        await engine.add(queue, [new_job() for _ in range(9)])
        held: list[Claim] = []
        for want in (1, 2, 3):
            got: list[Claim] = []

            async def some(want: int = want, got: list[Claim] = got) -> bool:
                got += await claim(engine, queue, want)
                return bool(got)

            await eventually(some)
            assert len(got) <= want
            held += got
        done = [Completed(one) for one in held]
        with_verdicts = await engine.exchange(queue, done, 2, LEASE, "tester")
        assert len(with_verdicts.claims) <= 2
        assert (await engine.exchange(queue, [], 0, LEASE, "tester")).claims == []
        rest = await claim_all(engine, queue, 9 - len(held) - len(with_verdicts.claims))
        ids = {one.job.id for one in (*held, *with_verdicts.claims, *rest)}
        assert len(ids) == 9, "and each of them once"

    # ── Delay ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_delayed_job_waits_for_its_moment(self, engine: Engine, queue: str) -> None:
        due = now() + 500
        await engine.add(queue, [new_job("later", run_at=due)])
        state = await state_of(engine, queue, "later")
        early = await claim(engine, queue)
        assert (state, early) == ("delayed", []) or now() >= due, "a slow machine may look too late to tell"
        (held,) = early or await claim_all(engine, queue, 1)
        assert now() >= due - 50, "brokers keep their own time; a little early is rounding, not a defect"
        assert held.job.id == "later"

    async def test_a_past_moment_is_now(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("past", run_at=now() - 60_000)])
        assert len(await claim_all(engine, queue, 1)) == 1

    async def test_wake_comes_for_a_new_job(self, connect: Connect, engine: Engine, queue: str) -> None:
        other = await connect() if engine.can.shared else engine
        await claim(engine, queue)
        waking = asyncio.create_task(engine.wake(queue, LONG))
        await asyncio.sleep(0)
        await other.add(queue, [new_job()])
        await asyncio.wait_for(waking, 20)
        assert len(await claim_all(engine, queue, 1)) == 1

    async def test_wake_comes_when_a_delayed_job_is_due(self, engine: Engine, queue: str) -> None:
        due = now() + 1_000
        await engine.add(queue, [new_job(run_at=due)])
        early, times = await claim(engine, queue), 0
        assert early == [] or now() >= due, "a slow machine may look too late to tell"
        async with asyncio.timeout(20):
            while not early and not await claim(engine, queue):
                await engine.wake(queue, LONG)
                times += 1
        assert times <= 20, "who waits does not ask all the time"

    async def test_a_wait_that_was_cancelled_changes_nothing(self, engine: Engine, queue: str) -> None:
        assert await claim(engine, queue) == []
        waiting = asyncio.create_task(engine.wake(queue, 30_000))
        for _ in range(100):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await engine.add(queue, [new_job("next")])
        assert [held.job.id for held in await claim_all(engine, queue, 1)] == ["next"]

    async def test_what_is_to_be_tried_again_says_when(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("again")])
        (held,) = await claim_all(engine, queue, 1)
        moment = now() + 60_000
        await settle(engine, queue, [RetryAt(held, moment, "it broke")])
        found = await engine.get(queue, "again")
        assert found is not None
        assert found.state == "delayed"
        assert abs(found.run_at - moment) < 20_000, "by the broker's clock"

    # ── Settling ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_completed_job_is_kept_with_its_result(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("done")])
        held = await claim_all(engine, queue, 1)
        assert await complete(engine, queue, held, b'{"ok":true}') == ["done"]
        job = await engine.get(queue, "done")
        assert job is not None
        assert (job.state, job.result, job.attempts_made) == ("completed", b'{"ok":true}', 1)
        assert job.finished_at is not None
        assert job.started_at is not None

    async def test_only_the_last_completed_are_kept(self, engine: Engine, queue: str) -> None:
        options = JobOptions(keep_completed=3)
        for n in range(6):
            await engine.add(queue, [new_job(f"k{n}", options=options)])
            await complete(engine, queue, await claim_all(engine, queue, 1))
        assert (await engine.counts(queue))["completed"] == 3
        kept = {job.id for job in (await engine.page(queue, "completed", "", 0, 10)).jobs}
        assert kept == {"k3", "k4", "k5"}

    async def test_keep_none(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("gone", options=JobOptions(keep_completed=0))])
        await complete(engine, queue, await claim_all(engine, queue, 1))
        assert await engine.get(queue, "gone") is None
        assert (await engine.counts(queue))["completed"] == 0
        assert sum(minute.completed for minute in await engine.history(queue, 60)) == 1, "it was done"

    async def test_a_job_that_is_not_kept_leaves_the_others(self, engine: Engine, queue: str) -> None:
        passing = JobOptions(keep_completed=0)
        for batch in (["k1"], ["gone1"], ["k2", "gone2"]):
            jobs = [new_job(one, options=passing if "gone" in one else JobOptions()) for one in batch]
            await engine.add(queue, jobs)
            await complete(engine, queue, await claim_all(engine, queue, len(batch)))
        await engine.recover(queue)
        kept = {job.id for job in (await engine.page(queue, "completed", "", 0, 10)).jobs}
        assert kept == {"k1", "k2"}

    async def test_a_failure_that_is_not_kept_leaves_the_others(self, engine: Engine, queue: str) -> None:
        passing = JobOptions(keep_failed=0)
        for batch in (["k1"], ["gone1"], ["k2", "gone2"]):
            jobs = [new_job(one, options=passing if "gone" in one else JobOptions()) for one in batch]
            await engine.add(queue, jobs)
            held = await claim_all(engine, queue, len(batch))
            held.sort(key=lambda one: batch.index(one.job.id))
            await settle(engine, queue, [failure(one) for one in held])
        await engine.recover(queue)
        assert {job.id for job in (await engine.page(queue, "failed", "", 0, 10)).jobs} == {"k1", "k2"}
        assert (await engine.counts(queue))["failed"] == 2
        assert await engine.get(queue, "gone1") is None
        assert sum(minute.failed for minute in await engine.history(queue, 60)) == 4, (
            "they failed all the same"
        )

    async def test_a_job_that_is_not_kept_leaves_no_log(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("gone", options=JobOptions(keep_completed=0))])
        held = await claim_all(engine, queue, 1)
        await engine.log(queue, "gone", ["a line of its own"])
        await complete(engine, queue, held)
        await engine.add(queue, [new_job("next")])
        following = await engine.get(queue, "next")
        assert following is not None
        assert following.logs == []

    async def test_a_retry_waits_without_a_slot_and_counts_attempts(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("again")])
        (held,) = await claim_all(engine, queue, 1)
        assert await settle(engine, queue, [RetryAt(held, now() + 200, "it broke", "trace")]) == ["again"]
        job = await engine.get(queue, "again")
        assert job is not None
        assert (job.state, job.failed_reason) == ("delayed", "it broke")
        assert (await engine.counts(queue))["active"] == 0
        (second,) = await claim_all(engine, queue, 1)
        assert second.job.attempts_made == 2
        assert second.job.run_at - second.job.created_at >= 150, (
            "it was not due while it waited for its backoff"
        )

    async def test_a_released_job_has_its_attempt_back(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("back")])
        (held,) = await claim_all(engine, queue, 1)
        assert await settle(engine, queue, [Released(held)]) == ["back"]
        (second,) = await claim_all(engine, queue, 1)
        assert second.job.attempts_made == 1

    async def test_a_snoozed_job_waits_and_has_its_attempt_back(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("nap")])
        (held,) = await claim_all(engine, queue, 1)
        due = now() + 250
        await settle(engine, queue, [Released(held, due, "Outage: down", has_permit=True)])
        state = await state_of(engine, queue, "nap")
        assert state == "delayed" or now() >= due, "a slow machine may look too late to tell"
        (second,) = await claim_all(engine, queue, 1)
        assert second.job.attempts_made == 1
        assert second.has_permit

    async def test_a_failed_job_has_a_dead_letter(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("dead", b'{"to":"nobody"}')])
        (held,) = await claim_all(engine, queue, 1)
        assert await settle(engine, queue, [failure(held, "User has no email")]) == ["dead"]
        job = await engine.get(queue, "dead")
        assert job is not None
        assert (job.state, job.failed_reason) == ("failed", "User has no email")
        page = await engine.letters(queue, "", 0, 10)
        assert page.total == 1
        assert page.letters[0].id == "dead"
        assert page.letters[0].error == "User has no email"
        assert b'"job":{"to":"nobody"}' in page.letters[0].body.replace(b" ", b"")

    async def test_expired_and_cancelled_have_none(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("old"), new_job("unwanted")])
        held = {one.job.id: one for one in await claim_all(engine, queue, 2)}
        await settle(engine, queue, [Expired(held["old"]), Cancelled(held["unwanted"])])
        assert await state_of(engine, queue, "old") == "expired"
        assert await state_of(engine, queue, "unwanted") == "cancelled"
        assert (await engine.letters(queue, "", 0, 10)).total == 0

    async def test_one_exchange_settles_and_claims(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job(f"x{n}") for n in range(4)])
        first = await claim_all(engine, queue, 2)
        seen = [one.job.id for one in first]
        verdicts = [Completed(held) for held in first]
        got = await engine.exchange(queue, verdicts, 2, LEASE, "tester")
        assert sorted(got.settled) == sorted(seen)
        rest = got.claims or await claim_all(engine, queue, 2)
        seen += [one.job.id for one in rest]
        seen += [one.job.id for one in await claim(engine, queue, 5)]
        assert sorted(seen) == ["x0", "x1", "x2", "x3"]

    # ── Leases and fencing ────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_dead_workers_job_is_taken_up(self, connect: Connect, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("orphan")])
        await claim_all(engine, queue, 1, lease=SHORT, worker="doomed")
        other = await connect() if engine.can.shared else engine
        stalled: list[str] = []

        async def taken_up() -> bool:
            stalled.extend(job.id for job, _ in await other.recover(queue))
            return bool(stalled)

        await eventually(taken_up)
        assert stalled == ["orphan"]
        (held,) = await claim_all(other, queue, 1)
        assert held.job.attempts_made == 2

    async def test_a_job_that_kills_its_workers_fails(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("killer", options=once())])
        await claim_all(engine, queue, 1, lease=SHORT)
        outcomes: list[tuple[str, bool]] = []

        async def over() -> bool:
            outcomes.extend((job.id, has_failed) for job, has_failed in await engine.recover(queue))
            return bool(outcomes)

        await eventually(over)
        assert outcomes == [("killer", True)]
        assert await state_of(engine, queue, "killer") == "failed"
        assert (await engine.letters(queue, "", 0, 10)).total == 1
        assert await claim(engine, queue) == []

    async def test_a_renewed_lease_holds(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("long")])
        held: list[Claim] = []

        async def renewed() -> bool:
            """A slow machine may come too late for the first lease: then the job is given back, and claimed again."""
            held[:], ends = await claim_all(engine, queue, 1, lease=SHORT), now() + SHORT
            kept = await engine.renew(queue, held, LEASE)
            assert kept == ["long"] or now() >= ends
            return bool(kept) or not await eventually(lambda: engine.recover(queue))

        await eventually(renewed)
        deadline = now() + 2 * SHORT
        while now() < deadline:
            assert await engine.recover(queue) == []
            await asyncio.sleep(0.02)
        assert await complete(engine, queue, held) == ["long"]

    async def test_a_stale_worker_settles_nothing(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("contested")])
        stale = await claim_all(engine, queue, 1, lease=SHORT, worker="slow")
        await eventually(lambda: engine.recover(queue))
        fresh = await claim_all(engine, queue, 1, worker="quick")
        assert await complete(engine, queue, stale) == []
        assert await engine.renew(queue, stale, LEASE) == []
        assert await settle(engine, queue, [failure(stale[0])]) == []
        assert (await engine.letters(queue, "", 0, 10)).total == 0
        assert await complete(engine, queue, fresh) == ["contested"]

    async def test_two_workers_never_share_a_job(self, connect: Connect, engine: Engine, queue: str) -> None:
        needs(engine, "shared")
        other = await connect()
        await engine.add(queue, [new_job() for _ in range(200)])
        taken: list[str] = []

        async def work(one: Engine, name: str) -> None:
            async def step() -> bool:
                taken.extend(held.job.id for held in await claim(one, queue, 7, worker=name))
                return len(taken) >= 200

            await eventually(step)

        await asyncio.gather(work(engine, "left"), work(other, "right"))
        assert len(taken) == len(set(taken)) == 200

    # ── Permits and schedules ───────────────────────────────────────────────────────────────────────────────────────

    async def test_permits_are_spaced_for_each_key(self, engine: Engine, queue: str) -> None:
        limit = RateLimit(10, 1_000)
        permits = await engine.reserve(queue, limit, ["a", "a", "b", "a"])
        assert permits[0] <= now() + 60
        assert 80 <= permits[1] - permits[0] <= 120
        assert abs(permits[2] - permits[0]) <= 60, "another key has its own permits"
        assert 180 <= permits[3] - permits[0] <= 220
        await engine.refund(queue, limit, "a", 2)
        (after,) = await engine.reserve(queue, limit, ["a"])
        # No permit lies in the past: on a busy machine it is late by then.
        assert permits[1] - 60 <= after <= max(permits[1], now()) + 60, "refunded permits are given out again"

    async def test_a_schedule_fires_once(self, connect: Connect, engine: Engine, queue: str) -> None:
        other = await connect() if engine.can.shared else engine
        schedule = f"nightly-{queue}"
        assert await engine.last_fired(schedule) is None
        await engine.begin_schedule(schedule, 1_000)
        await engine.begin_schedule(schedule, 9_000)
        assert await engine.last_fired(schedule) == 1_000
        job = new_job(f"{schedule}@2000")
        answers = await asyncio.gather(
            *(one.fire(schedule, 2_000, queue, job) for one in (engine, other) * 5)
        )
        assert sum(answers) == 1
        await complete(engine, queue, await claim_all(engine, queue, 1))
        assert not await other.fire(schedule, 2_000, queue, job)
        assert not await other.fire(schedule, 1_500, queue, new_job(f"{schedule}@1500"))
        assert await other.last_fired(schedule) == 2_000
        assert await claim(engine, queue) == []
