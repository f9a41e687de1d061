"""The inbox: what arrives in it, how it is listed and changed, whose it is."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from sqlalchemy import Connection, Select

from tests.notifications.conftest import USER
from yamchi.clock import isoformat
from yamchi.errors import TokenRefused
from yamchi.notifications.channels.base import Message
from yamchi.notifications.inbox.store import COUNTING, listing
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.templates.model import Button, Rendered
from yamchi.testing import TestApp
from yamchi.web import create_app

OTHER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f002"
ADMIN, SENDER = "the-admin", "a-sender"
API = "/api/v1/users"


@pytest.fixture
async def app(database_url: str, tmp_path: Path) -> AsyncIterator[TestApp]:
    app = TestApp(
        home=tmp_path,
        database_url=database_url,
        admin_token=ADMIN,
        api_tokens=(SENDER,),
        cors_origins=("https://shop.example",),
    )
    await app.database.migrate()
    async with app:
        yield app


@pytest.fixture
async def client(app: TestApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=create_app(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def page_of(app: TestApp, user_id: str = USER) -> dict[str, str]:
    """The headers that a page of this person sends."""
    return bearer((await app.notifications.persons.mint(user_id))[0])


def message(number: int, user_id: str = USER) -> Message:
    rendered = Rendered(f"text {number}", title=f"title {number}", url=f"/{number}")
    return Message(f"m{number:04}", user_id, rendered, template_code="t", user_id=user_id)


async def fill(app: TestApp, count: int) -> None:
    for number in range(count):
        await app.notifications.inbox.add(message(number))
        if number % 3 == 0:  # some share a moment
            await app.clock.advance("1s")


# ── Arriving ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_event_ends_in_the_inbox_once(app: TestApp, client: httpx2.AsyncClient) -> None:
    app.notifications.serve()
    (app.settings.home / "rules.yaml").write_text(
        "- on: payment.failed\n  notify: {channel: database, template: payment_failed}\n"
    )
    await app.notifications.recipients.put(USER, User(locale="en"))
    event = Event(
        event_type="payment.failed", event_id="e1", user_id=USER, data={"amount": "10", "currency": "KZT"}
    )
    answer = await app.notifications.service.handle_event(event)
    await app.drain()
    (item,) = (await client.get(f"{API}/{USER}/inbox", headers=await page_of(app))).json()["items"]
    assert item["id"] == answer.jobs[0].job_id
    assert item["title"] == "Payment failed"
    assert item["read_at"] is None
    assert await app.notifications.deliveries.status(item["id"]) == "SENT"


async def test_words_are_sent_to_a_user_by_id(app: TestApp) -> None:
    app.notifications.serve()
    options = {"to": [USER, OTHER], "subject": "Hello", "text": "There is news."}
    await app.notifications.queue.add({"channel": "database", "options": options})
    await app.drain()
    for person in (USER, OTHER):
        (item,) = (await app.notifications.inbox.page(person)).items
        assert (item["title"], item["text"]) == ("Hello", "There is news.")


async def test_a_message_sent_twice_is_there_once(app: TestApp) -> None:
    inbox = app.notifications.inbox
    await asyncio.gather(*(inbox.add(message(1)) for _ in range(5)))
    await inbox.change(USER, "m0001", "read")
    await inbox.add(message(1))
    page = await inbox.page(USER)
    assert [item["id"] for item in page.items] == ["m0001"]
    assert page.items[0]["read_at"] is not None
    news = await app.notifications.feed.after(0)
    assert [(one.kind, one.message_id) for one in news] == [("item", "m0001")] * 2  # arrived, and was read


async def test_buttons_that_open_nothing_are_left_out(app: TestApp) -> None:
    buttons = ((Button("Open", url="https://example.com"), Button("Call", callback="x")),)
    await app.notifications.inbox.add(Message("m1", USER, Rendered("text", buttons=buttons)))
    (item,) = (await app.notifications.inbox.page(USER)).items
    assert item["buttons"] == [{"text": "Open", "url": "https://example.com"}]


# ── Listing ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", [1, 4, 7, 50])
async def test_pages_by_cursor_show_everything_once(app: TestApp, limit: int) -> None:
    await fill(app, 20)
    inbox, seen, cursor = app.notifications.inbox, [], None
    while True:
        page = await inbox.page(USER, cursor=cursor, limit=limit)
        seen += [item["id"] for item in page.items]
        await inbox.add(message(1_000 + len(seen)))  # what arrives meanwhile moves nothing
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 20
    newest = (await inbox.page(USER, limit=100)).items
    assert [item["created_at"] for item in newest] == sorted((i["created_at"] for i in newest), reverse=True)


async def test_a_page_of_long_messages_has_fewer(app: TestApp) -> None:
    """Of messages of a megabyte each, one with a hundred would hold up everybody."""
    inbox, long = app.notifications.inbox, Rendered("x" * 900_000)
    for number in range(5):
        await inbox.add(Message(f"long{number}", USER, long))
    sizes, cursor = [], None
    while not sizes or cursor:
        page = await inbox.page(USER, cursor=cursor, limit=100)
        sizes.append(len(page.items))
        cursor = page.next_cursor
    assert sizes == [2, 2, 1]


async def test_views(app: TestApp) -> None:
    inbox = app.notifications.inbox
    await fill(app, 4)
    await inbox.change(USER, "m0000", "read")
    await inbox.change(USER, "m0001", "archive")
    shown = {
        view: sorted(item["id"] for item in (await inbox.page(USER, view=view)).items)
        for view in ("inbox", "unread", "archived")
    }
    assert shown == {
        "inbox": ["m0000", "m0002", "m0003"],
        "unread": ["m0002", "m0003"],
        "archived": ["m0001"],
    }
    assert await inbox.unread([USER, OTHER]) == {USER: 2, OTHER: 0}


# ── Changing ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_read_archive_and_read_all_over_http(app: TestApp, client: httpx2.AsyncClient) -> None:
    await fill(app, 4)
    mine = {"headers": await page_of(app)}
    read = (await client.post(f"{API}/{USER}/inbox/m0000/read", **mine)).json()
    assert read["read_at"] == isoformat(app.clock.now())
    assert (await client.post(f"{API}/{USER}/inbox/m0000/read", **mine)).json() == read  # twice is once
    assert (await client.post(f"{API}/{USER}/inbox/m0000/unread", **mine)).json()["read_at"] is None
    assert (await client.post(f"{API}/{USER}/inbox/m0001/archive", **mine)).json()["is_archived"] is True
    assert (await client.get(f"{API}/{USER}/inbox/unread", **mine)).json() == {"unread": 3}
    assert (await client.post(f"{API}/{USER}/inbox/read-all", **mine)).json() == {"count": 3}
    assert (await client.post(f"{API}/{USER}/inbox/read-all", **mine)).json() == {"count": 0}
    listed = (await client.get(f"{API}/{USER}/inbox", **mine)).json()
    assert (listed["unread"], len(listed["items"])) == (0, 3)
    assert (await client.post(f"{API}/{USER}/inbox/m0001/unarchive", **mine)).json()["is_archived"] is False


async def test_only_a_change_is_told(app: TestApp) -> None:
    inbox, feed = app.notifications.inbox, app.notifications.feed
    await inbox.add(message(1))
    for _ in range(3):
        await inbox.change(USER, "m0001", "read")
        await inbox.read_all(USER)
    assert [one.kind for one in await feed.after(0)] == ["item", "item"]


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("POST", "inbox/nope/read", 404, "no message 'nope'"),
        ("POST", "inbox/m0000/burn", 422, "action"),
        ("GET", "inbox?cursor=%C3%A9", 422, "begin without one"),
        ("GET", "inbox?cursor=bm9wZQ", 422, "begin without one"),
        ("GET", "inbox?limit=0", 422, "limit"),
        ("GET", "inbox?view=spam", 422, "view"),
    ],
)
async def test_bad_requests(
    app: TestApp, client: httpx2.AsyncClient, method: str, path: str, status: int, said: str
) -> None:
    answer = await client.request(method, f"{API}/{USER}/{path}", headers=await page_of(app))
    assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text


async def test_a_message_of_another_person_is_not_there(app: TestApp, client: httpx2.AsyncClient) -> None:
    await app.notifications.inbox.add(message(1))
    answer = await client.post(f"{API}/{OTHER}/inbox/m0001/read", headers=await page_of(app, OTHER))
    assert answer.status_code == 404
    assert (await app.notifications.inbox.page(USER)).items[0]["read_at"] is None


# ── Tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_backend_mints_a_token_and_the_page_uses_it(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    asked = {"name": "shop", "scopes": ["people:token"]}
    made = await client.post("/api/v1/keys", headers=bearer(ADMIN), json=asked)
    for backend in (ADMIN, made.json()["key"]):
        minted = await client.post(f"{API}/{USER}/token", headers=bearer(backend), json={"expires_in": "5m"})
        assert minted.status_code == 201
        assert minted.json()["expires_at"] == isoformat(app.clock.now() + 300_000)
        page = bearer(minted.json()["token"])
        assert (await client.get(f"{API}/{USER}/inbox", headers=page)).status_code == 200


async def test_who_may_only_send_mints_no_token(client: httpx2.AsyncClient) -> None:
    answer = await client.post(f"{API}/{USER}/token", headers=bearer(SENDER))
    assert (answer.status_code, "people:token" in answer.json()["detail"]) == (403, True)


@pytest.mark.parametrize("span", ["0s", "25h", "soon", -5])
async def test_a_life_that_can_not_be(client: httpx2.AsyncClient, span: Any) -> None:
    answer = await client.post(f"{API}/{USER}/token", headers=bearer(ADMIN), json={"expires_in": span})
    assert answer.status_code == 422, answer.text


async def test_a_token_opens_only_what_is_its_persons_own(app: TestApp, client: httpx2.AsyncClient) -> None:
    page = await page_of(app)
    for method, path in (
        ("GET", f"{API}/{OTHER}/inbox"),
        ("GET", f"{API}/{USER}"),
        ("PUT", f"{API}/{USER}"),
        ("POST", f"{API}/{USER}/token"),  # else a page could live for ever
        ("POST", "/api/v1/events"),
        ("GET", "/api/v1/notifications"),
        ("GET", "/api/queues"),
        ("GET", "/metrics"),
    ):
        answer = await client.request(method, path, headers=page, json={})
        assert answer.status_code == 403, (method, path, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_preference_center_reads_and_writes_with_the_persons_own_token(
    app: TestApp, client: httpx2.AsyncClient
) -> None:
    page, chosen = await page_of(app), {"allowed": {"email": {"promotions": False}}, "quiet_hours": None}
    mine, theirs = f"{API}/{USER}/preferences", f"{API}/{OTHER}/preferences"
    assert (await client.get(mine, headers=page)).json() == {"allowed": {}, "quiet_hours": None}
    assert (await client.put(mine, headers=page, json=chosen)).status_code == 200
    assert (await client.get(mine, headers=page)).json() == chosen
    assert (await client.get(mine, headers=bearer(ADMIN))).json() == chosen
    assert (await client.get(theirs, headers=page)).status_code == 403
    assert (await client.put(theirs, headers=page, json=chosen)).status_code == 403
    assert (await client.get(theirs, headers=bearer(ADMIN))).json()["allowed"] == {}
    assert (await client.put(mine, headers=bearer(SENDER), json=chosen)).status_code == 403
    assert (await client.put(mine, json=chosen)).status_code == 401


async def test_the_admin_may_look_and_a_sender_may_not(client: httpx2.AsyncClient) -> None:
    assert (await client.get(f"{API}/{USER}/inbox", headers=bearer(ADMIN))).status_code == 200
    assert (await client.get(f"{API}/{USER}/inbox", headers=bearer(SENDER))).status_code == 403
    assert (await client.get(f"{API}/{USER}/inbox")).status_code == 401


async def test_forged_and_expired_tokens(app: TestApp, client: httpx2.AsyncClient) -> None:
    token, expires_at = await app.notifications.persons.mint(USER)
    later = token.replace(str(expires_at), str(expires_at + 60_000))
    another = token.replace(USER, OTHER)
    forged = [
        later,
        another,
        token[:-1] + ("0" if token[-1] != "0" else "1"),
        "person.",
        "person.1.x.y",
        "person.é.é.é",
    ]
    for one in forged:
        answer = await client.get(
            f"{API}/{OTHER}/inbox", headers={"authorization": f"Bearer {one}".encode("latin-1")}
        )
        assert (answer.status_code, "not made here" in answer.json()["detail"]) == (401, True), one
    await app.clock.advance("15m")
    answer = await client.get(f"{API}/{USER}/inbox", headers=bearer(token))
    assert (answer.status_code, "has expired" in answer.json()["detail"]) == (401, True)


async def test_a_forged_token_is_refused_where_no_token_is_needed(tmp_path: Path) -> None:
    app = TestApp(home=tmp_path)
    transport = httpx2.ASGITransport(app=create_app(app))
    async with app, httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
        assert (await client.get(f"{API}/{USER}/inbox")).status_code == 200
        assert (await client.get(f"{API}/{USER}/inbox", headers=bearer("person.1.x.y"))).status_code == 401


async def test_every_process_has_the_same_key_and_another_installation_another(tmp_path: Path) -> None:
    token, _ = await (first := TestApp(home=tmp_path / "a")).notifications.persons.mint(USER)
    same, other = TestApp(home=tmp_path / "a"), TestApp(home=tmp_path / "b")
    assert (await same.notifications.persons.check(token)).user_id == USER
    with pytest.raises(TokenRefused):
        await other.notifications.persons.check(token)
    given = TestApp(home=tmp_path / "a", secret_key="a key of sixteen characters")
    with pytest.raises(TokenRefused):
        await given.notifications.persons.check(token)
    for app in (first, same, other, given):
        await app.close()


async def test_a_token_ends_with_its_person(app: TestApp, client: httpx2.AsyncClient) -> None:
    """Those minted before the erasure open nothing and make nothing anew; one minted after it is as good as any."""
    await client.put(f"{API}/{USER}", json={"email": "a@example.com"}, headers=bearer(ADMIN))
    page, other = await page_of(app), await page_of(app, OTHER)
    off = {"channels": {"email": False}}
    assert (await client.put(f"{API}/{USER}/preferences", json=off, headers=page)).status_code == 200
    await app.clock.advance("1s")
    assert (await client.delete(f"{API}/{USER}", headers=bearer(ADMIN))).status_code == 200

    for method, path in (("PUT", "preferences"), ("GET", "preferences"), ("GET", "inbox")):
        answer = await client.request(method, f"{API}/{USER}/{path}", json=off, headers=page)
        assert (answer.status_code, "erased" in answer.json()["detail"]) == (401, True), path
    assert (await client.get(f"{API}/{USER}", headers=bearer(ADMIN))).status_code == 404
    assert (await client.get(f"{API}/{OTHER}/inbox", headers=other)).status_code == 200

    assert (await client.get(f"{API}/{USER}/inbox", headers=await page_of(app))).status_code == 200


# ── Other origins ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_page_of_a_named_origin_may_ask_and_act(app: TestApp, client: httpx2.AsyncClient) -> None:
    await app.notifications.inbox.add(message(1))
    origin = {"origin": "https://shop.example"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    preflight = await client.options(f"{API}/{USER}/inbox/m0001/read", headers={**origin, **asked})
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (
        200,
        origin["origin"],
    )
    headers = {**origin, **await page_of(app)}
    read = await client.post(f"{API}/{USER}/inbox/m0001/read", headers=headers)
    assert (read.status_code, read.headers["access-control-allow-origin"]) == (200, origin["origin"])
    refused = await client.get(f"{API}/{OTHER}/inbox", headers=headers)  # the page must be able to read why
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (403, origin["origin"])


async def test_a_page_of_another_origin_may_not(app: TestApp, client: httpx2.AsyncClient) -> None:
    headers = {"origin": "https://evil.example", **await page_of(app)}
    assert (await client.post(f"{API}/{USER}/inbox/read-all", headers=headers)).status_code == 403
    assert (
        "access-control-allow-origin"
        not in (await client.get(f"{API}/{USER}/inbox", headers=headers)).headers
    )
    named = {
        "origin": "https://shop.example",
        **bearer(ADMIN),
    }  # an origin is named for pages, not for the admin
    assert (await client.post(f"{API}/{USER}/inbox/read-all", headers=named)).status_code == 403
    assert "access-control-allow-origin" not in (await client.get("/api/queues", headers=named)).headers


async def test_any_page_may_load_the_component(client: httpx2.AsyncClient) -> None:
    script = await client.get("/inbox/yamchi-inbox.js", headers={"origin": "https://anywhere.example"})
    assert script.status_code == 200
    assert script.headers["access-control-allow-origin"] == "*"
    assert script.headers["cross-origin-resource-policy"] == "cross-origin"
    assert "javascript" in script.headers["content-type"]


# ── A million of them ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cursor", [None, "MTc2MDAwMDAwMDAwMC5tMDAwMQ"])
@pytest.mark.parametrize("view", ["inbox", "unread", "archived"])
async def test_lists_are_read_from_an_index_in_order(app: TestApp, view: Any, cursor: str | None) -> None:
    plan = await plan_of(app, listing("u", view, cursor, 20))
    assert re.search("inbox_(unread|of_user)", plan)
    assert not re.search("TEMP B-TREE|Sort", plan), plan


async def test_the_unread_are_counted_from_an_index(app: TestApp) -> None:
    assert "inbox_unread" in await plan_of(app, COUNTING.params(user_id="u"))


async def plan_of(app: TestApp, query: Select[Any]) -> str:
    def look(connection: Connection) -> str:
        said = query.compile(connection, compile_kwargs={"literal_binds": True})
        if app.database.is_embedded:
            return str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {said}").all())
        for kind in (
            "seqscan",
            "bitmapscan",
            "sort",
        ):  # a table this small is not worth an index to the planner
            connection.exec_driver_sql(f"SET LOCAL enable_{kind} = off")
        return str(connection.exec_driver_sql(f"EXPLAIN {said}").all())

    return await app.database.read(look)


async def test_the_feed_forgets_what_is_old_but_never_its_place(app: TestApp) -> None:
    inbox, feed = app.notifications.inbox, app.notifications.feed
    await fill(app, 5)
    await app.clock.advance("25h")
    await inbox.add(message(100))
    assert await feed.prune() == 5
    assert [one.message_id for one in await feed.after(0)] == ["m0100"]
    await app.clock.advance("25h")
    assert await feed.prune() == 0
    assert await feed.bounds() == (6, 6)
    assert (await inbox.page(USER)).items  # the inbox itself forgets nothing


async def test_a_person_nobody_told_us_of_has_an_inbox(app: TestApp) -> None:
    stranger = str(uuid4())
    await app.notifications.inbox.add(message(1, stranger))
    assert (await app.notifications.inbox.unread([stranger])) == {stranger: 1}
