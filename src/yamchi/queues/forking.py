"""A forked process: what belongs to threads, event loops and connections of its parent is begun anew there."""

import os
from functools import partial
from typing import Any, Protocol, Self
from weakref import WeakSet


class BeginsAnew(Protocol):
    def begin_anew(self) -> None:
        """Be as before the first use. What the parent has open is neither used nor closed: it is the parent's."""


class MadeAnew:
    """Remembers how it was made, so that a forked process can make another one like it."""

    def __new__(cls, *given: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        made._make = partial(cls, *given, **options)
        return made

    _make: "partial[Self]"

    def anew(self) -> Self:
        """One that was never used."""
        return self._make()


_living: WeakSet[BeginsAnew] = WeakSet()


def begin_anew_after_fork(thing: BeginsAnew) -> None:
    """Have this begin anew in every process that is forked from this one, as long as it lives."""
    _living.add(thing)


def _begin_all_anew() -> None:
    for thing in list(_living):
        thing.begin_anew()


os.register_at_fork(after_in_child=_begin_all_anew)
