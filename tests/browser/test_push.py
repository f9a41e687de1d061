"""Web Push in a real Chromium, offline: it subscribes with subscribe.js, and itself opens what Yamchi sealed for it.

What Chromium asks its maker for is answered here, so the only thing that is not real is who carries the message.
"""

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import BrowserContext, Page, Route, Worker, sync_playwright

from tests.browser.conftest import FLAGS
from tests.processes import Process
from tests.services.cloudmessaging import CloudMessaging
from tests.services.missing import required
from tests.services.push import Browser, PushService
from yamchi.notifications.channels.push.vapid import VapidKey

USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"
KEY = VapidKey.make()
TIMEOUT_SECONDS = 100.0

# Kept by the worker itself: without a desktop Chromium may have forgotten a notification as soon as it has shown it.
KEEP_SHOWN = """() => {
  const { registration } = self;
  const show = registration.showNotification.bind(registration);
  self.asked = [];
  self.shown = [];
  registration.showNotification = async (title, options) => {
    self.asked.push(title);
    await show(title, options);
    self.shown.push({ title, body: options.body, url: options.data.url });
  };
}"""


@dataclass
class Chromium(Browser):
    """A browser whose keys only it has: what is sealed for it is carried on, and opened there."""

    cloud: CloudMessaging | None = None

    def open(self, body: bytes) -> bytes:
        assert self.cloud is not None
        self.cloud.push(body)
        return b"{}"


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[CloudMessaging]:
    with CloudMessaging(home=tmp_path) as cloud:
        yield cloud


@pytest.fixture
def service() -> Iterator[PushService]:
    with PushService() as service:
        yield service


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    settings = {
        "VAPID_PRIVATE_KEY": KEY.private_text,
        "VAPID_SUBJECT": "mailto:ops@example.com",
        "PUSH_ALLOW_PRIVATE": "true",
    }
    process = Process(tmp_path, "up", "--port", "0", **settings)
    yield process.url
    process.end(signal.SIGTERM)


@pytest.fixture
def context(tmp_path: Path, cloud: CloudMessaging) -> Iterator[BrowserContext]:
    chromium = required("chromium")
    networking = "--disable-background-networking"
    flags = [flag for flag in FLAGS if flag != networking] + cloud.flags()
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path / "profile", executable_path=chromium, args=flags, ignore_default_args=[networking]
        )
        yield context
        context.close()


def carry_through(page: Page, service: PushService, cloud: CloudMessaging) -> None:
    """Let the browser's endpoint be at our push service: its own is at a host that is not here."""

    def subscribe(route: Route) -> None:
        given = json.loads(route.request.post_data or "{}")
        path = "/push/chromium"
        given["endpoint"] = f"{service.origin}{path}"
        service.browsers[path] = Chromium(given["endpoint"], KEY.public_text, cloud=cloud)
        route.continue_(post_data=json.dumps(given))

    page.route("**/api/v1/users/*/push", subscribe)


def notify(url: str, **fields: Any) -> None:
    job = {
        "job_id": "7d1f0f3e-6c53-4b8f-9a0e-2f4f5a1f0001",
        "user_id": USER,
        "channel": "push",
        "template_code": "payment_failed",
        "locale": "ru",
        "data": {"amount": "12990.00", "retry_url": "https://example.com/42"},
        "meta": {"event_type": "payment.canceled", "event_id": "e-1"},
        "created_at": "2025-11-14T12:35:10Z",
    }
    httpx2.post(f"{url}/api/v1/notifications", json=job | fields).raise_for_status()


def what_is_shown(worker: Worker, page: Page) -> list[dict[str, Any]]:
    """The notifications, as soon as there are any."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not (shown := worker.evaluate("() => self.shown")):
        asked = worker.evaluate("() => self.asked")
        assert time.monotonic() < end, f"the browser shows nothing; it was asked to show {asked}"
        page.wait_for_timeout(50)
    return list(shown)


def test_a_browser_subscribes_and_opens_what_is_sealed_for_it(
    context: BrowserContext, url: str, cloud: CloudMessaging, service: PushService
) -> None:
    context.grant_permissions(["notifications"], origin=url)
    page = context.new_page()
    page.goto(url)
    carry_through(page, service, cloud)
    token = httpx2.post(f"{url}/api/v1/users/{USER}/token").json()["token"]
    person = {"userId": USER, "token": token, "device": "Chromium"}
    with context.expect_event("serviceworker") as started:
        made = page.evaluate(
            "async (person) => (await import('/push/subscribe.js')).subscribe(person)", person
        )
    assert made["device"] == "Chromium"
    assert cloud.registration["sender"] == KEY.public_text
    assert page.evaluate("async () => (await import('/push/subscribe.js')).state()") == "subscribed"

    assert cloud.logged_in.wait(TIMEOUT_SECONDS)
    worker: Worker = started.value
    worker.evaluate(KEEP_SHOWN)
    notify(url)
    (shown,) = what_is_shown(worker, page)
    assert shown["title"] == "Оплата не прошла"
    assert "12 990" in shown["body"].replace("\u00a0", " ").replace("\u202f", " ")
    assert shown["url"] == "https://example.com/42"
    assert service.log[0].claims["sub"] == "mailto:ops@example.com"

    page.evaluate("async (person) => (await import('/push/subscribe.js')).unsubscribe(person)", person)
    assert page.evaluate("async () => (await import('/push/subscribe.js')).state()") == "unsubscribed"
