"""The pages that features add to the board, and that of keys and the audit, in Chromium."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import Engine, NullPool, create_engine, insert, inspect

from tests.browser.conftest import APP, Board
from tests.processes import Process
from yamchi.clock import SystemClock
from yamchi.payments.providers.base import Status
from yamchi.payments.tables import payment_refunds, payments

USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"
NOW = SystemClock().now()
PLACES = ("activity", "campaigns", "leads", "reports", "payments", "access")
expect.set_options(timeout=15_000)


@pytest.fixture(scope="module")
def board_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("features")
    (home / "shop.py").write_text(APP.replace("app.notifications.serve()", ""))
    return home


@pytest.fixture(scope="module")
def board(board_home: Path) -> Iterator[Board]:
    process = Process(board_home, "up", "--app", "shop:app", "--port", "0", TILDA_SECRET="from the form")
    board = Board(process.url)
    fill(board)
    try:
        yield board
    finally:
        process.end(signal.SIGTERM)


def fill(board: Board) -> None:
    """Something of everything, done by the worker before a page is looked at."""
    with httpx2.Client(base_url=f"{board.url}/api") as api:
        person = {"email": "aida@example.com", "locale": "en", "attributes": {"first_name": "Aida"}}
        api.put(f"/v1/users/{USER}", json=person).raise_for_status()
        event = {"event_type": "user_registered", "event_id": "reg-1", "user_id": USER, "data": {}}
        api.post("/v1/events", json=event).raise_for_status()
        lost = {"channel": "email", "options": {"to": "x@example.com", "template": "no_such_letter"}}
        board.add("notifications", lost)
        campaign = {"campaign_id": "black-friday", "template_code": "black_friday_sale", "channel": "email"}
        about = {"audience": {"user_ids": [USER]}, "data": {"discount": "50%", "promo_code": "BF"}}
        api.post("/v1/campaigns", json={**campaign, **about}).raise_for_status()
        form = {"name": "Aida", "email": "aida@example.com", "phone": "+77011234567", "tranid": "1:1"}
        api.post("/webhooks/tilda", data={**form, "secret": "from the form"}).raise_for_status()
        api.post("/v1/reports", json={"kind": "deliveries", "format": "csv"}).raise_for_status()


def open_page(page: Page, board: Board, place: str) -> None:
    page.goto(f"{board.url}/#/{place}")
    expect(page.locator("#live")).to_have_text("live")


def test_what_became_of_a_message(page: Page, board: Board) -> None:
    page.goto(board.url)
    page.get_by_role("link", name="Notifications", exact=True).click()
    row = page.locator("tbody tr", has_text="welcome_email")
    expect(row.locator(".badge")).to_have_text("SENT")
    lost = page.locator("tbody tr", has_text="no_such_letter")
    expect(lost).to_contain_text("There is no template")
    page.get_by_label("Status").select_option("FAILED")
    expect(row).to_have_count(0)
    expect(lost).to_have_count(1)
    page.get_by_label("Status").select_option("")
    row.get_by_role("link", name="welcome_email").click()
    expect(page.locator("h1")).to_have_text("welcome_email")
    expect(page.locator(".timeline")).to_contain_text("Sent")
    expect(page.locator("section", has_text="Message").first).to_contain_text("user_registered")


def test_a_campaign_and_its_people(page: Page, board: Board) -> None:
    open_page(page, board, "campaigns")
    row = page.locator("tbody tr", has_text="black-friday")
    expect(row).to_contain_text("1 sent")
    expect(row).to_contain_text("100 % of 1")
    row.get_by_role("link", name="black-friday").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("black_friday_sale")


def test_a_campaign_is_paused_resumed_and_cancelled(page: Page, board: Board) -> None:
    later = {"campaign_id": "new-year", "template_code": "black_friday_sale", "channel": "email"}
    about = {"audience": {"user_ids": [USER]}, "send_after": "2099-01-01T00:00:00Z"}
    data = {"data": {"discount": "50%", "promo_code": "BF"}}
    httpx2.post(f"{board.url}/api/v1/campaigns", json={**later, **about, **data}).raise_for_status()
    open_page(page, board, "campaigns")
    row = page.locator("tbody tr", has_text="new-year")
    row.get_by_role("button", name="Pause").click()
    expect(row.locator(".badge")).to_have_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect(row.get_by_role("button", name="Pause")).to_be_visible()
    row.get_by_role("button", name="Cancel").click()
    page.locator("dialog").get_by_role("button", name="Cancel it").click()
    expect(row.locator(".badge")).to_have_text("cancelled")
    expect(row.get_by_role("button")).to_have_count(0)


def test_a_campaign_that_was_refused_is_shown_as_not_begun(page: Page, board: Board) -> None:
    refused = {"campaign_id": "no-data", "template_code": "black_friday_sale", "channel": "email"}
    everybody = {"audience": {"where": {}}}
    answer = httpx2.post(f"{board.url}/api/v1/campaigns", json={**refused, **everybody})
    assert answer.status_code == 422
    open_page(page, board, "campaigns")
    row = page.locator("tbody tr", has_text="no-data")
    expect(row.locator(".badge")).to_have_text("draft")
    expect(row).to_contain_text("not begun")
    expect(row.get_by_role("button")).to_have_text(["Cancel"])
    row.get_by_role("button", name="Cancel").click()
    page.locator("dialog").get_by_role("button", name="Cancel it").click()
    expect(row.locator(".badge")).to_have_text("cancelled")


def test_an_answer_that_can_not_be_shown_is_said_and_not_taken_for_an_outage(
    browser: Browser, board: Board
) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.route("**/api/v1/campaigns*", lambda route: route.fulfill(json=[{"campaign_id": "odd"}]))
        page.goto(f"{board.url}/#/campaigns")
        expect(page.locator("#live")).to_have_text("error")
        expect(page.get_by_role("alert")).to_be_visible()


def test_the_page_of_the_api_leads_to_all_others(page: Page, board: Board) -> None:
    page.goto(f"{board.url}/docs")
    nav = page.get_by_role("navigation", name="Pages")
    expect(nav.locator("[aria-current]")).to_have_text("API")
    nav.get_by_role("link", name="Leads", exact=True).click()
    expect(page.locator("h1")).to_have_text("Leads")


def test_a_lead_and_its_log(page: Page, board: Board) -> None:
    open_page(page, board, "leads")
    row = page.locator("tbody tr", has_text="Aida")
    expect(row).to_contain_text("+77011234567")
    page.get_by_label("Name, e-mail").press_sequentially("nobody")
    expect(page.locator("main")).to_contain_text("Nothing matches.")
    page.get_by_label("Name, e-mail").fill("aida@")
    row.get_by_role("link", name="Aida").click()
    expect(page.locator("h1")).to_have_text("Aida")
    expect(page.locator("main")).to_contain_text("aida@example.com")
    created = page.locator("dl > dt", has_text="Created at").locator("+ dd")
    expect(created).to_have_text(re.compile(r"^[A-Z][a-z]{2} \d+, \d{4}, "))


def test_a_report_is_asked_for_opened_and_deleted(page: Page, board: Board) -> None:
    open_page(page, board, "reports")
    page.get_by_role("button", name="New report").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Kind").select_option("deliveries")
    dialog.get_by_label("Format").select_option("xlsx")
    dialog.get_by_role("button", name="Make it").click()
    row = page.locator("tbody tr", has_text="xlsx")
    expect(row.locator(".badge")).to_have_text("ready")
    with page.expect_download() as file:
        row.get_by_role("link", name="Open").click()
    assert file.value.suggested_filename.endswith(".xlsx")
    row.get_by_role("button", name="Delete").click()
    page.locator("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)


def test_a_payment_and_what_is_known_of_it(page: Page, board: Board, board_home: Path) -> None:
    remember_payment(board_home)
    open_page(page, board, "payments")
    row = page.locator("tbody tr", has_text="order-7")
    expect(row).to_contain_text("1200.50 KZT")
    page.get_by_label("Status").select_option("pending")
    expect(page.locator("main")).to_contain_text("Nothing matches.")
    page.get_by_label("Status").select_option("succeeded")
    row.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("1200.50 KZT")
    expect(page.get_by_role("button", name="Refund")).to_be_visible()
    expect(page.get_by_role("button", name="Ask the provider")).to_have_count(0)
    page.get_by_role("button", name="Refund").click()
    expect(page.locator("dialog")).to_contain_text(
        "Give back 1100.05 KZT?"
    )  # 50.05 and 50.40 are on their way


def test_the_filter_of_payments_offers_every_status(page: Page, board: Board) -> None:
    open_page(page, board, "payments")
    offered = page.get_by_label("Status").locator("option").evaluate_all("all => all.map(one => one.value)")
    assert set(offered) - {""} == set(get_args(Status))


def remember_payment(home: Path) -> None:
    """A payment as the provider left it; asking for one would need a provider."""
    row = {
        "id": "pay-1",
        "provider": "yookassa",
        "provider_id": "y-1",
        "status": "succeeded",
        "currency": "KZT",
    }
    row |= {
        "amount": 120050,
        "captured": 120050,
        "refunded": 5005,
        "capture": True,
        "metadata": {},
        "checks": 1,
    }
    row |= {"order_id": "order-7", "created_at": NOW, "updated_at": NOW, "final_at": NOW}
    file = next(
        one for one in (home / "var").glob("*.db") if "payments" in inspect(_engine(one)).get_table_names()
    )
    engine = _engine(file)
    with engine.begin() as db:
        db.execute(insert(payments).values(row))
        for number, (amount, status) in enumerate(
            ((5005, "succeeded"), (5040, "pending"), (9000, "refused"))
        ):
            refund = {"id": f"r-{number}", "payment_id": "pay-1", "status": status, "amount": amount}
            db.execute(insert(payment_refunds).values(**refund, created_at=NOW, updated_at=NOW))


def _engine(file: Path) -> Engine:
    return create_engine(f"sqlite:///{file}", poolclass=NullPool)


def test_pages_of_their_own_lead_back_to_the_others(page: Page, board: Board) -> None:
    for place, title in (("mailbox", "Mailbox"), ("media", "Media"), ("scenarios", "Scenarios")):
        page.goto(f"{board.url}/{place}")
        expect(page.locator("nav#nav [aria-current]")).to_have_text(title)
        expect(page.get_by_role("link", name="Payments", exact=True)).to_be_visible()
        page.get_by_role("link", name="Workers", exact=True).click()
        expect(page.locator("h1")).to_have_text("Workers")


def test_a_key_is_shown_once_and_revoked_and_both_are_in_the_audit(page: Page, board: Board) -> None:
    open_page(page, board, "access")
    page.get_by_role("button", name="New key").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Name").fill("shop")
    dialog.get_by_label("One queue only").fill("thumbnails")
    dialog.get_by_role("button", name="Make it").click()
    key = dialog.get_by_label("Key", exact=True).input_value()
    dialog.get_by_role("button", name="I have it").click()
    row = page.locator(".card").first.locator("tr", has_text="shop")
    expect(row.locator(".badge")).to_have_text("in use")
    assert key.startswith("yk_")
    assert key not in page.content()
    row.get_by_role("button", name="Revoke").click()
    page.locator("dialog").get_by_role("button", name="Revoke").click()
    expect(row.locator(".badge")).to_have_text("revoked")
    expect(page.locator("tbody tr", has_text="DELETE /api/v1/keys/{name}").first).to_contain_text("shop")


def test_filters_say_what_is_shown(page: Page, board: Board) -> None:
    open_page(page, board, "activity")
    page.get_by_label("Status").select_option("CANCELLED")
    expect(page.locator(".empty")).to_be_visible()
    page.get_by_label("Event id").fill("reg-2")
    expect(page).to_have_url(re.compile("event_id=reg-2"))
    page.get_by_role("link", name="Notifications", exact=True).click()
    expect(page.locator("tr", has_text="SENT").first).to_be_visible()
    expect(page.get_by_label("Status")).to_have_value("")
    expect(page.get_by_label("Event id")).to_have_value("")


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(page: Page, board: Board, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    for place in PLACES:
        open_page(page, board, place)
        expect(page.locator("h1")).to_have_text(
            "Notifications" if place == "activity" else place.capitalize()
        )
        expect(page.locator("main .card").first).to_be_visible()
        expect(page.locator("nav [aria-current]")).to_be_in_viewport(ratio=1)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, place
        if pictures := os.environ.get("PICTURES"):
            scheme = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'")
            page.screenshot(path=Path(pictures) / f"{place}-{width}-{scheme}.png")
