"""Which characters the font that ships has, read from its own table, so that a report never fails for one that it lacks."""

import re
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

FONT = Path(__file__).parent / "fonts" / "NotoSans-Regular.ttf"
REPLACEMENT = "\ufffd"
END = 0xFFFF


def displayable(value: Any) -> Any:
    """The same data, with each run of characters that the font lacks as one replacement character."""
    match value:
        case str():
            return _missing().sub(REPLACEMENT, value)
        case dict():
            return {name: displayable(one) for name, one in value.items()}
        case list():
            return [displayable(one) for one in value]
    return value


@lru_cache(maxsize=1)
def _missing() -> re.Pattern[str]:
    """Runs of what is not in the font; line breaks and tabs are nobody's glyphs."""
    spans = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in _spans(FONT.read_bytes()))
    return re.compile(f"[^\\n\\t{spans}]+")


def _spans(font: bytes) -> list[tuple[int, int]]:
    """First and last of the characters in a row that the font has, by its `cmap` of format 4."""
    (tables,) = struct.unpack_from(">H", font, 4)
    records = (struct.unpack_from(">4sIII", font, 12 + 16 * place) for place in range(tables))
    cmap = next(offset for tag, _, offset, _ in records if tag == b"cmap")
    (offset,) = struct.unpack_from(">I", font, cmap + 8)
    (twice,) = struct.unpack_from(">H", font, cmap + offset + 6)
    lasts = struct.unpack_from(f">{twice // 2}H", font, cmap + offset + 14)
    firsts = struct.unpack_from(f">{twice // 2}H", font, cmap + offset + 16 + twice)
    return [(first, last) for first, last in zip(firsts, lasts, strict=True) if first != END]
