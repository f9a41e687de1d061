"""A lesson's meeting at Zoom: one while there is a lesson, at its time, never two, whatever fails on the way."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import delete, update

from tests.leads.harness import Harness, open_harness
from tests.processes import DEADLINE, Process
from tests.services import zoom
from tests.services.zoom import ZoomServer, said
from yamchi import Yamchi
from yamchi.clock import isoformat
from yamchi.errors import ConfigurationError, Outage, Snooze
from yamchi.leads.meetings import Meetings
from yamchi.leads.model import Lead
from yamchi.leads.plugin import Leads
from yamchi.leads.tables import zoom_meetings
from yamchi.settings import Settings
from yamchi.testing import TestApp, eventually


@pytest.fixture
def server() -> Iterator[ZoomServer]:
    with ZoomServer() as server:
        yield server


def settings_of(server: ZoomServer) -> dict[str, Any]:
    return {
        "zoom_account_id": zoom.ACCOUNT,
        "zoom_client_id": zoom.CLIENT,
        "zoom_client_secret": zoom.SECRET,
        "zoom_url": f"{server.origin}/v2",
        "zoom_oauth_url": server.origin,
    }


@pytest.fixture
async def harness(tmp_path: Path, server: ZoomServer) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, **settings_of(server)) as harness:
        yield harness


@pytest.fixture
def meetings(harness: Harness) -> Meetings:
    assert harness.leads.meetings is not None
    return harness.leads.meetings


async def book(
    harness: Harness, lead_id: str, moment: str = "2026-01-05T10:00:00Z", kind: str = "lesson.booked"
) -> None:
    answer = await harness.event(kind, lead_id, f"{kind}-{moment}", lesson_datetime=moment)
    assert answer.status_code == 202, answer.text
    await harness.app.drain()


async def test_a_lesson_gets_a_meeting(harness: Harness, server: ZoomServer) -> None:
    lead_id = await harness.lead()
    await book(harness, lead_id)
    ((number, meeting),) = server.meetings.items()
    assert (meeting["start_time"], meeting["duration"], meeting["topic"]) == (
        "2026-01-05T10:00:00Z",
        60,
        "Lesson: Марат",
    )
    lead = await harness.get(lead_id)
    assert (lead["zoom_link"], lead["zoom_meeting_id"]) == (f"https://zoom.us/j/{number}", number)
    (reminder,) = await harness.jobs("reminders")
    assert reminder.data["zoomLink"] == f"https://zoom.us/j/{number}"  # it was queued before there was one
    assert await harness.app.keys.get("zoom_token") == "token-1"
    await book(harness, await harness.lead(tranid="3"), "2026-01-05T11:00:00Z")
    assert server.tokens == 1
    await harness.app.clock.advance("51m")
    assert await harness.app.keys.get("zoom_token") is None


async def test_another_date_moves_it_and_cancelling_deletes_it(harness: Harness, server: ZoomServer) -> None:
    lead_id = await harness.lead()
    await book(harness, lead_id)
    await book(harness, lead_id, "2026-01-07T10:00:00Z", "lesson.rescheduled")
    ((number, meeting),) = server.meetings.items()
    assert meeting["start_time"] == "2026-01-07T10:00:00Z"
    assert (await harness.get(lead_id))["zoom_meeting_id"] == number
    await harness.event("lesson.cancelled", lead_id, "gone")
    await harness.app.drain()
    assert (server.meetings, server.created) == ({}, 1)
    await book(harness, lead_id, "2026-01-09T10:00:00Z")
    assert len(server.meetings) == 1


async def test_zoom_is_down_and_the_link_follows(harness: Harness, server: ZoomServer) -> None:
    lead_id = await harness.lead()
    server.stop()
    await book(harness, lead_id)
    lead = await harness.get(lead_id)
    assert (lead["status"], lead["zoom_link"]) == ("LESSON_BOOKED", None)
    await harness.app.clock.advance("20m")
    server.start()
    await harness.app.clock.advance("2h")
    assert (await harness.get(lead_id))["zoom_link"]
    assert server.created == 1


@pytest.mark.parametrize("lists_agenda", [True, False])
async def test_a_lost_answer_makes_no_second_meeting(
    harness: Harness, server: ZoomServer, lists_agenda: bool
) -> None:
    """It is found among others, on another page of the list, whether or not the list tells its agenda."""
    server.lists_agenda, server.page = lists_agenda, 2
    for hour in range(3):
        await book(harness, await harness.lead(tranid=f"other-{hour}"), f"2026-01-06T1{hour}:00:00Z")
    server.created = 0
    lead_id = await harness.lead()
    server.lost = 1
    await book(harness, lead_id)
    assert (server.created, (await harness.get(lead_id))["zoom_link"]) == (1, None)
    await harness.app.clock.advance("1h")
    assert server.created == 1
    assert (await harness.get(lead_id))["zoom_meeting_id"] in server.meetings


async def test_a_crash_after_creation_makes_no_second_meeting(
    harness: Harness, server: ZoomServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is gone before it could keep the meeting's id."""
    lead_id = await harness.lead()

    def crash(point: str) -> None:
        if point == "zoom.created":
            raise RuntimeError("killed")

    monkeypatch.setattr("yamchi.leads.meetings.fault_point", crash)
    await book(harness, lead_id)
    monkeypatch.undo()
    await harness.app.clock.advance("1h")
    assert server.created == 1
    assert (await harness.get(lead_id))["zoom_meeting_id"] in server.meetings


def before_created(
    meetings: Meetings, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]
) -> None:
    """Let something happen between the question to Zoom and the meeting, once."""
    create = meetings._zoom.create

    async def act_and_create(*asked: Any) -> Any:
        monkeypatch.undo()
        await act()
        return await create(*asked)

    monkeypatch.setattr(meetings._zoom, "create", act_and_create)


async def test_cancelled_while_it_is_created(
    harness: Harness, meetings: Meetings, server: ZoomServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead_id = await harness.lead()

    async def cancel() -> None:
        await harness.event("lesson.cancelled", lead_id, "gone")
        with suppress(Snooze):
            await meetings.handle(job_of(lead_id))

    before_created(meetings, monkeypatch, cancel)
    await book(harness, lead_id)
    await harness.app.clock.advance("5m")
    assert (server.created, server.meetings) == (1, {})


async def test_a_meeting_that_nobody_knows_of_is_deleted(
    harness: Harness, meetings: Meetings, server: ZoomServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zoom took longer than anybody waits for: the row is gone when the meeting is there."""
    lead_id = await harness.lead()

    async def forget() -> None:
        await harness.app.database.write(lambda c: c.execute(delete(zoom_meetings)).rowcount)

    before_created(meetings, monkeypatch, forget)
    await book(harness, lead_id)
    assert (server.created, server.meetings) == (1, {})


@pytest.mark.parametrize("is_handled", [True, False])
async def test_booked_again_while_it_is_deleted(
    harness: Harness,
    meetings: Meetings,
    server: ZoomServer,
    monkeypatch: pytest.MonkeyPatch,
    is_handled: bool,
) -> None:
    lead_id, moment = await harness.lead(), "2026-01-05T10:00:00Z"
    await book(harness, lead_id, moment)
    end = meetings._zoom.delete

    async def booked_meanwhile(meeting_id: str) -> None:
        monkeypatch.undo()
        await harness.event("lesson.booked", lead_id, "again", lesson_datetime=moment)
        if is_handled:
            await meetings.handle(job_of(lead_id))
        await end(meeting_id)

    monkeypatch.setattr(meetings._zoom, "delete", booked_meanwhile)
    await harness.event("lesson.cancelled", lead_id, "gone")
    await harness.app.drain()
    await harness.app.clock.advance("5m")
    assert list(server.meetings) == [(await harness.get(lead_id))["zoom_meeting_id"]]


@pytest.mark.parametrize("lost", [0, 1])
async def test_the_slower_of_two_moves_does_not_win(
    harness: Harness, meetings: Meetings, server: ZoomServer, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """While Zoom is asked for the older date, another job asks for the newer one and is done; the first answer may be lost."""
    lead_id = await harness.lead()
    await book(harness, lead_id)
    move, queue = meetings._zoom.move, harness.app.queue("lessons")

    async def slowly(*asked: Any) -> bool:
        monkeypatch.undo()
        await harness.event("lesson.rescheduled", lead_id, "newer", lesson_datetime="2026-01-09T10:00:00Z")
        (newer,) = await queue.jobs("waiting")
        await queue.remove([newer.id])
        await meetings.handle(newer)
        server.lost = lost
        return await move(*asked)

    monkeypatch.setattr(meetings._zoom, "move", slowly)
    await book(harness, lead_id, "2026-01-07T10:00:00Z", "lesson.rescheduled")
    await harness.app.clock.advance("5m")
    (meeting,) = server.meetings.values()
    assert meeting["start_time"] == "2026-01-09T10:00:00Z"


async def test_a_link_that_could_not_be_told_is_told_later_and_once(
    harness: Harness, meetings: Meetings, server: ZoomServer
) -> None:
    lead_id = await harness.lead()
    answers: list[Exception] = [Outage("Telegram is away"), RuntimeError("killed")]
    told = []

    async def tell(lead: Lead) -> None:
        if answers:
            raise answers.pop(0)
        told.append(lead.zoom_link)

    meetings._tell = tell
    await book(harness, lead_id)
    await harness.app.clock.advance("3h")
    ((number, _),) = server.meetings.items()
    assert told == [f"https://zoom.us/j/{number}"]
    await book(harness, lead_id, "2026-01-07T10:00:00Z", "lesson.rescheduled")
    await harness.app.clock.advance("3h")
    assert (len(told), server.created) == (1, 1)


async def test_a_link_given_by_hand_with_the_date_stays(harness: Harness, server: ZoomServer) -> None:
    lead_id = await harness.lead()
    change = {"lesson_datetime": "2026-01-05T10:00:00Z", "zoom_link": "https://meet.example/1"}
    assert (await harness.client.patch(f"/v1/leads/{lead_id}", json=change)).is_success
    await harness.app.drain()
    assert (server.created, (await harness.get(lead_id))["zoom_link"]) == (0, "https://meet.example/1")


async def test_a_link_of_ones_own_stays_when_the_date_moves(harness: Harness, server: ZoomServer) -> None:
    lead_id = await harness.lead()
    link = {"zoom_link": "https://meet.example/1"}
    await harness.event("lesson.booked", lead_id, "e1", lesson_datetime="2026-01-05T10:00:00Z", **link)
    await book(harness, lead_id, "2026-01-07T10:00:00Z", "lesson.rescheduled")
    assert (server.created, (await harness.get(lead_id))["zoom_link"]) == (0, "https://meet.example/1")
    await harness.event("lesson.cancelled", lead_id, "e3")
    await book(harness, lead_id, "2026-01-09T10:00:00Z")
    assert server.created == 1
    await harness.client.patch(f"/v1/leads/{lead_id}", json=link)
    await book(harness, lead_id, "2026-01-12T10:00:00Z", "lesson.rescheduled")
    assert (server.meetings, (await harness.get(lead_id))["zoom_link"]) == ({}, "https://meet.example/1")


@pytest.mark.parametrize("way", ["event", "by hand"])
async def test_a_lesson_that_is_moved_with_its_meetings_link_moves_the_meeting(
    harness: Harness, server: ZoomServer, way: str
) -> None:
    """Whoever moves it has read the lead, and says all that there is of the lesson."""
    lead_id = await harness.lead()
    await book(harness, lead_id)
    link = (await harness.get(lead_id))["zoom_link"]
    moved = {"lesson_datetime": "2026-01-07T10:00:00Z", "zoom_link": link}
    if way == "event":
        await harness.event("lesson.rescheduled", lead_id, "moved", **moved)
    else:
        await harness.client.patch(f"/v1/leads/{lead_id}", json=moved)
    await harness.app.drain()
    (meeting,) = server.meetings.values()
    assert (meeting["start_time"], meeting["join_url"]) == ("2026-01-07T10:00:00Z", link)
    assert (await harness.get(lead_id))["zoom_link"] == link


async def test_a_lesson_that_gets_a_link_of_its_own_leaves_no_meeting_behind(
    harness: Harness, server: ZoomServer
) -> None:
    lead_id = await harness.lead()
    await book(harness, lead_id)
    own = {"lesson_datetime": "2026-01-07T10:00:00Z", "zoom_link": "https://meet.example/1"}
    await harness.event("lesson.rescheduled", lead_id, "moved", **own)
    await harness.app.drain()
    assert (server.meetings, (await harness.get(lead_id))["zoom_link"]) == ({}, "https://meet.example/1")


async def test_a_link_of_ones_own_that_comes_while_the_meeting_is_made_stays(
    harness: Harness, meetings: Meetings, server: ZoomServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead_id = await harness.lead()
    own = {"lesson_datetime": "2026-01-05T10:00:00Z", "zoom_link": "https://meet.example/1"}

    async def give_link() -> None:
        await harness.event("lesson.rescheduled", lead_id, "own", **own)

    before_created(meetings, monkeypatch, give_link)
    await book(harness, lead_id)
    await harness.app.clock.advance("5m")
    assert (server.created, server.meetings) == (1, {})
    assert (await harness.get(lead_id))["zoom_link"] == "https://meet.example/1"


def job_of(lead_id: str) -> Any:
    """As much of a job as the handler reads."""
    return SimpleNamespace(data={"leadId": lead_id})


async def test_many_dates_at_once_are_one_meeting(harness: Harness, server: ZoomServer) -> None:
    lead_id = await harness.lead()
    for hour in range(10, 20):
        await harness.event(
            "lesson.rescheduled", lead_id, f"e{hour}", lesson_datetime=f"2026-01-05T{hour}:00:00Z"
        )
        await harness.app.clock.advance("10ms")
    await harness.app.clock.advance("1h")
    (meeting,) = server.meetings.values()
    assert (meeting["start_time"], server.created) == ("2026-01-05T19:00:00Z", 1)


async def test_a_token_that_ended_early_and_a_meeting_deleted_by_hand(
    harness: Harness, server: ZoomServer
) -> None:
    lead_id = await harness.lead()
    await book(harness, lead_id)
    await harness.app.keys.set("zoom_token", "stale", "50m")
    server.meetings.clear()
    await book(harness, lead_id, "2026-01-07T10:00:00Z", "lesson.rescheduled")
    ((number, meeting),) = server.meetings.items()
    assert (meeting["start_time"], server.tokens) == ("2026-01-07T10:00:00Z", 2)
    assert (await harness.get(lead_id))["zoom_meeting_id"] == number


async def test_too_many_calls_wait(harness: Harness, server: ZoomServer) -> None:
    lead_id = await harness.lead()
    server.answers.append(
        said(429, {"code": 429, "message": "You have reached the maximum per-second rate limit"})
    )
    await book(harness, lead_id)
    await harness.app.clock.advance("2h")
    assert (server.created, len(server.meetings)) == (1, 1)


async def test_what_zoom_refuses_is_a_dead_letter(harness: Harness, server: ZoomServer) -> None:
    lead_id = await harness.lead()
    server.answers.append(said(400, {"code": 300, "message": "Validation Failed."}))
    await book(harness, lead_id)
    (letter,) = (await harness.app.queue("lessons").dead_letters.list()).letters
    assert "Validation Failed" in str(letter)
    await harness.app.clock.advance("1d")
    assert server.created == 0


async def test_a_lost_job_is_found(harness: Harness, meetings: Meetings, server: ZoomServer) -> None:
    lead_id = await harness.lead()
    await harness.event("lesson.booked", lead_id, "e1", lesson_datetime="2026-01-05T10:00:00Z")
    queue = harness.app.queue("lessons")
    (job,) = await queue.jobs("waiting")
    assert await queue.remove([job.id]) == [job.id]
    await harness.app.clock.advance("3m")
    assert server.created == 0
    assert await meetings.sweep() == 1
    await harness.app.drain()
    assert server.created == 1


async def test_a_lesson_with_a_link_of_its_own_gets_no_meeting(harness: Harness, server: ZoomServer) -> None:
    lead_id = await harness.lead()
    await harness.event(
        "lesson.booked",
        lead_id,
        "e1",
        lesson_datetime="2026-01-05T10:00:00Z",
        zoom_link="https://meet.example/1",
    )
    await harness.app.drain()
    assert (server.created, (await harness.get(lead_id))["zoom_link"]) == (0, "https://meet.example/1")


async def test_erasing_a_lead_deletes_its_meeting(harness: Harness, server: ZoomServer) -> None:
    lead_id = await harness.lead()
    await book(harness, lead_id)
    await harness.app.erase(lead_id)
    await harness.app.drain()
    assert server.meetings == {}


def test_half_an_account_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ZOOM_CLIENT_SECRET"):
        TestApp(home=tmp_path, zoom_account_id="x")


@pytest.mark.faults
@pytest.mark.parametrize("point", ["zoom.asking", "zoom.created"])
async def test_killed_around_the_creation(tmp_path: Path, server: ZoomServer, point: str) -> None:
    """SIGKILL right before and right after Zoom made the meeting: another process finds one, or makes the only one."""
    known = settings_of(server)
    settings = Settings(home=tmp_path, plugins=("notifications", "scenarios", "leads"), **known)
    environment = {name.upper(): str(value) for name, value in known.items()}
    environment |= {"PLUGINS": "notifications,scenarios,leads", "LEASE": "2s"}
    async with Yamchi(settings) as app:
        leads = app.plugin(Leads)
        lead = await leads.submit(name="Марат", phone="8 701 000 00 00", tranid="1")
        moment = isoformat(app.clock.now() + 3 * 86_400_000)
        await leads.tell("lesson.booked", lead.id, lesson_datetime=moment)
        killed = Process(tmp_path, "worker", **environment, YAMCHI_FAULT=point)
        await eventually(lambda: killed.process.poll() == -9, DEADLINE)
        assert server.created == (point == "zoom.created")
        long_ago = app.clock.now() - 3_600_000
        asked = update(zoom_meetings).values(asked_at=long_ago)
        await app.database.write(lambda connection: connection.execute(asked).rowcount)
        successor = Process(tmp_path, "worker", **environment)
        try:
            await eventually(lambda: _has_link(leads, lead.id), DEADLINE)
        finally:
            successor.process.kill()
            successor.process.wait()
    assert (server.created, len(server.meetings)) == (1, 1)


async def _has_link(leads: Leads, lead_id: str) -> bool:
    return (await leads.get(lead_id)).zoom_link is not None
