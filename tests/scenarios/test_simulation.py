"""What `simulate` prints is what a run does, step by step and moment by moment."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from tests.scale import FULL
from tests.scenarios.harness import Harness, open_harness
from tests.scenarios.zones import clock_changes
from yamchi.clock import Millis, as_datetime, isoformat
from yamchi.notifications.channels.base import Recipient
from yamchi.notifications.schemas.event import Event
from yamchi.scenarios.entities import Change, Entity
from yamchi.scenarios.flow import Facts, Run
from yamchi.scenarios.reading import read_text
from yamchi.scenarios.simulation import Happening, simulate
from yamchi.scenarios.tables import scenario_runs, scenario_steps
from yamchi.testing.clock import MovableClock

MINUTE = 60_000
DAY = 24 * 60  # minutes
EXAMPLES = 1_000 if FULL else 60
# A limit that strikes in the middle of an example leaves its run behind for the next one: it must not be the usual one.
pytestmark = pytest.mark.timeout(5_400 if FULL else 600)

spans = st.sampled_from(["0s", "1m", "5m", "30m", "2h", "1d"])
conditions = st.sampled_from(["lead.flag", "not lead.flag", "lead.count == 2", "lead.missing", None, None])
texts = st.sampled_from(["done", "{{ 12 // lead.share }} each"])
"""The second can't be filled in while the share is 0."""

FAR = 14 * DAY
ZONE = "Europe/Berlin"
NEW_YEAR: Millis = 1_767_225_600_000  # 2026
CHANGES = list(clock_changes(ZoneInfo(ZONE), 2026))
starts = st.integers(0, 365 * DAY).map(lambda after: NEW_YEAR + after * MINUTE) | st.builds(
    lambda change, after: change + after * MINUTE, st.sampled_from(CHANGES), st.integers(-3 * DAY, DAY)
)
"""Any minute of a year, and as often one near a change of the clocks."""

delays = st.integers(0, 3 * DAY) | st.sampled_from([0, 1, 2, 5, 6, 10, 30, 35, 120, 125, DAY, DAY + 5])
"""In minutes after the start: any, and as often one at which a timer may be due."""


@st.composite
def a_step(draw: Any, number: int, last: int) -> dict[str, Any]:
    step: dict[str, Any] = {"job": f"s{number}"}
    later = st.sampled_from([f"s{n}" for n in range(number + 1, last + 1)] or ["end"])
    match draw(st.sampled_from(["wait", "wait", "at", "at", "event"])):
        case "wait":
            step["wait"] = draw(spans)
        case "at":
            step["at"] = (
                f"lead.date {draw(st.sampled_from(['', '- 1h', '- 1 day', '+ 30m', '- 1 day, 09:00']))}"
            )
            step["past"] = draw(st.sampled_from(["skip", "now"]))
        case "event":
            step["wait_for"] = draw(st.sampled_from(["x", "y"]))
            step["since"] = draw(st.sampled_from(["previous", "start"]))
            step["timeout"] = draw(spans)
            step["on_timeout"] = draw(st.sampled_from(["continue", "stop"]) | later)
            return step
    if draw(st.booleans()):
        step["send"] = {"channel": "email", "template": "note"}
    if draw(st.booleans()):
        step["set"] = {"flag": draw(st.booleans())}
    if draw(st.booleans()):
        step["log"] = draw(texts)
    if draw(st.integers(0, 3)) == 0:
        event = draw(st.sampled_from(["told", "x", "halt"]))
        step["emit"] = {"event": event, "data": {"each": draw(texts)}}
    if draw(st.integers(0, 3)) == 0:
        step["on_failure"] = draw(st.just("continue") | later)
    for name in ("unless", "when"):
        if condition := draw(conditions):
            step[name] = condition
    if draw(st.integers(0, 5)) == 0:
        step["next"] = draw(later | st.just("end"))
    return step


@st.composite
def scenarios(draw: Any) -> dict[str, Any]:
    number = draw(st.integers(1, 5))
    steps = [draw(a_step(n, number)) for n in range(1, number + 1)]
    begun = draw(st.sampled_from([None, None, "lead.flag", "lead.share == 3", "12 // lead.share > 1"]))
    return scenario(*steps) | ({"when": begun} if begun else {})


def scenario(*steps: dict[str, Any]) -> dict[str, Any]:
    return {
        "scenario": "prop",
        "on": "go",
        "entity": "lead",
        "key": "{{ lead.id }}",
        "stop_on": "halt",
        "steps": list(steps),
    }


@st.composite
def histories(draw: Any) -> list[tuple[int, str, dict[str, Any]]]:
    """(minutes after the start, event, what it changes)"""
    happenings = draw(
        st.lists(
            st.tuples(
                delays,
                st.sampled_from(["x", "y", "x", "y", "moved", "moved", "halt"]),
                st.booleans(),
                st.integers(-600, FAR),
                st.sampled_from([0, 3, 3]),
            ),
            max_size=5,
            unique_by=lambda one: one[0],
        )
    )
    return [
        (minutes, type, {"flag": flag, "share": share, **({"date": date} if type == "moved" else {})})
        for minutes, type, flag, date, share in sorted(happenings)
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, Harness]]:
    """One application for all examples; each has a lead and a version of its own."""
    home: Path = tmp_path_factory.mktemp("world")
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        harness = runner.run(stack.enter_async_context(open_harness(home, default_timezone=ZONE)))
        harness.template("note", "---\nsubject: note\ntransactional: true\n---\nnote")
        yield runner, harness
        runner.run(harness.check())
        runner.run(stack.aclose())


names = count(1)

HALTED_WHEN_DUE = scenario(
    {"job": "s1", "at": "lead.date", "past": "now"},
    {"job": "s2", "wait": "5m", "send": {"channel": "email", "template": "note"}},
)

SHARED = scenario(
    {"job": "s1", "wait": "1m", "log": "{{ 12 // lead.share }} each", "on_failure": "continue"},
    {"job": "s2", "wait": "5m", "emit": {"event": "told", "data": {"each": "{{ 12 // lead.share }}"}}},
    {"job": "s3", "wait": "5m"},
)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios(), histories(), st.integers(-600, FAR), st.booleans(), st.sampled_from([0, 3, 3]), starts)
@example(HALTED_WHEN_DUE, [(0, "moved", {"date": -5}), (5, "halt", {})], 1_000, False, 3, NEW_YEAR)
@example({**SHARED, "when": "lead.share == 3"}, [], 0, False, 0, NEW_YEAR)
@example({**SHARED, "when": "12 // lead.share > 1"}, [], 0, False, 0, NEW_YEAR)
@example(SHARED, [], 0, False, 0, NEW_YEAR)
@example(SHARED, [(4, "x", {"share": 0})], 0, False, 3, NEW_YEAR)
def test_simulation_is_reality(
    world: tuple[asyncio.Runner, Harness],
    body: dict[str, Any],
    history: list[tuple[int, str, dict[str, Any]]],
    date: int,
    flag: bool,
    share: int,
    start: Millis,
) -> None:
    runner, harness = world
    simulated, real = runner.run(_both(harness, body, history, date, {"flag": flag, "share": share}, start))
    assert real == simulated


def test_what_a_function_would_return_is_no_mistake_of_the_scenario() -> None:
    booked = scenario(
        {"job": "book", "call": "book_room"},
        {"job": "tell", "wait": "1m", "emit": {"event": "told", "data": {"room": "{{ lead.room }}"}}},
    )
    definition = read_text(yaml.safe_dump(booked))
    run = Run("r", "prop", "k", 1, definition.version, NEW_YEAR, {"data": {}}, "k")
    states = [one.state for one in simulate(definition, run, Facts(Entity("k", {})), NEW_YEAR).changes]
    assert states == ["armed", "done", "armed", "done"]


async def _both(
    harness: Harness, body: dict[str, Any], history: list[Any], date: int, said: dict[str, Any], start: Millis
) -> tuple[Any, Any]:
    clock, lead_id = harness.app.clock, f"lead-{next(names)}"
    text = yaml.safe_dump(body)
    harness.scenario(text, "prop")
    clock._now = start  # of the example, not of what ran before it

    def day(minutes: int) -> str:
        return isoformat(start + minutes * MINUTE)

    fields = {"email": "a@b.c", "count": 2, "date": day(date), **said}
    await harness.lead(lead_id, **fields)
    happenings = [
        Happening(
            start + minutes * MINUTE,
            type,
            {name: day(value) if name == "date" else value for name, value in changed.items()},
        )
        for minutes, type, changed in history
    ]
    end = start + (FAR + 40 * DAY) * MINUTE
    definition = read_text(text)
    run = Run("r", "prop", lead_id, 1, definition.version, start, {"data": {}}, lead_id)
    known = (await harness.leads.get(lead_id)) or Entity(lead_id, {})
    facts = Facts(known, zone=harness.scenarios.facts.zone_of(known))
    expected = simulate(definition, run, facts, start, happenings, until=end)

    harness.email.sent.clear()
    await harness.event("go", lead_id)
    for happening in happenings:
        await _advance_before_timers(clock, happening.at)
        await harness.event(happening.type, lead_id, fields=happening.fields)
    await clock.advance_to(as_datetime(end))
    table = scenario_steps
    query = (
        select(table, scenario_runs.c.status, scenario_runs.c.reason.label("why"))
        .join(scenario_runs, scenario_runs.c.run_id == table.c.run_id)
        .where(scenario_runs.c.key == lead_id)
    )
    rows = await harness.app.database.read(lambda c: c.execute(query).all())
    real = {(row.step, row.arming): (row.state, row.due_at, row.ended_at, row.reason) for row in rows}
    simulated = {
        (change.step, change.arming): (
            change.state,
            change.due,
            None if change.state == "armed" else change.at,
            change.reason,
        )
        for change in expected.changes
    }
    sends = {step["job"] for step in body["steps"] if "send" in step}
    letters = sorted(  # what fails here, fails after the letter has left
        isoformat(change.at)
        for change in expected.changes
        if change.state in ("done", "failed") and change.step in sends
    )
    statuses = {(row.status, row.why) for row in rows} or {(expected.run.status, expected.run.reason)}
    sent = sorted(when for when, _ in harness.email.sent)
    return (
        (simulated, letters, {(expected.run.status, expected.run.reason)}),
        (real, sent, statuses),
    )


async def _advance_before_timers(clock: MovableClock, moment: Millis) -> None:
    """Of an event and a timer of the same moment the event is first, as `simulate` says."""
    if moment > clock.now():
        await clock.advance_to(as_datetime(moment - 1))
        clock._now = moment


# ── By the zone in which the run would be ─────────────────────────────────────────────────────────────────────────

VISIT = """
scenario: visit
on: visit.planned
entity: visit
key: "{{ visit.id }}"
steps:
  - {job: remind, at: "visit.date - 1 day, 09:00"}
"""
ORDER = """
scenario: order
on: order.paid
key: "{{ event.data.order_id }}"
steps:
  - {job: remind, at: "event.data.date - 1 day, 09:00"}
"""
DATE = "2026-01-05T15:00:00Z"


class Visits:
    """Things that have no zone of their own: their people have."""

    def id_of(self, event: Event) -> str | None:
        return event.data.get("visit_id")

    async def get(self, entity_id: str) -> Entity:
        return Entity(entity_id, {"date": DATE}, recipient=Recipient(timezone="Asia/Almaty"))

    async def note(self, event: Event) -> None:
        """Nothing changes."""

    async def apply(self, entity_id: str, change: Change) -> None:
        """Nothing is written."""


async def test_a_simulation_is_in_the_zone_of_the_person(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        harness.scenarios.entities.register("visit", Visits())
        harness.scenario(VISIT, "visit")
        await harness.event("visit.planned", None, visit_id="7")
        run = await harness.run("visit", "7")
        simulated = await harness.scenarios.timelines.simulate("visit", entity_id="7")
        assert run["due_at"] == "2026-01-04T04:00:00Z"
        assert [isoformat(change.due) for change in simulated.changes if change.due][:1] == [run["due_at"]]


async def test_a_simulation_is_in_the_zone_that_was_asked_for(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        harness.scenario(ORDER, "order")
        data = {"order_id": "7", "date": DATE}
        simulated = await harness.scenarios.timelines.simulate("order", data=data, zone="Asia/Almaty")
        assert isoformat(simulated.changes[0].due or 0) == "2026-01-04T04:00:00Z"
