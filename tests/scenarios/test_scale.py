"""Many pending runs: what concerns one of them costs the same; and what waited under older code goes on under the new."""

import shutil
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest
from sqlalchemy import insert, inspect, select

from tests.scale import FULL
from tests.scenarios.harness import Harness, open_harness
from yamchi.queues.records import NewJob
from yamchi.scenarios.entities import Entity
from yamchi.scenarios.flow import Facts
from yamchi.scenarios.flow import Run as OneRun
from yamchi.scenarios.moves import begin
from yamchi.scenarios.plugin import Scenarios
from yamchi.scenarios.store import StepId, _row, run_id_of
from yamchi.scenarios.tables import scenario_definitions, scenario_events, scenario_runs, scenario_steps

FEW, MANY = (1_000, 100_000) if FULL else (500, 10_000)
AT_ONCE = 2_000
TURNS = 60

WAITING = """
scenario: waiting
on: go
key: "{{ event.data.key }}"
stop_on: halt
steps:
  - {job: first, at: event.data.date - 1h}
  - {job: second, wait: 1h}
"""
LESSON = """
scenario: lesson
on: booked
entity: lead
key: "{{ lead.id }}"
stop_on: halt
steps:
  - {job: first, at: lead.lesson_datetime - 1h}
  - {job: second, wait: 1h}
"""

pytestmark = pytest.mark.timeout(600)


async def fill(harness: Harness, name: str, start: int, end: int) -> None:
    """Runs as the engine writes them, each with its job, written in bulk."""
    definition = harness.scenarios.library.get(name)
    now, date = harness.app.clock.now(), harness.ahead(days=30)
    for first in range(start, end, AT_ONCE):
        runs, steps, events, jobs = [], [], [], []
        for number in range(first, min(first + AT_ONCE, end)):
            key = f"k{number}"
            event = {"event_type": "go", "event_id": key, "data": {"key": key, "date": date}}
            id, entity = run_id_of(name, key, 1), Entity(key, {"lesson_datetime": date})
            new = OneRun(id, name, key, 1, definition.version, now, event, key)
            run, (change,) = begin(definition, new, Facts(entity), now)
            assert run.armed is not None
            runs.append({**_row(run), "entity_kind": definition.entity})
            steps.append(
                {"run_id": run.id, "step": change.step, "arming": 1, "state": "armed", "due_at": change.due}
                | {"armed_at": now, "queue": "scenarios"}
            )
            events.append(
                {"scenario": name, "key": key, "event_type": "go", "event_id": key, "received_at": now}
            )
            jobs.append(NewJob(str(StepId(run.id, "first", 1)), "first", b"{}", run_at=change.due))

        def write(connection: Any, runs=runs, steps=steps, events=events) -> None:  # type: ignore[no-untyped-def]
            if not connection.execute(select(scenario_definitions)).first():
                harness.scenarios.library.keep(connection, definition)
            connection.execute(insert(scenario_runs), runs)
            connection.execute(insert(scenario_steps), steps)
            connection.execute(insert(scenario_events), events)

        await harness.app.database.write(write)
        await harness.app.queue("scenarios").engine.add("scenarios", jobs)


async def test_one_of_many_costs_what_one_of_few_does(tmp_path: Path) -> None:
    """Start, timeline, another date, stop: the same work in turns beside few runs and beside many. The ratio is below 2."""
    async with open_harness(tmp_path / "few") as few, open_harness(tmp_path / "many") as many:
        for harness, number in ((few, FEW), (many, MANY)):
            harness.scenario(LESSON, "lesson")
            await fill(harness, "lesson", 0, number)
        costs = [await measure(few, many, turn) for turn in range(TURNS)]
        ratios = {
            name: median(cost[name][1] for cost in costs) / median(cost[name][0] for cost in costs)
            for name in costs[0]
        }
    print({name: f"{ratio:.2f}" for name, ratio in ratios.items()}, f"{FEW:,} → {MANY:,} runs")
    assert max(ratios.values()) < 2, ratios


async def measure(few: Harness, many: Harness, turn: int) -> dict[str, list[float]]:
    """How long each act takes, beside few runs and beside many; who goes first changes, as the machine's load does."""
    times: dict[str, list[float]] = {}
    lead = f"turn-{turn}"
    acts = {
        "start": lambda one: one.event("booked", lead, lesson_datetime=one.ahead(days=3)),
        "timeline": lambda one: one.scenarios.timelines.latest("lesson", lead),
        "reschedule": lambda one: one.event("moved", lead, lesson_datetime=one.ahead(days=5)),
        "stop": lambda one: one.scenarios.stop("lesson", lead),
    }
    for harness in (few, many):
        await harness.lead(lead)
    for name, act in acts.items():
        taken = [0.0, 0.0]
        for place in (0, 1) if turn % 2 else (1, 0):
            began = perf_counter()
            await act((few, many)[place])
            taken[place] = perf_counter() - began
        times[name] = taken
    for harness in (few, many):
        assert (await harness.run("lesson", lead))["timeline"][0]["state"] == "cancelled"
    return times


async def test_what_waited_under_an_older_version_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of runs wait in the tables of the first version. They are opened by this one, and the file was changed
    meanwhile: all of them do what they began with."""
    number = 10_000 if FULL else 300
    first = tmp_path / "migrations"
    first.mkdir()
    shutil.copy(Scenarios.migrations / "0001_scenarios.py", first)
    with monkeypatch.context() as older:
        older.setattr(Scenarios, "migrations", first)
        async with open_harness(tmp_path) as harness:
            harness.scenario(WAITING, "waiting")
            await fill(harness, "waiting", 0, number)
            assert "run_by_end" not in await indexes(harness)
            broker = harness.app._memory
    async with open_harness(tmp_path) as harness:
        harness.app._memory.__dict__.update(broker.__dict__)  # the broker was not restarted
        assert "run_by_end" in await indexes(harness)
        broker_clock = harness.app.clock
        harness.app._memory._clock = broker_clock
        harness.scenario(WAITING.replace("job: second, wait: 1h", "job: third, wait: 9h"), "waiting")
        await harness.pass_time("30d")
        await harness.pass_time("2h")
        runs = await harness.scenarios.timelines.find(scenario="waiting", status="finished", limit=number + 1)
        assert len(runs) == number
        done = {
            tuple(
                line["step"]
                for line in (await harness.scenarios.timelines.of(run["run_id"]))["timeline"]
                if line["state"] == "done"
            )
            for run in runs[:50]
        }
        assert done == {("first", "second")}


async def indexes(harness: Harness) -> set[str]:
    def look(connection: Any) -> set[str]:
        return {str(index["name"]) for index in inspect(connection).get_indexes("scenario_runs")}

    await harness.app.database.open()
    return await harness.app.database.read(look)
