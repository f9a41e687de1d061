"""Acting on all items of a list that changes meanwhile: each item once, even if it comes back."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

OnDone = Callable[[int], object]
"""Called with the number of items just done."""


class Item(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Item)


async def each_once(
    page: Callable[[int], Awaitable[Sequence[T]]],
    act: Callable[[list[T]], Awaitable[Sequence[str]]],
    on_done: OnDone | None = None,
) -> int:
    """Act on each item of a list, newest first, that loses what was acted on; how many went.

    `page` gives the items from an offset on, `act` the ids that left the list. What comes back, such as a job that fails
    again at once, is known by its id and stays: it only pushes down what is still to come.
    """
    seen: set[str] = set()
    done = offset = 0
    while items := await page(offset):
        new = [item for item in items if item.id not in seen]
        seen.update(item.id for item in new)
        gone = len(await act(new)) if new else 0
        done += gone
        offset += len(items) - gone
        if on_done:
            on_done(gone)
    return done
