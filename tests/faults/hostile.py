"""Documents that somebody might send to do harm, made from documents that are fine.

    document = mutated(good, random.Random(1))      a good one with one to three odd things in it
    texts(rng), numbers(rng), moments(rng), values(rng)     the odd things themselves

Everything is drawn from a seeded `random.Random`, so that a run can be repeated; `hypothesis_documents` gives the same as a
strategy. What JSON itself can't carry (NaN, half a surrogate pair, a number of a thousand digits) is written by `as_json`
the way a careless program would. For HTTP, Redis, PostgreSQL and Kafka alike: nothing here knows where it is sent.
"""

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

Rng = random.Random

BAITS: tuple[Callable[[int], str], ...] = (
    lambda n: " " * n,
    lambda n: "\t \n" * (n // 3),
    lambda n: "a" * n,
    lambda n: "a." * (n // 2),
    lambda n: "a@" * (n // 2),
    lambda n: "a@" + "a." * (n // 2),
    lambda n: "<" * n,
    lambda n: "<!--" * (n // 4),
    lambda n: "<b>" * (n // 3),
    lambda n: "<a href='" * (n // 9),
    lambda n: "&" * n,
    lambda n: "&lt;" * (n // 4),
    lambda n: "{{" * (n // 2),
    lambda n: "{% for a in b %}" * (n // 16),
    lambda n: "{{ '" + "x" * n + "'|center(" + "9" * 9 + ") }}",
    lambda n: "1" * n,
    lambda n: "1m" * (n // 2),
    lambda n: "(" * n,
    lambda n: "\\" * n,
    lambda n: '"' * n,
    lambda n: "://a:" * (n // 5),
    lambda n: "password=" * (n // 9),
    lambda n: "+7" * (n // 2),
    lambda n: "%00" * (n // 3),
    lambda n: "&a: [*a]\n" * (n // 9),
    lambda n: "ё" * n,
    lambda n: "🎬" * n,
    lambda n: "a\u0301" * (n // 2),
    lambda n: "\u202e" * n,
)
"""Texts that some expression, parser or layout takes the square of their length for."""

SHORT_TEXTS = (
    "", " ", "\0", "a\0b", "\ud800", "half \udfff", "a\nb", "a\r\nBcc: victim@example.com", "\x7f", "\ufeff", "null", "NaN",
    "../../etc/passwd", "'; DROP TABLE users; --", "<script>alert(1)</script>", "{{ 7 * 7 }}", "{{ ''.__class__.__mro__ }}",
    "$(reboot)", "%s%s%n", "Asia", "UTC", "xx-XX", "3000000d", "-1s", "1/99999999999d", "0", "9" * 40, "1e400", "٣", "²",
    "__proto__", "constructor", "id:with:colons", "a" * 256, "x" * 999, "a@b", "a@b.c", "@", "user@[127.0.0.1]",
    "http://127.0.0.1:22/", "https://[::1]/", "javascript:alert(1)", "data:text/html,x", "file:///etc/passwd",
)  # fmt: skip

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**40, 10**400, 0.1, -0.0, 1e300, 1e308, -1e308, 5e-324,
    float("nan"), float("inf"), float("-inf"), True, False,
)  # fmt: skip

MOMENTS: tuple[Any, ...] = (
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0000-00-00T00:00:00Z", "2026-02-30T00:00:00Z",
    "2026-01-01", "2026-01-01T25:00:00Z", "2026-01-01T00:00:00+99:99", "10000-01-01T00:00:00Z", "-1", "now", "T",
    1e18, -1e18, 10**30, 0, "2026-01-01T00:00:00." + "9" * 5_000 + "Z", "1970-01-01T00:00:00Z", "2038-01-19T03:14:08Z",
)  # fmt: skip


def texts(rng: Rng, longest: int = 40_000) -> str:
    """A text: short and odd, or long and a bait."""
    if rng.random() < 0.5:
        return rng.choice(SHORT_TEXTS)
    return rng.choice(BAITS)(rng.choice((50, 400, 4_000, longest)))


def numbers(rng: Rng) -> Any:
    return rng.choice(NUMBERS)


def moments(rng: Rng) -> Any:
    return rng.choice(MOMENTS)


def nested(rng: Rng) -> Any:
    """A document within a document, more often than any reader likes."""
    value: Any = rng.choice((1, "x", [], {}, None))
    levels = rng.choice((20, 90, 120, 250, 300, 900, 5_000))
    for _ in range(levels):
        value = [value] if rng.random() < 0.5 else {rng.choice(("x", "data", "locale", "\0")): value}
    return value


def wide(rng: Rng) -> Any:
    """Very many values, or very many keys."""
    count = rng.choice((1_000, 20_000, 100_000))
    kind = rng.randrange(5)
    if kind == 0:
        return [None] * count
    if kind == 1:
        return [[]] * count
    if kind == 2:
        return {f"k{number}": number for number in range(count // 5)}
    if kind == 3:
        return "x" * rng.choice((10_000, 600_000, 1_100_000))
    return [{"a": [{"b": "c"}]}] * (count // 5)


def values(rng: Rng) -> Any:
    """Anything odd."""
    make = rng.choices((texts, numbers, moments, nested, wide, _plain), (8, 3, 3, 1, 1, 3))[0]
    return make(rng)


def _plain(rng: Rng) -> Any:
    return rng.choice((None, [], {}, [[]], {"": ""}, [None], "x", 5, {"__class__": "x"}, ["email"] * 50))


def mutated(good: Any, rng: Rng) -> Any:
    """The document with a few odd things in it: a field replaced, added, taken away or put inside a list."""
    document = deepcopy(good)
    places = list(_places(document))
    if not places or rng.random() < 0.02:
        return values(rng)
    for holder, key in rng.sample(places, min(len(places), rng.choice((1, 1, 1, 2, 3)))):
        if isinstance(holder, list) or key in holder:
            _mutate(holder, key, rng)
    return document


def _mutate(holder: Any, key: Any, rng: Rng) -> None:
    kind = rng.randrange(10)
    if kind == 0 and isinstance(holder, dict):
        holder.pop(key, None)
    elif kind == 1 and isinstance(holder, dict):
        holder[texts(rng, 2_000)] = values(rng)
    elif kind == 2:
        holder[key] = [holder[key]]
    elif kind == 3 and isinstance(holder[key], str):
        holder[key] = holder[key] + texts(rng)
    elif isinstance(holder[key], str) and "T" in holder[key] and kind < 6:
        holder[key] = moments(rng)
    elif isinstance(holder[key], int | float) and kind < 8:
        holder[key] = numbers(rng)
    else:
        holder[key] = values(rng)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every field of a document, with what holds it."""
    if isinstance(value, dict):
        for key in list(value):
            yield value, key
            yield from _places(value[key])
    elif isinstance(value, list):
        for number in range(len(value)):
            yield value, number
            yield from _places(value[number])


def as_json(value: Any) -> bytes:
    """As a careless program writes it: NaN, numbers of any length, half surrogate pairs, any depth."""
    try:
        return json.dumps(value).encode()
    except (
        RecursionError,
        ValueError,
    ):  # deeper than Python's own writer goes, or more digits than it writes
        return _brackets(value)


def _brackets(value: Any) -> bytes:
    """Without recursion: the outline of a document that is too deep to be written otherwise."""
    opened, closed = [], []
    while isinstance(value, list | dict) and value:
        key, inner = next(iter(value.items())) if isinstance(value, dict) else (None, value[0])
        opened.append("[" if key is None else "{" + json.dumps(key) + ":")
        closed.append("]" if key is None else "}")
        value = inner
    middle = "9" * 401 if isinstance(value, int) and abs(value) > 10**300 else json.dumps(value)
    return "".join([*opened, middle, *reversed(closed)]).encode()


def broken(rng: Rng, body: bytes) -> bytes:
    """Bytes that are no document at all."""
    kind = rng.randrange(6)
    if kind == 0:
        return body[: rng.randrange(len(body) + 1)]
    if kind == 1:
        return b"[" * rng.choice((10, 2_000, 100_000))
    if kind == 2:
        return rng.randbytes(rng.choice((1, 200, 20_000)))
    if kind == 3:
        return body + body
    if kind == 4:
        return b"\xff\xfe" + body
    return b'{"a":' * rng.choice((10, 2_000))


def hypothesis_documents(good: Any) -> st.SearchStrategy[Any]:
    """The same as a strategy: hypothesis picks the seed, and shows the one that failed."""
    return st.integers(0, 2**32).map(lambda seed: mutated(good, random.Random(seed)))
