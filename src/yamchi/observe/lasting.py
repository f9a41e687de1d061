"""Trouble that lasts is a warning once, when it begins, and not at every look until it is over."""

from typing import Any


class LastingTrouble:
    """What one thread or task meets again and again: the first time is a warning, the rest is for who looks closer."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._is_known = False

    def meet(self, sentence: str) -> None:
        level = self._log.debug if self._is_known else self._log.warning
        level(sentence)
        self._is_known = True

    def end(self) -> None:
        """It went well: what comes next is new."""
        self._is_known = False
