"""Reading what others wrote never fails, and what comes of it is within bounds and can be shown."""

import json
import random
from typing import Any

import orjson
import pytest
from tests.faults.foreign import DATA, NUMBERS, TEXTS, odd_hash, odd_headers

from yamchi.queues import foreign
from yamchi.queues.engines.bull import codec
from yamchi.queues.engines.pgmq import rows
from yamchi.queues.job import Job
from yamchi.queues.options import JobOptions
from yamchi.queues.records import FINISHED, STATES, DeadLetter, JobRecord

SEEDS = range(300)


def check(record: JobRecord) -> None:
    """Everything that a page, a worker and a script do with a record."""
    options = record.options
    assert 1 <= options.attempts <= foreign.MOST_ATTEMPTS
    assert 0 <= record.attempts_made <= 3 * foreign.MOST_ATTEMPTS
    assert 0 <= record.priority <= 10
    assert len(record.name) <= foreign.LONGEST_NAME
    assert options.timeout is None or 0 <= options.timeout <= foreign.LONGEST_SPAN
    assert 0 <= options.backoff.wait(record.attempts_made) <= 2 * foreign.LONGEST_SPAN
    assert orjson.dumps(Job(None, record).to_dict())  # type: ignore[arg-type]
    letter = DeadLetter.of_job(record, "tried", 1_763_000_000_000)
    assert orjson.loads(letter.body)["error_message"] == "tried"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hash_in_redis(seed: int) -> None:
    chance = random.Random(seed)
    fields = odd_hash(chance)
    bull_options = codec.bull_options_of(fields, b"x")
    check(codec.claimed("q", "x", fields, bull_options, "w"))
    state = chance.choice(STATES)
    score = chance.choice([0, 1e308, float("inf"), float("-inf"), -5, 7e15])
    check(codec.record("q", "x", fields, state, score))
    assert codec.packed(
        [bull_options.keep_completed, bull_options.keep_failed, bull_options.options.attempts]
    )
    assert orjson.dumps(codec.traces(fields.get(b"stacktrace")))
    assert isinstance(foreign.shown(codec.letter("q", "x", fields).body), object)


READS = [1, 5, foreign.MOST_ATTEMPTS + 1]
"""What the statements that claim give, whatever stands in the row: they bound it, and count the read under way."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_message_of_pgmq(seed: int) -> None:
    chance = random.Random(seed)
    message, headers = chance.choice(DATA).decode("utf-8", "replace"), json.dumps(odd_headers(chance))
    row = (7, chance.choice(READS), message, headers, 0, -(10**14))
    claim = rows.claim("q", row, "token", 0, "w")
    check(claim.job)
    assert claim.job.id
    state = chance.choice(STATES)
    finished = 5 if state in FINISHED else None
    check(
        rows.record(
            "q",
            ("x", state, headers, message, 1, 0, 253_402_214_400_000, 0, finished, message, "r", None, None),
        )
    )


@pytest.mark.parametrize("text", [*DATA, *TEXTS, *NUMBERS])
def test_options_of_any_text(text: bytes) -> None:
    assert isinstance(JobOptions.decode(text.decode("utf-8", "replace")), JobOptions)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (b"1e308", 9),
        (b"-1", 1),
        (b"nan", 5),
        (b"abc", 5),
        (10**400, 5),
        (None, 5),
        (b"7", 7),
        (3.9, 3),
        ([], 5),
        ("8", 8),
    ],
)
def test_numbers_within_bounds(value: Any, read: int) -> None:
    assert foreign.whole(value, 5, 1, 9) == read


@pytest.mark.parametrize("value", [*DATA, *TEXTS])
def test_json_of_anything(value: bytes) -> None:
    assert orjson.dumps(foreign.shown(value)) is not None
    made = foreign.json(value)
    assert made is not None
    assert orjson.loads(made) is not ...


@pytest.mark.parametrize(
    ("value", "made"),
    [
        (b"42", b"42"),
        (b"007", b'"007"'),
        (b"1" * 40, b"1" * 40),
        (b"1" * 400, b'"' + b"1" * 400 + b'"'),  # more than any number that everybody can read
        (b"no", b'"no"'),
    ],
)
def test_digits_are_a_number_if_everybody_can_read_it(value: bytes, made: bytes) -> None:
    assert foreign.json(value) == made
