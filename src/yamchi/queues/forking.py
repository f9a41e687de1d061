"""Forked processes begin anew: they use no thread, event loop or connection of their parent."""

import os
from functools import partial
from typing import Any, Protocol, Self
from weakref import WeakSet


class BeginsAnew(Protocol):
    def begin_anew(self) -> None:
        """Return to the state before the first use. What the parent has open is neither used nor closed."""


class MadeAnew:
    """Remembers how it was made, so that a forked process can make another one like it."""

    def __new__(cls, *given: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        made._make = partial(cls, *given, **options)
        return made

    _make: "partial[Self]"

    def anew(self) -> Self:
        """An unused one like it."""
        return self._make()


_living: WeakSet[BeginsAnew] = WeakSet()


def begin_anew_after_fork(thing: BeginsAnew) -> None:
    """Call `begin_anew` of this object in every forked process, as long as the object lives."""
    _living.add(thing)


def _begin_all_anew() -> None:
    for thing in list(_living):
        thing.begin_anew()


os.register_at_fork(after_in_child=_begin_all_anew)
