"""What a field may hold: bounds of text, numbers, moments and documents, each refused in a sentence that names the place."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from yamchi import fields
from yamchi.clock import EARLIEST, LATEST, LONGEST_SPAN, check_zone, in_utc, isoformat, to_millis, to_moment
from yamchi.errors import ConfigurationError, InvalidJob
from yamchi.fields import MOST_DEPTH, Email, Name, check_json
from yamchi.notifications.policy.model import Digest
from yamchi.notifications.sending.digests import next_due
from yamchi.queues.engines.base import RateLimit
from yamchi.queues.options import Backoff, JobOptions


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": {"b": ["fine", "\ud800"]}}, "a.b.1: it has half of a surrogate pair"),
        ({"a": 2**64}, "a: the number does not fit into 64 bits"),
        ({"a": [-(2**63) - 1]}, "a.0: the number does not fit into 64 bits"),
        ({"a": float("nan")}, "a: NaN and Infinity"),
        ({"a": [{"b": float("inf")}]}, "a.0.b: NaN and Infinity"),
        ({"a": "x\0y"}, "a: it has a NUL character"),
        ({"x\0": 1}, "it has a NUL character"),
        (nested(MOST_DEPTH + 1), "more than 100 levels deep"),
        (nested(5_000), "more than 100 levels deep"),
        ({"a": object()}, "can't be written as JSON"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_what_json_cannot_carry_is_named(value: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        check_json(value)


@pytest.mark.parametrize("fault", [2**70, "\ud800", float("nan"), "\0"], ids=repr)
def test_a_fault_behind_very_many_values_is_refused_without_its_place(
    fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count()
    look = fields._fault_of

    def counted(value: Any) -> str | None:
        next(looks)
        return look(value)

    monkeypatch.setattr(fields, "_fault_of", counted)
    with pytest.raises(InvalidJob):
        check_json([1] * 50_000 + [fault])
    with pytest.raises(InvalidJob, match=r"^0: "):
        check_json([fault] + [1] * 50_000)
    assert next(looks) < 20_000


@pytest.mark.parametrize(
    "value",
    [{}, {"a": None}, {"a": "null \\u0000"}, {"a": "\\\\"}, {"a": [2**64 - 1, -(2**63)]}, {"a": "🎬 Ә"},
     nested(MOST_DEPTH), {"a": 1.7e308}],
)  # fmt: skip
def test_anything_else_is_carried(value: Any) -> None:
    assert check_json(value) is value


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(anything)
def test_what_is_let_through_can_be_written_and_read_again(value: Any) -> None:
    try:
        check_json(value)
    except InvalidJob:
        return
    assert orjson.loads(orjson.dumps(value)) == value


@pytest.mark.parametrize(
    "span",
    ["3000000d", "1" * 100_000, "9" * 90 + "d", 10**400, 10**12, -(10**12), 1e300, -1.79e308, float("nan"), float("inf"),
     timedelta.max, True, None, "", "\ud800", [1]],
    ids=lambda value: str(value)[:12].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_a_span_out_of_bounds_is_refused(span: Any) -> None:
    with pytest.raises(InvalidJob) as refused:
        to_millis(span)
    assert len(str(refused.value)) < 300


def test_the_longest_span_after_now_is_still_a_moment() -> None:
    assert to_millis("36525d") == LONGEST_SPAN
    assert isoformat(to_moment(datetime(2026, 1, 1, tzinfo=UTC)) + LONGEST_SPAN).startswith("2126")


@pytest.mark.parametrize(
    "moment",
    [
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-12))),
        datetime(1899, 12, 31, tzinfo=UTC),
    ],
)
def test_a_moment_beyond_the_calendar_is_refused(moment: datetime) -> None:
    with pytest.raises(InvalidJob, match="between the years 1900 and 9999"):
        in_utc(moment)


def test_the_first_and_the_last_moment() -> None:
    assert to_moment(datetime(1900, 1, 1, tzinfo=UTC)) == EARLIEST
    assert to_moment(datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)) == LATEST


@pytest.mark.parametrize("moment", [10**18, -(10**18), 10**400, LATEST + 1])
def test_a_number_that_is_no_moment_can_still_be_shown(moment: int) -> None:
    assert "no moment" in isoformat(moment)


@pytest.mark.parametrize(
    "zone", ["Asia", "../../etc/passwd", "/etc/passwd", "x" * 5_000, "\0", "", "Mars/Base"]
)
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidJob, match="time zone"):
        check_zone(zone)


def test_the_length_of_an_address_is_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any, **named: Any) -> None:
        raise AssertionError("the rest of it was looked at")

    monkeypatch.setattr("yamchi.fields.validate_email", slow)
    with pytest.raises(ValidationError, match="at most 320"):
        TypeAdapter(Email).validate_python("a@" + "a." * 15_000)


@pytest.mark.parametrize("text", ["", "a\nb", "a\0", "\x7f", "x" * 256])
def test_a_name_is_a_few_words_on_one_line(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Name).validate_python(text)


@pytest.mark.parametrize(
    "rate", ["1/99999999999d", "9" * 5_000 + "/s", "²/s", "1/", "0/s", "1/s" * 1_000, "1/0s", "1/400d"]
)
def test_a_rate_out_of_bounds_is_refused(rate: str) -> None:
    with pytest.raises((ConfigurationError, InvalidJob)):
        RateLimit.parse(rate)


@pytest.mark.parametrize(
    "options", [{"attempts": 2**70}, {"attempts": True}, {"keep_failed": -1}, {"keep_completed": 1.5}]
)
def test_options_out_of_bounds_name_the_option(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=next(iter(options))):
        JobOptions(**options)


@pytest.mark.parametrize(
    "backoff",
    [{"jitter": "a"}, {"jitter": None}, {"type": ["fixed"]}, {"type": "steps", "steps": 5}, ["1m"] * 100_000,
     {"delay": "3000000d"}, [], {"steps": {"a": 1}}, {"kind": "fixed", "delay": 10**400}, {"kind": "fixed", "longest": "1d"}],
    ids=lambda backoff: str(backoff)[:40],
)  # fmt: skip
def test_a_backoff_that_makes_no_sense_is_refused(backoff: Any) -> None:
    with pytest.raises(InvalidJob, match="backoff"):
        Backoff.parse(backoff)


def test_a_digest_every_few_days_is_due_without_counting_them_one_by_one() -> None:
    now = to_moment(datetime(2026, 3, 4, 12, tzinfo=UTC))
    for days in (1, 2, 7, 366):
        due = next_due(Digest(every=f"{days}d", template="x"), now, __import__("zoneinfo").ZoneInfo("UTC"))
        assert now < due <= now + days * 86_400_000
    with pytest.raises(ValidationError):
        Digest(every="3000000d", template="x")
