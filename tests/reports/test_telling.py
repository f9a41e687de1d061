"""Whom a report reaches: checked when it is asked for, each in their language, none kept waiting by another."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.reports.test_reports import RESULTS, USER, made
from tests.services.mail import MailServer
from tests.services.telegram import TOKEN, BotServer
from yamchi.errors import InvalidJob
from yamchi.notifications.people.recipients import User
from yamchi.notifications.sending.service import PRIORITIES, NotificationService
from yamchi.testing import TestApp

CSV = {"kind": "sales", "format": "csv"}


async def subjects(app: TestApp) -> dict[str, str]:
    """By who got the letter."""
    found = await app.notifications.mailbox.list(offset=0, limit=50)
    return {one["recipients"][0]: one["subject"] for one in found}


async def test_a_person_is_told_in_their_own_language(app: TestApp, client: httpx2.AsyncClient) -> None:
    await client.put(f"/api/v1/users/{USER}", json={"email": "a@example.com", "locale": "en"})
    people = [{"user_id": USER}, {"email": "b@example.com", "locale": "kk"}, {"email": "c@example.com"}]
    await made(app, client, **CSV, notify=people)
    assert await subjects(app) == {
        "a@example.com": "Your report is ready: Продажи",
        "b@example.com": "Есеп дайын: Продажи",
        "c@example.com": "Отчёт готов: Продажи",
    }
    told = await app.notifications.queue.jobs("completed")
    assert {job.priority for job in told} == {PRIORITIES["normal"]}, "none would go first on Redis"


async def test_an_address_by_itself_is_told_by_letter(app: TestApp, client: httpx2.AsyncClient) -> None:
    await made(app, client, **CSV, notify="a@example.com")
    await made(app, client, **CSV, notify=["b@example.com", {"email": "c@example.com"}])
    assert set(await subjects(app)) == {"a@example.com", "b@example.com", "c@example.com"}


async def test_a_report_by_telegram(tmp_path: Path) -> None:
    with BotServer() as bot:
        async with TestApp(
            home=tmp_path, telegram_bot_token=TOKEN, telegram_api_url=bot.origin, smtp_host="127.0.0.1"
        ) as app:
            app.serve()
            await app.notifications.recipients.put(USER, User(telegram_id="1001", locale="kk"))
            people = [{"user_id": USER, "channel": "telegram"}, {"telegram": "1002"}]
            await app.reports.request("checkup", RESULTS, notify=people)
            await app.drain()
    assert {sent.chat for sent in bot.messages if sent.file} == {"1001", "1002"}
    assert "Есеп дайын" in bot.texts("1001")[0]
    assert "Файл приложен" in bot.texts("1002")[0]


async def test_a_letter_without_file_and_link_promises_neither(tmp_path: Path) -> None:
    with MailServer() as server:
        settings: dict[str, Any] = {
            "smtp_host": server.host,
            "smtp_port": server.port,
            "smtp_security": "none",
        }
        async with TestApp(home=tmp_path, **settings, attachments_max_bytes=10) as app:
            app.serve()
            await app.reports.request("checkup", RESULTS, notify=[{"email": "a@example.com"}])
            await app.drain()
    ((_, letter),) = server.letters
    part = letter.get_body(("plain",))
    assert part is not None
    text = part.get_content()
    assert "слишком велик" in text
    assert "приложен" not in text


async def test_who_can_not_be_told_is_refused_when_it_is_asked_for(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    for notify, said in (
        ({"user_id": USER, "channel": "pigeon"}, "there is no channel 'pigeon'"),
        ([{"email": f"{n}@example.com"} for n in range(101)], "101 entries"),
        ({"email": "boss"}, "email"),
        ({"email": "boss@example.com", "telegram": "42"}, "name one of user_id, email and telegram"),
        ({"user_id": USER, "email": "boss@example.com"}, "name one of user_id, email and telegram"),
        ({"telegram": ""}, "name somebody"),
    ):
        answer = await client.post("/api/v1/reports", json={**CSV, "notify": notify})
        assert (answer.status_code, said in answer.json()["detail"]) == (422, True), answer.text
    with pytest.raises(InvalidJob, match=r"The report can't be asked for: .*email"):
        await app.reports.request("sales", notify=[{"email": "boss"}])
    assert await app.reports.store.page(None, None, 5) == []


async def test_who_can_not_be_told_keeps_nobody_waiting(
    app: TestApp, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise InvalidJob("not this one")

    monkeypatch.setattr(NotificationService, "send", refuse)
    people = [{"user_id": USER}, {"email": "other@example.com"}]
    report = await made(app, client, **CSV, notify=people)
    assert list(await subjects(app)) == ["other@example.com"]
    job = await app.reports.queue.job(report["jobId"])
    assert "not this one" in (job.failed_reason or "")


async def test_a_job_that_was_corrected_is_made_and_told_anew(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    first = await made(app, client, **CSV, notify={"email": "wrong@example.com"})
    old = app.reports.store.file_of(await app.reports.get(first["id"]))
    corrected = {**CSV, "params": {"rows": 7}, "notify": [{"email": "right@example.com"}]}
    answer = await client.patch(
        f"/api/queues/report_queue/jobs/{first['jobId']}", json={"data": corrected, "retry": True}
    )
    assert answer.status_code == 200, answer.text
    await app.drain()
    (report,) = await app.reports.store.page(None, None, 5)
    content = await app.reports.store.read(report)
    assert (report.status, content.decode("utf-8-sig").count("Қаз")) == ("ready", 7)
    assert report.id != first["id"]
    assert not old.exists()
    assert list(await subjects(app)) == ["right@example.com", "wrong@example.com"]


async def test_a_corrected_address_is_told_of_the_same_file(app: TestApp, client: httpx2.AsyncClient) -> None:
    first = await made(app, client, **CSV, notify={"email": "wrong@example.com"})
    corrected = {**CSV, "notify": [{"email": "right@example.com"}]}
    await client.patch(
        f"/api/queues/report_queue/jobs/{first['jobId']}", json={"data": corrected, "retry": True}
    )
    await app.drain()
    assert [one.id for one in await app.reports.store.page(None, None, 5)] == [first["id"]]
    assert set(await subjects(app)) == {"right@example.com", "wrong@example.com"}


async def test_a_table_too_long_for_a_page_is_refused(app: TestApp, client: httpx2.AsyncClient) -> None:
    assert (await made(app, client, kind="sales", params={"rows": 2_000}))["status"] == "ready"
    report = await made(app, client, kind="sales", params={"rows": 2_001})
    assert (report["status"], report["error"]) == (
        "failed",
        "Продажи has more than 2,000 rows: ask for xlsx or csv.",
    )


async def test_pages_lose_no_report_of_the_same_moment(app: TestApp, client: httpx2.AsyncClient) -> None:
    asked = {(await app.reports.request("sales", {"rows": n})).id for n in range(5)}
    listed: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while query:
        page = (await client.get("/api/v1/reports", params=query)).json()
        listed += [one["id"] for one in page["items"]]
        query = {"limit": 2, "before": page["next_before"]} if page["next_before"] else {}
    assert (len(listed), set(listed)) == (5, asked)


async def test_a_file_on_another_machine_is_said_to_be_there(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    report = await made(app, client, **CSV)
    app.reports.store.file_of(await app.reports.get(report["id"])).unlink()
    answer = await client.get(f"/api/v1/reports/{report['id']}/file")
    assert answer.status_code == 409
    assert "is not on this machine: set REPORT_BUCKET" in answer.json()["detail"]
