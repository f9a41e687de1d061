"""What one rendering may use: steps, characters, depth and processor time. A rendering that goes over is stopped at once.

The limits are far above any letter and far below any harm. Time is the processor's, so a busy machine fails no letter.
A first try on the event loop has much lower ones: what goes over those is no failure, but is done again in a thread.
"""

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from time import thread_time
from typing import Any

from jinja2.runtime import Undefined

MAX_STEPS = 100_000  # rounds of loops, calls, items of lists that filters go through
MAX_TEXT = 16_000_000  # characters made on the way, over all filters, loops and macros
MAX_OUTPUT = 1_000_000  # characters of one rendered text
MAX_DEPTH = 30  # macros that call macros
MAX_SECONDS = 0.5
MAX_NUMBER = 10**18

SCALARS = (str, int, float, Decimal, datetime, date, time, type(None))
SIZED = (list, tuple, dict, range)


class Refused(Exception):
    """A template did what a rendering may not; the message goes on after the template's name: "loops for …"."""


class Outgrown(Exception):
    """A first try has used up its share of the event loop: it is done again where it disturbs nobody."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rendering may use up."""

    steps: int = MAX_STEPS
    text: int = MAX_TEXT
    seconds: float = MAX_SECONDS
    is_first_try: bool = False


FULL = Limits()
FIRST_TRY = Limits(steps=2_000, text=400_000, seconds=0.05, is_first_try=True)
"""Some ten milliseconds, many times what a letter needs."""

ON_THE_LOOP = Limits(steps=20_000, text=2_000_000, seconds=0.1)
"""For short expressions that nobody takes to a thread: what goes over these has failed."""

_EVERY_STEPS, _EVERY_TEXT = 50, 500_000  # how often the clock is looked at: asking costs more than a step


@dataclass(slots=True)
class Meter:
    """The account of one rendering, and what filters need to know about it."""

    locale: str = "en"
    timezone: str = "UTC"
    data: Any = None
    limits: Limits = FULL
    depth: int = 0
    _steps: int = 0
    _text: int = 0
    _look_at_step: int = _EVERY_STEPS
    _look_at_text: int = 200_000
    _until: float | None = None  # most renderings end before anybody has to look

    def step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps >= self._look_at_step:
            self._look()

    def text(self, length: int) -> None:
        self._text += length
        if self._text >= self._look_at_text:
            self._look()

    def _look(self) -> None:
        """At all that is used up by now."""
        limits, now = self.limits, thread_time()
        self._until = now + limits.seconds if self._until is None else self._until
        if self._steps > limits.steps:
            raise self._stopped(f"loops or calls more than {limits.steps:,} times")
        if self._text > limits.text:
            raise self._stopped(f"makes more than {limits.text:,} characters of text")
        if now > self._until:
            raise self._stopped(f"works for more than {limits.seconds:g} s")
        self._look_at_step = min(self._steps + _EVERY_STEPS, limits.steps + 1)
        self._look_at_text = min(self._text + _EVERY_TEXT, limits.text + 1)

    def _stopped(self, problem: str) -> Exception:
        return Outgrown(problem) if self.limits.is_first_try else Refused(problem)

    def hand_over(self, size: int) -> None:
        """Work that nothing can interrupt is not tried on the event loop if it is of this size."""
        if self.limits.is_first_try and size > LARGE:
            raise Outgrown(f"{size:,} characters")

    def charge(self, value: object) -> None:
        """Pay for going through this value once."""
        if isinstance(value, str):
            self.text(len(value))
        elif isinstance(value, SIZED):
            self.step(len(value))

    def pay(self, value: object) -> None:
        """Pay for a look at all that is inside, as whoever compares or sorts it takes: an item costs as much as a word."""
        if isinstance(value, str):
            self.text(len(value))
        elif isinstance(value, SIZED):
            for item in _inside(value):
                self.text(
                    len(item) if isinstance(item, str) else ITEM * len(item) if isinstance(item, SIZED) else 0
                )

    def enter(self) -> None:
        self.step()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Refused(f"has macros that call each other more than {MAX_DEPTH} deep")

    def leave(self) -> None:
        self.depth -= 1

    def weigh(self, value: Any) -> Any:
        """Pay for all that is inside, so that lists of lists of lists can't grow in secret; the value itself."""
        for item in _inside(value):
            self.charge(item)
            if isinstance(item, Undefined):
                str(item)  # raises, naming the variable
            elif not isinstance(item, (*SCALARS, *SIZED)):
                raise Refused(f"keeps a {type(item).__name__} where only data may be: use |list")
        return value


ITEM = 8
LARGE = 20_000
"""Characters of HTML that the inliner and the text maker read in a few milliseconds."""


def _inside(value: Any) -> Iterator[Any]:
    """The value and all its parts, each before its own parts: so paying stops before the parts are visited."""
    pending = [value]
    while pending:
        item = pending.pop()
        yield item
        if isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            pending += item


METER: ContextVar[Meter] = ContextVar("meter")
