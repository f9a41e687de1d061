"""Lists come in pages: by number where the list can be counted, by cursor or by moment where it only ever grows."""

from datetime import datetime
from typing import Annotated

from fastapi import Query

from yamchi.clock import Millis, to_moment
from yamchi.errors import InvalidJob
from yamchi.fields import WITHOUT_NUL

PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]
PageSize = Annotated[int, Query(ge=1, le=200)]
Search = Annotated[
    str, Query(max_length=200, pattern=WITHOUT_NUL, description="Text in the id, the name or the data.")
]

Limit = Annotated[int, Query(ge=1, le=500)]
Cursor = Annotated[str | None, Query(max_length=300, description="`next_cursor` of the page before.")]


def pages(total: int, size: int) -> int:
    """How many pages of this size there are; an empty list has one."""
    return max(1, -(-total // size))


def read_before(text: str | None) -> Millis | None:
    """The moment of `before`, which is `next_before` of the page before; refused in a sentence if it is no moment."""
    if text is None:
        return None
    try:
        return to_moment(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise InvalidJob("before: it should be `next_before` of a page.") from None
