"""What goes into a BullMQ job comes out of it, and what others wrote there is understood."""

import msgpack
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yamchi.errors import InvalidJob
from yamchi.queues.engines.bull.codec import UNLIMITED, add_args, bull_options_of, claimed, is_sound, record
from yamchi.queues.options import Backoff, JobOptions
from yamchi.queues.records import NewJob

spans = st.integers(0, 10**12)
backoffs = st.one_of(
    st.builds(
        Backoff, st.sampled_from(["fixed", "exponential"]), spans, jitter=st.sampled_from([0.0, 0.25, 1.0])
    ),
    st.builds(
        lambda steps, jitter: Backoff("steps", steps=tuple(steps), jitter=jitter),
        st.lists(spans, min_size=1, max_size=5),
        st.sampled_from([0.0, 0.5]),
    ),
)
options = st.builds(
    JobOptions,
    attempts=st.integers(1, 1000),
    backoff=backoffs,
    timeout=st.none() | spans,
    keep_completed=st.integers(0, 10**6),
    keep_failed=st.integers(0, 10**6),
)


def stored(job: NewJob, now: int = 1_000) -> dict[bytes, bytes]:
    """The hash that BullMQ's script would make of the arguments."""
    kind, _, packed, data, opts, _ = add_args("bull:q:", job, now)
    head, read = msgpack.unpackb(packed), msgpack.unpackb(opts)
    assert kind == ("delayed" if read.get("delay") else "prioritized" if read.get("priority") else "standard")
    return {
        b"name": head[2].encode(), b"data": data, b"opts": orjson.dumps(read), b"timestamp": str(head[3]).encode(),
        b"delay": str(read.get("delay", 0)).encode(), b"priority": str(read.get("priority", 0)).encode(),
    }  # fmt: skip


@given(options, st.integers(0, 10), st.none() | st.integers(0, 10**13))
def test_options_come_back(given_options: JobOptions, priority: int, run_at: int | None) -> None:
    job = NewJob("an-id", "send", b'{"n":1}', given_options, priority, run_at)
    back = record("q", "an-id", stored(job), "waiting")
    assert (back.options, back.priority, back.name, back.payload) == (
        given_options,
        priority,
        "send",
        b'{"n":1}',
    )
    assert back.run_at == max(run_at or 0, 1_000)


def test_like_jobs_share_their_terms() -> None:
    one, other = (bull_options_of(stored(NewJob(name, "send", b"1")), name.encode()) for name in ("a", "b"))
    assert one is other


@pytest.mark.parametrize(
    ("opts", "attempts", "backoff", "keep"),
    [
        (b"{}", 1, Backoff("fixed", 0), UNLIMITED),
        (b'{"attempts":0,"removeOnComplete":true}', 1, Backoff("fixed", 0), 0),
        (b'{"attempts":5,"backoff":2000,"removeOnComplete":7}', 5, Backoff("fixed", 2_000), 7),
        (b'{"backoff":{"type":"exponential","delay":50,"jitter":0.5}}', 1, Backoff("exponential", 50, jitter=0.5), UNLIMITED),
        (b'{"backoff":{"type":"mine","delay":9},"removeOnComplete":{"age":60,"count":3}}', 1, Backoff("fixed", 9), 3),
        (b'{"backoff":{"type":"mine"},"removeOnComplete":false}', 1, Backoff("fixed", 0), UNLIMITED),
        (b"not json", 1, Backoff("fixed", 0), UNLIMITED),
        (b'["a list"]', 1, Backoff("fixed", 0), UNLIMITED),
    ],
)  # fmt: skip
def test_options_that_node_wrote(opts: bytes, attempts: int, backoff: Backoff, keep: int) -> None:
    bull_options = bull_options_of({b"opts": opts}, b"1")
    assert (
        bull_options.options.attempts,
        bull_options.options.backoff,
        bull_options.options.keep_completed,
    ) == (
        attempts,
        backoff,
        keep,
    )


@pytest.mark.parametrize(("theirs", "ours"), [(b"0", 0), (b"1", 10), (b"10", 1), (b"2097152", 1)])
def test_priorities_that_node_wrote(theirs: bytes, ours: int) -> None:
    assert record("q", "1", {b"priority": theirs}, "waiting").priority == ours


def test_a_damaged_hash_is_still_a_job() -> None:
    job = record("q", "1", {b"data": b"\xff", b"stacktrace": b"{", b"opts": b"\xfe"}, "failed")
    assert (job.name, job.payload, job.stacktrace, job.attempts_made) == ("", b"\xff", None, 0)


def test_names_of_bullmqs_own_keys_are_no_ids() -> None:
    with pytest.raises(InvalidJob, match="'wait' is a name that BullMQ keeps for itself"):
        add_args("bull:q:", NewJob("wait", "send", b"1"), 0)


@pytest.mark.parametrize(
    ("fields", "sound"),
    [
        ({}, True),
        ({b"priority": b"5", b"atm": b"1", b"stc": b"0"}, True),
        ({b"priority": b"high"}, False),
        ({b"atm": b"many"}, False),
        ({b"stc": b"-1"}, False),
        ({b"atm": b"1" * 8}, False),
        ({b"parentKey": b"bull:q:1"}, False),
        ({b"parent": b"{}"}, False),
    ],
)
def test_a_hash_in_which_scripts_can_count(fields: dict[bytes, bytes], sound: bool) -> None:
    assert is_sound(fields) is sound


def test_a_delayed_job_that_others_promoted_was_due_when_it_began() -> None:
    fields = stored(NewJob("an-id", "send", b"{}", run_at=3_601_000))
    assert record("q", "an-id", {**fields, b"processedOn": b"5000"}, "completed").run_at == 5_000
    assert record("q", "an-id", {**fields, b"processedOn": b"3609000"}, "completed").run_at == 3_601_000
    assert (
        record("q", "an-id", {**fields, b"ymDue": b"4000", b"processedOn": b"5000"}, "completed").run_at
        == 4_000
    )


def test_a_job_put_off_that_others_promoted_was_due_when_it_began() -> None:
    fields = {**stored(NewJob("an-id", "send", b"{}")), b"ymDue": b"9000", b"processedOn": b"5000"}
    again = claimed("q", "an-id", fields, bull_options_of(fields, b"an-id"), "worker")
    assert again.run_at == 5_000
    for state in ("active", "completed", "failed"):
        assert record("q", "an-id", fields, state).run_at == 5_000
    for state in ("waiting", "cancelled"):  # it began before it was put off
        assert record("q", "an-id", fields, state).run_at == 9_000
