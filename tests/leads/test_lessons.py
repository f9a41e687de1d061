"""Lessons of leads: what is over is not confirmed, a time that is left is free, a change and what it leads to are one; and their log."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from tests.leads.harness import Harness, open_harness
from yamchi.errors import UnknownJob
from yamchi.leads.model import read_moment
from yamchi.scenarios.entities import LogLine

FIRST, SECOND = "2026-01-05T10:00:00Z", "2026-01-05T11:00:00Z"


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path) as harness:
        yield harness


@pytest.mark.parametrize("end", ["cancelled", "over"])
async def test_a_lesson_that_is_no_longer_to_come_is_not_confirmed(harness: Harness, end: str) -> None:
    """The button of an old letter is pressed late."""
    lead_id = await harness.lead()
    await harness.event("lesson.booked", lead_id, "a", lesson_datetime=FIRST)
    if end == "cancelled":
        await harness.event("lesson.cancelled", lead_id, "b")
    else:
        await harness.app.clock.advance("5d")
    before = await harness.get(lead_id)
    assert (await harness.event("lesson.confirmed", lead_id, "c")).status_code == 202
    assert await harness.get(lead_id) == before
    answer = await harness.client.patch(f"/v1/leads/{lead_id}", json={"confirmed": True})
    assert (answer.status_code, "no lesson to come" in answer.json()["detail"]) == (422, True)


async def test_a_lesson_moved_onto_a_taken_time_leaves_its_own(harness: Harness) -> None:
    first, second = await harness.lead(), await harness.lead(tranid="3")
    await harness.event("lesson.booked", first, "a", lesson_datetime=FIRST)
    await harness.event("lesson.booked", second, "b", lesson_datetime=SECOND)
    await harness.client.patch(f"/v1/leads/{first}", json={"lesson_datetime": SECOND})
    assert (await harness.get(first))["lesson_datetime"] == SECOND
    free = await harness.leads.slots.free("somebody else")
    assert [read_moment(one, "UTC") in free for one in (FIRST, SECOND)] == [True, False]


async def test_lessons_that_change_places_keep_their_times(harness: Harness) -> None:
    """The first is moved onto a time that the second has still, and the second then leaves."""
    first, second = await harness.lead(), await harness.lead(tranid="3")
    await harness.event("lesson.booked", first, "a", lesson_datetime=FIRST)
    await harness.event("lesson.booked", second, "b", lesson_datetime=SECOND)
    await harness.client.patch(f"/v1/leads/{first}", json={"lesson_datetime": SECOND})
    await harness.client.patch(f"/v1/leads/{second}", json={"lesson_datetime": FIRST})
    third = await harness.lead(tranid="4")
    for moment in (FIRST, SECOND):
        assert not await harness.leads.slots.take(third, read_moment(moment, "UTC"))
    await harness.client.patch(f"/v1/leads/{first}", json={"lesson_datetime": None})
    assert await harness.leads.slots.take(third, read_moment(SECOND, "UTC"))


@pytest.mark.parametrize("end", ["cancelled", "erased"])
async def test_of_two_lessons_at_a_time_the_one_that_stays_has_it(harness: Harness, end: str) -> None:
    first, second = await harness.lead(), await harness.lead(tranid="3")
    for lead_id in (second, first):
        await harness.event("lesson.booked", lead_id, lead_id, lesson_datetime=SECOND)
    if end == "cancelled":
        await harness.event("lesson.cancelled", second, "b")
    else:
        await harness.app.erase(second)
    third = await harness.lead(tranid="4")
    assert not await harness.leads.slots.take(third, read_moment(SECOND, "UTC"))


async def test_a_status_given_with_a_date_is_not_lost(harness: Harness) -> None:
    lead_id = await harness.lead()
    change = {"lesson_datetime": FIRST, "status": "PAID", "bot_activated": True}
    answer = await harness.client.patch(f"/v1/leads/{lead_id}", json=change)
    assert (answer.json()["lesson_datetime"], answer.json()["status"]) == (FIRST, "PAID")


async def test_a_change_by_hand_and_what_it_moves_are_one_transaction(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead_id = await harness.lead()

    def killed(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(harness.leads._scenarios.scenario_engine, "changed_in", killed)
    with pytest.raises(RuntimeError, match="killed"):
        await harness.leads.edit(lead_id, name="Another")
    assert (await harness.get(lead_id))["name"] == "Марат"


async def test_reminders_are_simulated_for_a_lead_that_is_made_up(harness: Harness) -> None:
    timelines, start = harness.app.scenarios.timelines, read_moment("2026-01-05T00:00:00Z", "UTC")

    async def steps(**how: Any) -> list[tuple[str, str]]:
        found = await timelines.simulate("lesson_reminders", start=start, is_imagined=True, **how)
        return [(one.step, one.state) for one in found.changes if one.state != "armed"]

    assert await steps() == [("remind24h", "done"), ("remind5h", "done")]
    assert await steps(data={"lesson_datetime": FIRST}) == [("remind24h", "skipped"), ("remind5h", "done")]
    assert await steps(fields={"confirmed": True}) == [("remind24h", "skipped"), ("remind5h", "skipped")]
    with pytest.raises(UnknownJob, match="There is no lead 'nobody'"):
        await timelines.simulate("lesson_reminders", entity_id="nobody")


async def test_of_a_long_log_the_last_lines_are_shown(harness: Harness) -> None:
    """Whoever sends /start all day long does not hide what came of it."""
    lead_id, store = await harness.lead(), harness.leads.store

    def write(connection: Connection) -> None:
        for number in range(501):
            store.log_in(connection, lead_id, LogLine(f"line-{number}", f"LINE_{number}"))

    await harness.app.database.write(write)
    assert await harness.log(lead_id) == [f"LINE_{number}" for number in range(1, 501)]
