"""How many messages a text is when it goes out as SMS: each part is paid for.

A text in the alphabet of GSM 03.38 has 160 letters to a message, any other one 70 (UCS-2); what is longer is sent in parts
of 153 or 67, since each part then says which one it is.
"""

from dataclasses import dataclass
from typing import Literal

_BASIC = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENDED = frozenset("\f^{}\\[~]|€")
"""Letters that take the room of two."""


@dataclass(frozen=True, slots=True)
class SmsSize:
    """A text as the gateway counts it."""

    encoding: Literal["GSM-7", "UCS-2"]
    length: int
    parts: int

    def __str__(self) -> str:
        return f"{self.parts} SMS {'part' if self.parts == 1 else 'parts'}, {self.encoding}, {self.length} characters"


def size_of(text: str) -> SmsSize:
    if all(letter in _BASIC or letter in _EXTENDED for letter in text):
        widths = [2 if letter in _EXTENDED else 1 for letter in text]
        return SmsSize("GSM-7", sum(widths), _parts(widths, 160, 153))
    widths = [2 if ord(letter) > 0xFFFF else 1 for letter in text]
    return SmsSize("UCS-2", sum(widths), _parts(widths, 70, 67))


def _parts(widths: list[int], whole: int, part: int) -> int:
    """No letter is cut in two, so a part may stay a little short."""
    if sum(widths) <= whole:
        return 1
    parts, room = 1, part
    for width in widths:
        if width > room:
            parts, room = parts + 1, part
        room -= width
    return parts
