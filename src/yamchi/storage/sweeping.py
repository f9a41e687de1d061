"""Where something that looks for leftovers every few seconds begins.

It begins at the old end, where on PostgreSQL the dead rows are that somebody's open transaction keeps. So when that has become
long, it does so only now and then, and between begins where it left off.
"""

FULL_SWEEP_FACTOR = 50
"""After a sweep over everything, the next one waits so many times as long as it took."""


class Sweep:
    """Remembers where to begin. Seconds are those of a clock that never goes back."""

    __slots__ = ("_next_full", "since")

    def __init__(self) -> None:
        self.since: int | None = None
        self._next_full = 0.0

    def begin(self, now: float) -> int | None:
        """A place, or None for the beginning."""
        return None if now >= self._next_full else self.since

    def finish(self, began_at: int | None, since: int | None, began: float, now: float) -> None:
        """Note where the sweep began, and from where the next one may begin."""
        self.since = since
        if began_at is None:
            self._next_full = now + FULL_SWEEP_FACTOR * (now - began)
