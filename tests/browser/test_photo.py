"""A page of a product, as the recipe writes it: a person chooses a photo and sees progress, a blur of it, then the photo."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.browser.product import STYLE, USER, Product
from tests.media import pictures
from tests.processes import Process

expect.set_options(timeout=60_000)

RECIPE = Path(__file__).parents[2] / "docs" / "recipes" / "avatar-upload.md"
ADMIN = {"authorization": "Bearer admin"}


def block(language: str) -> str:
    """A piece of code of the recipe."""
    found = re.search(rf"```{language}\n(.*?)```", RECIPE.read_text("utf-8"), re.DOTALL)
    assert found
    return found[1]


class PhotoProduct(Product):
    """The recipe's page, with a policy of its own."""

    @property
    def policy(self) -> str:
        return f"{super().policy}; img-src 'self' data: {self.yamchi}"

    def answer(self, path: str) -> tuple[bytes, str]:
        if path == "/photo.js":
            script = block("js").replace("https://yamchi.shop.example", self.yamchi)
            return script.encode(), "text/javascript"
        if path == "/kino.css":
            form = "#photo { display: grid; justify-items: start; gap: 12px; padding: 24px; } img { border-radius: 12px; }"
            return f"{STYLE}{form}".encode(), "text/css"
        if path == "/me":
            return f'{{"id": "{USER}"}}'.encode(), "application/json"
        if path == "/photo":
            html = (
                f'<!doctype html><title>Kino</title><link rel="stylesheet" href="/kino.css">{block("html")}'
            )
            return html.encode(), "text/html; charset=utf-8"
        return super().answer(path)


@pytest.fixture
def product(tmp_path: Path) -> Iterator[PhotoProduct]:
    product = PhotoProduct()
    environment = {"ADMIN_TOKEN": "admin", "CORS_ORIGINS": product.url, "MEDIA_PROCESSES": "1"}
    process = Process(tmp_path, "up", "--port", "0", **environment)
    product.yamchi = process.url
    asked = {"name": "kino", "scopes": ["people:token"]}
    answer = httpx2.post(f"{process.url}/api/v1/keys", json=asked, headers=ADMIN)
    product.api_token = str(answer.json()["key"])
    yield product
    product.stop()
    process.end(signal.SIGTERM)


def choose(page: Page, content: bytes) -> None:
    file = {"name": "me.jpg", "mimeType": "image/jpeg", "buffer": content}
    page.set_input_files("#photo input", [file])  # type: ignore[list-item]


def keep(page: Page, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", clip={"x": 0, "y": 0, "width": 420, "height": 400})


class HeldNews:
    """What comes over /ws, kept back after the blur has arrived, so that there is time to look at the page."""

    def __init__(self, page: Page) -> None:
        self.heard: list[dict[str, Any]] = []
        self._held: list[str | bytes] = []
        self._is_holding = True
        page.route_web_socket("**/ws", self._connect)

    def _connect(self, page: WebSocketRoute) -> None:
        self._page, server = page, page.connect_to_server()
        server.on_message(self._hear)

    def _hear(self, frame: str | bytes) -> None:
        media = json.loads(frame).get("message", {}).get("media", {})
        if media:
            self.heard.append(media)
        if self._is_holding and media and media.get("progress", 100) > 50:
            self._held.append(frame)
        else:
            self._page.send(frame)

    def release(self) -> None:
        self._is_holding = False
        for frame in self._held:
            self._page.send(frame)


def test_a_photo_from_choice_to_picture(product: PhotoProduct, page: Page) -> None:
    news = HeldNews(page)
    page.goto(f"{product.url}/photo")
    choose(page, pictures.scene(4000, 3000))
    photo, bar = page.locator("#photo img"), page.locator("#photo progress")
    expect(photo).to_have_attribute("src", re.compile("^data:image/png"))
    expect(bar).to_have_js_property("value", 50 + 30 / 2)
    keep(page, "photo-blur")
    expect(page.locator("#photo output")).to_have_text("Being made…")
    news.release()
    expect(page.locator("#photo output")).to_have_text("Saved.")
    expect(photo).to_have_attribute("src", re.compile(rf"^{product.yamchi}/media/[\w-]+/medium-\w+\.webp$"))
    expect(photo).to_have_js_property("naturalWidth", 256)
    expect(bar).to_be_hidden()
    keep(page, "photo")
    assert [one.get("progress") for one in news.heard] == [5, 30, 80, 93, None]
    assert news.heard[-1]["status"] == "ready"


def test_a_file_that_is_no_picture(product: PhotoProduct, page: Page) -> None:
    page.goto(f"{product.url}/photo")
    choose(page, b"just text")
    said = page.locator("#photo output")
    expect(said).to_have_text("The file is not a picture that can be read: send JPEG, PNG, WebP or GIF.")
    choose(page, pictures.jpeg()[:3000])
    expect(said).to_contain_text("The file is damaged")


def test_a_person_reads_only_their_own(product: PhotoProduct) -> None:
    files = {"file": ("a.jpg", pictures.jpeg())}
    sent = httpx2.post(f"{product.yamchi}/api/admin/media/upload-async", files=files, headers=ADMIN).json()
    token = {"authorization": f"Bearer {httpx2.Response(200, content=product.mint()).json()['token']}"}
    others = httpx2.get(f"{product.yamchi}/api/v1/users/{USER}/media/{sent['mediaId']}", headers=token)
    assert others.status_code == 404
    mine = httpx2.post(f"{product.yamchi}/api/v1/users/{USER}/media", files=files, headers=token).json()
    own = httpx2.get(f"{product.yamchi}/api/v1/users/{USER}/media/{mine['mediaId']}", headers=token)
    assert own.json()["userId"] == USER
    assert httpx2.get(f"{product.yamchi}/api/admin/media", headers=token).status_code in (401, 403)
