"""A suite as a picture: a bar of drained jobs a second for each contender, the fastest first, as plain SVG."""

from html import escape

from bench.contenders import Entry, entries_of
from bench.results import SuiteResults

WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 820, 190, 130, 22, 8, 56
COLORS = {"us": "#d9480f", "peer": "#5c7cfa", "limit": "#adb5bd"}
MEANINGS = (("us", "Yamchi"), ("peer", "peers"), ("limit", "the limit: no queue, only its storage"))
FONT = "font-family='system-ui, sans-serif'"
TITLES = {
    "embedded": "SQLite, one worker process",
    "redis": "Redis, one worker process",
    "postgres": "PostgreSQL, one worker process",
    "kafka": "Kafka, one worker process",
}


def picture(suite: str, found: SuiteResults) -> str:
    drains = [
        (entry, found.get(entry.name, "drain") or 0.0)
        for entry in entries_of(suite)
        if entry.name in found.figures
    ]
    drains.sort(key=lambda pair: -pair[1])
    height = TOP + len(drains) * (BAR + GAP) + 34
    longest = max((rate for _, rate in drains), default=1.0) or 1.0
    ours = found.get("yamchi", "drain")
    bars = [_bar(place, entry, rate, longest, ours) for place, (entry, rate) in enumerate(drains)]
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' {FONT}>",
            f"<rect width='{WIDTH}' height='{height}' rx='8' fill='#ffffff'/>",
            f"<text x='20' y='32' font-size='18' font-weight='600' fill='#212529'>No-op jobs drained per second: {TITLES[suite]}</text>",
            *bars,
            _legend(height - 14),
            "</svg>\n",
        ]
    )


def _bar(place: int, entry: Entry, rate: float, longest: float, ours: float | None) -> str:
    y = TOP + place * (BAR + GAP)
    length = max((WIDTH - LEFT - RIGHT) * rate / longest, 2)
    weight = "700" if entry.role == "us" else "400"
    ratio = f"  ({ours / rate:.1f}x)" if ours and rate and entry.role != "us" else ""
    return (
        f"<text x='{LEFT - 10}' y='{y + 16}' font-size='14' text-anchor='end' font-weight='{weight}' fill='#212529'>{escape(entry.label)}</text>"
        f"<rect x='{LEFT}' y='{y}' width='{length:.1f}' height='{BAR}' rx='3' fill='{COLORS[entry.role]}'/>"
        f"<text x='{LEFT + length + 8:.1f}' y='{y + 16}' font-size='13' font-weight='{weight}' fill='#495057'>{rate:,.0f}{ratio}</text>"
    )


def _legend(y: int) -> str:
    parts, x = [], LEFT
    for role, meaning in MEANINGS:
        parts.append(f"<rect x='{x}' y='{y - 10}' width='12' height='12' rx='2' fill='{COLORS[role]}'/>")
        parts.append(f"<text x='{x + 18}' y='{y}' font-size='12' fill='#868e96'>{meaning}</text>")
        x += 40 + 7 * len(meaning)
    parts.append(
        f"<text x='{WIDTH - 20}' y='{y}' font-size='12' text-anchor='end' fill='#868e96'>(n x): Yamchi / this one</text>"
    )
    return "".join(parts)
