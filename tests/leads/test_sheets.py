"""Leads in a Google spreadsheet: what changes on either side gets to the other, once, whatever Google answers."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from structlog.testing import capture_logs

from tests.leads.harness import SECRET, Harness, open_harness
from tests.processes import DEADLINE, Process
from tests.services.sheets import SheetsServer, refusal, used_up
from tests.services.webserver import Response
from yamchi import Yamchi
from yamchi.errors import ConfigurationError, Outage
from yamchi.installation import install_command
from yamchi.leads.outside import Lost
from yamchi.leads.plugin import Leads
from yamchi.leads.sheets import syncing
from yamchi.leads.sheets.cells import COLUMNS
from yamchi.leads.tables import lead_holds, sheet_lines, sheet_rows
from yamchi.settings import Settings
from yamchi.testing import TestApp, eventually


@pytest.fixture
def server() -> Iterator[SheetsServer]:
    with SheetsServer() as server:
        yield server


@pytest.fixture
async def harness(tmp_path: Path, server: SheetsServer) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, **server.settings) as harness:
        yield harness


async def sync(harness: Harness) -> None:
    assert harness.leads.sheet is not None
    assert await harness.leads.sheet.sync()


async def rounds(harness: Harness, number: int = 6) -> None:
    """As the service does it: a round, the wait that it asks for, the next."""
    assert harness.leads.sheet is not None
    pause = 0
    for _ in range(number):
        pause = await harness.leads.sheet.round(pause)
        await harness.app.clock.advance(pause / 1000)


async def test_a_lead_is_a_row_and_its_log_lines(harness: Harness, server: SheetsServer) -> None:
    lead_id = await harness.lead(Name="=cmd()")
    await sync(harness)
    (row,) = server.table("Leads")
    assert list(row) == list(COLUMNS)
    assert (row["id"], row["name"], row["phone"]) == (lead_id, "=cmd()", "+77010000000")
    assert (row["bot_activated"], row["email_1_sent_at"]) == (False, "")
    assert [line["text"] for line in server.table("Log")] == ["LEAD_CREATED"]

    await harness.app.clock.advance("30m")
    await harness.event("bot.activated", lead_id, "e1", tg_id="777")
    await sync(harness)
    (row,) = server.table("Leads")
    assert (row["email_1_sent"], row["bot_activated"], row["tg_id"]) == (True, True, "777")
    assert row["email_1_sent_at"] == "2026-01-01T00:30:00Z"
    texts = [line["text"] for line in server.table("Log")]
    assert texts == ["LEAD_CREATED", "EMAIL_1_SENT", "BOT_ACTIVATED"]


async def test_many_changes_are_few_requests(harness: Harness, server: SheetsServer) -> None:
    await asyncio.gather(*(harness.form(tranid=str(number)) for number in range(60)))
    await sync(harness)
    assert len(server.table("Leads")) == 60
    await harness.app.clock.advance("30m")  # sixty letters, each with four fields
    server.requests.clear()
    await sync(harness)
    assert all(row["email_1_sent"] is True for row in server.table("Leads"))
    assert sum(method == "POST" for method, _ in server.requests) == 2  # the cells, and the log
    server.requests.clear()
    await sync(harness)
    assert [method for method, _ in server.requests] == ["GET"]


# ── Rows of another program ───────────────────────────────────────────────────────────────────────────────────────


def written(server: SheetsServer, **fields: Any) -> None:
    """A row of the team's own worker, in a sheet of theirs that lacks most of our columns."""
    header = server.sheets.setdefault("Leads", [])
    if not header:
        header.append(["phone", "id", "name", "email", "bot_activated", "lesson_datetime", "tg_id", "status"])
    header.append([fields.get(name, "") for name in header[0]])


async def put(harness: Harness, queue: str, step: str, /, **data: Any) -> Any:
    job = await harness.app.queue(queue).add(data, name=step)
    await harness.app.drain()
    return (await harness.app.queue(queue).job(job.id)).returned


async def test_a_job_about_a_lead_that_only_the_sheet_has(harness: Harness, server: SheetsServer) -> None:
    """What the row says counts, not what the job said when it was added; and the row stays as it is."""
    written(server, id="L1", name="Марат", email="new@example.com", phone="8 701 000 00 00", status="NEW")
    answer = await put(harness, "emailChain", "email1", leadId="L1", email="old@example.com", name="M")
    assert answer["status"] == "entered"
    assert [message.to for _, message in harness.email.sent] == ["new@example.com"]
    lead = await harness.get("L1")
    assert (lead["name"], lead["phone"], lead["source"]) == ("Марат", "+77010000000", "sheet")
    await sync(harness)
    (row,) = server.table("Leads")
    assert (row["email"], row["phone"], row["email_1_sent"]) == ("new@example.com", "+77010000000", True)


async def test_a_lead_that_opened_the_bot_by_the_sheet(harness: Harness, server: SheetsServer) -> None:
    written(server, id="L1", email="m@example.com", bot_activated=True, status="BOT_STARTED")
    answer = await put(harness, "emailChain", "email2", leadId="L1", email="m@example.com", name="M")
    assert answer == {"status": "nothing", "reason": "unless: lead.bot_activated"}
    assert harness.email.sent == []
    await sync(harness)
    (row,) = server.table("Leads")
    assert (row["bot_activated"], row["status"]) == (True, "BOT_STARTED")


async def test_a_reminder_of_a_lesson_by_the_sheet(harness: Harness, server: SheetsServer) -> None:
    """Both reminders come in their time; bringing the lead along is no booking, which would leave out the first."""
    written(
        server, id="L1", name="Марат", tg_id=777, lesson_datetime="02.01.2026 05:00", status="LESSON_BOOKED"
    )
    data = {"leadId": "L1", "tgId": 777, "lessonDatetime": "2026-01-02T00:00:00Z", "name": "Марат"}
    assert (await put(harness, "reminders", "remind24h", **data))["status"] == "entered"
    await harness.app.clock.advance("19h")
    assert [message.template_code for _, message in harness.telegram.sent] == ["remind_24h", "remind_5h"]


async def test_what_no_lead_can_have_is_left_out(harness: Harness, server: SheetsServer) -> None:
    written(server, id="L1", email="m@example.com", phone="12", tg_id="x" * 100, bot_activated="maybe")
    with capture_logs() as logs:
        await put(harness, "emailChain", "email1", leadId="L1", email="m@example.com", name="M")
    assert sum("can't be read" in line["event"] for line in logs) == 3
    lead = await harness.get("L1")
    assert (lead["phone"], lead["tg_id"], lead["bot_activated"]) == (None, None, False)


async def test_google_is_away_when_a_job_comes(harness: Harness, server: SheetsServer) -> None:
    """The job waits, and pays no attempt: whether the lead has opened the bot is not known."""
    written(server, id="L1", email="m@example.com", bot_activated=True)
    server.answers.append(used_up())
    job = await harness.app.queue("emailChain").add(
        {"leadId": "L1", "email": "m@example.com", "name": "M"}, name="email1", attempts=1
    )
    await harness.app.drain()
    assert (await harness.app.queue("emailChain").job(job.id)).state == "delayed"
    await harness.app.clock.advance("2m")
    assert (await harness.app.queue("emailChain").job(job.id)).returned[
        "reason"
    ] == "unless: lead.bot_activated"
    assert harness.email.sent == []


# ── What people do in the sheet ───────────────────────────────────────────────────────────────────────────────────


async def test_a_persons_change_is_taken_over(harness: Harness, server: SheetsServer) -> None:
    lead_id = await harness.lead()
    await sync(harness)
    server.edit("Leads", lead_id, "phone", "8 702 111 22 33")
    server.edit("Leads", lead_id, "lesson_datetime", "05.01.2026 15:00")
    server.edit("Leads", lead_id, "tg_id", 777)
    server.edit("Leads", lead_id, "bot_activated", True)
    await sync(harness)
    lead = await harness.get(lead_id)
    assert (lead["phone"], lead["lesson_datetime"], lead["tg_id"]) == (
        "+77021112233",
        "2026-01-05T10:00:00Z",
        "777",
    )
    assert await harness.jobs("emailChain") == []  # as if the bot had been opened
    assert [job.name for job in await harness.jobs("reminders")] == ["remind24h"]
    (row,) = server.table("Leads")
    assert (row["phone"], row["lesson_datetime"]) == ("+77021112233", "2026-01-05T10:00:00Z")


async def test_cells_that_a_person_changed_together_are_all_taken_over(
    harness: Harness, server: SheetsServer
) -> None:
    """A lesson that was booked and confirmed by phone: the new date takes back neither the tick nor the status beside it."""
    lead_id = await harness.lead()
    await sync(harness)
    together = {
        "lesson_datetime": "05.01.2026 15:00",
        "confirmed": True,
        "status": "PAID",
        "bot_activated": True,
    }
    for column, value in together.items():
        server.edit("Leads", lead_id, column, value)
    await sync(harness)
    lead = await harness.get(lead_id)
    assert (lead["lesson_datetime"], lead["confirmed"], lead["status"]) == (
        "2026-01-05T10:00:00Z",
        True,
        "PAID",
    )
    assert await harness.jobs("reminders") == []
    (row,) = server.table("Leads")
    assert (row["confirmed"], row["status"]) == (True, "PAID")
    assert "SHEET_REFUSED" not in await harness.log(lead_id)


async def test_a_tick_beside_a_date_that_the_lesson_no_longer_has_confirms_nothing(
    harness: Harness, server: SheetsServer
) -> None:
    """The lesson was moved while Google could not be reached, and the team called the lead with the sheet before them."""
    lead_id = await harness.lead()
    await harness.event("lesson.booked", lead_id, "e1", lesson_datetime="2026-01-05T10:00:00Z")
    await sync(harness)
    await harness.event("lesson.rescheduled", lead_id, "e2", lesson_datetime="2026-01-06T10:00:00Z")
    server.edit("Leads", lead_id, "confirmed", True)
    await sync(harness)
    lead = await harness.get(lead_id)
    assert (lead["confirmed"], lead["lesson_datetime"]) == (False, "2026-01-06T10:00:00Z")
    (row,) = server.table("Leads")
    assert (row["confirmed"], row["lesson_datetime"]) == (False, "2026-01-06T10:00:00Z")
    assert "SHEET_REFUSED" in await harness.log(lead_id)
    assert len(await harness.jobs("reminders")) == 1
    server.edit("Leads", lead_id, "confirmed", True)  # of the date that stands there now
    await sync(harness)
    assert (await harness.get(lead_id))["confirmed"] is True


async def test_a_cell_that_says_something_impossible_is_put_back(
    harness: Harness, server: SheetsServer
) -> None:
    lead_id = await harness.lead()
    await sync(harness)
    bad = {"phone": "12", "confirmed": "maybe", "timezone": "Mars", "lesson_datetime": "soon"}
    for column, value in {**bad, "zoom_link": "javascript:1", "created_at": "x", "source": "y"}.items():
        server.edit("Leads", lead_id, column, value)
    before = await harness.get(lead_id)
    await sync(harness)
    after = await harness.get(lead_id)
    assert {**after, "log": []} == {**before, "log": []}
    (row,) = server.table("Leads")
    assert (row["phone"], row["confirmed"], row["source"], row["lesson_datetime"]) == (
        "+77010000000",
        False,
        "tilda",
        "",
    )
    refused = [line["data"] for line in server.table("Log") if line["text"] == "SHEET_REFUSED"]
    assert len(refused) == 5
    assert any("'12' is no phone number" in why for why in refused)


async def test_of_two_changes_of_a_cell_ours_stands(harness: Harness, server: SheetsServer) -> None:
    lead_id = await harness.lead()
    await sync(harness)
    server.edit("Leads", lead_id, "status", "THEIRS")
    server.edit("Leads", lead_id, "name", "Theirs")
    await harness.client.patch(f"/v1/leads/{lead_id}", json={"status": "OURS"})
    await sync(harness)
    lead = await harness.get(lead_id)
    assert (lead["status"], lead["name"]) == ("OURS", "Theirs")
    (row,) = server.table("Leads")
    assert (row["status"], row["name"]) == ("OURS", "Theirs")


async def test_columns_and_rows_may_be_moved(harness: Harness, server: SheetsServer) -> None:
    first, second = await harness.lead(), await harness.lead(tranid="3", Name="Айша")
    await sync(harness)
    rows = server.sheets["Leads"]
    for row in rows:
        row.reverse()
        row.insert(0, "a column of theirs")
    rows.insert(2, [])  # and an empty row, where Google thinks that a table ends
    server.sort("Leads")
    await harness.event("bot.activated", first, "e1", tg_id="777")
    third = await harness.lead(tranid="4", Name="Third")
    await sync(harness)
    shown = {row["id"]: row for row in server.table("Leads")}
    assert list(shown) != [first, second, third]
    assert {id: row["name"] for id, row in shown.items()} == {first: "Марат", second: "Айша", third: "Third"}
    assert (shown[first]["tg_id"], shown[second]["tg_id"]) == ("777", "")


async def test_a_sort_between_our_look_and_our_writing(
    harness: Harness, server: SheetsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our cells went into another lead's row: both rows are mended, and neither lead believes it."""
    first, second = await harness.lead(), await harness.lead(tranid="3", Name="Айша")
    await sync(harness)
    await harness.event("bot.activated", first, "e1", tg_id="777")
    assert harness.leads.sheet is not None
    write = harness.leads.sheet._leads.write

    async def late(cells: Any) -> None:
        server.sort("Leads")
        await write(cells)

    monkeypatch.setattr(harness.leads.sheet._leads, "write", late)
    await sync(harness)
    monkeypatch.undo()
    await sync(harness)
    await sync(harness)
    shown = {row["id"]: row for row in server.table("Leads")}
    assert (shown[first]["tg_id"], shown[first]["bot_activated"]) == ("777", True)
    assert (shown[second]["tg_id"], shown[second]["bot_activated"]) == ("", False)
    assert (await harness.get(second))["bot_activated"] is False


async def test_a_row_that_was_taken_away_stays_away(harness: Harness, server: SheetsServer) -> None:
    lead_id = await harness.lead()
    await sync(harness)
    (kept,) = (server.sheets["Leads"].pop(),)
    await harness.event("bot.activated", lead_id, "e1")
    await sync(harness)
    assert server.table("Leads") == []
    assert (await harness.get(lead_id))["bot_activated"] is True
    server.sheets["Leads"].append(kept)  # it had only been cut out
    await sync(harness)
    (row,) = server.table("Leads")
    assert row["bot_activated"] is True


async def test_erasing_a_lead_empties_its_row(harness: Harness, server: SheetsServer) -> None:
    lead_id = await harness.lead()
    await harness.event("bot.activated", lead_id, "e1", by="telegram:777")
    await sync(harness)
    await harness.app.erase(lead_id)
    await sync(harness)
    (row,) = server.table("Leads")
    assert {name: cell for name, cell in row.items() if cell} == {"id": lead_id, "status": "ERASED"}
    assert not [line for line in server.table("Log") if line["data"]]
    assert (await harness.form()).text == "ok"  # Tilda repeats it: nobody comes back
    assert await harness.leads.store.count() == 0
    await harness.event("lead.created", lead_id, "e2", name="Марат", phone="8 701 000 00 00")
    await sync(harness)
    (row,) = server.table("Leads")
    assert row["name"] == "Марат"


async def test_leads_that_were_there_before_the_spreadsheet(tmp_path: Path, server: SheetsServer) -> None:
    async with open_harness(tmp_path) as harness:
        lead_id = await harness.lead()
    async with open_harness(tmp_path, **server.settings) as harness:
        await sync(harness)
    assert [row["id"] for row in server.table("Leads")] == [lead_id]


# ── What Google does ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", [":append", "values:batchUpdate", ":batchUpdate", "'Leads'"])
@pytest.mark.parametrize("answer", [used_up(), used_up("7"), refusal(503, "UNAVAILABLE", "try later")])
async def test_a_used_up_quota_is_waited_for(
    harness: Harness, server: SheetsServer, end: str, answer: Any
) -> None:
    first = await harness.lead()
    if end != ":batchUpdate":
        await sync(harness)
    await harness.event("bot.activated", first, "e1", tg_id="777")
    second = await harness.lead(tranid="3")
    server.refused[end] = answer
    assert harness.leads.sheet is not None
    pause = await harness.leads.sheet.round()
    if answer.status == 429:
        assert pause == (7_000 if "Retry-After" in answer.headers else 60_000)
    assert await harness.leads.sheet.round(pause) <= 300_000
    server.refused.clear()
    await harness.app.clock.advance("2m")
    await rounds(harness, 2)
    shown = {row["id"]: row["tg_id"] for row in server.table("Leads")}
    assert shown == {first: "777", second: ""}
    texts = [line["text"] for line in server.table("Log")]
    assert sorted(texts) == ["BOT_ACTIVATED", "LEAD_CREATED", "LEAD_CREATED"]


async def test_an_answer_that_was_lost_appends_nothing_twice(harness: Harness, server: SheetsServer) -> None:
    """Google did it, and said 500: of rows and of log lines."""
    await sync(harness)
    first = await harness.lead()
    server.late = [":append", ":append", ":append"]
    await rounds(harness, 12)
    assert [row["id"] for row in server.table("Leads")] == [first]
    assert [line["text"] for line in server.table("Log")] == ["LEAD_CREATED"]
    assert server.late == [":append"]  # a row and a line: neither was asked for again


async def test_google_is_away(harness: Harness, server: SheetsServer) -> None:
    await sync(harness)
    server.stop()
    lead_id = await harness.lead()  # Tilda is answered all the same
    with capture_logs() as lines:
        await rounds(harness, 3)
    said = "tried again in {} s: Google Sheets can't be reached: Connection refused"
    assert [line["event"].partition("and is ")[2] for line in lines] == [
        said.format(60),
        said.format(120),
        said.format(240),
    ]
    server.start()
    await rounds(harness, 3)
    assert [row["id"] for row in server.table("Leads")] == [lead_id]


async def test_google_gives_no_token(tmp_path: Path, server: SheetsServer) -> None:
    settings = server.settings
    server.stop()
    async with open_harness(tmp_path, **settings) as harness:
        with pytest.raises(Outage, match=r"^Google gives no token: Connection refused$"):
            await sync(harness)


async def test_google_answers_something_else(harness: Harness, server: SheetsServer) -> None:
    await sync(harness)
    server.answers.append(Response(200, b"<html>", {"Content-Type": "text/html"}))
    with pytest.raises(Lost, match=r"its answer was lost: it is not JSON$"):
        await sync(harness)


async def test_two_processes_take_turns(tmp_path: Path, server: SheetsServer) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    async with (
        open_harness(tmp_path, database_url=url, **server.settings) as one,
        open_harness(tmp_path, database_url=url, **server.settings) as other,
    ):
        await asyncio.gather(*(one.form(tranid=str(number)) for number in range(5)))
        assert one.leads.sheet is not None
        assert other.leads.sheet is not None
        both = await asyncio.gather(one.leads.sheet.sync(), other.leads.sheet.sync())
        assert sorted(both) == [False, True]
    assert len(server.table("Leads")) == 5


class _SlowSheets(SheetsServer):
    """Google takes its time while the gate is shut."""

    gate = threading.Event()

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        assert self.gate.wait(100)
        return super().answer(method, path, headers, body)


async def test_a_long_round_keeps_its_hold_and_that_of_a_dead_process_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "RENEW_EVERY_SECONDS", 0.01)
    server = _SlowSheets()
    server.start()
    url = f"sqlite:///{tmp_path}/shared.db"
    async with (
        open_harness(tmp_path, database_url=url, **server.settings) as one,
        open_harness(tmp_path, database_url=url, **server.settings) as other,
    ):
        assert one.leads.sheet is not None
        assert other.leads.sheet is not None
        server.gate.clear()
        round_of_one = asyncio.create_task(one.leads.sheet.sync())
        for _ in range(5):  # minutes that one round takes
            await one.app.clock.advance("1m")
            await other.app.clock.advance("1m")
            now = one.app.clock.now()
            await eventually(lambda now=now: _held_until(one.app, now + 40_000), DEADLINE)
            assert not await other.leads.sheet.sync()
        server.gate.set()
        assert await round_of_one
        await other.app.clock.advance("80s")
        assert not await other.leads.sheet.sync()
        await other.app.clock.advance("20s")
        assert await other.leads.sheet.sync()
    server.stop()


async def _held_until(app: Any, moment: int) -> bool:
    return bool(await app.database.value(select(lead_holds.c.name).where(lead_holds.c.held_until > moment)))


# ── SIGKILL ───────────────────────────────────────────────────────────────────────────────────────────────────────


POINTS = ("sheet.appended", "sheet.log_appended")
MORE = ("sheet.appending", "sheet.written", "sheet.log_appending")


@pytest.mark.faults
@pytest.mark.parametrize("point", [*POINTS, *(MORE if os.environ.get("FAULTS") == "full" else ())])
async def test_killed_at(tmp_path: Path, server: SheetsServer, point: str) -> None:
    """A worker is killed around its writing; another goes on: each lead and each line once, every change there."""
    account = tmp_path / "account.json"
    account.write_text(server.settings["sheets_credentials"])
    environment = {
        "PLUGINS": "notifications,scenarios,leads",
        "LEADS": "sheets",
        "SHEETS_ID": server.settings["sheets_id"],
        "SHEETS_CREDENTIALS": str(account),
        "SHEETS_URL": server.origin,
        "SHEETS_EVERY": "1s",
        "TILDA_SECRET": SECRET,
    }
    settings = Settings(home=tmp_path, plugins=("notifications", "scenarios", "leads"), **server.settings)
    async with Yamchi(settings) as app:
        leads = app.plugin(Leads)
        old = (await leads.submit(name="Old", phone="8 701 000 00 00", tranid="1")).id
        assert leads.sheet is not None
        await leads.sheet.sync()
        await leads.sheet._holds.release()
        await leads.edit(old, status="CHANGED")
        new = (await leads.submit(name="New", phone="8 701 000 00 01", tranid="2")).id
        killed = Process(tmp_path, "worker", **environment, YAMCHI_FAULT=point)
        try:
            await eventually(lambda: killed.process.poll() == -9, DEADLINE)
            await app.database.write(_age)
            successor = Process(tmp_path, "worker", **environment)
            try:
                await eventually(lambda: len(server.table("Log")) >= 2, DEADLINE)
                await eventually(lambda: _is_written(app), DEADLINE)
            finally:
                successor.process.kill()
                successor.process.wait()
        finally:
            killed.process.kill()
            killed.process.wait()
    assert {row["id"]: row["status"] for row in server.table("Leads")} == {old: "CHANGED", new: "NEW"}
    assert len(server.table("Leads")) == 2
    lines = [line["id"] for line in server.table("Log")]
    assert len(lines) == len(set(lines)) == 2


def _age(connection: Any) -> None:
    """What the dead process held and asked, it did long ago."""
    long_ago = 1_700_000_000_000
    connection.execute(update(lead_holds).values(held_until=long_ago))
    for table in (sheet_rows, sheet_lines):
        connection.execute(update(table).where(table.c.asked_at.is_not(None)).values(asked_at=long_ago))


async def _is_written(app: Yamchi) -> bool:
    from sqlalchemy import func, select

    def count(connection: Any) -> int:
        rows = select(func.count()).select_from(sheet_rows).where(sheet_rows.c.changes > sheet_rows.c.written)
        lines = select(func.count()).select_from(sheet_lines)
        return int(connection.execute(rows).scalar_one() + connection.execute(lines).scalar_one())

    return await app.database.read(count) == 0


# ── Settings ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="LEADS=sheets needs SHEETS_ID and SHEETS_CREDENTIALS"):
        TestApp(home=tmp_path, leads="sheets")
    with pytest.raises(ConfigurationError, match=r"nowhere\.json can't be read"):
        TestApp(home=tmp_path, leads="sheets", sheets_id="x", sheets_credentials="/nowhere.json")
    with pytest.raises(ConfigurationError, match="no key of a service account"):
        TestApp(home=tmp_path, leads="sheets", sheets_id="x", sheets_credentials='{"type": "x"}')
    monkeypatch.setitem(__import__("sys").modules, "gspread.http_client", None)
    app = TestApp(home=tmp_path, leads="sheets", sheets_id="x", sheets_credentials="{}")
    said = f"LEADS=sheets needs an extra package: {install_command('sheets')}"
    assert app.failed_plugins == {"leads": said}


async def test_the_doctor_looks_at_the_spreadsheet(harness: Harness, server: SheetsServer) -> None:
    async def said() -> tuple[bool | None, str]:
        (check,) = [one for one in await harness.leads.checks() if one.what == "google sheets"]
        return check.ok, check.found

    assert await said() == (True, "the spreadsheet can be reached; its sheets: Sheet1")
    server.answers.append(refusal(403, "PERMISSION_DENIED", "The caller does not have permission"))
    ok, detail = await said()
    assert ok is False
    assert detail.endswith("Share the spreadsheet with the service account, as an editor")
