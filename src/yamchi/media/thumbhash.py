"""ThumbHash: a picture as some twenty-five bytes, which a page shows as a blur until the real one is there.

The format is Evan Wallace's; decoders for pages exist in every language.
"""

import math
from collections.abc import Sequence
from functools import cache
from operator import mul

LARGEST = 100
"""Pixels a side that the picture may have: what is hashed is a thumbnail."""


def thumbhash(width: int, height: int, rgba: Sequence[int]) -> bytes:
    """The hash of a small picture, given as red, green, blue and alpha of each pixel."""
    if not (0 < width <= LARGEST and 0 < height <= LARGEST):
        raise ValueError(f"{width} x {height} is not a thumbnail: {LARGEST} pixels a side are the most")
    lightness, yellow, red, alpha = _channels(rgba)
    has_alpha = min(alpha) < 1
    limit = 5 if has_alpha else 7
    longer = max(width, height)
    x_parts = max(1, round(limit * width / longer))
    y_parts = max(1, round(limit * height / longer))
    l_dc, l_ac, l_scale = _encode(lightness, width, height, max(3, x_parts), max(3, y_parts))
    p_dc, p_ac, p_scale = _encode(yellow, width, height, 3, 3)
    q_dc, q_ac, q_scale = _encode(red, width, height, 3, 3)
    is_landscape = width > height
    head = round(63 * l_dc) | round(31.5 + 31.5 * p_dc) << 6 | round(31.5 + 31.5 * q_dc) << 12
    head |= round(31 * l_scale) << 18 | has_alpha << 23
    tail = (y_parts if is_landscape else x_parts) | round(63 * p_scale) << 3
    tail |= round(63 * q_scale) << 9 | is_landscape << 15
    found = bytearray(head.to_bytes(3, "little") + tail.to_bytes(2, "little"))
    factors = [*l_ac, *p_ac, *q_ac]
    if has_alpha:
        a_dc, a_ac, a_scale = _encode(alpha, width, height, 5, 5)
        found.append(round(15 * a_dc) | round(15 * a_scale) << 4)
        factors += a_ac
    return bytes(found) + _packed(factors)


def _channels(rgba: Sequence[int]) -> tuple[list[float], ...]:
    """Lightness, yellow–blue, red–green and alpha, over the picture's mean color where it is transparent."""
    *colors, alpha = ([one / 255 for one in rgba[part::4]] for part in range(4))
    if min(alpha) < 1:
        colors = [_over_its_mean(color, alpha) for color in colors]
    lightness = [(r + g + b) / 3 for r, g, b in zip(*colors, strict=True)]
    yellow = [(r + g) / 2 - b for r, g, b in zip(*colors, strict=True)]
    red = [r - g for r, g, _ in zip(*colors, strict=True)]
    return lightness, yellow, red, alpha


def _over_its_mean(color: list[float], alpha: list[float]) -> list[float]:
    total = sum(alpha)
    mean = sum(map(mul, color, alpha)) / total if total else 0.0
    return [mean * (1 - solid) + one * solid for one, solid in zip(color, alpha, strict=True)]


def _encode(
    channel: Sequence[float], width: int, height: int, x_parts: int, y_parts: int
) -> tuple[float, list[float], float]:
    """A cosine transform: the mean, the other parts as 0 to 1, and their scale."""
    rows = [channel[y * width : (y + 1) * width] for y in range(height)]
    columns = [[_product(row, wave) for row in rows] for wave in _waves(width, x_parts)]
    mean, parts, scale = 0.0, [], 0.0
    for down, wave in enumerate(_waves(height, y_parts)):
        across = 0
        while across * y_parts < x_parts * (y_parts - down):
            factor = _product(columns[across], wave) / (width * height)
            if across or down:
                parts.append(factor)
                scale = max(scale, abs(factor))
            else:
                mean = factor
            across += 1
    if scale:
        parts = [0.5 + 0.5 / scale * part for part in parts]
    return mean, parts, scale


@cache
def _waves(length: int, parts: int) -> list[list[float]]:
    return [[math.cos(math.pi / length * part * (x + 0.5)) for x in range(length)] for part in range(parts)]


def _product(values: Sequence[float], wave: Sequence[float]) -> float:
    return float(sum(map(mul, values, wave)))


def _packed(factors: Sequence[float]) -> bytes:
    """Four bits each, the first one low."""
    halves = [round(15 * factor) for factor in factors]
    halves += [0] * (len(halves) % 2)
    return bytes(low | high << 4 for low, high in zip(halves[::2], halves[1::2], strict=True))
