"""Kinds of tokens that features make for people's pages. Apart from the guard that checks them, so that a plugin loads quickly."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageToken:
    """A kind of token that a feature makes for people's pages: how it begins, and whose it is (or TokenRefused).

    It is checked however many wrong ones came before it, so it must be too long to be guessed.
    """

    prefix: str
    check: Callable[[str], Awaitable[str]]
