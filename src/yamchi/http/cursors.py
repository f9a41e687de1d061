"""Places in a list that only ever grows, as callers carry them from one page to the next."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, literal, tuple_

from yamchi.clock import Millis
from yamchi.errors import InvalidJob
from yamchi.http.base64url import as_base64url, from_base64url
from yamchi.storage.tables import Moment

Place = tuple[Millis, str]
"""A row of a list that is ordered by moment, and by name where several have the same one."""


def make_cursor(moment: Millis, *names: str) -> str:
    """After the row of this moment, and of these names where several have it."""
    return as_base64url("\n".join((str(moment), *names)).encode())


def next_cursor(page: Sequence[Any], limit: int) -> str | None:
    """After the last row of a page, by its `created_at` and `id`; None if the page is not full, so that nothing follows."""
    return make_cursor(page[-1].created_at, page[-1].id) if len(page) == limit else None


def read_cursor(cursor: str, names: int = 1) -> tuple[Millis, list[str]]:
    """The moment and the names; refused in a sentence if it is not one that was given out."""
    try:
        moment, *rest = from_base64url(cursor).decode().split("\n")
        if len(rest) != names or not 0 <= int(moment) < 10**14 or any("\0" in name for name in rest):
            raise ValueError
    except ValueError:
        raise InvalidJob("cursor: it is not one of ours; leave it out to begin at the start.") from None
    return int(moment), rest


def read_place(cursor: str) -> Place:
    """The place that the cursor of a list with one name stands for."""
    moment, (name,) = read_cursor(cursor)
    return moment, name


def is_older(moment: ColumnElement[Millis], name: ColumnElement[str], place: Place) -> ColumnElement[bool]:
    """Whether a row comes after this place in a list whose newest row is first, and whose names fall too."""
    return tuple_(moment, name) < tuple_(literal(place[0], Moment), literal(place[1]))
