"""What a person does on the board, in Chromium."""

import os
import re
import signal
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Board
from tests.processes import Process

expect.set_options(timeout=15_000)


def open_queue(page: Page, board: Board, rest: str = "thumbnails") -> None:
    page.goto(f"{board.url}/#/queues/{rest}")


def test_a_job_that_is_done_shows_without_reloading(page, board):
    page.goto(board.url)
    row = page.locator("tr", has_text="thumbnails")
    expect(row).to_be_visible()
    before = int(row.locator("td").nth(4).inner_text())
    board.add("thumbnails", {"url": "a.jpg"})
    expect(row.locator("td").nth(4)).to_have_text(str(before + 1))
    expect(page.locator("#live")).to_have_text("live")
    row.get_by_role("link", name="thumbnails").click()
    expect(page.locator("h1")).to_have_text("thumbnails")


def test_a_queue_is_paused_and_resumed(page, board):
    page.goto(board.url)
    row = page.locator("tr", has_text="letters")
    row.get_by_role("button", name="Pause").click()
    expect(row.get_by_text("paused")).to_be_visible()
    row.get_by_role("button", name="Resume").click()
    expect(row.get_by_role("button", name="Pause")).to_be_visible()


def test_data_can_not_become_markup(page, board):
    evil = "<img src=x onerror='window.owned=1'><script>window.owned=1</script>"
    board.add("letters", {evil: evil}, id="<b>bold</b>")
    open_queue(page, board, "letters")
    page.get_by_role("link", name="<b>bold</b>").click()
    expect(page.locator("h1")).to_have_text("<b>bold</b>")
    expect(page.locator("pre").first).to_contain_text("<script>window.owned=1</script>")
    assert page.evaluate("window.owned") is None
    assert page.locator("main img, main script").count() == 0


def test_a_job_is_added_in_a_dialog_that_checks_it(page, board):
    open_queue(page, board)
    page.get_by_role("button", name="Add job").click()
    dialog = page.locator("dialog")
    dialog.locator("textarea").fill("{")
    dialog.get_by_role("button", name="Add job").click()
    expect(dialog.get_by_role("alert")).to_contain_text("The data is not JSON")
    dialog.locator("textarea").fill('{"url": 1}')
    dialog.get_by_role("button", name="Add job").click()
    expect(dialog.get_by_role("alert")).to_contain_text("url: Input should be a valid string")
    dialog.locator("textarea").fill('{"url": "from-the-board.jpg"}')
    dialog.get_by_label("Id").fill("from-the-board")
    dialog.get_by_role("button", name="Add job").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("link", name="from-the-board").click()
    expect(page.locator("h1")).to_have_text("from-the-board")
    expect(page.locator(".badge", has_text="completed")).to_be_visible()
    expect(page.locator("section", has_text="Result")).to_contain_text("from-the-board.jpg")
    expect(page.locator("section", has_text="Log")).to_contain_text("looking at from-the-board.jpg")


def test_a_failed_job_is_mended_and_retried(page, board):
    board.add("thumbnails", {"url": "bad"}, id="to-mend")
    page.goto(f"{board.url}/#/queues/thumbnails/jobs/to-mend")
    expect(page.locator(".banner")).to_have_text("<b>not</b> an image")
    expect(page.locator("section", has_text="Stack")).to_contain_text("Unrecoverable")
    page.get_by_role("button", name="Edit and retry").click()
    page.locator("dialog textarea").fill('{"url": "good.jpg"}')
    page.get_by_role("button", name="Save and retry").click()
    expect(page.locator("section", has_text="Result")).to_contain_text("good.jpg")


def test_a_number_that_javascript_would_round_stays_as_it_is(page, board):
    large = 1234567890123456789
    job_id = board.add("letters", {"chat": large, "share": 0.5}, delay="1h")
    page.goto(f"{board.url}/#/queues/letters/jobs/{job_id}")
    expect(page.locator("pre").first).to_contain_text(str(large))
    page.get_by_role("button", name="Edit data").click()
    dialog = page.locator("dialog")
    expect(dialog.get_by_label("Data")).to_have_value(re.compile(str(large)))
    dialog.get_by_label("Data").fill(f'{{"chat": {large}, "to": [-{large}, 1e3]}}')
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator("pre").first).to_contain_text(str(-large))
    assert board.job("letters", job_id)["data"] == {"chat": large, "to": [-large, 1000.0]}
    board.remove("letters", job_id)


def test_a_search_box_says_what_is_searched_for(page, board):
    board.add("letters", {"about": "needle"}, id="found", delay="1h")
    page.goto(f"{board.url}/#/queues/letters?state=delayed")
    box = page.get_by_label("Search")
    box.fill("no such thing")
    expect(page.locator(".empty")).to_have_text("No job contains “no such thing”.")
    page.go_back()
    expect(page.locator("tr", has_text="found")).to_be_visible()
    expect(box).to_have_value("")
    box.press_sequentially("needle ")
    expect(page).to_have_url(re.compile("q=needle$"))
    expect(box).to_have_value("needle ")
    board.remove("letters", "found")


def test_a_delayed_job_is_promoted_and_a_job_removed(page, board):
    board.add("thumbnails", {"url": "later.jpg"}, id="film/7@night", delay="2d")
    open_queue(page, board, "thumbnails?state=delayed")
    page.get_by_role("link", name="film/7@night").click()
    expect(page.locator("h1")).to_have_text("film/7@night")
    expect(page.locator(".timeline")).to_contain_text("in 2 d")
    page.get_by_role("button", name="Run now").click()
    expect(page.locator(".badge", has_text="completed")).to_be_visible()
    page.get_by_role("button", name="Remove").click()
    page.locator("dialog").get_by_role("button", name="Remove").click()
    expect(page).to_have_url(f"{board.url}/#/queues/thumbnails")


def test_dead_letters_are_replayed_mended_and_purged(page, board):
    for number in range(3):
        board.add("thumbnails", {"url": "bad"}, id=f"dead-{number}")
    open_queue(page, board, "thumbnails/dlq?q=dead-")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    first = page.locator("tr", has_text="dead-0")
    first.get_by_role("button", name="Edit").click()
    page.locator("dialog textarea").fill('{"url": "mended.jpg"}')
    page.locator("dialog").get_by_role("button", name="Replay").click()
    expect(rows).to_have_count(2)
    page.locator("tr", has_text="dead-1").get_by_role("button", name="Purge").click()
    page.locator("dialog").get_by_role("button", name="Purge").click()
    expect(rows).to_have_count(1)
    assert board.job("thumbnails", "dead-0")["result"] == {"file": "mended.jpg"}


def test_search_and_paging_and_bulk_actions(page, board):
    for number in range(30):
        board.add("letters", {"n": number}, id=f"bulk-{number:02}", delay="1h")
    open_queue(page, board, "letters?state=delayed")
    expect(page.locator("tbody tr")).to_have_count(25)
    page.get_by_role("button", name="Older →").click()
    expect(page.locator("tbody tr")).to_have_count(5)
    search = page.get_by_role("searchbox")
    search.press_sequentially("bulk-1", delay=30)
    expect(page.locator("tbody tr")).to_have_count(10)
    expect(search).to_be_focused()
    page.get_by_label("Choose all").check()
    page.get_by_role("button", name="Remove").click()
    page.locator("dialog").get_by_role("button", name="Remove").click()
    expect(page.locator("main")).to_contain_text("No job contains")


def test_a_choice_survives_the_refresh(page, board):
    board.add("letters", {}, id="chosen", delay="1h")
    open_queue(page, board, "letters?state=delayed&q=chosen")
    page.get_by_label("Choose chosen").check()
    with page.expect_response(lambda answer: "/jobs?" in answer.url):
        pass
    expect(page.get_by_label("Choose chosen")).to_be_checked()


def test_a_huge_result_is_cut_until_asked_for(page, board):
    board.add("thumbnails", {"url": "huge"}, id="huge")
    page.goto(f"{board.url}/#/queues/thumbnails/jobs/huge")
    result = page.locator("section", has_text="Result").locator("pre")
    expect(result).to_be_visible()
    assert len(result.inner_text()) < 10_000
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("section", has_text="Result")).to_contain_text("Cut at")


def test_workers_are_listed(page, board):
    page.goto(f"{board.url}/#/workers")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("thumbnails")


def test_an_unknown_job_is_one_sentence(page, board):
    page.goto(f"{board.url}/#/queues/thumbnails/jobs/nope")
    expect(page.locator(".banner")).to_contain_text("Queue thumbnails has no job 'nope'")


def test_an_address_that_was_cut_is_one_sentence(page, board):
    page.goto(f"{board.url}/#/queues/%E0%A4%A")
    expect(page.locator(".banner")).to_contain_text("There is no queue '%E0%A4%A'")


@pytest.mark.parametrize("width", [360, 1280])
def test_hundreds_of_millions_fit(page, board, width):
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(board.url)
    expect(page.locator("#live")).to_have_text("live")
    fits = page.evaluate("""async () => {
        const [{ overview }, { patch }] = await Promise.all(["overview", "dom"].map((name) => import(`/board/${name}.js`)));
        const states = ["waiting", "active", "delayed", "completed", "failed"];
        const counts = Object.fromEntries(states.map((state) => [state, 348_148_136]));
        const queue = { name: "letters", type: "kafka", paused: true, counts, dead_letters: 348_148_136, history: [] };
        patch(document.getElementById("view"), overview.render({ queues: [queue], workers: [] }, {}));
        const tiles = [...document.querySelectorAll(".tile")];
        const isWithin = (tile) => { const text = document.createRange(); text.selectNodeContents(tile.firstChild); return text.getBoundingClientRect().right <= tile.getBoundingClientRect().right; };
        return { page: document.documentElement.scrollWidth <= innerWidth, tiles: tiles.every(isWithin), said: tiles[0].innerText.split("\\n")[0], exact: tiles[0].firstChild.title };
    }""")
    assert fits == {"page": True, "tiles": True, "said": "348.15M", "exact": "348,148,136"}


def test_the_api_page_sends_a_call(page, board):
    page.goto(f"{board.url}/docs")
    page.locator("summary", has_text="/healthz").click()
    page.locator("details[open]").get_by_role("button", name="Send").click()
    expect(page.locator("details[open] pre")).to_contain_text('"status": "ok"')


def test_the_theme_is_remembered(page, board):
    page.goto(board.url)
    page.locator("#theme").click()
    page.locator("#theme").click()
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen(page, board, width, tmp_path):
    board.add("letters", {"long": "word" * 300}, id="x" * 255, delay="1h")
    page.set_viewport_size({"width": width, "height": 800})
    for place in (
        "",
        "#/queues/letters",
        f"#/queues/letters/jobs/{'x' * 255}",
        "#/workers",
        "#/queues/letters/dlq",
        "docs",
    ):
        page.goto(f"{board.url}/{place}")
        expect(page.locator("main .card").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, place
        if pictures := os.environ.get("PICTURES"):
            name = f"{place.replace('#', '').replace('/', '-')[:30]}-{width}.png"
            page.screenshot(path=Path(pictures) / name)


def test_the_tab_of_what_is_shown_is_seen_on_a_phone(page, board):
    page.set_viewport_size({"width": 390, "height": 844})
    for place in ("letters/dlq", "letters?state=failed", "letters?state=expired", "letters"):
        open_queue(page, board, place)
        expect(page.locator(".tabs [aria-current]")).to_be_in_viewport(ratio=1)


def test_the_board_says_when_the_server_is_gone_and_comes_back(page, board_home, browser):
    process = Process(board_home, "api", "--app", "shop:app", "--port", "0")
    url = process.url
    page.goto(url)
    expect(page.locator("#live")).to_have_text("live")
    process.end(signal.SIGTERM)
    expect(page.locator("#live")).to_have_text("offline")
    again = Process(board_home, "api", "--app", "shop:app", "--port", url.rpartition(":")[2])
    assert again.url == url  # it answers
    expect(page.locator("#live")).to_have_text("live")
    again.end(signal.SIGTERM)


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_signing_in_and_out(browser: Browser, board_home: Path):
    process = Process(board_home, "api", "--app", "shop:app", "--port", "0", ADMIN_TOKEN="open sesame")
    context = browser.new_context()
    page = context.new_page()
    page.goto(process.url)
    sign_in(page, "wrong")
    expect(page.get_by_role("alert")).to_have_text("That is neither the admin token nor a key.")
    sign_in(page, "open sesame")
    expect(page.locator("tr", has_text="thumbnails")).to_be_visible()
    (cookie,) = context.cookies()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    stolen = {"cookie": f"{cookie['name']}={cookie['value']}"}
    assert httpx2.get(f"{process.url}/api/queues", headers=stolen).status_code == 401
    context.close()
    process.end(signal.SIGTERM)


def test_who_may_only_look_finds_nothing_to_press(browser: Browser, board_home: Path, tmp_path: Path):
    process = Process(board_home, "up", "--app", "shop:app", "--port", "0", ADMIN_TOKEN="open sesame")
    admin = {"authorization": "Bearer open sesame"}
    with httpx2.Client(base_url=process.url, headers=admin) as client:
        asked = {"name": "eye", "scopes": ["read"]}
        key = client.post("/api/v1/keys", json=asked).json()["key"]
        body = {"data": {"url": "bad", "password": "hunter2"}, "id": "seen", "name": "make"}
        client.post("/api/queues/thumbnails/jobs", json=body).raise_for_status()
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(process.url)
    sign_in(page, key)
    expect(page.locator("tr", has_text="thumbnails")).to_be_visible()
    expect(page.get_by_text("read only")).to_be_visible()
    page.screenshot(path=tmp_path / "overview.png")
    for place in (
        "/",
        "/queues/thumbnails?state=failed",
        "/queues/thumbnails/jobs/seen",
        "/queues/thumbnails/dlq",
    ):
        page.goto(f"{process.url}/#{place}")
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator("main").get_by_text("thumbnails").first).to_be_visible()
        for name in ("Pause", "Add job", "Clean", "Retry", "Retry all", "Edit", "Remove", "Replay", "Purge"):
            expect(page.get_by_role("button", name=name)).to_have_count(0)
        assert "hunter2" not in page.content()
    page.goto(f"{process.url}/#/queues/thumbnails/jobs/seen")
    expect(page.locator(".banner")).to_have_text("<b>not</b> an image")
    page.screenshot(path=tmp_path / "job.png")
    context.close()
    process.end(signal.SIGTERM)
