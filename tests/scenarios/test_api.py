"""Scenarios over HTTP and at the command line: lists, timelines, pictures, stopping; and buttons in letters."""

import re
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from tests.scenarios.harness import LEAD, Harness, open_harness
from yamchi.notifications.schemas.event import Event
from yamchi.scenarios.actions import Link
from yamchi.scenarios.commands import scenario_schema
from yamchi.scenarios.entities import Change, Entity
from yamchi.scenarios.store import StepId
from yamchi.scenarios.tables import scenario_runs
from yamchi.web import create_app

BASE = "http://localhost:3030"


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, default_timezone="Asia/Almaty") as harness:
        yield harness
        await harness.check()


@pytest.fixture
async def client(harness: Harness) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=create_app(harness.app))
    async with httpx2.AsyncClient(transport=transport, base_url=BASE) as client:
        yield client


async def test_what_is_in_force(client: httpx2.AsyncClient, harness: Harness) -> None:
    harness.scenario("scenario: broken\non: x\nkey: k\nsteps: []\n", "broken")
    answer = (await client.get("/api/v1/scenarios")).json()
    assert {one["scenario"] for one in answer["scenarios"]} == {"email_chain", "lesson_reminders"}
    assert "broken.yaml:4: steps: List should have at least 1 item" in answer["problems"][0]
    shown = (await client.get("/api/v1/scenarios/email_chain")).json()
    assert [step["job"] for step in shown["steps"]] == ["email1", "email2", "callAlert"]
    missing = await client.get("/api/v1/scenarios/nothing")
    assert missing.status_code == 404
    assert missing.json()["detail"] == (
        "There is no scenario 'nothing'; there are: email_chain, lesson_reminders."
    )


async def test_a_timeline_of_past_and_future(client: httpx2.AsyncClient, harness: Harness) -> None:
    await harness.lead()
    await harness.event("lead.created")
    await harness.pass_time("30m")
    for path in ("/api/v1/runs", "/api/v1/scenarios/runs", "/api/v1/scenarios/email_chain/runs"):
        (run,) = (await client.get(path, params={"key": LEAD})).json()["runs"]
        assert (run["status"], run["step"], run["due_at"]) == ("running", "email2", "2026-01-02T00:30:00Z")
    shown = (await client.get(f"/api/v1/runs/{run['run_id']}")).json()
    lines = [(line["step"], line["state"], line["at"], line["is_future"]) for line in shown["timeline"]]
    assert lines == [
        ("email1", "done", "2026-01-01T00:30:00Z", False),
        ("email2", "armed", "2026-01-02T00:30:00Z", False),
        ("email2", "done", "2026-01-02T00:30:00Z", True),
        ("callAlert", "done", "2026-01-03T00:30:00Z", True),
    ]
    assert shown["timeline"][0]["effects"]["log"] == "EMAIL_1_SENT"


async def test_pictures_are_drawings(client: httpx2.AsyncClient, harness: Harness) -> None:
    await harness.lead(LEAD, name="<script>alert(1)</script>")
    await harness.event("lead.created")
    (run,) = (await client.get("/api/v1/runs")).json()["runs"]
    for path in (f"/api/v1/runs/{run['run_id']}/picture.svg", "/api/v1/scenarios/email_chain/picture.svg"):
        answer = await client.get(path)
        assert answer.headers["content-type"].startswith("image/svg+xml")
        drawn = ET.fromstring(answer.text)
        texts = list(drawn.itertext())
        assert [texts.count(step) for step in ("email1", "email2", "callAlert")] == [1, 1, 1]
        assert "<script" not in answer.text


async def test_stopping(client: httpx2.AsyncClient, harness: Harness) -> None:
    await harness.lead()
    await harness.event("lead.created")
    (run,) = (await client.get("/api/v1/runs")).json()["runs"]
    answer = await client.post(f"/api/v1/runs/{run['run_id']}/stop", json={"reason": "called them"})
    assert answer.json()["on_its_way"] is None
    await harness.pass_time("7d")
    assert harness.letters() == []
    assert (await harness.run("email_chain"))["reason"] == "called them"
    again = await client.post(f"/api/v1/runs/{run['run_id']}/stop")
    assert again.status_code == 404
    assert "there is nothing to stop" in again.json()["detail"]
    assert (await client.get("/api/v1/runs/nothing")).status_code == 404


# ── Buttons in letters ────────────────────────────────────────────────────────────────────────────────────────────


async def reminded(harness: Harness) -> dict[str, str]:
    """The addresses of the buttons in the letter that a lead without a chat got."""
    await harness.lead(tg_id=None)
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    await harness.pass_time("25h")
    links = re.findall(rf"{BASE}(/act/[\w.=-]+)", harness.email.sent[-1][1].rendered.html or "")
    return dict(zip(("confirm", "reschedule"), dict.fromkeys(links), strict=True))


async def test_opening_a_link_changes_nothing_and_pressing_its_button_does_once(
    client: httpx2.AsyncClient, harness: Harness
) -> None:
    links = await reminded(harness)
    for _ in range(3):  # a mail scanner
        page = await client.get(links["confirm"], headers={"accept-language": "ru"})
        assert page.status_code == 200
        assert page.text.count("<button") == 1
        assert "✅ Да, буду!" in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
    assert (await harness.run("lesson_reminders"))["status"] == "running"
    pressed = await client.post(links["confirm"], headers={"accept-language": "ru"})
    assert (pressed.status_code, "Спасибо" in pressed.text) == (200, True)
    run = await harness.run("lesson_reminders")
    assert (run["status"], run["reason"]) == ("stopped", "lesson.confirmed came")
    assert (await harness.leads.fields(LEAD))["confirmed"] is True
    for call in (client.get, client.post):
        used = await call(links["confirm"])
        assert used.status_code == 410
        assert "has been used already" in used.text
    await harness.pass_time("7d")
    assert harness.letters() == ["remind_24h"]


async def test_who_asks_for_another_time_is_called(client: httpx2.AsyncClient, harness: Harness) -> None:
    """The page says that another time will be found: so the lead says that somebody has to call."""
    links = await reminded(harness)
    assert (await client.post(links["reschedule"])).status_code == 200
    assert (await harness.leads.fields(LEAD))["status"] == "CALL_NEEDED"
    assert await harness.leads.log(LEAD) == ["REMINDER_24H_SENT", "RESCHEDULE_REQUESTED"]


async def test_links_that_do_nothing_say_why(client: httpx2.AsyncClient, harness: Harness) -> None:
    links = await reminded(harness)
    forged = await client.post(links["confirm"][:-4] + "0000")
    assert (forged.status_code, "was not made here" in forged.text) == (410, True)
    assert (await client.post("/act/x")).status_code == 410
    await harness.event("lesson.rescheduled", lesson_datetime=harness.ahead(days=40))
    moved = await client.post(links["confirm"])
    assert "The date has changed since" in moved.text
    await harness.pass_time("15d")
    late = await client.post(links["reschedule"])
    assert (late.status_code, "has expired" in late.text) == (410, True)
    assert "confirmed" not in {k for k, v in (await harness.leads.fields(LEAD)).items() if v is True}


async def test_a_link_of_a_lesson_that_was_cancelled_confirms_nothing(
    client: httpx2.AsyncClient, harness: Harness
) -> None:
    links = await reminded(harness)
    await harness.event("lesson.cancelled", lesson_datetime=None)
    pressed = await client.post(links["confirm"])
    assert (pressed.status_code, "has been cancelled, or has another date" in pressed.text) == (410, True)
    assert "confirmed" not in await harness.leads.fields(LEAD)


async def test_a_link_holds_as_long_as_its_date_though_another_run_has_begun(
    client: httpx2.AsyncClient, harness: Harness
) -> None:
    """A lesson that is booked for the same moment again, with another link for example, has not moved."""
    moment = harness.ahead(days=2)
    links = await reminded(harness)
    await harness.pass_time("20h")
    assert (await harness.run("lesson_reminders"))["status"] == "finished"
    await harness.event("lesson.rescheduled", lesson_datetime=moment)
    assert (await harness.run("lesson_reminders"))["generation"] == 2
    pressed = await client.post(links["confirm"])
    assert (pressed.status_code, (await harness.leads.fields(LEAD))["confirmed"]) == (200, True)
    await harness.event("lesson.rescheduled", lesson_datetime=harness.ahead(days=4))
    moved = await client.post(links["reschedule"])
    assert (moved.status_code, "has another date now" in moved.text) == (410, True)


async def test_a_button_in_a_chat_acts_at_once(harness: Harness) -> None:
    await harness.lead()
    await harness.event("lesson.booked", lesson_datetime=harness.ahead(days=2))
    await harness.pass_time("25h")
    done = await harness.scenarios.act("lesson_reminders", LEAD, "confirm", by="telegram:777")
    assert done.action == "confirm"
    assert (await harness.run("lesson_reminders"))["status"] == "stopped"
    with pytest.raises(LookupError, match="no action 'dance'; it has: confirm, reschedule, stop"):
        await harness.scenarios.act("lesson_reminders", LEAD, "dance", by="telegram:777")
    with pytest.raises(LookupError, match="has no run of 'nobody'"):
        await harness.scenarios.act("lesson_reminders", "nobody", "confirm", by="telegram:777")


CALLED = """
scenario: order_chain
on: order.placed
entity: order
key: "{{ order.id }}"
actions:
  paid: {set: {paid: true}, stop: true}
steps:
  - {job: remind, wait: 1h, set: {reminded: true}}
"""


class Killed(Exception):
    """The process ends here."""


@dataclass
class Orders:
    """Orders that another system keeps."""

    fields: dict[str, Any] = field(default_factory=dict)
    is_down: bool = False

    def id_of(self, event: Event) -> str | None:
        found = event.data.get("order_id")
        return None if found is None else str(found)

    async def get(self, entity_id: str) -> Entity:
        return Entity(entity_id, {"id": entity_id, **self.fields})

    async def note(self, event: Event) -> None:
        """Nothing is said of an order."""

    async def apply(self, entity_id: str, change: Change) -> None:
        if self.is_down:
            raise Killed
        self.fields |= change.fields


async def link_of(harness: Harness, scenario: str, action: str) -> str:
    """The address of an action, in the message of the step that is pending."""
    query = select(scenario_runs).where(scenario_runs.c.scenario == scenario)
    row = await harness.app.database.read(lambda connection: connection.execute(query).one())
    url = await harness.scenarios.actions.url(Link(StepId(row.run_id, row.armed_step, row.arming), action))
    return url.removeprefix(BASE)


async def test_a_link_that_is_used_up_has_stopped_its_run(
    client: httpx2.AsyncClient, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders()
    harness.scenarios.entities.register("order", orders)
    harness.scenario(CALLED)
    await harness.event("order.placed", None, order_id="7")
    link = await link_of(harness, "order_chain", "paid")
    orders.is_down = True
    with pytest.raises(Killed):
        await client.post(link)
    orders.is_down = False

    def kill(point: str) -> None:
        raise Killed

    monkeypatch.setattr("yamchi.scenarios.scenario_engine.fault_point", kill)
    with pytest.raises(Killed):
        await client.post(link)  # not used up: the order could not be changed
    monkeypatch.undo()
    run = await harness.run("order_chain", "7")
    assert (run["status"], orders.fields) == ("stopped", {"paid": True})
    assert "has been used already" in (await client.post(link)).text
    await harness.scenarios.sweeper.sweep()


# ── Schema ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_schema_knows_every_field() -> None:
    schema: dict[str, Any] = scenario_schema()
    assert {"scenario", "on", "key", "steps"} <= set(schema["properties"])
    assert {"wait", "at", "send", "wait_for"} <= set(schema["$defs"]["Step"]["properties"])
    assert schema["additionalProperties"] is False
