"""Reports in a private bucket: made here, kept there, opened and attached by any machine."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.reports.test_reports import RESULTS, made
from tests.services.s3 import S3
from yamchi.testing import TestApp
from yamchi.web import create_app

pytestmark = pytest.mark.services


def settings_of(s3: S3) -> dict[str, Any]:
    given = dict(s3.settings)
    return {**given, "report_bucket": given.pop("s3_bucket")}


@pytest.fixture
async def app(s3: S3, tmp_path: Path) -> AsyncIterator[TestApp]:
    async with TestApp(home=tmp_path, **settings_of(s3)) as app:
        app.serve()
        yield app


@pytest.fixture
async def client(app: TestApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(create_app(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_it_is_kept_in_the_bucket_and_nowhere_else(
    app: TestApp, client: httpx2.AsyncClient, tmp_path: Path, s3: S3
) -> None:
    report = await made(app, client, kind="checkup", params=RESULTS, notify=[{"email": "boss@example.com"}])
    assert report["status"] == "ready", report["error"]
    assert list((tmp_path / "var/reports").iterdir()) == []
    bucket = app.reports.bucket
    assert await bucket.size_of(f"reports/{report['id']}.pdf") == report["size"]
    public = httpx2.get(f"{s3.url}/{s3.settings['s3_bucket']}/reports/{report['id']}.pdf")
    assert public.status_code == 403, "nobody has it without a key"

    answer = await client.get(f"/api/v1/reports/{report['id']}/file")
    assert answer.content.startswith(b"%PDF")
    assert len(answer.content) == report["size"]
    assert "filename*=utf-8''%D0%A0" in answer.headers["content-disposition"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    (letter,) = (await client.get("/api/v1/mailbox")).json()
    shown = (await client.get(f"/api/v1/mailbox/{letter['message_id']}")).json()
    assert shown["attachments"] == ["Результаты чекапа.pdf"]

    link = urlsplit(report["url"]).path
    assert (await client.get(link)).content == answer.content
    await app.clock.advance(timedelta(days=8))
    assert (await client.get(link)).status_code == 410


async def test_it_goes_with_its_row(app: TestApp, client: httpx2.AsyncClient) -> None:
    one = await made(app, client, kind="checkup", params=RESULTS)
    other = await made(app, client, kind="checkup", params=RESULTS)
    assert (await client.delete(f"/api/v1/reports/{one['id']}")).status_code == 204
    assert await app.reports.bucket.size_of(f"reports/{one['id']}.pdf") is None
    await app.clock.advance(timedelta(days=32))
    assert await app.reports.bucket.size_of(f"reports/{other['id']}.pdf") is None


async def test_an_object_that_somebody_removed_is_said(app: TestApp, client: httpx2.AsyncClient) -> None:
    report = await made(app, client, kind="checkup", params=RESULTS)
    await app.reports.bucket.delete([f"reports/{report['id']}.pdf"])
    answer = await client.get(f"/api/v1/reports/{report['id']}/file")
    assert (answer.status_code, "is not in the bucket" in answer.json()["detail"]) == (409, True)


async def test_reports_of_before_stay_where_they_are(tmp_path: Path, s3: S3) -> None:
    async with TestApp(home=tmp_path) as before:
        before.serve()
        report = await before.reports.request("checkup", RESULTS)
        await before.drain()
    async with TestApp(home=tmp_path, **settings_of(s3)) as app:
        assert (await app.reports.store.read(await app.reports.get(report.id))).startswith(b"%PDF")


async def test_a_bucket_that_is_away_costs_no_attempt(tmp_path: Path, s3: S3) -> None:
    away = {**settings_of(s3), "s3_endpoint": "http://127.0.0.1:9"}
    async with TestApp(home=tmp_path, **away) as app:
        app.serve()
        report = await app.reports.request("checkup", RESULTS)
        await app.drain()
        job = await app.queue("report_queue").job(report.job_id)
        assert (job.state, job.attempts_made) == ("delayed", 0)
        (check,) = await app.reports.probes()
        assert check.ok is False
