"""Scenarios in Chromium: the page of the board, and the page behind a button in a letter."""

import os
import re
import signal
import time
from collections.abc import Callable
from html import unescape
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.browser import conftest
from tests.browser.conftest import Board
from tests.processes import DEADLINE, Process

USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f777"
expect.set_options(timeout=15_000)

TRIAL = """
scenario: trial
title: A trial lesson
on: trial.asked
key: "{{ event.data.key }}"
stop_on: trial.confirmed
actions:
  confirm: {emit: trial.confirmed}
steps:
  - job: letter
    send: {channel: email, template: trial}
  - job: call
    wait: 24h
    emit: trial.late
"""
LETTER = """---
subject: Your trial lesson
transactional: true
---
<p>Will you come?</p><p><a href="{{ links.confirm }}">Yes</a> <a href="{{ links.stop }}">Stop</a></p>
"""


@pytest.fixture(scope="module")
def board_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("scenarios")
    (home / "shop.py").write_text(conftest.APP)
    (home / "scenarios").mkdir()
    (home / "scenarios" / "trial.yaml").write_text(TRIAL)
    (home / "templates" / "trial").mkdir(parents=True)
    (home / "templates" / "trial" / "email.en.html").write_text(LETTER)
    return home


def start(board: Board, key: str) -> str:
    """A run whose letter has left; its address is that of the key."""
    api = f"{board.url}/api/v1"
    person = {"email": f"{key}@example.com", "locale": "en"}
    httpx2.put(f"{api}/users/{USER}", json=person).raise_for_status()
    event = {"event_type": "trial.asked", "event_id": key, "user_id": USER, "data": {"key": key}}
    httpx2.post(f"{api}/events", json=event).raise_for_status()

    def waits_for_the_call() -> str | None:
        (run,) = httpx2.get(f"{api}/runs", params={"key": key}).json()["runs"]
        return str(run["run_id"]) if run["step"] == "call" else None

    return wait_for(waits_for_the_call)


def wait_for(condition: Callable[[], str | None]) -> str:
    end = time.monotonic() + DEADLINE
    while (value := condition()) is None:
        assert time.monotonic() < end, "the letter did not leave"
        time.sleep(0.05)
    return value


def status(board: Board, run_id: str) -> tuple[str, str | None]:
    run = httpx2.get(f"{board.url}/api/v1/runs/{run_id}").json()
    return run["status"], run["reason"]


def link_in(board: Board, address: str, asks: str) -> str:
    """The link of a letter whose page asks this; a server on any free port does not know its own address."""
    mailbox = f"{board.url}/api/v1/mailbox"
    letter = next(one for one in httpx2.get(mailbox).json() if address in str(one))
    html = httpx2.get(f"{mailbox}/{letter['message_id']}/html").text
    links = [
        f"{board.url}{unescape(path)}" for path in re.findall(r'href="https?://[^/"]+(/act/[^"]+)"', html)
    ]
    return next(link for link in links if asks in httpx2.get(link).text)


def shoot(page: Page, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png")


def test_the_list_the_timeline_and_stopping(page: Page, board: Board) -> None:
    run_id = start(board, "aida")
    page.goto(board.url)
    page.get_by_role("link", name="Scenarios", exact=True).click()
    for name in ("email_chain", "lesson_reminders", "trial"):
        expect(page.locator("#names button", has_text=name)).to_be_visible()
    page.locator("#names button", has_text="A trial lesson").click()
    row = page.locator("#runs tr", has_text="aida")
    expect(row.locator("td").nth(1)).to_have_text("running")
    expect(row.locator("td").nth(2)).to_have_text("call")

    row.get_by_role("button", name="aida").click()
    timeline = page.get_by_role("img", name="The timeline of the run")
    expect(timeline).to_be_visible()
    expect(timeline).not_to_have_js_property("naturalWidth", 0)
    shown = page.request.get(f"{board.url}{timeline.get_attribute('src')}").text()
    assert "letter" in shown
    assert "call" in shown
    shoot(page, "scenario-run")

    page.get_by_role("button", name="Stop this run").click()
    expect(page.locator("#runs tr", has_text="aida").locator("td").nth(1)).to_have_text("stopped")
    expect(page.get_by_role("button", name="Stop this run")).to_have_count(0)
    assert status(board, run_id)[0] == "stopped"
    shoot(page, "scenario-stopped")

    page.set_viewport_size({"width": 390, "height": 800})
    hidden = page.locator(".runs .scroll").evaluate("list => list.scrollWidth - list.clientWidth")
    assert hidden == 0, "a phone shows a run whole"
    page.set_viewport_size({"width": 1280, "height": 800})

    page.get_by_label("Key").fill("nobody")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#runs tr")).to_have_count(0)
    expect(page.locator("#none")).to_have_text("No run matches.")


def test_what_is_wrong_with_a_file_stays_on_the_page(page: Page, board: Board, board_home: Path) -> None:
    """It is said of a file that is changed while the page is open, too."""
    page.goto(f"{board.url}/scenarios")
    expect(page.locator("#names button").first).to_be_visible()
    wrong = board_home / "scenarios" / "wrong.yaml"
    wrong.write_text("scenario: wrong\nsteps: soon\n")
    trouble = page.get_by_role("alert")
    expect(trouble).to_contain_text("wrong.yaml")
    for _ in range(2):  # the list of runs is read, and again
        with page.expect_response("**/api/v1/runs?*"):
            pass
    expect(trouble).to_contain_text("wrong.yaml")
    wrong.unlink()
    expect(trouble).to_have_count(0)


def test_who_may_only_look_can_not_stop_a_run(page: Page, board: Board, board_home: Path) -> None:
    start(board, "timur")
    process = Process(board_home, "api", "--app", "shop:app", "--port", "0", ADMIN_TOKEN="open sesame")
    admin = {"authorization": "Bearer open sesame"}
    asked = {"name": "eye", "scopes": ["read"]}
    key = httpx2.post(f"{process.url}/api/v1/keys", json=asked, headers=admin).json()["key"]
    page.goto(process.url)
    page.get_by_label("Token").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Scenarios", exact=True).click()
    page.locator("#names button", has_text="A trial lesson").click()
    page.locator("#runs tr", has_text="timur").get_by_role("button", name="timur").click()
    expect(page.get_by_role("img", name="The timeline of the run")).to_be_visible()
    expect(page.get_by_role("button", name="Stop this run")).to_be_hidden()
    process.end(signal.SIGTERM)


def test_a_button_in_a_letter_acts_once_and_only_when_pressed(page: Page, board: Board) -> None:
    run_id = start(board, "marat")
    link = link_in(board, "marat@example.com", "Will you come?")
    for _ in range(3):  # a scanner opens it, and so does the person
        page.goto(link)
    expect(page.get_by_role("heading", name="Will you come?")).to_be_visible()
    assert page.get_by_role("button").count() == 1
    shoot(page, "letter-button")
    assert status(board, run_id)[0] == "running"

    page.get_by_role("button", name="Yes, I'll be there!").click()
    expect(page.get_by_role("heading", name="Thank you! We'll be waiting for you.")).to_be_visible()
    shoot(page, "letter-button-pressed")
    assert status(board, run_id) == ("stopped", "trial.confirmed came")

    answer = page.goto(link)
    assert answer is not None
    assert answer.status == 410
    expect(page.get_by_role("heading", name="This link does nothing any more")).to_be_visible()
    shoot(page, "letter-button-used")
    again = httpx2.post(link)
    assert again.status_code == 410


def test_a_forged_link_changes_nothing(page: Page, board: Board) -> None:
    run_id = start(board, "dana")
    link = link_in(board, "dana@example.com", "No more messages")
    forged = link[:-6] + ("aaaaaa" if not link.endswith("aaaaaa") else "bbbbbb")
    answer = page.goto(forged)
    assert answer is not None
    assert answer.status == 410
    assert httpx2.post(forged).status_code == 410
    assert status(board, run_id)[0] == "running"
