"""Charts as SVG, drawn from numbers: bars that may be stacked, and a funnel. Small enough to read, sharp at any size."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

FONT = "Noto Sans"
COLORS = ("#2f6fde", "#27a172", "#e0a030", "#d5533f", "#8458c8", "#6b7785", "#2aa5b8", "#c44d8e")
WIDTH, HEIGHT = 520, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 10, 40
STEPS = 4
MOST_LABELS = 12
LEGEND_LINE = 14
LETTER, WIDE_LETTER = 5.2, 6.2
"""How wide a letter is at most, in text of the usual size and of the size that a funnel has."""


def stacked_bars(
    labels: Sequence[str], series: Mapping[str, Sequence[float]], colors: Sequence[str] = COLORS
) -> str:
    """One bar a label, one color a series, with a legend below."""
    totals = [sum(values[place] for values in series.values()) for place in range(len(labels))]
    top = nice_ceiling(max(totals, default=0))
    room, width = HEIGHT - TOP - BOTTOM, WIDTH - LEFT - RIGHT
    step = width / max(len(labels), 1)
    parts = [_grid(top, room)]
    for place, label in enumerate(labels):
        x, y = LEFT + place * step + step * 0.15, float(HEIGHT - BOTTOM)
        for color, values in zip(_colors(colors, len(series)), series.values(), strict=True):
            height = room * values[place] / top
            y -= height
            if height:
                parts.append(_rect(x, y, step * 0.7, height, color))
        if place % (len(labels) // MOST_LABELS + 1) == 0:
            parts.append(_text(x + step * 0.35, HEIGHT - BOTTOM + 13, label, "middle"))
    legend, lines = _legend(list(series), colors)
    return _svg(WIDTH, HEIGHT + (lines - 1) * LEGEND_LINE, [*parts, legend])


def funnel(stages: Sequence[tuple[str, int]]) -> str:
    """A bar a stage, as wide as its share of the first, with the number and the share."""
    row = 30
    height = row * len(stages) + 6
    most = max((count for _, count in stages), default=0) or 1
    shares = [f"{count}  ({100 * count / most:.0f} %)" for _, count in stages]
    left = max(150, *(WIDE_LETTER * len(name) + 8 for name, _ in stages)) if stages else 150
    widest = min(280, WIDTH - left - 8 - max((WIDE_LETTER * len(share) for share in shares), default=0))
    parts = []
    for place, ((name, count), share) in enumerate(zip(stages, shares, strict=True)):
        y = place * row + 4
        width = max(widest * count / most, 2)
        parts.append(_text(0, y + 15, name, "start", 10))
        parts.append(_rect(left, y, width, row - 8, COLORS[place % len(COLORS)]))
        parts.append(_text(left + width + 8, y + 15, share, "start", 10))
    return _svg(WIDTH, height, parts)


def nice_ceiling(value: float) -> float:
    """The next round number whose quarters are whole, since things are counted: 4, 8, 12, 16, 20, 24, 32, 40, 80 …"""
    unit = 1
    while True:
        for factor in (4, 8, 12, 16, 20, 24, 32):
            if unit * factor >= value:
                return unit * factor
        unit *= 10


def _grid(top: float, room: float) -> str:
    lines = []
    for step in range(STEPS + 1):
        y = HEIGHT - BOTTOM - room * step / STEPS
        lines.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#d9dee5" stroke-width="0.6"/>'
        )
        lines.append(_text(LEFT - 6, y + 3, f"{top * step / STEPS:g}", "end"))
    return "".join(lines)


def _legend(names: Sequence[str], colors: Sequence[str]) -> tuple[str, int]:
    """The names of the series, and how many lines they take."""
    parts, x, lines = [], float(LEFT), 1
    for color, name in zip(_colors(colors, len(names)), names, strict=True):
        width = 13 + LETTER * len(name)
        if x > LEFT and x + width > WIDTH:
            x, lines = float(LEFT), lines + 1
        y = HEIGHT + (lines - 1) * LEGEND_LINE
        parts += [_rect(x, y - 14, 9, 9, color), _text(x + 13, y - 6, name, "start")]
        x += 13 + width
    return "".join(parts), lines


def _colors(colors: Sequence[str], count: int) -> list[str]:
    return [colors[place % len(colors)] for place in range(count)]


def _rect(x: float, y: float, width: float, height: float, color: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5" fill="{color}"/>'
    )


def _text(x: float, y: float, text: str, anchor: str, size: int = 8) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="{FONT}" font-size="{size}" fill="#3c4652" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    inside = "".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">{inside}</svg>'
