"""What a field that comes in from outside may hold: how long a text, how deep a document, how large a number.

Declared once, as annotated types; HTTP, messages of other systems, rules and the command line use the same ones. Every
check is linear, and a length is looked at before anything else is.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Annotated, Any, NamedTuple, TypeVar

import orjson
from email_validator import EmailNotValidError, validate_email
from pydantic import AfterValidator, BeforeValidator, StringConstraints

from yamchi.clock import check_zone, in_utc, to_millis, to_moment
from yamchi.errors import InvalidJob

T = TypeVar("T")

MOST_DEPTH = 100
"""Levels of a document within another: more than anybody writes, and fewer than any of our libraries can take."""

_ENCODER_DEPTH = 254
"""Levels that orjson writes."""

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""As JSON writes it; after an odd number of backslashes it is plain text."""

_ON_ONE_LINE = r"^[^\u0000-\u001F\u007F]*$"
WITHOUT_NUL = r"^[^\u0000]*$"


# ── Text ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Name = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=_ON_ONE_LINE)]
"""An id, a code, a type or a name: a few words on one line, as a table keeps them."""

Key = Annotated[str, StringConstraints(min_length=1, max_length=1_000, pattern=WITHOUT_NUL)]
"""An id to look for, which another program may have made."""

Address = Annotated[str, StringConstraints(min_length=1, max_length=320, pattern=_ON_ONE_LINE)]
"""Where somebody is reached, whichever kind of address it is."""

Locale = Annotated[str, StringConstraints(max_length=35, pattern=_ON_ONE_LINE)]
Phone = Annotated[str, StringConstraints(max_length=32, pattern=_ON_ONE_LINE)]
Note = Annotated[str, StringConstraints(max_length=500, pattern=WITHOUT_NUL)]
"""A remark by a person."""

Subject = Annotated[str, StringConstraints(max_length=998, pattern=WITHOUT_NUL)]
"""As long as a line of a letter may be; line breaks are refused where the letter is made."""

Words = Annotated[str, StringConstraints(max_length=1_000_000, pattern=WITHOUT_NUL)]
"""The text of a message."""


def _is_email(value: str) -> str:
    try:
        return validate_email(value, check_deliverability=False).normalized
    except EmailNotValidError as error:
        raise ValueError(f"{value!r} is not an e-mail address: {error}") from error


def lower_domain(email: str) -> str:
    """As addresses of known people are kept: the domain means the same in any case."""
    local, at, domain = email.rpartition("@")
    return f"{local}{at}{domain.lower()}"


Email = Annotated[Address, AfterValidator(_is_email)]
"""An e-mail address. Its length is looked at first: checking the rest takes the square of it."""

Timezone = Annotated[str, StringConstraints(max_length=64), AfterValidator(check_zone)]

# ── Numbers and time ──────────────────────────────────────────────────────────────────────────────────────────────

Moment = Annotated[datetime, AfterValidator(in_utc)]
"""A moment that a calendar can show; one without a time zone is UTC, as the contract's examples are."""


def _is_zoned(moment: datetime) -> datetime:
    to_moment(moment)
    return moment


ZonedMoment = Annotated[datetime, AfterValidator(_is_zoned)]
"""The same, with its time zone: without one it would be a guess."""


def _is_span(value: str | float) -> str | float:
    to_millis(value)
    return value


SpanText = Annotated[str | float, AfterValidator(_is_span)]
"""A span of time as it is written in a body: seconds, or text such as "30m"."""

# ── What is wrong with them ──────────────────────────────────────────────────────────────────────────────────────


class Fault(NamedTuple):
    """A field and what is wrong with it."""

    place: str
    message: str

    def within(self, outer: str) -> "Fault":
        """The same, in a document in which this one is the field `outer`."""
        return self._replace(place=f"{outer}.{self.place}" if self.place else outer)


_LONGEST_MESSAGE = 500
_LONGEST_PART = 100
"""Characters that are shown of a name which the sender chose."""


def faults_of(errors: Sequence[Any], given: Any = ...) -> list[Fault]:
    """What pydantic found in a document. If that is given, by the places that its sender knows: without names of classes and unions."""
    placed = [(_place(error, given), error) for error in errors]
    of_content = [place for place, error in placed if not _is_of_kind(error)]
    return list(
        dict.fromkeys(
            Fault(place, _said(error))
            for place, error in placed
            if not (_is_of_kind(error) and any(_is_within(one, place) for one in of_content))
        )
    )


def _is_of_kind(error: Any) -> bool:
    """Whether a value is not even of the kind: of the forms that a field may take, this is not the one that was meant."""
    return bool(error["type"].endswith("_type"))


def _is_within(place: str, outer: str) -> bool:
    return place == outer or place.startswith(f"{outer}.") or not outer


def _said(error: Any) -> str:
    return "there is no such field" if error["type"] == "extra_forbidden" else _plain(error["msg"])


def _plain(message: str) -> str:
    return (
        message.removeprefix("Value error, ")
        .removeprefix("Assertion failed, ")
        .rstrip(".")[:_LONGEST_MESSAGE]
    )


def _place(error: Any, given: Any) -> str:
    """The parts of a place that are there in the document, and the one that is missing from it."""
    if given is ...:
        return ".".join(str(part)[:_LONGEST_PART] for part in error["loc"])
    kept, here = [], given
    for number, part in enumerate(error["loc"]):
        is_missing = error["type"] == "missing" and number == len(error["loc"]) - 1
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            if not is_missing:
                continue
        kept.append(str(part)[:_LONGEST_PART])
    return ".".join(kept)


# ── Documents ─────────────────────────────────────────────────────────────────────────────────────────────────────


MOST_KEYS = 1_000
"""Fields of a document of ours, where each that is not known is a fault with a name; what is free-form inside may have more."""


def check_few(value: T, most: int = MOST_KEYS) -> T:
    if isinstance(value, dict | list) and len(value) > most:
        raise InvalidJob(f"it has {len(value):,} entries, and may have {most:,}")
    return value


def few(most: int) -> BeforeValidator:
    """An object or a list of at most so many entries. `max_length` counts an object's after a fault was found in each of them."""
    return BeforeValidator(partial(check_few, most=most))


def check_json(value: T) -> T:
    """The value, if every engine and every database can keep it as JSON; else a sentence that names the place."""
    try:
        encoded = orjson.dumps(value)
        if encoded.count(b"[") + encoded.count(b"{") > MOST_DEPTH:
            _check_depth(value)
    except TypeError as error:
        raise InvalidJob(_find_fault(value) or f"It can't be written as JSON: {error}.") from error
    # orjson writes NaN as null, so what is read again is something else.
    is_odd = b"null" in encoded and orjson.loads(encoded) != value
    has_nul = b"\\u0000" in encoded and _NUL.search(encoded) is not None
    if (is_odd or has_nul) and (fault := _find_fault(value)):
        raise InvalidJob(fault)
    if has_nul:
        raise InvalidJob(_HAS_NUL)
    if is_odd and _has_nan(value):
        raise InvalidJob(_IS_NAN)
    return value


def _check_depth(value: Any) -> None:
    """Let the encoder count: wrapped so often that it gives up at our own limit."""
    for _ in range(_ENCODER_DEPTH - MOST_DEPTH):
        value = [value]
    orjson.dumps(value)


MOST_LOOKED_AT = 10_000
"""Values among which a fault is looked for to name its place; that there is one is known before."""


def _find_fault(value: Any) -> str | None:
    """The first place that JSON can't carry, and why; None if there is none among the first values."""
    for place, one in islice(_walk(value), MOST_LOOKED_AT):
        if (said := _fault_of(one)) is not None:
            return f"{place}: {said}" if place else said
    return None


def _has_nan(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False, default=str)
    except ValueError:
        return True
    return False


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every value of a document and every name in it, in order, with its place; without recursion: it may be as deep as its sender liked."""
    levels = [iter([("", value)])]
    while levels:
        place, one = next(levels[-1], (None, None))
        if place is None:
            levels.pop()
        elif len(levels) > MOST_DEPTH and isinstance(one, dict | list | tuple):
            yield place, _TOO_DEEP
            return
        else:
            yield place, one
            levels.append(_inside(place, one))


def _inside(place: str, one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, dict):
        for key, inner in one.items():
            yield place, key
            yield _join(place, key), inner
    elif isinstance(one, list | tuple):
        yield from ((_join(place, number), inner) for number, inner in enumerate(one))


_TOO_DEEP = object()
_HAS_NUL = "it has a NUL character, which no database can keep"
_IS_NAN = "NaN and Infinity are not numbers of JSON"
_LONGEST_PLACE = 200


def _join(place: str, part: object) -> str:
    if len(place) > _LONGEST_PLACE:
        return place
    shown = str(part)[:60].encode("utf-8", "backslashreplace").decode()
    return f"{place}.{shown}" if place else shown


def _fault_of(value: Any) -> str | None:
    match value:
        case bool() | None:
            return None
        case str() if "\0" in value:
            return _HAS_NUL
        case str() if not value.isascii() and not _is_utf8(value):
            return "it has half of a surrogate pair, which is not a character"
        case int() if not -(2**63) <= value < 2**64:
            return "the number does not fit into 64 bits: send it as text"
        case float() if not math.isfinite(value):
            return _IS_NAN
    return f"it is more than {MOST_DEPTH} levels deep" if value is _TOO_DEEP else None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


JsonObject = Annotated[dict[str, Any], AfterValidator(check_json)]
"""Any JSON object that can be kept."""
