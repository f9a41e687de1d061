"""Tests of the tools for tests: 48 hours of a chain pass in milliseconds, in order, and nothing runs unasked."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from yamchi import Job, New, Snooze, Yamchi
from yamchi.errors import ConfigurationError, JobFailed
from yamchi.plugins import Plugin
from yamchi.settings import Settings
from yamchi.testing import TestApp, conformance, eventually

USER = "0b5e2f6c-5a0d-4b8e-9c44-3d1c7f1f3a10"

START = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_chain_of_48_hours_takes_milliseconds() -> None:
    said: list[tuple[str, timedelta]] = []
    async with TestApp() as app:

        @app.job("chain")
        async def letter(job: Job[int]) -> None:
            said.append((f"letter {job.data}", app.clock.time - START))
            if job.data < 4:
                await app.queue("chain").add(job.data + 1, delay="12h")

        await app.queue("chain").add(1, delay="12h")
        began = monotonic()
        await app.clock.advance("48h")
        assert monotonic() - began < 5, "days are not waited for"
    assert said == [(f"letter {n}", timedelta(hours=12 * n)) for n in (1, 2, 3, 4)]


async def test_what_is_due_runs_in_the_order_of_its_moments_across_queues() -> None:
    order: list[str] = []
    async with TestApp() as app:
        for name in ("left", "right"):

            @app.job(name)
            async def note(job: Job[str]) -> None:
                order.append(job.data)

        for n in (5, 1, 3):
            await app.queue("left").add(f"left {n}", delay=timedelta(hours=n))
        for n in (4, 2, 6):
            await app.queue("right").add(f"right {n}", delay=timedelta(hours=n))
        await app.clock.advance("1d")
    assert order == ["left 1", "right 2", "left 3", "right 4", "left 5", "right 6"]


async def test_nothing_runs_before_its_time_or_unasked() -> None:
    runs: list[str] = []
    async with TestApp() as app:

        @app.job("mail")
        async def send(job: Job[str]) -> None:
            runs.append(job.data)

        await app.queue("mail").add("now")
        await app.queue("mail").add("later", delay="1h")
        assert runs == []
        await app.drain()
        assert runs == ["now"]
        await app.clock.advance(timedelta(minutes=59, seconds=59, milliseconds=999))
        assert runs == ["now"]
        await app.clock.advance("1ms")
        assert runs == ["now", "later"]


async def test_cron_comes_by_the_moved_clock() -> None:
    runs: list[datetime] = []
    async with TestApp() as app:

        @app.cron("0 3 * * *", zone="Asia/Almaty")
        async def nightly() -> None:
            runs.append(app.clock.time)

        await app.clock.advance("3d")
    assert runs == [datetime(2026, 1, day, 22, tzinfo=UTC) for day in (1, 2, 3)]


async def test_retries_wait_by_the_moved_clock() -> None:
    runs: list[timedelta] = []
    async with TestApp() as app:

        @app.job("mail", attempts=3, backoff=["1m", "1h"])
        async def send(job: Job[Any]) -> None:
            runs.append(app.clock.time - START)
            raise ValueError("no luck")

        job = await app.queue("mail").add({})
        await app.clock.advance("1d")
        assert (await job.refresh()).state == "failed"
    assert runs == [timedelta(0), timedelta(minutes=1), timedelta(hours=1, minutes=1)]


@pytest.mark.parametrize("limit", [{"rate": "1/s"}, {"key_rate": "1/s", "key": "to"}])
async def test_a_rate_limit_goes_by_the_moved_clock(limit: dict[str, str]) -> None:
    runs: list[timedelta] = []
    async with TestApp() as app:

        @app.job("mail", **limit)
        async def send(job: Job[dict[str, str]]) -> None:
            runs.append(app.clock.time - START)

        await app.queue("mail").add_many([{"to": "anna"}] * 4)
        await app.clock.advance("1m")
    assert runs == [timedelta(seconds=n) for n in range(4)]


async def test_time_moves_past_a_rate_limit_whose_queue_has_no_slot_free() -> None:
    async with TestApp() as app:

        @app.job("mail", rate="10/s", concurrency=1)
        async def send(job: Job[int]) -> None:
            await app.clock.sleep(60_000)

        await app.queue("mail").add_many([1, 2])
        await app.clock.advance("90s")
        stats = await app.queue("mail").stats()
        assert (stats["completed"], stats["active"]) == (1, 1)


async def test_a_handler_may_wait_for_what_another_job_returns() -> None:
    async with TestApp() as app:

        @app.job("sums")
        async def total(job: Job[list[int]]) -> int:
            parts = await app.queue("squares").add_many(job.data)
            return sum([await part.result() for part in parts])

        @app.job("squares", concurrency=1)
        async def square(job: Job[int]) -> int:
            return job.data**2

        job = await app.queue("sums").add([1, 2, 3])
        await asyncio.wait_for(app.drain(), 20)
        assert await job.result() == 14


@pytest.mark.parametrize("delay", ["0s", "5m"])
async def test_a_handler_may_wait_for_what_another_job_returns_later(delay: str) -> None:
    """Which is when the clock is moved: the other job is delayed, and tried again."""
    async with TestApp() as app:

        @app.job("sums")
        async def total(job: Job[int]) -> int:
            return 1 + await (await app.queue("squares").add(job.data, delay=delay)).result()

        @app.job("squares", attempts=2, backoff="10m")
        async def square(job: Job[int]) -> int:
            if job.attempts_made == 1:
                raise ValueError("not yet")
            return job.data**2

        job = await app.queue("sums").add(3)
        await asyncio.wait_for(app.drain(), 20)
        assert (await app.queue("sums").stats())["active"] == 1
        await asyncio.wait_for(app.clock.advance("1h"), 20)
        assert await job.result() == 10


async def test_a_handler_that_waits_for_a_job_learns_that_another_cancelled_it() -> None:
    async with TestApp() as app:

        @app.job("sums")
        async def total(job: Job[int]) -> str:
            part = await app.queue("squares").add(job.data, id="part", delay="1h")
            await app.queue("doubts").add(0, delay="1m")
            with pytest.raises(JobFailed):
                await part.result()
            return "without it"

        @app.job("squares")
        async def square(job: Job[int]) -> int:
            return job.data**2

        @app.job("doubts")
        async def doubt(job: Job[int]) -> None:
            await app.queue("squares").cancel("part")

        job = await app.queue("sums").add(3)
        await asyncio.wait_for(app.clock.advance("2m"), 20)
        assert await job.result() == "without it"


async def test_what_a_handler_adds_before_it_sleeps_is_run_at_once() -> None:
    seen: list[timedelta] = []
    async with TestApp() as app:

        @app.job("a-first")
        async def note(job: Job[None]) -> None:
            seen.append(app.clock.time - START)

        @app.job("b-second")
        async def add_and_sleep(job: Job[None]) -> None:
            await app.queue("a-first").add(None)
            await app.clock.sleep(600_000)

        await app.queue("b-second").add(None)
        await app.clock.advance("1h")
    assert seen == [timedelta(0)]


async def test_a_handler_may_sleep_on_the_clock() -> None:
    events: list[tuple[str, timedelta]] = []
    async with TestApp() as app:

        @app.job("slow")
        async def slow(job: Job[Any]) -> None:
            events.append(("began", app.clock.time - START))
            await app.clock.sleep(3_600_000)
            events.append(("ended", app.clock.time - START))

        @app.job("quick")
        async def quick(job: Job[Any]) -> None:
            events.append(("quick", app.clock.time - START))

        await app.queue("slow").add({})
        await app.queue("quick").add({}, delay="30m")
        await app.clock.advance("2h")
    assert events == [
        ("began", timedelta(0)),
        ("quick", timedelta(minutes=30)),
        ("ended", timedelta(hours=1)),
    ]


async def test_snooze_and_expiry_follow_the_clock() -> None:
    runs: list[timedelta] = []
    async with TestApp() as app:

        @app.job("mail")
        async def send(job: Job[Any]) -> None:
            runs.append(app.clock.time - START)
            if len(runs) == 1:
                raise Snooze(START + timedelta(hours=5))

        await app.queue("mail").add({})
        late = await app.queue("mail").add({}, delay="2h", expires_at=START + timedelta(hours=1))
        await app.clock.advance("6h")
        assert (await late.refresh()).state == "expired"
    assert runs == [timedelta(0), timedelta(hours=5)]


async def test_an_application_can_be_adopted() -> None:
    runs: list[str] = []
    real = Yamchi()

    @real.job("mail")
    async def send(job: Job[str]) -> None:
        runs.append(job.data)

    async with TestApp() as app:
        app.adopt(real)
        await app.queue("mail").add_many([New("one", delay="1s"), New("two", delay="2s")])
        await app.clock.advance("1m")
    assert runs == ["one", "two"]


def _real(home: Path) -> Yamchi:
    """A user's module, as far as it matters: an application, and a queue taken from it when it is imported."""
    return Yamchi(Settings(home=home))


def _files(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("*") if path.is_file())


async def test_whatever_a_handler_reaches_through_its_application_is_the_tests(tmp_path: Path) -> None:
    real, moments = _real(tmp_path), []
    follow_ups = real.define("follow-ups") and real.queue("follow-ups")

    @real.job("mail")
    async def send(job: Job[str]) -> None:
        await real.queue("reports").add(job.data, delay="1h")
        await follow_ups.add(job.data)
        await real.notifications.preferences.choose(USER, "email", "promotions", False)
        moments.append((real.clock.now(), await real.keys.incr("sent")))

    @real.job("reports")
    async def report(job: Job[str]) -> None: ...

    real.own = "kept"  # type: ignore[attr-defined]
    async with TestApp() as test:
        test.adopt(real)
        await real.queue("mail").add("hello")
        await test.drain()
        assert moments == [(test.clock.now(), 1)]
        assert (await test.queue("reports").stats())["delayed"] == 1
        assert (await test.queue("follow-ups").stats())["waiting"] == 1
        assert (await real.notifications.preferences.get(USER)).allowed == {"email": {"promotions": False}}
        assert real.queue("mail") is test.queue("mail")
        assert real.own == "kept"
    assert _files(tmp_path) == [], "nothing was written where the application lives"


async def test_an_adopted_application_is_itself_again_when_the_test_is_over(tmp_path: Path) -> None:
    real = _real(tmp_path)
    real.define("mail")
    taken = real.queue("mail")
    for _ in range(2):
        async with TestApp() as test:
            test.adopt(real)
            await taken.add("in the test")
            assert (await taken.stats())["type"] == "in-memory"
            assert (await taken.stats())["waiting"] == 1
    async with real:
        assert (await taken.stats()) == {**(await taken.stats()), "type": "sqlite", "waiting": 0}
        await taken.add("for real")
        await real.notifications.preferences.get(USER)
    assert {"yamchi.db", "data.db"} <= set(_files(tmp_path))


async def test_what_was_taken_from_an_application_before_refuses(tmp_path: Path) -> None:
    real = _real(tmp_path)
    preferences = real.notifications.preferences
    async with TestApp() as test:
        test.adopt(real)
        with pytest.raises(ConfigurationError, match="the real database of an application"):
            await preferences.get(USER)
    assert _files(tmp_path) == []


async def test_an_application_in_use_can_not_be_adopted(tmp_path: Path) -> None:
    async with _real(tmp_path) as real, TestApp() as test:
        real.define("mail")
        await real.queue("mail").add("for real")
        with pytest.raises(ConfigurationError, match="in use already"):
            test.adopt(real)
        assert (await real.queue("mail").stats())["type"] == "sqlite"


async def test_features_of_the_applications_own_are_tested_too(tmp_path: Path) -> None:
    class Greeter(Plugin):
        name = "greeter"
        summary = "Says hello."

        def declare(self) -> None:
            self.app.define("greetings")

        async def greet(self, whom: str) -> None:
            await self.app.queue("greetings").add(whom)

    real = Yamchi(Settings(home=tmp_path), plugins=[Greeter])
    async with TestApp() as test:
        test.adopt(real)
        await real.plugin(Greeter).greet("Asel")
        assert (await test.queue("greetings").stats())["waiting"] == 1
    assert _files(tmp_path) == []


@pytest.mark.parametrize("has_home", [True, False])
async def test_a_test_has_tables_of_its_own_whatever_the_environment_says(
    has_home: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/real")
    home = tmp_path / "home"
    async with TestApp(**({"home": home} if has_home else {})) as app:
        assert (await app.notifications.preferences.get(USER)).allowed == {}
        folder = app._folder
    assert not folder.exists()
    assert ("data.db" in _files(tmp_path)) == has_home


async def test_eventually_says_what_it_saw_last() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.05 s; the last value was 0"):
        await eventually(lambda: 0, within=0.05)


async def test_a_snooze_takes_a_span_or_a_moment_and_a_wrong_one_fails_the_attempt() -> None:
    async with TestApp() as app:
        ran: list[str] = []
        wishes: dict[str, Any] = {
            "span": "1h",
            "moment": app.clock.time + timedelta(hours=1),
            "no zone": datetime(2026, 1, 1, 5),
            "nonsense": "soon",
        }

        @app.job("q", attempts=1)
        async def wait(job: Job[str]) -> None:
            ran.append(job.data)
            if ran.count(job.data) == 1:
                raise Snooze(wishes[job.data])

        for wish in wishes:
            await app.queue("q").add(wish, id=wish.replace(" ", "-"))
        await app.drain()
        assert sorted(ran) == sorted(wishes)
        failed = {job.id: job.failed_reason for job in await app.queue("q").jobs("failed")}
        assert set(failed) == {"no-zone", "nonsense"}
        assert "no time zone" in (failed["no-zone"] or "")
        await app.clock.advance("1h")
        assert sorted(ran[4:]) == ["moment", "span"]


async def test_time_moves_past_what_a_paused_queue_has_due() -> None:
    ran: list[int] = []
    async with TestApp() as app:

        @app.job("held")
        async def note(job: Job[int]) -> None:
            ran.append(job.data)

        await app.queue("held").add(1, delay="1h")
        await app.queue("held").pause()
        async with asyncio.timeout(10):
            await app.clock.advance("2h")
        assert ran == []
        await app.queue("held").resume()
        await app.clock.advance("1s")
        assert ran == [1]


@pytest.mark.parametrize("name", conformance.__all__)
def test_what_fails_in_a_suite_is_explained(name: str) -> None:
    """pytest shows the values of an assertion only in modules that it was told of before they were imported."""
    suite = sys.modules[getattr(conformance, name).__module__]
    assert type(suite.__loader__).__name__ == "AssertionRewritingHook"
