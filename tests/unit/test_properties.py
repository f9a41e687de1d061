"""What holds for every input: waits, spans, options, cron lines across clock changes, rates, moments."""

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yamchi.clock import as_datetime, describe_span, isoformat, to_millis, to_moment
from yamchi.queues.cron import CronLine
from yamchi.queues.engines.base import RateLimit
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.options import Backoff, JobOptions
from yamchi.queues.records import check_id, new_id
from yamchi.testing import MovableClock

DAY = 86_400_000
spans = st.integers(0, 30 * DAY)
moments = st.integers(
    to_moment(datetime(2000, 1, 1, tzinfo=UTC)), to_moment(datetime(2100, 1, 1, tzinfo=UTC))
)
jitters = st.floats(0, 1)
backoffs = st.one_of(
    st.builds(
        Backoff, kind=st.sampled_from(["fixed", "exponential"]), delay=st.integers(0, DAY), jitter=jitters
    ),
    st.builds(
        lambda steps, jitter: Backoff(kind="steps", steps=tuple(steps), jitter=jitter),
        st.lists(spans, min_size=1, max_size=6),
        jitters,
    ),
)
options = st.builds(
    JobOptions,
    attempts=st.integers(1, 1_000),
    backoff=backoffs,
    timeout=st.none() | st.integers(1, DAY),
    keep_completed=st.integers(0, 10_000),
    keep_failed=st.integers(0, 10_000),
)


# ── Backoff and options ───────────────────────────────────────────────────────────────────────────────────────────


@given(backoffs, st.integers(1, 200))
def test_a_wait_stays_within_its_jitter_and_its_longest(backoff: Backoff, attempt: int) -> None:
    plain = Backoff(backoff.kind, backoff.delay, backoff.steps, 0.0, backoff.longest).wait(attempt)
    wait = backoff.wait(attempt)
    assert 0 <= plain <= backoff.longest
    assert plain * (1 - backoff.jitter) - 1 <= wait <= plain * (1 + backoff.jitter) + 1


@given(st.integers(1, DAY), st.integers(1, 100))
def test_exponential_waits_double_until_the_longest(delay: int, attempt: int) -> None:
    backoff = Backoff("exponential", delay)
    now, then = backoff.wait(attempt), backoff.wait(attempt + 1)
    assert then == min(now * 2, backoff.longest)


@given(st.lists(spans, min_size=1, max_size=6), st.integers(1, 20))
def test_steps_are_taken_one_by_one_and_the_last_repeats(steps: list[int], attempt: int) -> None:
    wait = Backoff.parse([timedelta(milliseconds=step) for step in steps]).wait(attempt)
    assert wait == min(steps[min(attempt, len(steps)) - 1], DAY)


@given(backoffs, spans)
def test_a_backoff_is_taken_as_a_job_shows_it(backoff: Backoff, longest: int) -> None:
    shown = asdict(replace(backoff, longest=longest))
    assert asdict(Backoff.parse(shown)) == shown


@given(options)
def test_options_come_back_as_they_were(given_options: JobOptions) -> None:
    assert JobOptions.decode(given_options.encode()) == given_options


# ── Time ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_a_span_reads_the_same_in_every_writing(
    days: int, hours: int, minutes: int, seconds: int, millis: int
) -> None:
    span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=millis)
    text = f"{days}d{hours}h {minutes}m{seconds}s {millis}ms"
    assert to_millis(text) == to_millis(span) == to_millis(span.total_seconds())


@given(spans)
def test_a_span_is_described_in_few_words(span: int) -> None:
    assert len(describe_span(span)) <= 10


@given(moments)
def test_a_moment_is_the_same_as_text_and_as_datetime(moment: int) -> None:
    assert isoformat(moment).endswith("Z")
    assert to_moment(datetime.fromisoformat(isoformat(moment))) == moment
    assert to_moment(as_datetime(moment)) == moment


@given(st.lists(moments, min_size=2, max_size=50))
def test_ids_are_in_the_order_of_time_and_never_the_same(times: list[int]) -> None:
    ids = [new_id(moment) for moment in sorted(times)]
    assert len(set(ids)) == len(ids)
    assert [job_id[:12] for job_id in ids] == sorted(job_id[:12] for job_id in ids)
    assert all(check_id(job_id) == job_id for job_id in ids)


# ── Cron ──────────────────────────────────────────────────────────────────────────────────────────────────────────

ZONES = ["UTC", "Asia/Almaty", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
LINES = ["* * * * *", "*/15 * * * *", "30 2 * * *", "0 3 * * *", "0 0 1 * *", "15 1 * * 0", "0 9 * * MON-FRI"]
cron_lines = st.builds(CronLine, st.sampled_from(LINES), st.sampled_from(ZONES))
CLOCK_CHANGES = [
    datetime(2026, *moment, tzinfo=UTC)
    for moment in [(3, 29, 1), (10, 25, 1), (3, 8, 7), (11, 1, 6), (4, 4, 15), (10, 3, 15, 30)]
]
any_moments = st.integers(
    to_moment(datetime(2024, 1, 1, tzinfo=UTC)), to_moment(datetime(2030, 1, 1, tzinfo=UTC))
)
moments_of_change = st.builds(
    lambda change, offset: to_moment(change) + offset,
    st.sampled_from(CLOCK_CHANGES),
    st.integers(-DAY // 8, DAY // 8),
)
cron_moments = any_moments | moments_of_change


@given(cron_lines, cron_moments)
def test_the_last_moment_is_not_later_and_the_next_is(line: CronLine, moment: int) -> None:
    before, after = line.last_before(moment), line.after(moment)
    assert before <= moment < after
    assert before % 60_000 == after % 60_000 == 0


@given(cron_lines, cron_moments)
def test_a_schedule_is_the_same_forwards_and_backwards(line: CronLine, moment: int) -> None:
    after = line.after(moment)
    assert line.last_before(after) == after
    assert line.last_before(after - 1) <= moment
    assert line.after(line.last_before(moment)) > moment


@given(cron_lines, cron_moments)
@settings(max_examples=50)
def test_moments_follow_each_other(line: CronLine, moment: int) -> None:
    upcoming = [moment]
    for _ in range(10):
        upcoming.append(line.after(upcoming[-1]))
    assert all(one < other for one, other in pairwise(upcoming))


# ── The movable clock ─────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_sleepers_wake_in_the_order_of_their_moments(naps: list[int]) -> None:
    import asyncio

    async def sleep_all() -> list[tuple[int, int]]:
        clock, woken = MovableClock(), list[tuple[int, int]]()
        began = clock.now()

        async def sleeper(nap: int) -> None:
            await clock.sleep(nap)
            woken.append((nap, clock.now() - began))

        async def settle() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        async def nothing_due() -> None:
            return None

        clock.attach(settle, nothing_due)
        tasks = [asyncio.create_task(sleeper(nap)) for nap in naps]
        await settle()
        await clock.advance(timedelta(milliseconds=max(naps)))
        await asyncio.gather(*tasks)
        return woken

    woken = asyncio.run(sleep_all())
    assert [nap for nap, _ in woken] == sorted(naps)
    assert all(nap == moment for nap, moment in woken)


# ── Rates ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class StillClock:
    """A clock that the test sets."""

    moment = 1_000_000

    def now(self) -> int:
        return self.moment

    async def sleep(self, span: int) -> None:
        raise AssertionError("nobody sleeps here")


rates = st.builds(
    lambda count, period: RateLimit.parse(f"{count}/{period}"),
    st.integers(1, 200),
    st.sampled_from(["s", "5s", "min", "15m", "h"]),
)


@given(rates, st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 12)), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
async def test_no_period_ever_sees_more_turns_than_its_rate(
    rate: RateLimit, asked: list[tuple[int, int]]
) -> None:
    clock = StillClock()
    engine, permits = MemoryEngine(clock), list[int]()
    for pause, count in asked:
        clock.moment += pause
        permits += await engine.reserve("q", rate, [""] * count)
    assert permits == sorted(permits)
    for n in range(len(permits) - rate.count):
        # A permit is rounded to whole milliseconds, so two of them may stray by one each.
        assert permits[n + rate.count] - permits[n] >= rate.period - 2


@pytest.mark.parametrize("text", ["1/s", "30/s", "20/min", "1000/s", "100/15m"])
def test_a_rate_never_promises_more_than_it_says(text: str) -> None:
    rate = RateLimit.parse(text)
    assert rate.burst <= rate.count
    assert rate.spacing * (rate.count - rate.burst + 1) == pytest.approx(rate.period)
