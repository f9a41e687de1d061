"""The page behind the link to unsubscribe, and the one click of mail programs (RFC 8058).

Looking at the page changes nothing: programs that scan letters open every link. A press of the button does, and so does
a POST without a choice, which is what a mail program sends.
"""

from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from yamchi.http.limits import read_form
from yamchi.http.pages import LinkPage
from yamchi.notifications.channels.base import Recipient
from yamchi.notifications.people.unsubscribe import PATH, Link
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.routes.dependencies import TheNotifications
from yamchi.notifications.templates.locales import language_of_page

pages = APIRouter(include_in_schema=False)

PAGE = LinkPage(Path(__file__).parents[1] / "static" / "unsubscribe")
LINK = f"{PATH}/{{token:path}}"
LANGUAGES = ("en", "ru", "kk")
Scope = Literal["category", "channel"]


@pages.api_route(PATH, methods=["GET", "HEAD"])
@pages.api_route(LINK, methods=["GET", "HEAD"])
async def ask(request: Request, notifications: TheNotifications) -> Response:
    link = await notifications.unsubscribe_links.read(request.path_params.get("token", ""))
    if link is None:
        return _wrong(request, notifications)
    person = await notifications.recipients.get(link.user_id) or Recipient()
    page = _Page(notifications, link, _language(request, person.locale))
    return page.ask() if person.preferences.allow(link.channel, link.category) else page.stopped("category")


@pages.post(PATH)
@pages.post(LINK)
async def stop(request: Request, notifications: TheNotifications) -> Response:
    link = await notifications.unsubscribe_links.read(request.path_params.get("token", ""))
    if link is None:
        return _wrong(request, notifications)
    form = await read_form(request)
    scope: Scope = "channel" if form.get("scope") == "channel" else "category"
    is_allowed = form.get("allow") == "yes"
    await notifications.unsubscribe_links.choose(
        link, whole_channel=scope == "channel", is_allowed=is_allowed
    )
    person = await notifications.recipients.get(link.user_id) or Recipient()
    page = _Page(notifications, link, _language(request, person.locale))
    return page.allowed() if is_allowed else page.stopped(scope)


class _Page:
    """The page in one language, in each of its states."""

    def __init__(self, notifications: Notifications, link: Link, language: str) -> None:
        self._brand = _brand(notifications)
        self._language = language
        texts, chosen = PAGE.texts[language], self._brand.get("categories") or {}
        named = chosen.get(link.category) or texts["categories"].get(link.category, link.category)
        what = named.get(language, link.category) if isinstance(named, dict) else named
        channel = texts["channels"].get(link.channel, link.channel)
        self._texts = _filled(texts, what=what, channel=channel)

    def ask(self) -> Response:
        return self._show("ask", self._texts["ask"])

    def stopped(self, scope: Scope) -> Response:
        return self._show("stopped", self._texts[f"stopped_{scope}"], scope=scope)

    def allowed(self) -> Response:
        return self._show("allowed", self._texts["allowed"])

    def _show(self, state: str, said: dict[str, str], **more: str) -> Response:
        return _page(self._brand, self._language, self._texts, {"state": state, **said, **more})


def _wrong(request: Request, notifications: Notifications) -> Response:
    language = _language(request, None)
    texts = PAGE.texts[language]
    values = {"state": "wrong", **texts["wrong"]}
    return _page(_brand(notifications), language, texts, values, HTTPStatus.NOT_FOUND)


def _page(
    brand: Any, language: str, texts: Any, values: dict[str, str], status: HTTPStatus = HTTPStatus.OK
) -> Response:
    return PAGE.show(status, brand=brand["name"], locale=language, texts=texts, **values)


def _brand(notifications: Notifications) -> Any:
    return notifications.templates.files.layout().brand


def _language(request: Request, locale: str | None) -> str:
    """The person's own language, or else the browser's, if the page speaks it."""
    return language_of_page(locale or request.headers.get("accept-language", ""), LANGUAGES)


def _filled(texts: dict[str, Any], **names: str) -> dict[str, Any]:
    return {
        key: _filled(value, **names) if isinstance(value, dict) else value.format(**names)
        for key, value in texts.items()
    }
