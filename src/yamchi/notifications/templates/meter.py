"""What one rendering may use up: steps, characters, depth and processor time. Whoever goes over is stopped at once.

The limits are far above any letter and far below any harm. Time is the processor's, so a busy machine fails no letter.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from time import thread_time
from typing import Any

from jinja2.runtime import Undefined

MAX_STEPS = 100_000  # turns of loops, calls, items of lists that filters go through
MAX_TEXT = 16_000_000  # characters made on the way, over all filters, loops and macros
MAX_OUTPUT = 1_000_000  # characters of one rendered text
MAX_DEPTH = 30  # macros that call macros
MAX_SECONDS = 0.5
MAX_NUMBER = 10**18

SCALARS = (str, int, float, Decimal, datetime, date, time, type(None))
SIZED = (list, tuple, dict, range)


class Refused(Exception):
    """A template did what a rendering may not; the message goes on after the template's name: "loops for …"."""


@dataclass(slots=True)
class Meter:
    """The account of one rendering, and what filters need to know about it."""

    locale: str = "en"
    timezone: str = "UTC"
    data: Any = None
    depth: int = 0
    _steps: int = 0
    _text: int = 0
    _look_at: int = 50
    _until: float | None = None  # most renderings end before anybody has to look

    def step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps > MAX_STEPS:
            raise Refused(f"loops or calls more than {MAX_STEPS:,} times")
        if self._steps >= self._look_at:
            self._look_at_the_time()

    def _look_at_the_time(self) -> None:
        self._look_at = self._steps + 50  # asking costs more than a step
        now = thread_time()
        self._until = now + MAX_SECONDS if self._until is None else self._until
        if now > self._until:
            raise Refused(f"works for more than {MAX_SECONDS:g} s")

    def text(self, length: int) -> None:
        self._text += length
        if self._text > MAX_TEXT:
            raise Refused(f"makes more than {MAX_TEXT:,} characters of text")

    def charge(self, value: object) -> None:
        """Pay for going through this value once."""
        if isinstance(value, str):
            self.text(len(value))
        elif isinstance(value, SIZED):
            self.step(len(value))

    def enter(self) -> None:
        self.step()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Refused(f"has macros that call each other more than {MAX_DEPTH} deep")

    def leave(self) -> None:
        self.depth -= 1

    def weigh(self, value: Any) -> Any:
        """Pay for all that is inside, so that lists of lists of lists can't grow in secret; the value itself."""
        pending = [value]
        while pending:
            item = pending.pop()
            self.charge(item)
            if isinstance(item, dict):
                pending += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple):
                pending += item
            elif isinstance(item, Undefined):
                str(item)  # raises, naming the variable
            elif not isinstance(item, (*SCALARS, range)):
                raise Refused(f"keeps a {type(item).__name__} where only data may be: use |list")
        return value


METER: ContextVar[Meter] = ContextVar("meter")
