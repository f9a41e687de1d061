"""Filters and tests that pay the `Meter` for what they take and give, and the filters that the rewriter puts in."""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from jinja2.environment import Environment
from jinja2.exceptions import FilterArgumentError
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, Undefined

from yamchi.notifications.templates.meter import METER, SIZED, Meter

Filter = Callable[..., Any]

# These hand their items on without looking inside them; the others pay for all that is inside.
_LOOK_AT_NOTHING = frozenset(
    [
        "batch",
        "count",
        "d",
        "default",
        "first",
        "items",
        "last",
        "length",
        "list",
        "map",
        "reject",
        "rejectattr",
        "reverse",
        "safe",
        "select",
        "selectattr",
    ]
)
# These go through a text letter by letter.
_TAKE_ITEMS = frozenset(
    [
        "batch",
        "dictsort",
        "groupby",
        "join",
        "list",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "select",
        "selectattr",
        "sort",
        "sum",
        "unique",
    ]
)
_NO_SIZE = frozenset({int, float, bool, type(None), Environment, Context, EvalContext})


def metered_loop(values: Iterable[Any], written: int) -> Iterable[Any]:
    """Pay for each round: one step, and the fixed text that it may write."""
    meter = METER.get()
    for value in values:
        meter.step()
        meter.text(written)
        yield value


def metered(name: str, function: Filter) -> Filter:
    """Pay for what goes in and what comes out; an undefined value goes through, for `default`."""
    looks_inside, takes_items = name not in _LOOK_AT_NOTHING, name in _TAKE_ITEMS

    @wraps(function)
    def paid(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.step()
        taken = [arg if type(arg) in _NO_SIZE else _taken(meter, arg, looks_inside) for arg in args]
        if kwargs:
            kwargs = {key: _taken(meter, arg, looks_inside) for key, arg in kwargs.items()}
        if takes_items:
            meter.step(max((len(arg) for arg in args if isinstance(arg, str)), default=0))
        result = function(*taken, **kwargs)
        if isinstance(result, str):
            meter.text(len(result))
        elif _comes_by_item(result):
            return _counted(meter, result)
        else:
            meter.charge(result)
        return result

    return paid


def _taken(meter: Meter, value: Any, looks_inside: bool) -> Any:
    """The value, paid for now or, if it comes item by item, as it comes."""
    if isinstance(value, str):
        meter.text(len(value))
        return value
    if _comes_by_item(value):
        return _looked_into(meter, value) if looks_inside else _counted(meter, value)
    if callable(value) and not isinstance(value, Undefined):
        raise FilterArgumentError("a filter takes data, and a function is none")
    meter.charge(value)
    if looks_inside and isinstance(value, SIZED):
        meter.pay(value)
    return value


def _comes_by_item(value: Any) -> bool:
    return hasattr(type(value), "__next__")  # isinstance with Iterator takes ten times as long


def _counted(meter: Meter, values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        meter.step()
        yield value


def _looked_into(meter: Meter, values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        meter.step()
        meter.pay(value)
        yield value


def metered_test(function: Filter) -> Filter:
    """Pay for what is compared; what is not defined goes through, for `is defined`."""

    @wraps(function)
    def paid(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.step()
        return function(*[metered_comparison(arg) for arg in args], **kwargs)

    return paid


def metered_comparison(value: Any) -> Any:
    """A side of a comparison: each pays for all that is inside it."""
    if type(value) in _NO_SIZE:
        return value
    meter = METER.get()
    if _comes_by_item(value):
        return _looked_into(meter, value)
    meter.pay(value)
    return value


def checked_defined(function: Filter) -> Filter:
    """A missing variable is told by its name before the filter looks at it."""

    @wraps(function)
    def checked(value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, Undefined):
            str(value)
        return function(value, *args, **kwargs)

    return checked


def metered_literal(value: Any) -> Any:
    return METER.get().weigh(value)


def metered_slice(value: Any) -> Any:
    METER.get().charge(value)
    return value


def metered_repeat(written: int) -> None:
    METER.get().text(written)
