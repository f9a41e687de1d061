"""A real board in a real Chromium: one server and one browser for a module, a fresh page for each test.

Where Chromium can't be had, the tests are skipped and say why; with CI=true they fail.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from tests.processes import Process
from tests.services.missing import required

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

APP = """
from pydantic import BaseModel
from yamchi import Job, Unrecoverable, Yamchi

app = Yamchi()


class Thumb(BaseModel):
    url: str


@app.job("thumbnails", attempts=2)
async def make(job: Job[Thumb]) -> object:
    await job.log(f"looking at {job.data.url}")
    if job.data.url == "bad":
        raise Unrecoverable("<b>not</b> an image")
    return ["x" * 100] * 20_000 if job.data.url == "huge" else {"file": job.data.url}


app.define("letters")
app.notifications.serve()
"""


class Board:
    """A running board, with a short way to its API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def add(self, queue: str, data: object, **options: object) -> str:
        answer = httpx2.post(f"{self.url}/api/queues/{queue}/jobs", json={"data": data, **options})
        answer.raise_for_status()
        return str(answer.json()["id"])

    def remove(self, queue: str, job_id: str) -> None:
        httpx2.delete(f"{self.url}/api/queues/{queue}/jobs/{job_id}").raise_for_status()

    def job(self, queue: str, job_id: str) -> dict[str, object]:
        found: dict[str, object] = httpx2.get(f"{self.url}/api/queues/{queue}/jobs/{job_id}").json()
        return found


@pytest.fixture(scope="module")
def board_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("board")
    (home / "shop.py").write_text(APP)
    return home


@pytest.fixture(scope="module")
def board(board_home: Path) -> Iterator[Board]:
    process = Process(board_home, "up", "--app", "shop:app", "--port", "0")
    try:
        yield Board(process.url)
    finally:
        process.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = required("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(params=["light"])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page that must end without an error, and without having asked anybody but our server."""
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    problems: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        is_refused = (
            "Failed to load resource" in message.text
        )  # an answer such as 404, or a server that is gone
        if message.type in ("error", "warning") and not is_refused:
            problems.append(message.text)

    def on_request(asked: Request) -> None:
        if not asked.url.startswith(("http://localhost:", "data:")):
            problems.append(f"asked for {asked.url}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", on_request)
    yield page
    context.close()
    assert problems == []
