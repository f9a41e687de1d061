"""Lasting trouble is logged as a warning once, when it begins, and not at every repetition."""

from typing import Any

MOST_KNOWN = 10


class LastingTrouble:
    """What one thread or task meets again and again: each sentence is a warning the first time, then for who looks closer."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._known: set[str] = set()

    def meet(self, sentence: str) -> None:
        is_new = sentence not in self._known and len(self._known) < MOST_KNOWN
        (self._log.warning if is_new else self._log.debug)(sentence)
        if is_new:
            self._known.add(sentence)

    def end(self) -> None:
        """It went well: further trouble is new."""
        self._known.clear()
