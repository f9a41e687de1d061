"""The board's page of media: pictures with their state, filtered, deleted and restored."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.media import pictures
from tests.processes import Process
from tests.services.s3 import S3

expect.set_options(timeout=60_000)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    process = Process(tmp_path, "up", "--port", "0", MEDIA_PROCESSES="1")
    yield process.url
    process.end(signal.SIGTERM)


@pytest.mark.services
def test_pictures_that_are_only_in_the_bucket_are_shown(tmp_path: Path, page: Page) -> None:
    s3 = S3()
    s3.start()
    told = {name.upper(): value for name, value in s3.settings.items()}
    told["S3_ENDPOINT"] = f"http://localhost:{s3.port}"
    process = Process(tmp_path, "up", "--port", "0", MEDIA_PROCESSES="1", **told)
    try:
        upload(process.url, pictures.scene(), "hills.jpg")
        page.goto(f"{process.url}/media")
        card = page.locator("#pictures li")
        process.wait_for(lambda: listed(process.url)[0]["variants"], "the variants")
        wanted = {"all": True, "operation": "upload", "deleteSource": True}
        httpx2.post(f"{process.url}/api/admin/media/sync", json=wanted).raise_for_status()
        files = tmp_path / "public" / "uploads" / "company_photo"
        process.wait_for(lambda: not list(files.iterdir()), "the copies")
        page.reload()
        expect(card).to_contain_text("in the bucket")
        expect(card.locator("img")).not_to_have_js_property("naturalWidth", 0)
    finally:
        process.end(signal.SIGTERM)
        s3.stop()


def listed(url: str) -> list[dict[str, Any]]:
    return list(httpx2.get(f"{url}/api/admin/media").json()["items"])


def upload(url: str, content: bytes, name: str, kind: str = "company_photo", metadata: str = "{}") -> None:
    files, fields = {"file": (name, content)}, {"entityType": kind, "metadata": metadata}
    answer = httpx2.post(f"{url}/api/admin/media/upload-async", files=files, data=fields, timeout=60)
    assert answer.status_code == 202


def test_the_page_of_media(url: str, page: Page) -> None:
    upload(url, pictures.scene(), "hills.jpg")
    upload(url, pictures.scene()[:20_000], "<b>broken.jpg")
    upload(url, pictures.png(400, 300), "me.png", "user_avatar", '{"alt": 1234567890123456789}')
    page.goto(url)
    page.get_by_role("link", name="Media", exact=True).click()
    cards = page.locator("#pictures li")
    expect(cards).to_have_count(3)
    hills = cards.filter(has_text="hills.jpg")
    expect(hills).to_contain_text("1600 × 1200")
    expect(hills.locator("img")).to_be_visible()
    for picture in cards.locator("img").all():
        expect(picture).not_to_have_js_property("naturalWidth", 0)
    broken = cards.filter(has_text="<b>broken.jpg")
    expect(broken).to_contain_text("The file is damaged")
    expect(page.locator("#queues")).to_contain_text("processing: 0 to do, 1 failed")
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/media-board.png")
    page.route("**/reprocess", lambda route: route.abort())
    hills.get_by_role("button", name="Make anew").click()
    said = page.locator(".toast.bad")
    expect(said).to_have_text("The server does not answer.")
    with page.expect_response("**/api/admin/media?*"):
        pass
    expect(said).to_be_visible()  # the next refresh, which went well, wipes nothing away
    hills.get_by_role("button", name="Delete").click()
    expect(hills.get_by_role("button", name="Restore")).to_be_visible()
    expect(hills.locator("img")).to_have_count(0)
    page.select_option("#status", "soft_deleted")
    page.get_by_role("button", name="Show").click()
    expect(cards).to_have_count(1)
    hills.get_by_role("button", name="Restore").click()
    expect(cards).to_have_count(0)
    expect(page.locator("#none")).to_be_visible()
    page.select_option("#status", "")
    page.fill("#entityType", "user_avatar")
    page.get_by_role("button", name="Show").click()
    expect(cards).to_have_count(1)
    expect(cards).to_contain_text("me.png")
    expect(cards.locator("img")).to_have_attribute("alt", "1234567890123456789")
