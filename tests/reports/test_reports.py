"""Reports as their users get them: a file that opens, a letter with it attached, a link that ends."""

import asyncio
import csv
import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from yamchi.clock import as_datetime
from yamchi.errors import Unrecoverable, YamchiError
from yamchi.installation import install_command
from yamchi.notifications.schemas.notification_job import derived_id
from yamchi.reports.charts import funnel, stacked_bars
from yamchi.reports.kinds import TEMPLATES, Content, Format, Rows
from yamchi.reports.rendering import write
from yamchi.reports.shipped import STATUSES
from yamchi.testing import TestApp, eventually

USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"
RESULTS = {
    "name": "Айгүл Әбдіғали",
    "date": "16.11.2026",
    "results": [
        {"name": "Гемоглобин", "value": 128, "unit": "г/л", "low": 120, "high": 160},
        {"name": "Глюкоза", "value": 7.4, "unit": "ммоль/л", "low": 3.9, "high": 6.1},
    ],
    "conclusion": "Қант деңгейі жоғары. Стоимость повторного анализа: 4 500 ₸ или 800 ₽.",
}


async def made(app: TestApp, client: httpx2.AsyncClient, **asked: Any) -> dict[str, Any]:
    answer = await client.post("/api/v1/reports", json=asked)
    assert answer.status_code == 202, answer.text
    await app.drain()
    return dict((await client.get(f"/api/v1/reports/{answer.json()['id']}")).json())


def described(pdf: bytes) -> bytes:
    return subprocess.run(["pdfinfo", "-"], input=pdf, capture_output=True, check=True).stdout


def text_of(pdf: bytes) -> str:
    return subprocess.run(
        ["pdftotext", "-layout", "-", "-"], input=pdf, capture_output=True, check=True
    ).stdout.decode()


async def test_a_persons_results_as_pdf(app: TestApp, client: httpx2.AsyncClient) -> None:
    report = await made(app, client, kind="checkup", params=RESULTS)
    assert report["status"] == "ready", report["error"]
    answer = await client.get(f"/api/v1/reports/{report['id']}/file")
    assert answer.headers["content-type"] == "application/pdf"
    assert answer.headers["x-content-type-options"] == "nosniff"
    said = text_of(answer.content)
    for words in (
        "Результаты чекапа",
        "Айгүл Әбдіғали",
        "Гемоглобин",
        "128 г/л",
        "120–160",
        "₸",
        "₽",
        "Қант деңгейі",
        "1/1",
    ):
        assert words in said, said
    assert b"pdfaid" in answer.content  # PDF/A says that it is one
    assert re.search(rb"Page size:.*\(A4\)", described(answer.content))


async def test_what_was_sent(app: TestApp, client: httpx2.AsyncClient) -> None:
    await client.put(f"/api/v1/users/{USER}", json={"email": "a@example.com", "locale": "en"})
    for number in range(3):
        event = {"event_type": "user_registered", "event_id": f"e-{number}", "user_id": USER}
        await client.post(
            "/api/v1/events", json={**event, "data": {"first_name": "A", "login_url": "https://x.kz"}}
        )
    await app.drain()
    report = await made(app, client, kind="deliveries", params={"locale": "en"})
    said = text_of((await client.get(f"/api/v1/reports/{report['id']}/file")).content)
    assert "What was sent" in said
    assert "email" in said
    rows = await made(app, client, kind="deliveries", format="csv")
    content = (await client.get(f"/api/v1/reports/{rows['id']}/file")).content.decode("utf-8-sig")
    found = list(csv.DictReader(io.StringIO(content)))
    assert [row["status"] for row in found] == ["SENT"] * 3


async def test_rows_as_a_spreadsheet_and_as_csv(app: TestApp, client: httpx2.AsyncClient) -> None:
    sheet = await made(app, client, kind="sales", params={"rows": 2500}, format="xlsx")
    content = (await client.get(f"/api/v1/reports/{sheet['id']}/file")).content
    inside = zipfile.ZipFile(io.BytesIO(content)).read("xl/worksheets/sheet1.xml").decode()
    assert inside.count("<row ") == 2501
    assert "<f>" not in inside  # nothing that came in is a formula
    lines = await made(app, client, kind="sales", params={"rows": 2}, format="csv")
    text = (await client.get(f"/api/v1/reports/{lines['id']}/file")).content.decode("utf-8-sig")
    assert text.splitlines() == ["номер,формула,слово", "0,'=1+1,Қаз", "1,'=1+1,Қаз"]
    pdf = await made(app, client, kind="sales", params={"rows": 5})
    assert "формула" in text_of((await client.get(f"/api/v1/reports/{pdf['id']}/file")).content)


async def test_a_character_that_no_font_has_is_shown_as_such(tmp_path: Path) -> None:
    file = tmp_path / "out.pdf"
    title = "Әл-Фараби 😀\x01 ₸"
    content = Content(
        title,
        {"columns": ["a"], "rows": [["日本 👨‍👩‍👧"], ["ok"]], "chart": stacked_bars(["🧪"], {"😀": [1]})},
    )
    await write(file, content, "pdf", None, as_datetime(0), _silent)
    said = text_of(file.read_bytes())
    assert "Әл-Фараби" in said
    assert "₸" in said
    assert "ok" in said
    assert "😀" not in said
    assert b"pdfaid" in file.read_bytes()


async def test_hostile_cells_are_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yamchi.reports.rendering.MAX_SHEET_ROWS", 3)
    starts = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\n1", "＝1+1")
    rows = [(text, float("nan"), 10**20, -5, True) for text in starts]

    async def batches() -> AsyncIterator[Sequence[Sequence[Any]]]:
        yield rows

    content = Content("Cells", {}, Rows(("=HYPERLINK()", "b", "c", "d", "e"), batches))
    for form in ("csv", "xlsx"):
        await write(tmp_path / f"out.{form}", content, form, None, as_datetime(0), _silent)  # type: ignore[arg-type]
    found = list(csv.reader(io.StringIO((tmp_path / "out.csv").read_text("utf-8-sig"), newline="")))
    assert [row[0] for row in found] == ["'=HYPERLINK()", *(f"'{text}" for text in starts)]
    assert {tuple(row[1:]) for row in found[1:]} == {("nan", "100000000000000000000", "-5", "True")}
    with zipfile.ZipFile(tmp_path / "out.xlsx") as book:
        sheets = [book.read(name).decode() for name in sorted(book.namelist()) if "/sheet" in name]
    assert [sheet.count("<row ") for sheet in sheets] == [
        4,
        4,
        2,
    ]  # what does not fit goes on in another sheet
    assert not any("<f>" in sheet or ">nan<" in sheet.replace("<t>nan</t>", "") for sheet in sheets)
    assert all(sheet.count("<v>-5</v>") for sheet in sheets)


async def test_no_cell_is_a_formula_where_semicolons_separate_them(tmp_path: Path) -> None:
    hostile = (
        "Bob;=cmd|' /C calc'!A0",
        "a\n=1+1",
        "a,\r\n+1+1;@SUM(A1)",
        '"x";-1+1',
        'a;"=1+1;',
        'a\n"@SUM(A1);',
    )

    async def batches() -> AsyncIterator[Sequence[Sequence[Any]]]:
        yield [(number, text, "plain; text", -5) for number, text in enumerate(hostile)]

    await write(
        tmp_path / "out.csv",
        Content("Cells", {}, Rows(("a", "b", "c", "d"), batches)),
        "csv",
        None,
        as_datetime(0),
        _silent,
    )
    said = (tmp_path / "out.csv").read_text("utf-8-sig")
    for separator in ",;":
        cells = [
            cell for row in csv.reader(io.StringIO(said, newline=""), delimiter=separator) for cell in row
        ]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "-1"))], cells
    assert [row[2:] for row in csv.reader(io.StringIO(said, newline=""))][1:] == [
        ["plain; text", "-5"]
    ] * len(hostile)


async def test_numbers_are_numbers(tmp_path: Path) -> None:
    cells = (
        Decimal("10.50"),
        Decimal("-1E-9"),
        -1.5e-9,
        Decimal("NaN"),
        Decimal("123456789012345678.12"),
        Decimal("1E+400"),
    )

    async def batches() -> AsyncIterator[Sequence[Sequence[Any]]]:
        yield [cells]

    content = Content("Cells", {}, Rows(tuple("abcdef"), batches))
    await write(tmp_path / "out.csv", content, "csv", None, as_datetime(0), _silent)
    assert (tmp_path / "out.csv").read_text("utf-8-sig").splitlines()[1] == ",".join(map(str, cells))
    await write(tmp_path / "out.xlsx", content, "xlsx", None, as_datetime(0), _silent)
    with zipfile.ZipFile(tmp_path / "out.xlsx") as book:
        sheet = book.read("xl/worksheets/sheet1.xml").decode()
    assert [float(found) for found in re.findall(r"<v>(.*?)</v>", sheet)] == [10.5, -1e-9, -1.5e-9]
    assert "<t>123456789012345678.12</t>" in sheet


async def test_large_and_small_values_of_a_person_keep_their_digits(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    results = [
        {"name": "Тромбоциты", "value": 1_500_000, "low": 150_000, "high": 4_500_000},
        {"name": "ХГЧ", "value": 1_234_567.89, "high": 5},
        {"name": "ТТГ", "value": 0.00005, "low": 0.1},
    ]
    for locale, most in (("ru", "до 5"), ("kk", "ең көбі 5"), ("en", "up to 5")):
        report = await made(
            app, client, kind="checkup", params={**RESULTS, "results": results, "locale": locale}
        )
        said = text_of((await client.get(f"/api/v1/reports/{report['id']}/file")).content)
        for words in ("1500000", "150000–", "4500000", "1234567.89", most, "0.00005", "0.1"):
            assert words in said, said


def test_everything_in_a_chart_is_within_it() -> None:
    """Whatever the names and the numbers: a letter of this size is 4 to 6 wide."""
    legend = stacked_bars(["1", "2"], {name: [1, 2] for name in STATUSES})
    stages = funnel([("Оставили заявку на пробный урок", 1_234_567_890), ("Пришли", 3)])
    for svg, letter in ((legend, 5.2), (stages, 5.6)):
        (height,) = re.findall(r'viewBox="0 0 520 (\d+)"', svg)
        texts = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*text-anchor="start">([^<]*)<', svg)
        assert texts
        for x, y, text in texts:
            assert float(x) + letter * len(text) <= 520, text
            assert float(y) <= float(height), text
    names = [(float(x), text) for x, _, text in texts if float(x) == 0]
    bars = {float(x) for x in re.findall(r'<rect x="([\d.]+)"', stages)}
    assert all(x + 5.6 * len(text) < min(bars) for x, text in names)


async def test_a_period_that_can_not_be(app: TestApp, client: httpx2.AsyncClient) -> None:
    for params, said in (
        ({"since": "2150-01-01"}, "until should be 0 to 400 days after since"),
        ({"since": "2010-01-01"}, "until should be 0 to 400 days after since"),
    ):
        report = await made(app, client, kind="deliveries", params=params)
        assert report["status"] == "failed"
        assert said in report["error"]
    refused: tuple[tuple[str, dict[str, Any]], ...] = (
        ("deliveries", {"until": "0001-01-01"}),
        ("checkup", {**RESULTS, "results": [{"name": "a", "value": "NaN"}]}),
    )
    for kind, params in refused:
        answer = await client.post("/api/v1/reports", json={"kind": kind, "params": params})
        assert answer.status_code == 422, answer.text


def put(file: Path, content: bytes) -> None:
    file.write_bytes(content)


async def test_two_that_make_one_report_do_not_meet_in_one_file(app: TestApp) -> None:
    report = await app.reports.request("checkup", RESULTS)
    first_may_end = asyncio.Event()

    async def slowly(file: Path) -> None:
        put(file, b"first, ")
        await first_may_end.wait()
        put(file, b"first, whole")

    async def at_once(file: Path) -> None:
        put(file, b"second, whole")

    store = app.reports.store
    first = asyncio.create_task(store.make(report, slowly))
    await asyncio.sleep(0)
    await store.make(report, at_once)
    assert store.file_of(report).read_bytes() == b"second, whole"
    first_may_end.set()
    await first
    assert store.file_of(report).read_bytes() == b"first, whole"


async def test_the_letter_has_it_attached_and_its_link_ends(app: TestApp, client: httpx2.AsyncClient) -> None:
    await client.put(f"/api/v1/users/{USER}", json={"email": "boss@example.com", "locale": "ru"})
    people = [{"user_id": USER}, {"email": "other@example.com", "attach": False}]
    report = await made(app, client, kind="checkup", params=RESULTS, notify=people)
    letters = {tuple(one["recipients"]): one for one in (await client.get("/api/v1/mailbox")).json()}
    mine = (await client.get(f"/api/v1/mailbox/{letters['boss@example.com',]['message_id']}")).json()
    other = (await client.get(f"/api/v1/mailbox/{letters['other@example.com',]['message_id']}")).json()
    assert mine["attachments"] == ["Результаты чекапа.pdf"]
    assert other["attachments"] == []
    link = urlsplit(report["url"])
    assert f"http://localhost:3030{link.path}"[:40] in other["text"]
    opened = await client.get(link.path)
    assert (opened.status_code, opened.headers["content-type"]) == (200, "application/pdf")
    forged = await client.get(f"{link.path}x")
    assert (forged.status_code, forged.json()["detail"]) == (410, "This link was not made here.")
    await app.clock.advance(timedelta(days=8))
    assert (await client.get(link.path)).json()["detail"] == "This link has expired."


async def test_what_is_too_large_is_linked(tmp_path: Path) -> None:
    async with TestApp(home=tmp_path, attachments_max_bytes=10) as app:
        app.serve()
        wish = {"kind": "checkup", "params": RESULTS, "notify": {"email": "a@example.com"}}
        await app.queue("report_queue").add(wish)  # as another program does, with one whom it concerns
        await app.drain()
        (letter,) = await app.notifications.mailbox.list(offset=0, limit=5)
        assert b"Content-Disposition: attachment" not in await app.notifications.mailbox.get(
            letter["message_id"]
        )


async def test_a_repeat_makes_and_sends_nothing_twice(app: TestApp) -> None:
    first = await app.reports.request("checkup", RESULTS, id="r-1", notify=[{"email": "a@example.com"}])
    again = await app.reports.request("checkup", RESULTS, id="r-1", notify=[{"email": "a@example.com"}])
    assert first.id == again.id
    await app.drain()
    file = app.reports.store.file_of(await app.reports.get(first.id))
    before = file.stat().st_mtime_ns
    await (await app.queue("report_queue").job("r-1")).retry()
    await app.drain()
    assert file.stat().st_mtime_ns == before
    assert len(await app.notifications.mailbox.list(offset=0, limit=5)) == 1


async def test_another_programs_task(app: TestApp) -> None:
    """As `SELECT pgmq.send('report_queue', '{"kind": …}')` writes it."""
    await app.queue("report_queue").add({"kind": "checkup", "params": RESULTS, "comment": "kept out"})
    await app.drain()
    (report,) = await app.reports.store.page(None, None, 5)
    assert report.status == "ready"


async def test_bad_requests(app: TestApp, client: httpx2.AsyncClient) -> None:
    for body, status, said in (
        (
            {"kind": "nothing"},
            404,
            "There is no report 'nothing'; there are: checkup, deliveries, leads, sales.",
        ),
        ({"kind": "checkup", "params": {"name": "A"}}, 422, "results: Field required"),
        (
            {"kind": "deliveries", "params": {"since": "2026-01-01", "until": "2020-01-01"}},
            422,
            "days after since",
        ),
        ({"kind": "sales", "format": "docx"}, 422, "format"),
        ({"kind": "sales", "notify": {}}, 422, "name somebody: user_id, email or telegram"),
        ({"kind": "sales", "notify": [{"email": "a@b.kz\nBcc: c@d.kz"}]}, 422, "notify"),
    ):
        answer = await client.post("/api/v1/reports", json=body)
        assert answer.status_code == status, answer.text
        assert said in answer.json()["detail"]


async def test_a_report_of_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUGINS", "notifications,reports")
    async with TestApp(home=tmp_path) as app:
        app.serve()
        report = await app.reports.request("leads")
        await app.drain()
        failed = await app.reports.get(report.id)
        assert failed.status == "failed"
        assert "the plugin leads is not on" in (failed.error or "")


@pytest.mark.parametrize(("form", "module"), [("pdf", "typst"), ("xlsx", "xlsxwriter")])
async def test_a_missing_package_is_told_at_the_first_attempt(
    app: TestApp, monkeypatch: pytest.MonkeyPatch, form: Format, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    report = await app.reports.request("checkup", RESULTS, format=form)
    await app.drain()
    job = await app.queue("report_queue").job(report.job_id)
    said = f"A report as {form.upper()} needs an extra package: {install_command('reports')}"
    assert (job.state, job.attempts_made, job.failed_reason) == ("failed", 1, said)
    assert (await app.reports.get(report.id)).error == said


async def test_how_far_leads_came(app: TestApp, client: httpx2.AsyncClient) -> None:
    report = await made(app, client, kind="leads", params={"locale": "en"})
    assert report["status"] == "ready", report["error"]
    assert "Signed up" in text_of((await client.get(f"/api/v1/reports/{report['id']}/file")).content)


async def test_a_kind_whose_template_is_not_there(app: TestApp, tmp_path: Path) -> None:
    with pytest.raises(YamchiError, match=r"The report sales has no template: there is no file .*none\.typ"):
        app.reports.kind("sales", template=tmp_path / "none.typ")(_silent)  # type: ignore[type-var]


@pytest.mark.parametrize("template", [None, "checkup.typ"])
async def test_more_than_a_pdf_has_room_for_is_refused(tmp_path: Path, template: str | None) -> None:
    """However the table came into the data: Typst would need gigabytes for it."""
    content = Content("Sales", {"columns": ["n", "what"], "rows": [[str(n), "a"] for n in range(100_000)]})
    file = tmp_path / "long.pdf"
    own = None if template is None else TEMPLATES / template
    with pytest.raises(Unrecoverable, match=r"Sales has 200,003 values, more than the 20,000"):
        await write(file, content, "pdf", own, as_datetime(0), _silent)
    assert not file.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n" * 20_000, "Sales has 20,002 values, more than the 20,000"),
        ("слово " * 90_000, "Sales has 540,005 characters, more than the 500,000"),
    ],
)
async def test_one_text_may_be_too_much_for_a_pdf_too(tmp_path: Path, text: str, said: str) -> None:
    """Within the bytes that the data may have: as lines it would take gigabytes, and most of an hour."""
    file = tmp_path / "long.pdf"
    with pytest.raises(Unrecoverable, match=said):
        await write(file, Content("Sales", {"letter": text}), "pdf", None, as_datetime(0), _silent)
    assert not file.exists()


async def test_nothing_in_the_data_is_markup(tmp_path: Path) -> None:
    evil = '#read("/etc/passwd") $x$ *bold* <script> "; #import "/etc/passwd"'
    content = Content(evil, {"columns": [evil], "rows": [[evil]]})
    file = tmp_path / "evil.pdf"
    await write(file, content, "pdf", None, as_datetime(0), _silent)
    assert '#read("/etc/passwd")' in text_of(file.read_bytes())


async def test_a_template_of_ones_own_reads_only_its_folder(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    template = tmp_path / "own" / "report.typ"
    template.write_text('#let data = json(bytes(sys.inputs.data))\n#data.title\n#read("../secret.txt")')
    with pytest.raises(YamchiError, match=r"The template report\.typ can't be made into a PDF"):
        await write(tmp_path / "out.pdf", Content("A"), "pdf", template, as_datetime(0), _silent)


async def test_only_what_is_kept_is_attached(app: TestApp) -> None:
    options = {"to": "a@example.com", "text": "hello", "attachments": ["report:nobody"]}
    job = await app.notifications.queue.add({"channel": "email", "options": options}, name="send")
    await app.drain()
    failed = await job.refresh()
    assert failed.state == "failed"
    assert "There is no report 'nobody'" in failed.failed_reason
    for wrong in ("../../etc/passwd", {"ref": 5}, "file:/etc/passwd"):
        job = await app.notifications.queue.add(
            {"channel": "email", "options": {**options, "attachments": [wrong]}}, name="send"
        )
        await app.drain()
        assert "can't be attached" in ((await job.refresh()).failed_reason or "")


async def test_reports_by_the_clock(tmp_path: Path) -> None:
    (tmp_path / "reports.yaml").write_text(
        '- kind: deliveries\n  cron: "0 9 * * 1"\n  zone: Asia/Almaty\n  notify: [{email: boss@example.com}]\n'
    )
    async with TestApp(home=tmp_path) as app:
        app.serve()
        await app.clock.advance(timedelta(days=14))
        assert len(await app.notifications.mailbox.list(offset=0, limit=10)) == 2


def test_a_slip_in_the_schedule_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "reports.yaml").write_text(
        "- kind: deliveries\n  cron: never\n  notify: [{email: a@example.com}]\n"
    )
    with pytest.raises(YamchiError, match=r"reports\.yaml:2: "):
        TestApp(home=tmp_path).serve()


async def test_old_reports_are_removed(app: TestApp) -> None:
    report = await app.reports.request("checkup", RESULTS)
    await app.drain()
    file = app.reports.store.file_of(report)
    assert file.exists()
    left_by_a_kill = file.with_name("other.pdf.0123abcd.part")
    left_by_a_kill.touch()
    os.utime(left_by_a_kill, (0, 0))
    await app.clock.advance(timedelta(days=32))
    assert not file.exists()
    assert not left_by_a_kill.exists()
    assert await app.reports.store.page(None, None, 5) == []


async def test_a_person_who_is_erased_leaves_no_report(app: TestApp, client: httpx2.AsyncClient) -> None:
    await client.put(f"/api/v1/users/{USER}", json={"email": "a@example.com"})
    mine = await made(app, client, kind="checkup", params=RESULTS, notify={"user_id": USER})
    shared = [{"user_id": USER}, {"email": "other@example.com"}]
    other = await made(app, client, kind="deliveries", notify=shared)
    file = app.reports.store.file_of(await app.reports.get(mine["id"]))
    assert file.exists()
    assert (await app.erase(USER))["reports"] == 1
    assert not file.exists()
    assert [one.id for one in await app.reports.store.page(None, None, 5)] == [other["id"]]


@pytest.mark.parametrize("by", ["route", "erase"])
async def test_deleted_before_it_is_made(app: TestApp, client: httpx2.AsyncClient, by: str) -> None:
    await client.put(f"/api/v1/users/{USER}", json={"email": "a@example.com"})
    asked = {"kind": "sales", "format": "csv", "notify": {"user_id": USER}}
    report = (await client.post("/api/v1/reports", json=asked)).json()
    if by == "route":
        assert (await client.delete(f"/api/v1/reports/{report['id']}")).status_code == 204
    else:
        assert (await app.erase(USER))["reports"] == 1
    await app.drain()
    assert (await app.queue("report_queue").job(report["jobId"])).state == "cancelled"
    assert await app.reports.store.page(None, None, 5) == []
    assert (await app.queue("notifications").stats())["completed"] == 0


async def test_deleted_while_it_is_made(app: TestApp, client: httpx2.AsyncClient) -> None:
    @app.reports.kind("deleted")
    async def deleted(_params: Any) -> Content:
        (report,) = await app.reports.store.page("deleted", None, 5)
        assert (await client.delete(f"/api/v1/reports/{report.id}")).status_code == 204

        async def batches() -> AsyncIterator[Sequence[Sequence[Any]]]:
            yield [(1,)]

        return Content("Deleted", {}, Rows(("n",), batches, 1))

    asked = {"kind": "deleted", "format": "csv", "notify": {"email": "me@example.com"}}
    report = (await client.post("/api/v1/reports", json=asked)).json()
    await app.drain()
    assert (await app.queue("report_queue").job(report["jobId"])).state == "cancelled"
    assert await app.reports.store.page(None, None, 5) == []
    assert list((app.settings.var / "reports").glob("*")) == []
    assert (await app.queue("notifications").stats())["completed"] == 0


async def test_a_report_whose_job_was_ended_has_failed(app: TestApp, client: httpx2.AsyncClient) -> None:
    @app.reports.kind("endless")
    async def endless(_params: Any) -> Content:
        return await asyncio.Future[Content]()

    app.define("report_queue", timeout="50ms", attempts=1)
    report = await made(app, client, kind="endless")
    job = await app.queue("report_queue").job(report["jobId"])
    assert (job.state, job.failed_reason) == ("failed", "generate took longer than its timeout of 50 ms")

    async def has_failed() -> bool:
        kept = (await client.get(f"/api/v1/reports/{report['id']}")).json()
        return (kept["status"], kept["error"]) == ("failed", job.failed_reason)

    await eventually(has_failed)


async def test_ids_can_not_be_guessed(app: TestApp) -> None:
    report = await app.reports.request("checkup", RESULTS, id="known-to-many")
    assert len(report.id) >= 24
    assert report.id != str(derived_id("known-to-many"))


async def _silent(_: float) -> None:
    pass


async def test_params_that_do_not_fit_are_named_as_they_were_given(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/api/v1/reports", json={"kind": "checkup", "params": {"name": "A"}})
    assert answer.status_code == 422
    assert [one["field"] for one in answer.json()["errors"]] == ["params.results"]
