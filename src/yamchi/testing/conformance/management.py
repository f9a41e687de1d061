"""Looking at jobs and acting on them by hand: what the board, the API and the command line rest on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from yamchi.clock import SystemClock
from yamchi.queues.engines.base import Engine, WorkerInfo
from yamchi.queues.options import JobOptions
from yamchi.queues.records import NewJob
from yamchi.testing.conformance.base import (
    LEASE,
    Connect,
    Suite,
    claim,
    claim_all,
    complete,
    failure,
    needs,
    new_job,
    settle,
    state_of,
)
from yamchi.testing.waiting import eventually

now = SystemClock().now


class ManagementSuite(Suite):
    """get, page, counts, remove, cancel, promote, retry, update, progress, log, pause, clean, dead letters, workers."""

    async def test_counts_follow_every_change(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job(f"c{n}") for n in range(4)])
        await engine.add(queue, [new_job("d", run_at=now() + 60_000)])
        held = await claim_all(engine, queue, 3)
        await complete(engine, queue, held[:1])
        await settle(engine, queue, [failure(held[1])])
        counts = await engine.counts(queue)
        assert counts == {
            "waiting": 1, "delayed": 1, "active": 1, "completed": 1, "failed": 1, "cancelled": 0, "expired": 0,
        }  # fmt: skip

    async def test_an_unknown_job_is_none(self, engine: Engine, queue: str) -> None:
        assert await engine.get(queue, "nobody") is None
        assert await engine.letter(queue, "nobody") is None

    async def test_pages_and_search(self, engine: Engine, queue: str) -> None:
        needs(engine, "search")
        await engine.add(
            queue, [new_job(f"p{n:02}", b'{"to":"user%02d@example.com"}' % n) for n in range(25)]
        )
        first = await engine.page(queue, "waiting", "", 0, 10)
        last = await engine.page(queue, "waiting", "", 20, 10)
        assert (len(first.jobs), len(last.jobs), first.total) == (10, 5, 25)
        assert not {job.id for job in first.jobs} & {job.id for job in last.jobs}
        found = await engine.page(queue, None, "user07@", 0, 10)
        assert [job.id for job in found.jobs] == ["p07"]
        assert [job.id for job in (await engine.page(queue, None, "p12", 0, 10)).jobs] == ["p12"]

    async def test_what_is_due_sooner_is_listed_first(self, engine: Engine, queue: str) -> None:
        moments = {"second": 120_000, "third": 180_000, "first": 60_000}
        await engine.add(queue, [new_job(name, run_at=now() + later) for name, later in moments.items()])
        page = await engine.page(queue, "delayed", "", 0, 10)
        assert [job.id for job in page.jobs] == ["first", "second", "third"]

    async def test_remove_spares_the_running(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("running")])
        held = await claim_all(engine, queue, 1)
        await engine.add(queue, [new_job("waiting"), new_job("later", run_at=now() + 60_000)])
        removed = await engine.remove(queue, ["running", "waiting", "later", "nobody"])
        assert sorted(removed) == ["later", "waiting"]
        assert await claim(engine, queue, 5) == []
        assert await complete(engine, queue, held) == ["running"]

    async def test_cancel_before_the_start(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("w"), new_job("d", run_at=now() + 60_000)])
        assert await engine.cancel(queue, ["w", "d", "nobody"]) == {"w": "cancelled", "d": "cancelled"}
        assert await claim(engine, queue, 5) == []
        assert await state_of(engine, queue, "w") == "cancelled"
        assert await engine.cancel(queue, ["w"]) == {}

    async def test_only_the_last_cancelled_are_kept(self, engine: Engine, queue: str) -> None:
        ids = [f"c{n}" for n in range(6)]
        await engine.add(
            queue,
            [new_job(job_id, run_at=now() + 60_000, options=JobOptions(keep_failed=2)) for job_id in ids],
        )
        for job_id in ids[:4]:
            assert await engine.cancel(queue, [job_id]) == {job_id: "cancelled"}
        assert await engine.cancel(queue, ids[4:]) == dict.fromkeys(ids[4:], "cancelled")
        assert (await engine.counts(queue))["cancelled"] == 2
        assert {job.id for job in (await engine.page(queue, "cancelled", "", 0, 10)).jobs} == set(ids[4:])
        assert await engine.get(queue, "c0") is None

    async def test_a_cancelled_job_that_is_not_kept_leaves_the_others(
        self, engine: Engine, queue: str
    ) -> None:
        later, passing = now() + 60_000, JobOptions(keep_failed=0)
        await engine.add(queue, [new_job("k1", run_at=later), new_job("k2", run_at=later)])
        await engine.add(queue, [new_job(one, run_at=later, options=passing) for one in ("gone1", "gone2")])
        for batch in (["k1"], ["gone1"], ["k2", "gone2"]):
            assert await engine.cancel(queue, batch) == dict.fromkeys(batch, "cancelled")
        assert {job.id for job in (await engine.page(queue, "cancelled", "", 0, 10)).jobs} == {"k1", "k2"}
        assert (await engine.counts(queue))["cancelled"] == 2

    async def test_cancel_while_running(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("r"), new_job("other")])
        held = {one.job.id: one for one in await claim_all(engine, queue, 2)}
        assert await engine.cancelled(queue, list(held.values())) == []
        assert await engine.cancel(queue, ["r"]) == {"r": "active"}
        assert await engine.cancelled(queue, list(held.values())) == ["r"]

    async def test_promote(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("d", run_at=now() + 60_000), new_job("w")])
        assert await engine.promote(queue, ["d", "w"]) == ["d"]
        promoted = await engine.get(queue, "d")
        assert promoted is not None
        assert promoted.run_at < now() + 20_000, "by the broker's clock"
        assert {one.job.id for one in await claim_all(engine, queue, 2)} == {"d", "w"}

    async def test_retry_gives_all_attempts_back(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("f")])
        (held,) = await claim_all(engine, queue, 1)
        await settle(engine, queue, [failure(held)])
        assert await engine.retry(queue, ["f", "nobody"]) == ["f"]
        assert (await engine.letters(queue, "", 0, 10)).total == 0, "a retried job has no dead letter"
        (again,) = await claim_all(engine, queue, 1)
        assert again.job.attempts_made == 1
        assert await complete(engine, queue, [again]) == ["f"]
        assert await state_of(engine, queue, "f") == "completed"

    async def test_a_job_named_twice_is_retried_once(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("f")])
        (held,) = await claim_all(engine, queue, 1)
        await settle(engine, queue, [failure(held)])
        assert set(await engine.retry(queue, ["f", "f"])) == {"f"}
        assert (await engine.counts(queue))["waiting"] == 1
        (again,) = await claim_all(engine, queue, 1)
        assert await complete(engine, queue, [again]) == ["f"]
        assert (await engine.counts(queue))["waiting"] == 0

    async def test_update_data(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("u")])
        assert await engine.update(queue, "u", b'{"n":2}')
        (held,) = await claim_all(engine, queue, 1)
        assert held.job.payload == b'{"n":2}'
        assert not await engine.update(queue, "u", b'{"n":3}')
        assert not await engine.update(queue, "nobody", b"{}")

    async def test_progress_and_log(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("p")])
        (held,) = await claim_all(engine, queue, 1)
        await engine.progress(held, b"40")
        await engine.log(queue, "p", ["first", "second"])
        await engine.log(queue, "p", ["third"])
        job = await engine.get(queue, "p")
        assert job is not None
        assert job.progress == b"40"
        assert job.logs == ["first", "second", "third"]

    async def test_pause_and_resume(self, connect: Connect, engine: Engine, queue: str) -> None:
        other = await connect() if engine.can.shared else engine
        await engine.pause(queue)
        assert await other.paused(queue)
        await other.add(queue, [new_job()])
        assert await claim(engine, queue) == []
        assert await claim(other, queue) == []
        await other.resume(queue)
        assert not await engine.paused(queue)
        assert len(await claim_all(engine, queue, 1)) == 1

    async def test_a_paused_queue_does_not_keep_its_worker_busy(self, engine: Engine, queue: str) -> None:
        due = now() + 200
        await engine.add(queue, [new_job("d", run_at=due)])
        await engine.pause(queue)
        while now() <= due + 50:
            await engine.wake(queue, 50)
            assert await claim(engine, queue) == []
        began, wakes = now(), 0
        while now() < began + 500:
            await engine.wake(queue, 500)
            assert await claim(engine, queue) == []
            wakes += 1
        assert wakes < 10, "a due job that nobody may start is no reason to wake up"
        await engine.resume(queue)
        assert len(await claim_all(engine, queue, 1)) == 1

    async def test_clean_by_age(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job(f"c{n}") for n in range(3)])
        await complete(engine, queue, await claim_all(engine, queue, 3))
        assert await engine.clean(queue, "completed", 60_000, 10) == 0
        assert await eventually(lambda: engine.clean(queue, "completed", 1, 10)) == 3
        assert (await engine.counts(queue))["completed"] == 0

    async def test_clean_what_waits(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("w"), new_job("d", run_at=now() + 60_000)])
        assert await engine.clean(queue, "waiting", 0, 10) == 1
        assert await engine.clean(queue, "delayed", 0, 10) == 1
        assert await claim(engine, queue, 5) == []

    async def test_history_counts_what_was_done(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job() for _ in range(3)])
        held = await claim_all(engine, queue, 3)
        await complete(engine, queue, held[:2])
        await settle(engine, queue, [failure(held[2])])
        minutes = await engine.history(queue, 60)
        assert sum(minute.completed for minute in minutes) == 2
        assert sum(minute.failed for minute in minutes) == 1

    async def test_queues_are_known(self, connect: Connect, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job()])
        other = await connect() if engine.can.shared else engine
        assert queue in await other.queues()

    # ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _dead(self, engine: Engine, queue: str, *job_ids: str) -> None:
        await engine.add(queue, [new_job(job_id) for job_id in job_ids])
        held = await claim_all(engine, queue, len(job_ids))
        await settle(engine, queue, [failure(one, f"broken {one.job.id}") for one in held])

    async def test_letters_are_listed_and_searched(self, engine: Engine, queue: str) -> None:
        await self._dead(engine, queue, "l1", "l2", "l3")
        page = await engine.letters(queue, "", 0, 2)
        assert (len(page.letters), page.total) == (2, 3)
        for search in ("", "broken"):
            none = await engine.letters(queue, search, 0, 0)
            assert (none.letters, none.total) == ([], 3), "no letter was asked for"
            last = await engine.letters(queue, search, 2, 2)
            assert (len(last.letters), last.total) == (1, 3)
        found = await engine.letters(queue, "broken l2", 0, 10)
        assert [letter.id for letter in found.letters] == ["l2"]
        letter = await engine.letter(queue, "l2")
        assert letter is not None
        assert letter.error == "broken l2"

    async def test_letters_are_found_by_id_error_or_content(self, engine: Engine, queue: str) -> None:
        await engine.add(queue, [new_job("by-id"), new_job("l2"), new_job("l3", b'{"n":"needle"}')])
        held = await claim_all(engine, queue, 3)
        errors = {"by-id": "broken", "l2": 'it said "no"', "l3": "broken"}
        await settle(engine, queue, [failure(one, errors[one.job.id]) for one in held])
        for search, letter_id in (("by-i", "by-id"), ('said "no', "l2"), ("needle", "l3"), ("hay", None)):
            found = await engine.letters(queue, search, 0, 10)
            assert [letter.id for letter in found.letters] == [letter_id] * (letter_id is not None), search
            assert found.total == len(found.letters)

    async def test_a_replayed_letter_runs_again(self, engine: Engine, queue: str) -> None:
        await self._dead(engine, queue, "l1")
        revived = NewJob("l1", "work", b'{"n":"mended"}')
        assert await engine.replay(queue, {"l1": revived}) == ["l1"]
        assert await engine.replay(queue, {"l1": revived}) == [], "a letter is replayed once"
        assert (await engine.letters(queue, "", 0, 10)).total == 0
        (held,) = await claim_all(engine, queue, 1)
        assert (held.job.id, held.job.payload, held.job.attempts_made) == ("l1", b'{"n":"mended"}', 1)
        assert await claim(engine, queue) == []

    async def test_purge(self, engine: Engine, queue: str) -> None:
        await self._dead(engine, queue, "l1", "l2", "l3")
        assert await engine.purge(queue, ["l1", "nobody"]) == 1
        assert await engine.purge(queue, []) == 0
        assert await engine.purge(queue, None) == 2
        assert (await engine.letters(queue, "", 0, 10)).total == 0

    # ── Workers ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_living_workers_are_listed(self, connect: Connect, engine: Engine, queue: str) -> None:
        other = await connect() if engine.can.shared else engine
        worker = WorkerInfo(f"w-{queue}", "host", 42, (queue,), ("job-1",), now(), now())
        await engine.heartbeat(worker)
        assert worker in await other.workers()
        gone = WorkerInfo(f"gone-{queue}", "host", 43, (queue,), (), now(), now() - 3_600_000)
        await engine.heartbeat(gone)
        assert gone.id not in [one.id for one in await other.workers()]
        await engine.heartbeat(worker.id)
        assert worker.id not in [one.id for one in await other.workers()]

    # ── Calls that are cancelled ──────────────────────────────────────────────────────────────────────────────────

    async def test_a_cancelled_call_ends_at_once(self, engine: Engine, queue: str) -> None:
        """Whatever it was waiting for: a worker that stops cancels what is under way, and does so once."""
        worker = WorkerInfo(f"w-{queue}", "host", 42, (queue,), (), now(), now())
        await engine.add(queue, [new_job("first")])
        for call in (
            lambda: engine.heartbeat(worker),
            lambda: engine.recover(queue),
            lambda: engine.exchange(queue, [], 0, LEASE, "tester"),
            lambda: engine.counts(queue),
        ):
            steps = 0
            while await _cancel_after(steps, call):
                steps += 1 + steps // 3
        assert [held.job.id for held in await claim_all(engine, queue, 1)] == ["first"]


async def _cancel_after(steps: int, call: Callable[[], Awaitable[Any]]) -> bool:
    """Begin a call and cancel it after so many steps of the event loop; whether it was not over by then."""
    task = asyncio.ensure_future(call())
    for _ in range(steps):
        await asyncio.sleep(0)
    if not task.cancel():
        await task
        return False
    await asyncio.wait([task])
    assert task.cancelled(), f"the call was cancelled after {steps} steps, and ended with {task}"
    return True
