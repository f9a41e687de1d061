"""A scenario, or one run of it, as a picture: a line through time with a mark for every step. Plain SVG, light and dark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from yamchi.scenarios.definition import Definition, Step

WIDTH, ROW, TOP, LEFT = 640, 64, 56, 132
LONGEST_TEXT = 78

STYLE = """
svg{font:14px/1.3 system-ui,-apple-system,"Segoe UI",sans-serif;color-scheme:light dark}
.page{fill:#fff}.text{fill:#1c2430}.dim{fill:#687385;font-size:12px}.line{stroke:#c9d0da;stroke-width:2}
.future{stroke-dasharray:4 4}.expected{fill-opacity:.3}.mark{stroke:#fff;stroke-width:2;fill:#687385}.title{font-weight:600;font-size:16px}
.armed,.running{fill:#2f6fde}.done{fill:#218a52}.skipped,.cancelled{fill:#9aa4b2}.failed{fill:#c8372d}.name{font-weight:600}
@media (prefers-color-scheme:dark){.page{fill:#12161d}.text{fill:#e7ebf1}.dim{fill:#93a0b4}.line{stroke:#3a4352}.mark{stroke:#12161d}}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One step: when, its name, what it does or what became of it."""

    when: str
    name: str
    lines: Sequence[str]
    state: str = "armed"
    is_future: bool = False


def picture_of(definition: Definition) -> str:
    """The scenario as it is written."""
    rows = [Row(definition.on[0], "start", [_key(definition)], "done")]
    rows += [Row(_when(step), step.job, _what(step)) for step in definition.steps]
    title = definition.title or definition.scenario
    stops = f"stops on {', '.join(definition.stop_on)}" if definition.stop_on else ""
    return draw(title, stops, rows)


def picture_of_run(run: Mapping[str, Any]) -> str:
    """A run as `Timelines.of` shows it: the past, what is pending, and what is to be expected."""
    rows = [Row(_moment(run["started_at"]), "start", [f"key {run['key']}"], "done")]
    expected = {(line["step"], line["arming"]): line for line in run["timeline"] if line["is_future"]}
    for line in run["timeline"]:
        outcome = expected.get((line["step"], line["arming"]))
        if line["state"] == "armed" and not line["is_future"] and outcome is not None:
            said = f"pending, expected: {outcome['state']}"
            reason = line["reason"] or outcome["reason"] or ""
            rows.append(Row(_moment(line["due"]), line["step"], [said, reason], "armed"))
            del expected[line["step"], line["arming"]]
        elif not line["is_future"]:
            moment = line["due"] if line["state"] == "armed" else line["at"]
            rows.append(
                Row(_moment(moment), line["step"], [line["state"], line["reason"] or ""], line["state"])
            )
    for line in expected.values():
        said = f"expected: {line['state']}"
        rows.append(Row(_moment(line["at"]), line["step"], [said, line["reason"] or ""], line["state"], True))
    ended = f": {run['reason']}" if run["reason"] else ""
    return draw(f"{run['scenario']} {run['key']}", f"{run['status']}{ended}", rows)


def draw(title: str, subtitle: str, rows: Sequence[Row]) -> str:
    height = TOP + ROW * len(rows) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        _text(20, 28, title, "text title"),
        _text(20, 46, subtitle, "dim"),
    ]
    for number, (row, after) in enumerate(zip(rows, [*rows[1:], None], strict=True)):
        y = TOP + 24 + number * ROW
        if after is not None:
            kind = "line future" if after.is_future else "line"
            parts.append(f'<line class="{kind}" x1="{LEFT}" y1="{y}" x2="{LEFT}" y2="{y + ROW}"/>')
        parts += _row(row, y)
    return "".join([*parts, "</svg>"])


def _row(row: Row, y: int) -> list[str]:
    lines = [line for line in row.lines if line][:2]
    return [
        f'<circle class="mark {escape(row.state)}{" expected" if row.is_future else ""}" cx="{LEFT}" cy="{y}" r="7"/>',
        f'<text class="dim" x="{LEFT - 18}" y="{y + 4}" text-anchor="end">{escape(row.when[:24])}</text>',
        _text(LEFT + 18, y + 4, row.name, "text name"),
        *(_text(LEFT + 18, y + 21 + 15 * place, line, "dim") for place, line in enumerate(lines)),
    ]


def _text(x: int, y: int, said: str, kind: str) -> str:
    short = said if len(said) <= LONGEST_TEXT else f"{said[: LONGEST_TEXT - 1]}…"
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(short)}</text>'


def _key(definition: Definition) -> str:
    return f"one run per {definition.key}" + (f", if {definition.when}" if definition.when else "")


def _when(step: Step) -> str:
    if step.wait_for:
        return f"up to {step.timeout}" if step.timeout else "until it comes"
    if step.moment:
        return f"{step.moment.path.rpartition('.')[2]}"[:18]
    return f"+ {step.wait}" if step.wait else "at once"


def _what(step: Step) -> list[str]:
    if step.wait_for:
        otherwise = "" if step.on_timeout == "continue" else f", else {step.on_timeout}"
        return [f"waits for {step.wait_for}{otherwise}"]
    done = []
    if step.send:
        done.append(f"sends {step.send.template} by {' or '.join(step.send.channels)}")
    if step.call:
        done.append(f"calls {step.call}")
    if step.set:
        done.append(f"sets {', '.join(step.set)}")
    if step.emit:
        done.append(f"emits {step.emit.event}")
    conditions = [f"unless {step.unless}"] if step.unless else []
    conditions += [f"when {step.when}"] if step.when else []
    when = [f"at {step.at}"] if step.at else []
    return ["; ".join(done), ", ".join([*when, *conditions])]


def _moment(text: str | None) -> str:
    return "" if text is None else text.replace("T", " ").removesuffix("Z")[:16]
