"""The inbox on a product's page, in Chromium: live, in two tabs, through a restart, by keyboard, and harmless."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from sqlalchemy import delete

from tests.browser.product import USER, Product
from tests.processes import Process
from yamchi import Yamchi
from yamchi.clock import SystemClock
from yamchi.notifications.channels.base import Message
from yamchi.notifications.tables import inbox
from yamchi.notifications.templates.model import Button, Rendered
from yamchi.settings import Settings

expect.set_options(timeout=15_000)

ADMIN = "admin"


def run(work: Coroutine[Any, Any, None]) -> None:
    """In a thread, since Playwright keeps an event loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


class Earlier(SystemClock):
    """The time some while ago."""

    def __init__(self, span: timedelta) -> None:
        self._span = round(span.total_seconds() * 1000)

    def now(self) -> int:
        return super().now() - self._span


class Kino:
    """The product, Yamchi beside it, and a way to tell the person something, as another process does it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.product = Product()
        self.process = self._start("0")
        self.product.yamchi, self.product.api_token = self.process.url, self._key()

    def _key(self) -> str:
        """What the product's backend mints tokens with."""
        asked = {"name": "kino", "scopes": ["people:token"]}
        headers = {"authorization": f"Bearer {ADMIN}"}
        answer = httpx2.post(f"{self.process.url}/api/v1/keys", json=asked, headers=headers)
        return str(answer.json()["key"])

    def _start(self, port: str) -> Process:
        environment = {"ADMIN_TOKEN": ADMIN, "CORS_ORIGINS": self.product.url}
        return Process(self.home, "api", "--port", port, **environment)

    def stop_yamchi(self) -> None:
        self.process.end(signal.SIGTERM)

    def start_yamchi(self) -> None:
        self.process = self._start(self.product.yamchi.rpartition(":")[2])
        assert self.process.url == self.product.yamchi

    def send(
        self,
        title: str | None,
        text: str = "",
        *,
        channel: str = "database",
        ago: timedelta | None = None,
        **fields: Any,
    ) -> str:
        message = Message(str(uuid4()), USER, Rendered(text, title=title, **fields), template_code="t")

        async def deliver() -> None:
            clock = Earlier(ago or timedelta(0))
            async with Yamchi(Settings(home=self.home), clock=clock) as app:
                await app.notifications.channels[channel].send(message)

        run(deliver())
        return message.job_id

    def clear(self) -> None:
        async def forget() -> None:
            async with Yamchi(Settings(home=self.home)) as app:
                await app.database.write(lambda connection: connection.execute(delete(inbox)).rowcount)

        run(forget())


@pytest.fixture(scope="module")
def kino_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kino]:
    kino = Kino(tmp_path_factory.mktemp("kino"))
    try:
        yield kino
    finally:
        kino.stop_yamchi()
        kino.product.stop()


@pytest.fixture
def kino(kino_home: Kino) -> Kino:
    kino_home.clear()
    kino_home.product.attributes, kino_home.product.language, kino_home.product.life = "", "en", "15m"
    return kino_home


@pytest.fixture
def tab(browser: Browser, kino: Kino) -> Iterator[Callable[..., Page]]:
    """Opens tabs of one browser. Each must end without an error of ours on its console."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def open_tab(**options: Any) -> Page:
        if not contexts or options:
            context = browser.new_context(**{"viewport": {"width": 1000, "height": 700}, **options})
            contexts.append(context)
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: said.type == "error" and problems.append(said.text))
        page.goto(kino.product.url)
        return page

    yield open_tab
    for context in contexts:
        context.close()
    expected = ("Failed to load resource", "WebSocket connection to")  # a server that is gone
    assert [problem for problem in problems if not problem.startswith(expected)] == []


def bell(page: Page) -> Locator:
    return page.locator("yamchi-inbox .bell")


def badge(page: Page) -> Locator:
    return page.locator("yamchi-inbox .badge")


def items(page: Page) -> Locator:
    return page.locator("yamchi-inbox li")


def is_live(page: Page) -> None:
    """It has been let in, and its list is there."""
    expect(page.locator("yamchi-inbox .note")).not_to_have_text("Connecting…")
    expect(page.locator("yamchi-inbox .note")).not_to_have_text("Loading…")


def shoot(page: Page, name: str, clip: Any = None) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", animations="disabled", clip=clip)


def test_a_message_arrives_live_and_is_read_in_every_tab(kino: Kino, tab: Callable[..., Page]) -> None:
    one, two = tab(), tab()
    for page in (one, two):
        is_live(page)
        expect(badge(page)).to_be_hidden()
    kino.send("Tickets are ready", "Row 7, seats 12 and 13.", url="/tickets/7")
    kino.send("New film", "We think you will like it.")
    for page in (one, two):
        expect(badge(page)).to_have_text("2")
    bell(two).click()
    expect(items(two)).to_have_count(2)
    expect(items(two).first).to_contain_text("New film")
    expect(items(two).nth(1)).to_have_class("is-unread")
    bell(one).click()
    items(one).first.locator(".open").click()
    expect(badge(one)).to_have_text("1")
    expect(badge(two)).to_have_text("1")
    expect(items(two).first).not_to_have_class("is-unread")
    items(one).nth(1).locator(
        ".open"
    ).click()  # it has an address: the page goes there, and it is read all the same
    expect(one).to_have_url(f"{kino.product.url}/tickets/7")
    expect(badge(two)).to_be_hidden()
    expect(badge(one)).to_be_hidden()


def test_all_are_read_and_one_is_put_away_in_every_tab(kino: Kino, tab: Callable[..., Page]) -> None:
    for number in range(3):
        kino.send(f"Message {number}", "Text.")
    one, two = tab(), tab()
    for page in (one, two):
        expect(badge(page)).to_have_text("3")
        bell(page).click()
        expect(items(page)).to_have_count(3)
    one.get_by_role("button", name="Mark all as read").click()
    for page in (one, two):
        expect(badge(page)).to_be_hidden()
        expect(page.locator("yamchi-inbox li.is-unread")).to_have_count(0)
    items(one).nth(1).hover()
    one.get_by_role("button", name="Archive: Message 1").click()
    for page in (one, two):
        expect(items(page)).to_have_count(2)
        expect(items(page).get_by_text("Message 1")).to_have_count(0)
    one.reload()
    bell(one).click()
    expect(items(one)).to_have_count(2)


def test_while_yamchi_restarts_nothing_is_lost_or_doubled(kino: Kino, tab: Callable[..., Page]) -> None:
    page = tab()
    is_live(page)
    kino.send("Before", "Text.")
    expect(badge(page)).to_have_text("1")
    bell(page).click()
    kino.stop_yamchi()
    expect(page.locator("yamchi-inbox .note")).to_have_text("Connecting…")
    kino.send("Meanwhile", "Text.")
    kino.start_yamchi()
    expect(items(page)).to_have_count(2)
    kino.send("After", "Text.")
    expect(items(page)).to_have_count(3)
    assert [name.split("\n")[0] for name in items(page).locator(".name").all_inner_texts()] == [
        "After",
        "Meanwhile",
        "Before",
    ]
    expect(badge(page)).to_have_text("3")


def test_a_message_can_not_become_markup_nor_a_link_a_script(kino: Kino, tab: Callable[..., Page]) -> None:
    page = tab()
    is_live(page)
    evil = "<img src=x onerror='window.owned=1'><script>window.owned=1</script>"
    buttons = ((Button("Good", url="https://example.com/x"), Button("Bad", url="javascript:window.owned=1")),)
    kino.send(evil, evil, url="javascript:window.owned=1", buttons=buttons)
    kino.send("Data", "Text.", url="data:text/html,<script>1</script>")
    bell(page).click()
    expect(items(page)).to_have_count(2)
    last = items(page).nth(1)
    expect(last.locator(".name")).to_have_text(evil)
    assert last.locator("img, script").count() == 0
    assert page.locator("yamchi-inbox li a").evaluate_all("links => links.map((a) => [a.href, a.rel])") == [
        ["https://example.com/x", "noopener noreferrer"]
    ]
    last.locator(".open").click()
    expect(badge(page)).to_have_text("1")
    assert page.evaluate("window.owned") is None


def test_by_keyboard_and_for_those_who_listen(kino: Kino, tab: Callable[..., Page]) -> None:
    page = tab()
    is_live(page)
    for number in range(3):
        kino.send(f"Message {number}", "Text.")
    expect(badge(page)).to_have_text("3")
    expect(page.get_by_role("button", name="Notifications, 3 unread")).to_have_attribute(
        "aria-expanded", "false"
    )
    expect(page.locator("yamchi-inbox [aria-live]")).to_have_text("New notification: Message 2")
    page.keyboard.press("Tab")
    expect(bell(page)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Notifications")).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(items(page).nth(0).locator(".open")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(items(page).nth(1)).not_to_have_class("is-unread")
    expect(items(page).nth(1).locator(".open")).to_be_focused()  # drawn anew, and still in hand
    page.keyboard.press("Delete")
    expect(items(page)).to_have_count(2)
    expect(items(page).nth(1).locator(".open")).to_be_focused()
    page.keyboard.press("Home")
    expect(items(page).nth(0).locator(".open")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Notifications")).to_be_hidden()
    expect(bell(page)).to_be_focused()


def test_a_long_inbox_is_read_page_by_page(kino: Kino, tab: Callable[..., Page]) -> None:
    for number in range(25):
        kino.send(f"Message {number:02}", "Text.", ago=timedelta(minutes=100 - number))
    page = tab()
    bell(page).click()
    expect(items(page)).to_have_count(20)
    kino.send("Newest", "Text.")
    expect(items(page)).to_have_count(21)
    page.get_by_role("button", name="Show more").click()
    expect(items(page)).to_have_count(26)
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()
    names = items(page).locator(".name").all_inner_texts()
    assert [name.split("\n")[0] for name in names] == [
        "Newest",
        *(f"Message {n:02}" for n in reversed(range(25))),
    ]
    expect(badge(page)).to_have_text("26")


def test_a_message_over_ws_is_shown_for_a_while_unless_the_page_takes_it(
    kino: Kino, tab: Callable[..., Page]
) -> None:
    page = tab()
    is_live(page)
    kino.send("Payment received", "12 990 ₸", channel="ws", url="/orders/42")
    toast = page.locator("yamchi-inbox .toast")
    expect(toast).to_contain_text("Payment received")
    expect(toast.locator("a")).to_have_attribute("href", f"{kino.product.url}/orders/42")
    shoot(page, "inbox-toast")
    page.get_by_role("button", name="Close").click()
    expect(toast).to_have_count(0)
    page.evaluate(
        """addEventListener("yamchi-message", (event) => {
            event.preventDefault();
            document.title = event.detail.title;
        })"""
    )
    kino.send("For the page", "Text.", channel="ws")
    expect(page).to_have_title("For the page")
    expect(toast).to_have_count(0)
    expect(badge(page)).to_be_hidden()


def test_a_token_is_renewed_before_it_expires(kino: Kino, tab: Callable[..., Page]) -> None:
    kino.product.life = "3s"
    before = kino.product.minted
    page = tab()
    is_live(page)
    kino.process.wait_for(lambda: kino.product.minted - before >= 3, "a third token")
    kino.send("Still here", "Text.")
    expect(badge(page)).to_have_text("1")
    bell(page).click()
    page.get_by_role("button", name="Mark all as read").click()
    expect(badge(page)).to_be_hidden()


def test_a_forged_token_shows_nothing_but_that(kino: Kino, tab: Callable[..., Page]) -> None:
    page = tab()
    is_live(page)
    page.evaluate(
        """(token) => {
            const inbox = document.querySelector("yamchi-inbox");
            inbox.remove();
            inbox.removeAttribute("token-url");
            inbox.setAttribute("token", token);
            document.body.append(inbox);
        }""",
        f"person.99999999999999.{USER}.{'0' * 64}",
    )
    bell(page).click()
    expect(page.locator("yamchi-inbox .note")).to_have_text("Notifications can't be shown now.")
    expect(items(page)).to_have_count(0)


@pytest.mark.parametrize(
    ("language", "words"),
    [("ru", ("Уведомления", "Прочитать все")), ("kk", ("Хабарландырулар", "Бәрін оқылды деу"))],
)
def test_it_speaks_the_languages_of_the_page(
    kino: Kino, tab: Callable[..., Page], language: str, words: tuple[str, str]
) -> None:
    kino.product.language = language
    kino.send("Айдана", "Мәтін", ago=timedelta(hours=3))
    page = tab()
    expect(badge(page)).to_have_text("1")
    bell(page).click()
    expect(page.locator("yamchi-inbox h2")).to_have_text(words[0])
    expect(page.locator("yamchi-inbox header button")).to_have_text(words[1])
    assert (
        page.locator("yamchi-inbox time").inner_text()
        == {"ru": "3 часа назад", "kk": "3 сағат бұрын"}[language]
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_light_and_dark_wide_and_narrow(kino: Kino, tab: Callable[..., Page], scheme: Any) -> None:
    day = timedelta(days=1)
    kino.send("Чек готов", "Оплата прошла: 12 990 ₸. Спасибо!", ago=40 * day)
    kino.send("Your week in films", "Seven films, two of them twice.", ago=2 * day, url="/week")
    kino.send(None, "A message without a title says what it has to say in its text.", ago=timedelta(hours=5))
    page = tab(color_scheme=scheme)
    expect(badge(page)).to_have_text("3")
    bell(page).click()
    page.get_by_role("button", name="Mark all as read").click()
    expect(badge(page)).to_be_hidden()
    buttons = ((Button("Add to calendar", url="/calendar"), Button("Share", url="https://example.com")),)
    kino.send(
        "Tonight at 19:30: Tulpan",
        "Hall 2, row 7, seats 12 and 13. The doors open at 19:00.",
        buttons=buttons,
    )
    kino.send("Payment failed", "Your bank said no. Try another card within 15 minutes.", url="/pay")
    expect(badge(page)).to_have_text("2")
    items(page).nth(1).hover()
    background = page.locator("yamchi-inbox .panel").evaluate(
        "node => getComputedStyle(node).backgroundColor"
    )
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(30, 28, 26)"}[scheme]
    shoot(page, f"inbox-{scheme}", {"x": 560, "y": 0, "width": 440, "height": 640})
    kino.product.attributes = f'theme="{"dark" if scheme == "light" else "light"}"'
    other = tab(color_scheme=scheme, viewport={"width": 390, "height": 780})
    expect(badge(other)).to_have_text("2")
    bell(other).click()
    expect(items(other)).to_have_count(5)
    panel = other.locator("yamchi-inbox .panel").bounding_box()
    assert panel
    assert panel["x"] >= 0
    assert panel["x"] + panel["width"] <= 390
    shoot(other, f"inbox-phone-{'dark' if scheme == 'light' else 'light'}")


def test_an_empty_inbox(kino: Kino, tab: Callable[..., Page]) -> None:
    page = tab()
    bell(page).click()
    expect(page.locator("yamchi-inbox .note")).to_have_text("Nothing new. What happens will be here.")
    shoot(page, "inbox-empty")
    page.locator("main").click()
    expect(page.get_by_role("dialog", name="Notifications")).to_be_hidden()
