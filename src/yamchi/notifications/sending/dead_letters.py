"""DLQPublisher: the dead letters of notifications, as the API and the command line handle them.

The letter itself is written by the queue, together with the verdict that ends the job, to `notifications.dlq` (or its
counterpart on other engines): `{job, error_message, failed_at}` or `{raw_value, error_message, failed_at}`.
"""

from typing import Any

from yamchi.clock import isoformat
from yamchi.queues import foreign
from yamchi.queues.queue import Queue
from yamchi.queues.records import DeadLetter

LONGEST_IN_LIST = 32_768
"""A list shows letters up to so many bytes whole: a page may hold hundreds, of a megabyte each."""

PREVIEW = 240
"""Characters that a list shows of a longer letter."""


class DLQPublisher:
    """Looks at dead letters and puts them back."""

    def __init__(self, queue: Queue) -> None:
        self._letters = queue.dead_letters

    async def list(self, *, search: str = "", offset: int = 0, limit: int = 50) -> dict[str, Any]:
        page = await self._letters.list(search=search, offset=offset, limit=limit)
        return {"letters": [_in_list(letter) for letter in page.letters], "total": page.total}

    async def get(self, letter_id: str) -> dict[str, Any]:
        return shown(await self._letters.get(letter_id))

    async def replay(self, letter_id: str, data: Any = ...) -> None:
        """Put one back, with other data if given."""
        await self._letters.replay(letter_id, data)

    async def replay_all(self, *, search: str = "") -> int:
        return await self._letters.replay_all(search=search)


def _in_list(letter: DeadLetter) -> dict[str, Any]:
    """A letter, or the beginning of a long one."""
    if len(letter.body) <= LONGEST_IN_LIST:
        return shown(letter)
    preview = foreign.text(letter.body[: PREVIEW * 4], PREVIEW)
    return {"preview": preview, "error_message": letter.error} | _about(letter)


def shown(letter: DeadLetter) -> dict[str, Any]:
    whole = foreign.shown(letter.body)
    said = whole if isinstance(whole, dict) else {"raw_value": whole, "error_message": letter.error}
    return said | _about(letter)


def _about(letter: DeadLetter) -> dict[str, str]:
    return {"id": letter.id, "failed_at": isoformat(letter.failed_at)}
