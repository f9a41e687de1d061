"""The figures of media as a picture: a block of bars for each figure, as plain SVG."""

from collections.abc import Sequence
from html import escape

from bench.picture import BAR, COLORS, FONT, GAP, LEFT, RIGHT, WIDTH

TITLE = 44

Block = tuple[str, Sequence[tuple[str, float]], str]
"""A title, the bars, and how a figure is written."""


def bars(blocks: Sequence[Block], ours: str) -> str:
    parts: list[str] = []
    y = 8
    for title, figures, form in blocks:
        if figures:
            parts.append(f"<text x='20' y='{y + 28}' font-size='16' font-weight='600' fill='#212529'>{escape(title)}</text>")  # fmt: skip
            y += TITLE
            longest = max(figure for _, figure in figures) or 1.0
            for name, figure in figures:
                parts.append(_bar(y, name, figure / longest, form.format(figure), is_ours=name == ours))
                y += BAR + GAP
    height = y + 16
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' {FONT}>"
    return "\n".join([head, f"<rect width='{WIDTH}' height='{height}' rx='8' fill='#ffffff'/>", *parts, "</svg>\n"])  # fmt: skip


def _bar(y: int, name: str, share: float, text: str, *, is_ours: bool) -> str:
    length = max((WIDTH - LEFT - RIGHT) * share, 2)
    weight, color = ("700", COLORS["us"]) if is_ours else ("400", COLORS["peer"])
    return (
        f"<text x='{LEFT - 10}' y='{y + 16}' font-size='14' text-anchor='end' font-weight='{weight}' fill='#212529'>{escape(name)}</text>"
        f"<rect x='{LEFT}' y='{y}' width='{length:.1f}' height='{BAR}' rx='3' fill='{color}'/>"
        f"<text x='{LEFT + length + 8:.1f}' y='{y + 16}' font-size='13' font-weight='{weight}' fill='#495057'>{text}</text>"
    )
