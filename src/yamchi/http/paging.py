"""Lists come in pages: by number where the list can be counted, by cursor or by moment where it only ever grows."""

from contextlib import suppress
from datetime import datetime
from typing import Annotated

from fastapi import Query
from pydantic import BeforeValidator
from pydantic_core import PydanticUseDefault

from yamchi.clock import to_moment
from yamchi.errors import InvalidJob
from yamchi.fields import WITHOUT_NUL
from yamchi.http.cursors import Place, read_place


def _empty_is_absent(value: object) -> object:
    """A form sends every field, also those that nobody filled in."""
    if value == "":
        raise PydanticUseDefault
    return value


EMPTY_IS_ABSENT = BeforeValidator(_empty_is_absent)

PageNumber = Annotated[int, Query(ge=1, le=1_000_000), EMPTY_IS_ABSENT]
PageSize = Annotated[int, Query(ge=1, le=200), EMPTY_IS_ABSENT]
Search = Annotated[
    str, Query(max_length=200, pattern=WITHOUT_NUL, description="Text in the id, the name or the data.")
]

Limit = Annotated[int, Query(ge=1, le=500)]
Before = Annotated[
    str | None, Query(max_length=300, description="`next_before` of the page before, or a moment.")
]
Cursor = Annotated[str | None, Query(max_length=300, description="`next_cursor` of the page before.")]


def pages(total: int, size: int) -> int:
    """The number of pages of this size. An empty list has one."""
    return max(1, -(-total // size))


def read_before(text: str | None) -> Place | None:
    """The place that `before` names: `next_before` of the page before, or a moment; else refused in a sentence."""
    if text is None:
        return None
    with suppress(ValueError, OverflowError):
        return to_moment(datetime.fromisoformat(text)), ""
    try:
        return read_place(text)
    except InvalidJob:
        raise InvalidJob("before: it should be `next_before` of a page.") from None
