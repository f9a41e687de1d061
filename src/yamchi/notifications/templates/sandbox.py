"""Where a template runs: it sees data and an allow-list of filters, methods and functions, and never Python.

An attribute is a key of the data or a name on the list below; everything else is refused. Sizes are paid to the
`Meter`, so neither a loop without end nor a text without end gets far.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from jinja2 import nodes
from jinja2.environment import Template as Compiled
from jinja2.environment import TemplateExpression
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.runtime import Context, LoopContext, Macro, StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, missing, pass_eval_context
from markupsafe import Markup

from yamchi.notifications.templates.filters import FILTERS, TESTS, as_text
from yamchi.notifications.templates.meter import MAX_NUMBER, MAX_OUTPUT, MAX_STEPS, METER, SCALARS, Refused
from yamchi.notifications.templates.rewriting import OURS_ONLY, Rewriter

_REACHABLE: tuple[tuple[type, str], ...] = (
    (str, "capitalize endswith isdigit lower lstrip rstrip split startswith strip title upper"),
    (dict, "get items keys values"),
    (LoopContext, "changed cycle first index index0 last length nextitem previtem revindex revindex0"),
    (datetime, "day hour isoformat minute month second year"),
    (date, "day isoformat month year"),
    (tuple, "grouper list"),  # what groupby gives
)
_ATTRIBUTES = tuple((kind, frozenset(names.split())) for kind, names in _REACHABLE)
_VIEWS: tuple[type[Iterable[Any]], ...] = (type({}.items()), type({}.keys()), type({}.values()))
_ONLY_STATEMENTS = re.compile(
    r"^[ \t]*((?:\{[%#](?:(?![%#]\}).)*[%#]\}[ \t]*)*\{[%#](?:(?!-?[%#]\}).)*)(-?[%#]\})[ \t]*\n",
    re.MULTILINE,
)
_NUMBERS = (int, float, Decimal)


class Missing(StrictUndefined):
    """A variable that the data lacks: any use of it is an error that names it with its path."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        if self._undefined_hint:
            return self._undefined_hint
        if self._undefined_obj is missing:
            return f"the variable {self._undefined_name!r} is missing"
        return f"the variable {f'{_path(self._undefined_obj)}.{self._undefined_name}'!r} is missing"


class SafeNamespace(Namespace):
    """`namespace()`: what a loop may carry out of itself; data only."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**{name: METER.get().weigh(value) for name, value in values.items()})

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, METER.get().weigh(value))


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2 with nothing in it but what a message needs."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, *, autoescape: bool, undefined: type[Undefined] = Missing) -> None:
        super().__init__(
            autoescape=autoescape,
            undefined=undefined,
            finalize=_written,
            optimized=False,  # nothing of a template is worked out where no meter runs
            cache_size=0,
        )
        self.filters = dict(FILTERS)
        self.tests = dict(TESTS)
        self.globals = {"range": _bounded_range, "namespace": SafeNamespace}

    def preprocess(self, source: str, name: str | None = None, filename: str | None = None) -> str:
        """A line of nothing but statements leaves no line behind; its break goes inside, so that lines keep their numbers."""
        return _ONLY_STATEMENTS.sub(r"\1\n\2", str(source))

    def parse(self, *args: Any, **kwargs: Any) -> nodes.Template:
        with _depth_is_told():
            return super().parse(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        with _depth_is_told():
            return super().compile(*args, **kwargs)

    def compile_expression(self, *args: Any, **kwargs: Any) -> TemplateExpression:
        with _depth_is_told():
            return super().compile_expression(*args, **kwargs)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        rewritten = Rewriter(self).visit(source)
        return super()._generate(rewritten, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        if isinstance(obj, SafeNamespace) and not attribute.startswith("_"):
            return getattr(obj, attribute, self.undefined(obj=obj, name=attribute))
        if any(isinstance(obj, kind) and attribute in names for kind, names in _ATTRIBUTES):
            return getattr(obj, attribute, self.undefined(obj=obj, name=attribute))
        return self._absent(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, str):
            return self.getattr(obj, argument)
        if isinstance(obj, list | tuple | str | range | dict):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                return self._absent(obj, argument)
        return self._absent(obj, argument)

    def _absent(self, obj: Any, name: Any) -> Undefined:
        if isinstance(obj, Undefined):
            str(obj)  # raises: what is missing has no parts
        if str(name).startswith("_"):
            raise SecurityError(f"{str(name)[:60]!r} is out of a template's reach")
        hint = None if isinstance(obj, dict) else f"{_a(obj)} has no {str(name)[:60]!r}"
        return self.undefined(hint, obj=obj, name=str(name)[:60])

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """A filter that `map` is told by name: never one of those that keep the meter."""
        if str(name).endswith(OURS_ONLY):
            raise SecurityError(f"there is no filter named {str(name)[:60]!r}")
        return super().call_filter(name, *args, **kwargs)

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(obj, Macro) or obj in (_bounded_range, SafeNamespace):
            return True
        owner = getattr(obj, "__self__", None)
        return any(isinstance(owner, kind) and obj.__name__ in names for kind, names in _ATTRIBUTES)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        if isinstance(__obj, Undefined):
            str(__obj)
        if not __self.is_safe_callable(__obj):
            raise SecurityError(f"{_a(__obj)} can't be called")
        meter = METER.get()
        meter.enter()
        if not isinstance(__obj, Macro):  # which hands its arguments on
            owner = getattr(__obj, "__self__", None)
            for value in (owner if isinstance(owner, str) else None, *args, *kwargs.values()):
                meter.pay(value)
        try:
            result = __context.call(__obj, *args, **kwargs)
        finally:
            meter.leave()
        if not isinstance(result, range):  # pays as it is gone through
            meter.charge(result)
        return list(result) if isinstance(result, _VIEWS) else result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        for value in (left, right):
            if isinstance(value, Undefined):
                str(value)
        METER.get().step()
        if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
            return self._calculated(operator, left, right)
        if operator == "+" and _addable(left, right):
            METER.get().weigh(left)
            return METER.get().weigh(left + right)
        if operator == "*" and isinstance(left, str) and isinstance(right, int):
            METER.get().text(len(left) * max(right, 0))
            return left * right
        raise Refused(f"uses {operator!r} on {_a(left)} and {_a(right)}")

    def _calculated(self, operator: str, left: Any, right: Any) -> Any:
        if abs(left) > MAX_NUMBER or abs(right) > MAX_NUMBER:
            raise Refused("calculates with numbers that are too large")
        if operator == "**" and (abs(left) > 1_000_000 or abs(right) > 64):
            raise Refused("raises a number to a power that is too high")
        result = self.binop_table[operator](left, right)
        if isinstance(result, complex) or abs(result) > MAX_NUMBER:
            raise Refused("calculates with numbers that are too large")
        return result


@contextmanager
def _depth_is_told() -> Iterator[None]:
    """What Jinja or Python can't read because it is nested too deeply is a mistake in it like any other."""
    try:
        yield
    except (RecursionError, MemoryError, SyntaxError):
        error = TemplateSyntaxError("it is nested too deeply", 1)
        error.translated = True  # it has no line to show
        raise error from None


def generate(compiled: Compiled, variables: dict[str, Any], longest: int = MAX_OUTPUT) -> str:
    """The text of a compiled template; the meter must be set. Stops at the first character too many."""
    parts: list[str] = []
    length = 0
    try:
        for part in compiled.root_render_func(_context(compiled, variables)):
            length += len(part)
            if length > longest:
                raise Refused(f"writes more than {longest:,} characters")
            parts.append(part)
    except Exception:
        compiled.environment.handle_exception()  # raises it with the template's lines
    return "".join(parts)


def _context(compiled: Compiled, variables: dict[str, Any]) -> Context:
    """As Jinja makes it, with one merge of plain dictionaries where Jinja goes through a chain of them, twice."""
    environment = compiled.environment
    return environment.context_class(
        environment, {**environment.globals, **variables}, compiled.name, compiled.blocks
    )


@pass_eval_context  # so that Jinja calls it at rendering only, never while compiling
def _written(_: nodes.EvalContext, value: Any) -> Any:
    text = as_text(value)
    METER.get().text(len(text))
    return text


def _bounded_range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_STEPS:
        raise Refused(f"counts further than {MAX_STEPS:,}")
    return numbers


def _addable(left: Any, right: Any) -> bool:
    return any(isinstance(left, kind) and isinstance(right, kind) for kind in (str, list, tuple))


def _a(value: object) -> str:
    """The kind of a value in an author's words."""
    names = {
        str: "a text",
        Markup: "a text",
        dict: "a mapping",
        list: "a list",
        tuple: "a list",
        type(None): "null",
    }
    if isinstance(value, _NUMBERS):
        return "a number"
    return names.get(type(value), f"a {type(value).__name__.lower()}")


def _path(obj: object) -> str:
    """Where in the data this object is, for a message: `user`, `order.items`."""
    return next((path for path, value in _walk(METER.get().data, "") if value is obj), _a(obj))


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(item, SCALARS):
                yield from _walk(item, f"{path}.{name}" if path else str(name))
