"""Expressions and short templates in scenarios: the sandbox of message templates, with a scenario's values in it."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from jinja2 import TemplateError, Undefined

from yamchi.clock import isoformat
from yamchi.errors import Unrecoverable
from yamchi.notifications.templates.meter import METER, ON_THE_LOOP, Meter, Refused
from yamchi.notifications.templates.sandbox import Sandbox, generate
from yamchi.scenarios.moments import read_moment

LONGEST_EXPRESSION = 2_000


class ExpressionFailed(Unrecoverable):
    """An expression could not be worked out on these values."""


def _in_utc(value: Any) -> str:
    """`{{ lead.lesson_datetime|utc }}`: 2026-02-25T10:00:00Z; a date without an offset is read in the entity's zone."""
    return isoformat(read_moment(value, ZoneInfo(METER.get().timezone)))


_texts = Sandbox(autoescape=False)
_conditions = Sandbox(autoescape=False, undefined=Undefined)
"""What the data lacks is no mistake in a condition: it is neither equal to anything nor true."""

for _sandbox in (
    _texts,
    _conditions,
):  # templates of messages have no need of it; data for other programs does
    _sandbox.filters["utc"] = _in_utc


def check_expression(text: str) -> str:
    """The expression, if it is one; a `ValueError` says what is wrong with it."""
    return _checked(text, _expression)


def check_text(text: str) -> str:
    """The template, if it is one."""
    return _checked(text, _template)


def holds(expression: str, values: Mapping[str, Any], zone: str = "UTC") -> bool:
    """Whether the expression is true of these values."""
    return bool(_evaluated(_expression, expression, values, zone))


def fill(value: Any, values: Mapping[str, Any], zone: str = "UTC") -> Any:
    """A value with the templates in it filled in. `{{ lead.age }}` alone stays the number that it is."""
    if isinstance(value, str):
        return _filled(value, values, zone) if "{" in value else value
    if isinstance(value, Mapping):
        return {name: fill(part, values, zone) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [fill(part, values, zone) for part in value]
    return value


def _filled(text: str, values: Mapping[str, Any], zone: str) -> Any:
    bare = text.strip()
    if bare.startswith("{{") and bare.endswith("}}") and bare.count("{{") == 1:
        found = _evaluated(_strict_expression, bare[2:-2].strip(), values, zone)
        return None if isinstance(found, Undefined) else found
    return _evaluated(_template, text, values, zone)


def _evaluated(compiled: Any, text: str, values: Mapping[str, Any], zone: str) -> Any:
    given = dict(values)
    meter = METER.set(Meter(timezone=zone, data=given, limits=ON_THE_LOOP))
    try:
        return compiled(text)(given)
    except (TemplateError, Refused, ArithmeticError, TypeError, ValueError, LookupError) as error:
        raise ExpressionFailed(f"{text!r} can't be worked out: {error}") from None
    except RecursionError:
        raise ExpressionFailed(f"{text[:80]!r} is nested too deeply") from None
    finally:
        METER.reset(meter)


@lru_cache(maxsize=2_000)
def _expression(text: str) -> Any:
    return _conditions.compile_expression(text)


@lru_cache(maxsize=2_000)
def _strict_expression(text: str) -> Any:
    return _texts.compile_expression(text, undefined_to_none=False)


@lru_cache(maxsize=2_000)
def _template(text: str) -> Any:
    template = _texts.from_string(text)
    return lambda values: generate(template, values)


def _checked(text: str, compile: Any) -> str:
    if len(text) > LONGEST_EXPRESSION:
        raise ValueError(f"it is longer than {LONGEST_EXPRESSION:,} characters")
    try:
        compile(text)
    except (TemplateError, Refused) as error:
        raise ValueError(f"{text[:80]!r} is not an expression: {error}") from None
    return text
