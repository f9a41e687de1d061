"""A letter that stayed at home, read in Chromium: framed, harmless, in the reader's language."""

import os
import signal
from pathlib import Path

import httpx2
from playwright.sync_api import Page, expect

from tests.browser.conftest import Board
from tests.processes import Process

USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"
expect.set_options(timeout=15_000)


def test_a_letter_is_read_in_the_mailbox(page: Page, board: Board) -> None:
    api = f"{board.url}/api/v1"
    person = {"email": "aidana@example.com", "locale": "kk", "attributes": {"first_name": "Айдана"}}
    httpx2.put(f"{api}/users/{USER}", json=person).raise_for_status()
    event = {"event_type": "user_registered", "event_id": "mailbox-1", "user_id": USER, "data": {}}
    httpx2.post(f"{api}/events", json=event).raise_for_status()

    page.goto(board.url)
    page.get_by_role("link", name="Mailbox").click()
    letter = page.locator("#letters button", has_text="aidana@example.com")
    expect(letter).to_be_visible()
    expect(page.locator("#letter dd").first).to_be_visible()
    frame = page.frame_locator("#letter iframe")
    expect(frame.get_by_text("Айдана", exact=False).first).to_be_visible()
    assert page.locator("#letter iframe").get_attribute("sandbox") == ""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/mailbox.png")


def test_the_letter_stays_while_the_server_is_away(page: Page, board: Board, board_home: Path) -> None:
    letter = {
        "channel": "email",
        "options": {"to": "asel@example.com", "subject": "Hello", "text": "Are you there?"},
    }
    board.add("notifications", letter)
    process = Process(board_home, "api", "--app", "shop:app", "--port", "0")
    page.goto(f"{process.url}/mailbox")
    page.locator("#letters button", has_text="asel@example.com").click()
    subject = page.locator("#letter dd", has_text="Hello")
    expect(subject).to_be_visible()
    process.end(signal.SIGTERM)
    expect(page.get_by_role("alert")).to_have_text("The server does not answer.")
    expect(subject).to_be_visible()
    page.locator("#letters button").first.focus()
    again = Process(board_home, "api", "--app", "shop:app", "--port", process.url.rpartition(":")[2])
    assert again.url == process.url
    expect(page.locator("#trouble")).to_have_text("")
    expect(page.locator("#letters button").first).to_be_focused()
    again.end(signal.SIGTERM)
