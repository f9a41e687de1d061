"""Where the next page begins: cursors and moments that callers give back."""

import pytest

from yamchi.errors import InvalidJob
from yamchi.http.cursors import make_cursor, read_cursor
from yamchi.http.paging import pages, read_before


def test_a_cursor_says_what_it_was_made_of() -> None:
    assert read_cursor(make_cursor(1_700_000_000_000, "a", "b"), names=2) == (1_700_000_000_000, ["a", "b"])


@pytest.mark.parametrize("cursor", ["", "?", "YQ", make_cursor(-1, "a"), make_cursor(10**14, "a"), "é"])
def test_a_cursor_of_somebody_else_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidJob, match="cursor: it is not one of ours"):
        read_cursor(cursor)


def test_a_page_before_a_moment() -> None:
    assert read_before(None) is None
    assert read_before("2026-01-01T00:00:00Z") == (1_767_225_600_000, "")
    assert read_before(make_cursor(1_767_225_600_000, "a")) == (1_767_225_600_000, "a")


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00+23:59"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob, match="before: it should be `next_before` of a page"):
        read_before(text)


@pytest.mark.parametrize(("total", "expected"), [(0, 1), (1, 1), (50, 1), (51, 2)])
def test_how_many_pages(total: int, expected: int) -> None:
    assert pages(total, 50) == expected
