"""The board's page of media: pictures with their state, filtered, deleted and restored."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.media import pictures
from tests.processes import Process

expect.set_options(timeout=60_000)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    process = Process(tmp_path, "up", "--port", "0", MEDIA_PROCESSES="1")
    yield process.url
    process.end(signal.SIGTERM)


def upload(url: str, content: bytes, name: str, kind: str = "company_photo") -> None:
    files = {"file": (name, content)}
    answer = httpx2.post(
        f"{url}/api/admin/media/upload-async", files=files, data={"entityType": kind}, timeout=60
    )
    assert answer.status_code == 202


def test_the_page_of_media(url: str, page: Page) -> None:
    upload(url, pictures.scene(), "hills.jpg")
    upload(url, pictures.scene()[:20_000], "<b>broken.jpg")
    upload(url, pictures.png(400, 300), "me.png", "user_avatar")
    page.goto(url)
    page.get_by_role("link", name="Media", exact=True).click()
    cards = page.locator("#pictures li")
    expect(cards).to_have_count(3)
    hills = cards.filter(has_text="hills.jpg")
    expect(hills).to_contain_text("1600 × 1200")
    expect(hills.locator("img")).to_be_visible()
    page.wait_for_function(
        "[...document.querySelectorAll('#pictures img')].every((one) => one.naturalWidth > 0)"
    )
    broken = cards.filter(has_text="<b>broken.jpg")
    expect(broken).to_contain_text("The file is damaged")
    expect(page.locator("#queues")).to_contain_text("processing: 0 to do, 1 failed")
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/media-board.png")
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
