"""What others wrote, made fit: numbers within bounds, moments that a calendar has, text that is text, JSON that is JSON.

A broker is open to everybody who can reach it. What a field of theirs says counts as far as it makes sense, and nobody's
nonsense may raise here: a queue is read in batches, and one bad record must not cost its neighbors anything.
"""

import math
from typing import Any

import orjson

from yamchi import clock
from yamchi.clock import Millis

EARLIEST: Millis = 0
LATEST: Millis = clock.LATEST
LONGEST_SPAN: Millis = clock.LONGEST_SPAN
MOST_ATTEMPTS = 100_000
MOST_KEPT = 100_000_000
LONGEST_NAME = 255
LONGEST_TEXT = 10_000
LONGEST_ID = 512
"""Bytes of an id that was not checked when it was written."""

LONGEST_SHOWN = 1_000_000
DEEPEST, _MARGIN = 190, 64
"""JSON that is nested deeper can be read, but not be written again by everybody: orjson writes 254 levels."""


def whole(value: Any, default: int, least: int, most: int) -> int:
    """A whole number within bounds, from a number, text or bytes; the default for what is none."""
    if type(value) is int and least <= value <= most:  # nearly always, on the way of every job
        return value
    try:
        number = value if type(value) is int else float(value)
        if math.isnan(number):
            return default
        return int(min(max(number, least), most))
    except (ValueError, TypeError, OverflowError):  # an int of a thousand digits is no float
        return default


def moment(value: Any) -> Millis | None:
    """A moment; None for what is none."""
    if value is None:
        return None
    number = whole(value, -1, -1, LATEST)
    return number if number >= EARLIEST else None


def span(value: Any) -> Millis:
    return whole(value, 0, 0, LONGEST_SPAN)


def text(value: bytes | str, longest: int = LONGEST_TEXT) -> str:
    """Text that can be shown and written as JSON; what is too long ends in dots."""
    beginning = value[: 4 * longest]
    if isinstance(beginning, bytes):
        beginning = beginning.decode("utf-8", "backslashreplace")
    elif not beginning.isascii():
        beginning = beginning.encode("utf-8", "backslashreplace").decode()
    return beginning if len(beginning) <= longest else f"{beginning[: longest - 1]}…"


def name(value: Any) -> str:
    """The name of a job; none for what can't be one, so that the queue's default handler gets it."""
    if type(value) is str and len(value) <= LONGEST_NAME and value.isascii():  # nearly always
        return value
    return text(value, LONGEST_NAME) if isinstance(value, bytes | str) else ""


def json(value: bytes | None) -> bytes | None:
    """A value as JSON: as it is if it is some, else as the text it is."""
    if value is None or (len(value) < 16 and value.isdigit() and not value.startswith(b"0")):
        return value
    return value if is_json(value) else orjson.dumps(text(value))


def is_json(value: bytes) -> bool:
    """Whether this is JSON that everybody can read and write."""
    return _read(value) is not _NONE


def shown(value: bytes | None) -> Any:
    """A value for people: what the JSON says, or the text itself where it is none (or nested too deep to be written)."""
    if value is None:
        return None
    found = _read(value)
    return text(value, LONGEST_SHOWN) if found is _NONE else found


_NONE = object()


def _read(value: bytes) -> Any:
    try:
        found = orjson.loads(value)
        if value.count(b"[") + value.count(b"{") > DEEPEST:
            wrapped = found
            for _ in range(_MARGIN):
                wrapped = [wrapped]
            orjson.dumps(wrapped)  # which has a limit, unlike reading
    except (orjson.JSONDecodeError, TypeError):
        return _NONE
    return found


def options(fields: Any) -> dict[str, Any]:
    """Fields of `JobOptions`, each within its bounds; what makes no sense is left out."""
    if not isinstance(fields, dict):
        return {}
    kept: dict[str, Any] = {}
    for field, least, most in (
        ("attempts", 1, MOST_ATTEMPTS),
        ("keep_completed", 0, MOST_KEPT),
        ("keep_failed", 0, MOST_KEPT),
        ("timeout", 0, LONGEST_SPAN),
    ):
        if isinstance(value := fields.get(field), int | float):
            kept[field] = whole(value, least, least, most)
    return kept


def backoff(fields: Any) -> dict[str, Any]:
    """Fields of `Backoff`, each within its bounds; what makes no sense is left out."""
    if not isinstance(fields, dict):
        return {}
    kept: dict[str, Any] = {}
    if fields.get("kind") in ("fixed", "exponential", "steps"):
        kept["kind"] = fields["kind"]
    for field in ("delay", "longest"):
        if isinstance(value := fields.get(field), int | float):
            kept[field] = span(value)
    if isinstance(steps := fields.get("steps"), list):
        kept["steps"] = tuple(span(step) for step in steps[:1_000])
    if isinstance(jitter := fields.get("jitter"), int | float):
        kept["jitter"] = min(max(float(jitter), 0.0), 1.0)
    return kept
