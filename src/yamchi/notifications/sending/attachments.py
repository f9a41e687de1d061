"""Files that go with a message: named on the queue by a reference such as `report:…`, read when the message is sent.

A feature that stores files registers how to open them under the word before the colon. Ids must not be guessable, since
anybody who may send may name them.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from yamchi.errors import Unrecoverable
from yamchi.notifications.channels.base import Attachment

Open = Callable[[str, int], Awaitable[Attachment]]
"""Reads the file of this id. Raises `TooLarge` if it has more than so many bytes, or `Unrecoverable`."""

MAX_ATTACHMENTS = 10


class TooLarge(Unrecoverable):
    """The attachment is larger than a message may be."""


_REFERENCE = re.compile(r"[a-z]{1,32}:[\w-]{1,128}")


def references_of(fields: Mapping[str, Any] | None) -> list[str]:
    """What a message's field `attachments` names: texts such as `report:…`, or `{"ref": "report:…"}`."""
    given = (fields or {}).get("attachments") or []
    if not isinstance(given, list):
        given = [given]
    if len(given) > MAX_ATTACHMENTS:
        raise Unrecoverable(f"A message has {len(given)} attachments; {MAX_ATTACHMENTS} are the most.")
    return [_reference(one) for one in given]


def _reference(given: Any) -> str:
    named = given.get("ref") if isinstance(given, dict) else given
    if isinstance(named, str) and _REFERENCE.fullmatch(named):
        return named
    shown = given.get("filename", given) if isinstance(given, dict) and named is None else named
    raise Unrecoverable(f"{str(shown)[:80]!r} can't be attached: name a stored file, such as report:kX3…")


class Attachments:
    """Opens what messages refer to. `largest` is the most bytes that go with one message."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self._openers: dict[str, Open] = {}

    def register(self, kind: str, open_: Open) -> None:
        """Let `kind:id` be attached."""
        self._openers[kind] = open_

    async def load(self, references: Sequence[str]) -> list[Attachment]:
        found: list[Attachment] = []
        for reference in references:
            kind, _, name = reference.partition(":")
            if kind not in self._openers:
                known = ", ".join(sorted(self._openers)) or "none"
                raise Unrecoverable(
                    f"{reference} can't be attached: there is no {kind!r} here, only: {known}."
                )
            left = self.largest - sum(len(one.content) for one in found)
            found.append(await self._openers[kind](name, left))
        return found
