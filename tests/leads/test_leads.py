"""Leads: forms come in once, scenarios follow them up, people look at them and change them."""

import asyncio
import csv
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.leads.harness import FORM, SECRET, Harness, open_harness
from tests.services.sheets import SheetsServer
from yamchi.errors import InvalidJob
from yamchi.leads.contacts import read_form
from yamchi.leads.model import Lead
from yamchi.leads.sheets.cells import COLUMNS, cells_of, read_row


@pytest.fixture(params=["table", "sheets"])
async def harness(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """Leads in the table alone, and in a spreadsheet too, which in the end has what the table has."""
    if request.param == "table":
        async with open_harness(tmp_path) as harness:
            yield harness
        return
    with SheetsServer() as server:
        async with open_harness(tmp_path, **server.settings) as harness:
            yield harness
            assert harness.leads.sheet is not None
            assert await harness.leads.sheet.sync()
            rows = {row["id"]: read_row(COLUMNS, list(row.values())) for row in server.table("Leads")}
            assert rows == {lead.id: cells_of(lead) async for lead in _all(harness)}
            lines = [line["lead_id"] for line in server.table("Log")]
            assert len(lines) == sum([len(await harness.log(lead_id)) for lead_id in rows])


async def _all(harness: Harness) -> AsyncIterator[Lead]:
    async for batch in harness.leads.store.batches():
        for lead in batch:
            yield lead


# ── Tilda ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_form_becomes_a_lead(harness: Harness) -> None:
    lead = await harness.get(await harness.lead())
    assert (lead["name"], lead["email"], lead["phone"]) == ("Марат", "marat@example.com", "+77010000000")
    assert (lead["status"], lead["source"], lead["bot_activated"]) == ("NEW", "tilda", False)
    assert lead["extra"] == {"tranid": "1:2", "Курс": "English"}
    assert await harness.log(lead["id"]) == ["LEAD_CREATED"]
    (job,) = await harness.jobs("emailChain")
    assert job.data == {"leadId": lead["id"], "email": "marat@example.com", "name": "Марат"}


async def test_the_same_form_twice_is_one_lead(harness: Harness) -> None:
    answers = await asyncio.gather(*(harness.form() for _ in range(10)))
    assert {answer.text for answer in answers} == {"ok"}
    await harness.form(Name="Another name under the same tranid")
    assert await harness.leads.store.count() == 1
    assert len(await harness.jobs("emailChain")) == 1
    await harness.form(tranid="")
    await harness.form(tranid="")
    assert await harness.leads.store.count() == 2
    await harness.form(tranid="", Name="Somebody else")
    assert await harness.leads.store.count() == 3


async def test_json_is_taken_too(harness: Harness) -> None:
    answer = await harness.client.post(
        "/webhooks/tilda", json={"Email": "a@example.com", "Age": 7}, headers={"secret": SECRET}
    )
    assert (answer.status_code, answer.text) == (200, "ok")
    (lead,) = await harness.leads.store.page()
    assert (lead.email, lead.phone, lead.extra) == ("a@example.com", None, {"Age": "7"})


async def test_multipart_is_taken_too(harness: Harness) -> None:
    fields = {"Name": "Айгерим", "Email": "a@example.com", "secret": SECRET}
    parts = {name: (None, value) for name, value in fields.items()}
    answer = await harness.client.post("/webhooks/tilda", files=parts)
    assert (answer.status_code, answer.text) == (200, "ok")
    (lead,) = await harness.leads.store.page()
    assert (lead.name, lead.email) == ("Айгерим", "a@example.com")
    with_file = {**parts, "photo": ("a.jpg", b"x")}
    refused = await harness.client.post("/webhooks/tilda", files=with_file)
    assert (refused.status_code, "without files" in refused.json()["detail"]) == (422, True)


async def test_fields_with_fields_are_kept_as_json(harness: Harness) -> None:
    form = {"Email": "a@example.com", "Basket": {"items": ["книга"], "is_paid": True}}
    await harness.client.post("/webhooks/tilda", json=form, headers={"secret": SECRET})
    (lead,) = await harness.leads.store.page()
    assert lead.extra == {"Basket": '{"items": ["книга"], "is_paid": true}'}


async def test_tildas_ping(harness: Harness) -> None:
    answer = await harness.client.post("/webhooks/tilda", data={"test": "test"})
    assert (answer.status_code, answer.text) == (200, "ok")
    wrong = await harness.client.post("/webhooks/tilda?secret=wrong", data={"test": "test"})
    assert wrong.status_code == 403
    assert await harness.leads.store.count() == 0


@pytest.mark.parametrize("place", ["query", "header", "field"])
async def test_the_secret_may_be_anywhere_and_must_be_right(harness: Harness, place: str) -> None:
    async def post(secret: str) -> int:
        request: dict[str, Any] = {"data": FORM}
        match place:
            case "query":
                request["params"] = {"secret": secret}
            case "header":
                request["headers"] = {"secret": secret}
            case "field":
                request["data"] = {**FORM, "secret": secret}
        return (await harness.client.post("/webhooks/tilda", **request)).status_code

    assert await post("wrong") == 403
    assert await post("") == 403
    assert await harness.leads.store.count() == 0
    assert await post(SECRET) == 200
    (lead,) = await harness.leads.store.page()
    assert SECRET not in str(lead)


async def test_without_a_secret_nothing_is_taken(tmp_path: Path) -> None:
    async with open_harness(tmp_path, tilda_secret=None) as harness:
        answer = await harness.form()
        assert answer.status_code == 403
        assert "TILDA_SECRET" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"Name": "Nobody"}, "no e-mail address and no phone number"),
        ({"Email": "nobody@", "Phone": "12"}, "neither"),
        ({f"f{number}": "x" for number in range(101)}, "100 fields"),
    ],
)
async def test_a_form_that_can_not_be_used(harness: Harness, form: dict[str, str], said: str) -> None:
    answer = await harness.client.post("/webhooks/tilda", json=form, headers={"secret": SECRET})
    assert answer.status_code == 422
    assert said in answer.json()["detail"]
    assert await harness.leads.store.count() == 0


async def test_bodies_that_are_no_forms(harness: Harness) -> None:
    for body, kind, status in (
        (b"[1]", "application/json", 422),
        (b"{", "application/json", 422),
        (b"\xff\xfe=1", "application/x-www-form-urlencoded", 422),
        (b"a=" + b"x" * 300_000, "application/x-www-form-urlencoded", 413),
    ):
        answer = await harness.client.post(
            "/webhooks/tilda", content=body, headers={"content-type": kind, "secret": SECRET}
        )
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize("phone", ["8701 123 45 67", "+7 (701) 123-45-67", "7011234567", "77011234567"])
def test_phones_are_written_one_way(phone: str) -> None:
    assert read_form({"phone": phone}, "KZ").phone == "+77011234567"


def test_hostile_values_are_kept_harmless() -> None:
    form = {"Email": "a@example.com", "Name": "x" * 10_000, "note": "a\0b" + "y" * 10_000, "bad": "\ud800"}
    contact = read_form(form, "KZ")
    assert len(contact.name or "") == 255
    assert contact.extra["note"].startswith("aby")
    assert len(contact.extra["note"]) == 4_000
    with pytest.raises(InvalidJob):
        read_form({"Email": "x" * 400}, "KZ")


# ── Scenarios ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_whole_chain_to_the_call(harness: Harness) -> None:
    lead_id = await harness.lead()
    await harness.app.clock.advance("30m")
    lead = await harness.get(lead_id)
    assert (lead["email_1_sent"], lead["email_1_sent_at"]) == (True, "2026-01-01T00:30:00Z")
    await harness.app.clock.advance("24h")
    (job,) = await harness.jobs("emailChain")
    assert (job.name, job.data) == (
        "callAlert",
        {"leadId": lead_id, "name": "Марат", "phone": "+77010000000"},
    )
    await harness.app.clock.advance("24h")
    assert [message.template_code for _, message in harness.email.sent] == ["email_1", "email_2"]
    assert [(message.template_code, message.to) for _, message in harness.telegram.sent] == [
        ("call_needed", "admin_group")
    ]
    assert (await harness.get(lead_id))["status"] == "CALL_NEEDED"
    assert await harness.log(lead_id) == ["LEAD_CREATED", "EMAIL_1_SENT", "EMAIL_2_SENT", "CALL_NEEDED"]


async def test_whoever_left_only_a_number_is_called(harness: Harness) -> None:
    lead = await harness.lead(EMAIL="", tranid="1:9")
    await harness.app.clock.advance("49h")
    assert (await harness.get(lead))["status"] == "CALL_NEEDED"
    assert await harness.log(lead) == ["LEAD_CREATED", "CALL_NEEDED"]
    assert harness.email.sent == []
    assert len(harness.telegram.sent) == 1


async def test_a_call_is_needed_even_if_the_group_can_not_be_told(tmp_path: Path) -> None:
    """Without Telegram the alert is a dead letter; what the lead is, is known all the same."""
    async with open_harness(tmp_path, own_telegram=False) as harness:
        lead = await harness.lead()
        await harness.app.clock.advance("49h")
        assert (await harness.get(lead))["status"] == "CALL_NEEDED"
        assert (await harness.log(lead))[-1] == "CALL_NEEDED"
        (letter,) = (await harness.app.queue("emailChain").dead_letters.list()).letters
        assert "telegram is not set up" in letter.error


async def test_opening_the_bot_after_the_first_letter_stops_it(harness: Harness) -> None:
    lead_id = await harness.lead()
    await harness.app.clock.advance("30m")
    assert await harness.app.keys.get(f"email_job:{lead_id}")
    assert (await harness.event("bot.activated", lead_id, "e1", tg_id=777)).status_code == 202
    assert await harness.jobs("emailChain") == []
    assert await harness.app.keys.get(f"email_job:{lead_id}") is None
    lead = await harness.get(lead_id)
    assert (lead["bot_activated"], lead["tg_id"], lead["status"]) == (True, "777", "BOT_STARTED")
    await harness.app.clock.advance("7d")
    assert len(harness.email.sent) == 1


async def test_reminders_of_a_lesson_and_another_date(harness: Harness) -> None:
    lead_id = await harness.lead()
    await harness.event("bot.activated", lead_id, "e1", tg_id="777")
    await harness.event(
        "lesson.booked", lead_id, "e2", lesson_datetime="2026-01-05T15:00:00", zoom_link="https://zoom.us/j/1"
    )
    lead = await harness.get(lead_id)
    assert lead["lesson_datetime"] == "2026-01-05T10:00:00Z"  # without a zone: on the clock of Almaty
    (job,) = await harness.jobs("reminders")
    assert job.name == "remind24h"
    assert job.data == {
        "leadId": lead_id,
        "tgId": 777,
        "lessonDate": "2026-01-05",
        "lessonTime": "15:00",
        "lessonDatetime": "2026-01-05T10:00:00Z",
        "zoomLink": "https://zoom.us/j/1",
        "name": "Марат",
    }
    await harness.event("lesson.rescheduled", lead_id, "e3", lesson_datetime="2026-01-07T12:00:00+03:00")
    await harness.app.clock.advance("30d")
    assert [(when, message.template_code) for when, message in harness.telegram.sent] == [
        ("2026-01-06T09:00:00Z", "remind_24h"),
        ("2026-01-07T04:00:00Z", "remind_5h"),
    ]


async def test_the_leads_own_zone_counts(harness: Harness) -> None:
    lead_id = await harness.lead(timezone="Europe/Moscow")
    await harness.event("lesson.booked", lead_id, "e2", lesson_datetime="2026-01-05T15:00")
    assert (await harness.get(lead_id))["lesson_datetime"] == "2026-01-05T12:00:00Z"


async def test_confirming_stops_the_second_reminder(harness: Harness) -> None:
    lead_id = await harness.lead()
    await harness.event("bot.activated", lead_id, "e1", tg_id="777")
    await harness.event("lesson.booked", lead_id, "e2", lesson_datetime="2026-01-03T10:00:00Z")
    await harness.app.clock.advance("2d")
    await harness.event("lesson.confirmed", lead_id, "e3")
    lead = await harness.get(lead_id)
    assert (lead["confirmed"], lead["status"]) == (True, "CONFIRMED")
    await harness.app.clock.advance("7d")
    assert [message.template_code for _, message in harness.telegram.sent] == ["remind_24h"]


async def test_a_date_that_the_lesson_no_longer_has_is_not_confirmed(harness: Harness) -> None:
    lead_id = await harness.lead()
    await harness.event("lesson.booked", lead_id, "e1", lesson_datetime="2026-01-05T15:00:00Z")
    wrong = await harness.event("lesson.confirmed", lead_id, "e2", lesson_datetime="2026-01-04T15:00:00Z")
    assert wrong.status_code == 409
    assert f"the lesson of '{lead_id}' is not at 2026-01-04T15:00:00Z" in wrong.json()["detail"]
    assert (await harness.event("lesson.confirmed", lead_id, "e2", lesson_datetime="soon")).status_code == 422
    assert (await harness.get(lead_id))["confirmed"] is False
    assert len(await harness.jobs("reminders")) == 1
    same = "2026-01-05T20:00:00+05:00"
    assert (await harness.event("lesson.confirmed", lead_id, "e2", lesson_datetime=same)).status_code == 202
    assert (await harness.get(lead_id))["confirmed"] is True


@pytest.mark.parametrize("bad", ["tomorrow", "", None, 7, "2026-01-05", "9999-99-99T00:00", "x" * 100_000])
async def test_a_lesson_without_a_date_is_refused(harness: Harness, bad: Any) -> None:
    lead_id = await harness.lead()
    answer = await harness.event("lesson.booked", lead_id, "e2", lesson_datetime=bad)
    assert answer.status_code == 422
    assert "data.lesson_datetime" in answer.json()["detail"]
    assert await harness.log(lead_id) == ["LEAD_CREATED"]


async def test_a_bad_event_does_not_harm_others_at_the_same_time(harness: Harness) -> None:
    lead_id = await harness.lead()
    answers = await asyncio.gather(
        harness.event("lesson.booked", lead_id, "bad", lesson_datetime="never"),
        harness.event("bot.activated", lead_id, "good"),
        harness.event("bot.activated", "nobody", "stranger"),
    )
    assert [answer.status_code for answer in answers] == [422, 202, 202]
    assert (await harness.get(lead_id))["bot_activated"] is True


async def test_a_lead_may_come_as_an_event(harness: Harness) -> None:
    answer = await harness.event("lead.created", "own-1", "e1", name="Айша", email="aisha@example.com")
    assert answer.status_code == 202
    lead = await harness.get("own-1")
    assert (lead["name"], lead["email"], lead["source"]) == ("Айша", "aisha@example.com", "event")
    await harness.app.clock.advance("30m")
    assert [message.to for _, message in harness.email.sent] == ["aisha@example.com"]


async def test_events_may_use_the_names_of_the_jobs(harness: Harness) -> None:
    for event_type, data in (
        ("lead.created", {"leadId": "lead-7", "name": "Aida", "email": "aida@example.com"}),
        ("bot.activated", {"leadId": "lead-7", "tgId": 555}),
        (
            "lesson.booked",
            {
                "leadId": "lead-7",
                "lessonDatetime": "2026-03-01T15:00:00Z",
                "zoomLink": "https://zoom.us/j/1",
            },
        ),
    ):
        event = {"event_type": event_type, "event_id": event_type, "data": data}
        assert (await harness.client.post("/v1/events", json=event)).status_code == 202
    lead = await harness.get("lead-7")
    assert (lead["bot_activated"], lead["tg_id"]) == (True, "555")
    assert (lead["lesson_datetime"], lead["zoom_link"]) == ("2026-03-01T15:00:00Z", "https://zoom.us/j/1")
    assert await harness.jobs("emailChain") == []
    (reminder,) = await harness.jobs("reminders")
    assert (reminder.data["leadId"], reminder.data["tgId"]) == ("lead-7", 555)
    wrong = {
        "event_type": "lesson.booked",
        "event_id": "x",
        "data": {"leadId": "lead-7", "lessonDatetime": "soon"},
    }
    assert (await harness.client.post("/v1/events", json=wrong)).status_code == 422


async def test_the_number_of_an_account_may_be_a_number(harness: Harness) -> None:
    lead_id = await harness.lead()
    answer = await harness.client.patch(f"/v1/leads/{lead_id}", json={"tg_id": 12345})
    assert (answer.status_code, answer.json()["tg_id"]) == (200, "12345")


async def test_a_lead_who_opted_out_gets_no_letters(harness: Harness) -> None:
    await harness.lead()
    await harness.app.notifications.suppressions.add("email", "marat@example.com", "asked us to stop")
    await harness.app.clock.advance("30d")
    assert harness.email.sent == []


# ── The API ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_listing_in_pages(harness: Harness) -> None:
    for number in range(7):
        await harness.form(tranid=str(number), Name=f"Lead {number}")
        await harness.app.clock.advance("1s" if number % 2 else "0s")
    seen: list[str] = []
    cursor = None
    while True:
        page = (
            await harness.client.get(
                "/v1/leads", params={"limit": 2, **({"cursor": cursor} if cursor else {})}
            )
        ).json()
        seen += [lead["name"] for lead in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert sorted(seen) == [f"Lead {number}" for number in range(7)]
    found = (await harness.client.get("/v1/leads", params={"search": "LEAD 3"})).json()["items"]
    assert [lead["name"] for lead in found] == ["Lead 3"]
    await harness.form(tranid="марат", Name="Марат Әлиев")
    for search in ("марат", "ӘЛИ"):
        found = (await harness.client.get("/v1/leads", params={"search": search})).json()["items"]
        assert [lead["name"] for lead in found] == ["Марат Әлиев"]
    assert (await harness.client.get("/v1/leads", params={"status": "CALL_NEEDED"})).json()["items"] == []
    assert (await harness.client.get("/v1/leads", params={"cursor": "rubbish"})).status_code == 422


async def test_changing_a_lead_tells_the_scenarios(harness: Harness) -> None:
    lead_id = await harness.lead()
    url = f"/v1/leads/{lead_id}"
    changed = await harness.client.patch(
        url, json={"phone": "8 702 111 22 33", "timezone": "Europe/Moscow", "extra": {"level": "B1"}}
    )
    assert changed.status_code == 200, changed.text
    assert (changed.json()["phone"], changed.json()["extra"]["level"]) == ("+77021112233", "B1")
    await harness.app.clock.advance("1s")
    booked = await harness.client.patch(url, json={"lesson_datetime": "2026-01-05T15:00", "tg_id": "777"})
    assert booked.json()["lesson_datetime"] == "2026-01-05T12:00:00Z"
    assert len(await harness.jobs("reminders")) == 1
    await harness.app.clock.advance("1s")
    await harness.client.patch(url, json={"bot_activated": True})
    assert await harness.jobs("emailChain") == []
    await harness.app.clock.advance("1s")
    await harness.client.patch(url, json={"lesson_datetime": None})
    assert await harness.jobs("reminders") == []
    assert await harness.log(lead_id) == [
        "LEAD_CREATED",
        "LESSON_BOOKED",
        "BOT_ACTIVATED",
        "LESSON_CANCELLED",
    ]
    for bad in (
        {"lesson_datetime": "2025-01-05T15:00"},
        {"phone": "12"},
        {"email": "x"},
        {"id": "another"},
        {"extra": {"status": "x"}},
        {"timezone": "Mars/Olympus"},
    ):
        answer = await harness.client.patch(url, json=bad)
        assert answer.status_code == 422, bad
    assert (await harness.client.patch("/v1/leads/nobody", json={"name": "x"})).status_code == 404


async def test_a_lesson_that_is_moved_and_confirmed_at_once(harness: Harness) -> None:
    url = f"/v1/leads/{await harness.lead()}"
    await harness.client.patch(url, json={"lesson_datetime": "2026-01-05T15:00", "confirmed": True})
    await harness.app.clock.advance("1s")
    moved = {"lesson_datetime": "2026-01-06T15:00", "confirmed": True}
    changed = (await harness.client.patch(url, json=moved)).json()
    assert (changed["confirmed"], changed["lesson_datetime"][:10]) == (True, "2026-01-06")


async def test_a_lesson_that_moves_while_it_is_confirmed_by_hand_is_not_confirmed(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead_id = await harness.lead()
    url, tell = f"/v1/leads/{lead_id}", harness.leads.service.tell
    await harness.client.patch(url, json={"lesson_datetime": "2026-01-05T15:00"})

    async def move_first(event_type: str, lead_id: str, *more: str, **data: Any) -> bool:
        if event_type == "lesson.confirmed":
            await tell("lesson.rescheduled", lead_id, lesson_datetime="2026-01-06T15:00:00Z")
        return await tell(event_type, lead_id, *more, **data)

    monkeypatch.setattr(harness.leads.service, "tell", move_first)
    answer = await harness.client.patch(url, json={"confirmed": True})
    assert (answer.status_code, "lesson_datetime" in answer.json()["detail"]) == (409, True)
    lead = await harness.get(lead_id)
    assert (lead["confirmed"], lead["lesson_datetime"][:10]) == (False, "2026-01-06")


@pytest.mark.parametrize("is_moved", [True, False])
async def test_a_button_that_is_heard_late_confirms_the_date_it_was_about(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, is_moved: bool
) -> None:
    lead_id = await harness.lead()
    await harness.event("lesson.booked", lead_id, "e1", lesson_datetime="2026-01-05T15:00:00Z")
    scenarios = harness.app.scenarios

    def die(point: str) -> None:
        raise InterruptedError(point)

    with monkeypatch.context() as patched:
        patched.setattr("yamchi.scenarios.scenario_engine.fault_point", die)
        with pytest.raises(InterruptedError, match=r"scenario\.stored"):
            await scenarios.act("lesson_reminders", lead_id, "confirm", by="somebody")
    if is_moved:
        await harness.event("lesson.rescheduled", lead_id, "e2", lesson_datetime="2026-01-06T15:00:00Z")
    await harness.app.clock.advance("1h")
    await scenarios.sweeper.sweep()
    lead = await harness.get(lead_id)
    assert (lead["confirmed"], lead["lesson_datetime"][:10]) == (
        (False, "2026-01-06") if is_moved else (True, "2026-01-05")
    )


async def test_all_of_them_as_csv(harness: Harness) -> None:
    await harness.form(Name="=cmd()", tranid="7")
    answer = await harness.client.get("/v1/leads/export.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    (row,) = csv.DictReader(answer.content.decode("utf-8-sig").splitlines())
    assert (row["name"], row["phone"], row["bot_activated"]) == ("'=cmd()", "+77010000000", "false")


async def test_no_name_is_a_formula_where_semicolons_separate_cells(harness: Harness) -> None:
    await harness.form(Name="Bob;=cmd|' /C calc'!A0", tranid="7")
    said = (await harness.client.get("/v1/leads/export.csv")).content.decode("utf-8-sig")
    for separator in ",;":
        cells = [cell for row in csv.reader(said.splitlines(), delimiter=separator) for cell in row]
        assert not [cell for cell in cells if cell.startswith("=")], cells


async def test_forgetting_a_lead(harness: Harness) -> None:
    lead_id = await harness.lead()
    found = await harness.app.erase(lead_id)
    assert (found["leads"], found["people"]) == (1, 1)
    assert (await harness.client.get(f"/v1/leads/{lead_id}")).status_code == 404
    await harness.app.clock.advance("7d")
    assert harness.email.sent == []
    assert (await harness.app.erase(lead_id))["leads"] == 0


async def test_the_letter_leads_to_the_bot(tmp_path: Path) -> None:
    async with open_harness(tmp_path, telegram_bot_name="@lesson_bot") as harness:
        lead_id = await harness.lead()
        await harness.app.clock.advance("30m")
        ((_, message),) = harness.email.sent
        assert f"https://t.me/lesson_bot?start={lead_id}" in (message.rendered.html or "")


@pytest.mark.parametrize("field", ["bot_url", "botUrl", "zoomLink", "Zoom_Link", "links"])
async def test_a_field_of_the_form_is_no_link_of_ours(tmp_path: Path, field: str) -> None:
    """Anybody may fill in the form, with anybody's address: what our letters lead to is not theirs to say."""
    async with open_harness(tmp_path, smtp_host="localhost") as harness:
        lead_id = await harness.lead(**{field: "https://strange.example", "Level": "B1"})
        await harness.event("lesson.booked", lead_id, "e1", lesson_datetime="2026-01-03T10:00:00Z")
        await harness.app.clock.advance("3d")
        sent = [message for _, message in harness.email.sent]
        assert [one.template_code for one in sent] == ["email_1", "email_2", "remind_24h", "remind_5h"]
        assert "strange" not in "".join(f"{one.rendered.html}{one.rendered.text}" for one in sent)
        extra = (await harness.get(lead_id))["extra"]
        assert (extra[field], extra["Level"]) == ("https://strange.example", "B1")


async def test_lines_of_one_moment_are_in_the_order_of_what_happened(harness: Harness) -> None:
    lead_id = await harness.lead()
    told = [("lesson.booked", "c"), ("lesson.rescheduled", "b"), ("lesson.confirmed", "a")]
    for event_type, event_id in told:
        answer = await harness.event(event_type, lead_id, event_id, lesson_datetime="2026-03-01T15:00:00Z")
        assert answer.status_code == 202, answer.text
    lines = (await harness.client.get(f"/v1/leads/{lead_id}/log")).json()
    assert len({line["at"] for line in lines}) == 1
    assert [line["text"] for line in lines] == [
        "LEAD_CREATED",
        "LESSON_BOOKED",
        "LESSON_RESCHEDULED",
        "LESSON_CONFIRMED",
    ]


async def test_what_is_corrected_by_hand_is_in_the_jobs_that_wait(harness: Harness) -> None:
    lead_id = await harness.lead()
    (before,) = await harness.jobs("emailChain")
    await harness.client.patch(f"/v1/leads/{lead_id}", json={"name": "Марат Б.", "email": "b@example.com"})
    (after,) = await harness.jobs("emailChain")
    assert (after.id, after.run_at) == (before.id, before.run_at)
    assert after.data == {"leadId": lead_id, "email": "b@example.com", "name": "Марат Б."}
