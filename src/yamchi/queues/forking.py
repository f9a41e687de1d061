"""A forked process: what belongs to threads, event loops and connections of its parent is begun anew there."""

import os
from typing import Protocol
from weakref import WeakSet


class BeginsAnew(Protocol):
    def begin_anew(self) -> None:
        """Be as before the first use. What the parent has open is neither used nor closed: it is the parent's."""


_living: WeakSet[BeginsAnew] = WeakSet()


def begin_anew_after_fork(thing: BeginsAnew) -> None:
    """Have this begin anew in every process that is forked from this one, as long as it lives."""
    _living.add(thing)


def _begin_all_anew() -> None:
    for thing in list(_living):
        thing.begin_anew()


os.register_at_fork(after_in_child=_begin_all_anew)
