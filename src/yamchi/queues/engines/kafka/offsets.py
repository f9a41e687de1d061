"""Offsets done beyond the committed one, as the text that Kafka keeps beside a committed offset.

Kafka remembers one number for a partition; a slow job would have everything after it run again on the machine that
takes over. With this text the next owner knows what is done. A bit for each offset, compressed; what does not
fit is left out, and then runs again after a takeover, as Kafka has it anyway.
"""

import base64
import binascii
import zlib
from collections.abc import Sequence

ROOM_BYTES = 4_000
"""Kafka's own limit is 4096 bytes."""

_MARK = "y1:"
_LONGEST = 200_000


def encode(floor: int, offsets: Sequence[int]) -> str:
    """Text for offsets above the floor, in rising order."""
    kept = [offset for offset in offsets if offset - floor < _LONGEST]
    while kept:
        text = _pack(floor, kept)
        if len(text) <= ROOM_BYTES:
            return text
        kept = kept[: len(kept) // 2]
    return ""


def decode(floor: int, text: str | None) -> list[int]:
    """The offsets in such a text; none in a text of somebody else."""
    if not text or not text.startswith(_MARK):
        return []
    try:
        packed = zlib.decompress(base64.b85decode(text.removeprefix(_MARK)))
    except (ValueError, binascii.Error, zlib.error):
        return []  # written by another program; its owner has no use for ours either
    return [
        floor + place * 8 + bit for place, byte in enumerate(packed) for bit in range(8) if byte >> bit & 1
    ]


def _pack(floor: int, offsets: Sequence[int]) -> str:
    bits = bytearray((offsets[-1] - floor) // 8 + 1)
    for offset in offsets:
        bits[(offset - floor) // 8] |= 1 << (offset - floor) % 8
    return _MARK + base64.b85encode(zlib.compress(bytes(bits))).decode()
