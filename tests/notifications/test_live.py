"""Open pages: what they hear, what they missed, and how they end. Real sockets, in one process and in several."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.notifications.conftest import USER
from tests.notifications.pages import TIMEOUT_SECONDS, OpenedPage, serving, token_of
from tests.processes import Process
from yamchi import Yamchi
from yamchi.errors import EngineUnavailable
from yamchi.http.failures import OF_AN_ADDRESS
from yamchi.notifications.channels.base import Message
from yamchi.notifications.inbox.hub import Limits
from yamchi.notifications.templates.model import Rendered
from yamchi.settings import Settings
from yamchi.testing import MovableClock, eventually

OTHER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f002"


def message(number: int, user_id: str = USER, **fields: Any) -> Message:
    rendered = Rendered(f"text {number}", title=f"title {number}")
    return Message(f"m{number:04}", user_id, rendered, template_code="t", user_id=user_id, **fields)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
async def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_database")().url
    settings = Settings(home=tmp_path, database_url=url, default_queue_url="memory://")
    async with Yamchi(settings) as app:
        if url:
            await app.database.migrate()
    return settings


@pytest.fixture
async def app(settings: Settings) -> AsyncIterator[Yamchi]:
    async with Yamchi(settings) as app:
        yield app


@pytest.fixture
async def neighbor(settings: Settings) -> AsyncIterator[Yamchi]:
    """What another process has: the same tables, and nothing else in common."""
    async with Yamchi(settings) as app:
        yield app


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Yamchi]:
    """For what does not depend on the database, with a clock that can be moved."""
    async with Yamchi(Settings(home=tmp_path, default_queue_url="memory://"), clock=MovableClock()) as app:
        yield app


async def send(app: Yamchi, *messages: Message) -> None:
    for one in messages:
        await app.notifications.channels["database"].send(one)


# ── Hearing ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_arrives_and_what_changes_is_heard_by_every_page_of_the_person(app: Yamchi) -> None:
    async with serving(app) as url:
        token = await token_of(app, USER)
        async with (
            OpenedPage(url, token) as one,
            OpenedPage(url, token) as two,
            OpenedPage(url, await token_of(app, OTHER)) as stranger,
        ):
            for page in (one, two, stranger):
                (welcome,) = await page.hears("welcome")
                assert welcome == {"type": "welcome", "seq": 0, "unread": 0, "reset": True}
            await send(app, message(1), message(2))
            for page in (one, two):
                heard = await page.hears("item", 2)
                assert [frame["item"]["title"] for frame in heard] == ["title 1", "title 2"]
                assert heard[1]["unread"] == 2
            await app.notifications.inbox.change(USER, "m0001", "read")
            read = (await two.hears("item", 3))[2]
            assert (read["item"]["id"], read["item"]["read_at"] is None, read["unread"]) == (
                "m0001",
                False,
                1,
            )
            await app.notifications.inbox.read_all(USER)
            assert (await two.hears("read_all"))[0]["unread"] == 0
            assert [frame["seq"] for frame in two.heard] == sorted(frame["seq"] for frame in two.heard)
            assert len(stranger.heard) == 1


async def test_other_processes_are_heard_soon(app: Yamchi, neighbor: Yamchi) -> None:
    async with serving(app) as url, OpenedPage(url, await token_of(neighbor, USER)) as page:
        await page.hears("welcome")
        for number in range(5):
            await send(neighbor, message(number))
            await page.hears("item", number + 1)
        await neighbor.notifications.inbox.read_all(USER)
        await page.hears("read_all")


async def test_a_burst_from_many_writers_is_heard_once_and_in_order(settings: Settings) -> None:
    """On PostgreSQL a transaction may commit before one with a lower number, unless the numbers forbid it."""
    writers = [Yamchi(settings) for _ in range(4)]
    app = Yamchi(settings)
    limits = Limits(most_pending=10_000, look_every=0.001)
    async with serving(app, limits) as url, OpenedPage(url, await token_of(app, USER)) as page:
        await page.hears("welcome")
        sending = [send(writers[number % 4], message(number)) for number in range(400)]
        await asyncio.gather(*sending)
        heard = await page.hears("item", 400)
    assert sorted(frame["item"]["id"] for frame in heard) == [f"m{number:04}" for number in range(400)]
    assert [frame["seq"] for frame in heard] == sorted(frame["seq"] for frame in heard)
    for one in (*writers, app):
        await one.close()


@pytest.mark.services
async def test_a_number_is_not_given_before_lower_ones_are_visible(postgres_database: Any) -> None:
    import psycopg

    database = postgres_database()
    async with Yamchi(Settings(database_url=database.url, default_queue_url="memory://")) as app:
        await app.database.migrate()
        insert = "INSERT INTO live_feed (user_id, kind, is_delivered, created_at) VALUES ('u', 'item', false, now())"
        async with await psycopg.AsyncConnection.connect(database.url) as slow:
            await slow.execute(insert)
            quick = asyncio.create_task(app.notifications.feed.tell("u", "m1"))
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

            async def is_held_up() -> bool:
                async with await psycopg.AsyncConnection.connect(database.url) as look:
                    row = await (await look.execute(waiting)).fetchone()
                    return bool(row and row[0])

            await eventually(is_held_up)
            assert await app.notifications.feed.after(0) == []
            await slow.commit()
            await quick
            assert [one.message_id for one in await app.notifications.feed.after(0)] == [None, "m1"]


# ── Missing and coming back ───────────────────────────────────────────────────────────────────────────────────────


async def test_what_was_missed_is_heard_once_on_return(app: Yamchi, neighbor: Yamchi) -> None:
    async with serving(app) as url:
        token = await token_of(app, USER)
        async with OpenedPage(url, token) as page:
            await page.hears("welcome")
            await send(app, message(1))
            await page.hears("item")
            await page.cut()
        await send(neighbor, message(2), message(3))
        async with OpenedPage(url, token, since=page.since) as back:
            heard = await back.hears("item", 2)
            assert back.heard[0]["reset"] is False
            await send(app, message(4))
            heard = await back.hears("item", 3)
            assert [frame["item"]["id"] for frame in heard] == ["m0002", "m0003", "m0004"]


async def test_while_a_page_reconnects_again_and_again_everything_arrives_once(
    app: Yamchi, neighbor: Yamchi
) -> None:
    """Messages keep coming, from this process and from another, while the connection is cut at any moment."""
    count, heard, since = 150, [], None

    async def keep_sending() -> None:
        for number in range(count):
            await send(neighbor if number % 2 else app, message(number))

    async with serving(app) as url:
        token = await token_of(app, USER)
        async with OpenedPage(url, token) as page:
            await page.hears("welcome")
            since = page.since
        sending = asyncio.create_task(keep_sending())
        while len(heard) < count:
            async with OpenedPage(url, token, since=since) as page:
                wanted = min(7, count - len(heard))
                await eventually(
                    lambda page=page, wanted=wanted: len(page.of_type("item")) >= wanted, TIMEOUT_SECONDS
                )
                await page.cut()
            assert page.heard[0]["reset"] is False
            heard += [frame["item"]["id"] for frame in page.of_type("item")]
            since = page.since
        await sending
    assert heard == [*dict.fromkeys(heard)]
    assert sorted(heard) == [f"m{number:04}" for number in range(count)]


async def test_a_page_is_let_in_while_others_are_told_without_end(app: Yamchi) -> None:
    is_over = False

    async def keep_sending(writer: int) -> None:
        number = 0
        while not is_over:
            await send(app, message(writer * 100_000 + number, OTHER))
            number += 1

    sending = [asyncio.create_task(keep_sending(writer)) for writer in range(20)]
    async with serving(app) as url, OpenedPage(url, await token_of(app, OTHER)) as first:
        await first.hears("item", 50)
        async with OpenedPage(url, await token_of(app, USER)) as page:
            await page.hears("welcome")
        is_over = True
        await asyncio.gather(*sending)


@pytest.mark.parametrize("since", [-5, 10_000_000])
async def test_a_number_that_never_was_starts_anew(app: Yamchi, since: int) -> None:
    async with serving(app) as url:
        await send(app, message(1))
        async with OpenedPage(url, await token_of(app, USER), since=since) as page:
            assert await page.hears("welcome") == [{"type": "welcome", "seq": 1, "unread": 1, "reset": True}]


async def test_who_missed_too_much_starts_anew(app: Yamchi) -> None:
    async with serving(app, Limits(most_missed=5)) as url:
        await send(app, *(message(number) for number in range(7)))
        async with OpenedPage(url, await token_of(app, USER), since=1) as page:
            assert (await page.hears("welcome"))[0]["reset"] is True
        async with OpenedPage(url, await token_of(app, USER), since=2) as page:
            assert len(await page.hears("item", 5)) == 5
            assert page.heard[0]["reset"] is False


# ── The channel ws ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_goes_to_the_open_pages_and_to_none_that_opens_later(app: Yamchi) -> None:
    async with serving(app) as url:
        token = await token_of(app, USER)
        async with OpenedPage(url, token) as page:
            await page.hears("welcome")
            for _ in range(2):  # the job came twice
                await app.notifications.channels["ws"].send(message(1))
            await app.notifications.channels["ws"].send(message(2))
            heard = await page.hears("message", 2)
            assert [frame["message"]["id"] for frame in heard] == ["m0001", "m0002"]
            assert heard[0]["message"]["title"] == "title 1"
        async with OpenedPage(url, token) as later:
            await later.hears("welcome")
            await app.notifications.channels["ws"].send(message(3))
            assert [frame["message"]["id"] for frame in await later.hears("message")] == ["m0003"]
    assert (await app.notifications.inbox.page(USER)).items == []


async def test_with_no_page_open_a_message_waits_for_one_until_it_expires(embedded: Yamchi) -> None:
    clock, channel = embedded.clock, embedded.notifications.channels["ws"]
    assert isinstance(clock, MovableClock)
    await channel.send(message(1))
    await channel.send(message(2, expires_at=clock.now() + 60_000))
    await channel.send(message(3, expires_at=clock.now() + 3_600_000))
    await clock.advance("4m")
    async with serving(embedded) as url:
        token = await token_of(embedded, USER)
        async with OpenedPage(url, token) as page:
            heard = await page.hears("message", 2)
            assert [frame["message"]["id"] for frame in heard] == ["m0001", "m0003"]
        await channel.send(message(4))
        await clock.advance("6m")
        async with OpenedPage(url, token) as page:
            await page.hears("welcome")
            await channel.send(message(5))
            assert [frame["message"]["id"] for frame in await page.hears("message")] == ["m0005"]


# ── Whose page it is ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_tokens_that_open_nothing(embedded: Yamchi) -> None:
    clock = embedded.clock
    assert isinstance(clock, MovableClock)
    async with serving(embedded) as url:
        expired = await token_of(embedded, USER)
        await clock.advance("15m")
        forged = (await token_of(embedded, USER)).replace(USER, OTHER)
        for token, said in ((expired, "has expired"), (forged, "not made here"), ("", "not made here")):
            async with OpenedPage(url, token) as page:
                code, reason = await page.is_closed()
            assert (code, said in reason) == (4401, True)


async def test_a_page_lives_as_long_as_its_token_unless_it_brings_another(embedded: Yamchi) -> None:
    clock = embedded.clock
    assert isinstance(clock, MovableClock)
    async with serving(embedded) as url:
        token = await token_of(embedded, USER)
        async with OpenedPage(url, token) as one, OpenedPage(url, token) as two:
            await one.hears("welcome")
            await two.hears("welcome")
            await clock.advance("10m")
            await two.say({"type": "token", "token": await token_of(embedded, USER)})
            await two.say({"type": "pong"})
            pages = embedded.notifications.hub.pages
            await eventually(lambda: len({page.expires_at for page in pages}) == 2)
            await clock.advance("4m")
            assert one.code is None
            await clock.advance("2m")
            assert await one.is_closed() == (4401, "This token has expired: let your backend mint another.")
            await embedded.notifications.channels["ws"].send(message(1))
            await two.hears("message")
            await two.say({"type": "token", "token": await token_of(embedded, OTHER)})
            assert await two.is_closed() == (4401, "This token is another person's.")


@pytest.mark.parametrize("who", ["this process", "another process"])
async def test_the_pages_of_a_person_who_is_erased_end_at_once(
    app: Yamchi, neighbor: Yamchi, who: str
) -> None:
    async with serving(app, Limits(heartbeat=3_600_000)) as url:  # none is waited for
        token = await token_of(app, USER)
        async with (
            OpenedPage(url, token) as one,
            OpenedPage(url, token) as two,
            OpenedPage(url, await token_of(app, OTHER)) as other,
        ):
            for page in (one, two, other):
                await page.hears("welcome")
            await (app if who == "this process" else neighbor).erase(USER)
            for page in (one, two):
                assert await page.is_closed() == (4401, "The person of this token has been erased.")
            await send(app, message(1, OTHER))
            await other.hears("item")
            assert [frame["type"] for frame in other.heard] == ["welcome", "item"]
            assert other.code is None


async def test_a_page_of_an_erased_person_hears_nothing_of_who_has_the_id_next(embedded: Yamchi) -> None:
    clock = embedded.clock
    assert isinstance(clock, MovableClock)
    async with serving(embedded) as url:
        async with (
            OpenedPage(url, await token_of(embedded, USER)) as page,
            OpenedPage(url, await token_of(embedded, OTHER)) as neighbor,
        ):
            await page.hears("welcome")
            await neighbor.hears("welcome")
            await clock.advance("1s")
            await embedded.notifications.erasure.erase(USER)
            await clock.advance("25s")
            assert await page.is_closed() == (4401, "The person of this token has been erased.")
            await neighbor.hears("ping")
        async with OpenedPage(url, await token_of(embedded, USER)) as later:
            await later.hears("welcome")
            await clock.advance("25s")
            await later.hears("ping")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("not json", 4400),
        ("[]", 4400),
        ('{"type": "subscribe"}', 4400),
        ('{"type": "hello", "token": "x", "since": "5"}', 4400),
        ('{"type": "hello", "token": "x", "since": true}', 4400),
        ('{"type": "hello", "token": 5}', 4401),
        ('{"type": "hello", "token": "' + "x" * 10_000 + '"}', 1009),
        ("x" * 70_000, 1009),
    ],
)
async def test_a_hello_that_is_none(embedded: Yamchi, said: str, code: int) -> None:
    async with serving(embedded) as url, OpenedPage(url, None) as page:
        await page.say(said)
        assert (await page.is_closed())[0] == code


async def test_nonsense_after_the_hello_ends_the_page(embedded: Yamchi) -> None:
    async with serving(embedded) as url, OpenedPage(url, await token_of(embedded, USER)) as page:
        await page.hears("welcome")
        await page.say({"type": "shout"})
        assert await page.is_closed() == (4400, "There is no message of type 'shout'.")
        await eventually(lambda: embedded.notifications.hub.pages == [])


async def test_pages_of_other_origins_need_to_be_named(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, default_queue_url="memory://", cors_origins=("https://shop.example",))
    async with Yamchi(settings) as app, serving(app) as url:
        token = await token_of(app, USER)
        for origin in (url, "https://shop.example"):
            async with OpenedPage(url, token, origin=origin) as page:
                await page.hears("welcome")
        async with OpenedPage(url, token, origin="https://evil.example") as page:
            code, reason = await page.is_closed()
            assert (code, "CORS_ORIGINS" in reason) == (4403, True)
        async with OpenedPage(url.replace("localhost", "evil.example"), token, host="127.0.0.1") as page:
            assert (await page.is_closed())[0] == 4403


async def test_a_token_is_in_no_log(tmp_path: Path) -> None:
    """Not even where every frame is: another process, with everything it has to say."""
    process = Process(tmp_path, "api", "--port", "0", LOG_LEVEL="debug")
    try:
        async with Yamchi(Settings(home=tmp_path)) as app:
            token = await token_of(app, USER)
            async with OpenedPage(process.url, token) as page:
                await page.hears("welcome")
                await page.say({"type": "token", "token": token})
                await send(app, message(1))
                await page.hears("item")
    finally:
        process.end(signal.SIGTERM)
    assert "/ws" in process.said
    assert token not in process.said
    assert token.rpartition(".")[2] not in process.said


async def test_forged_tokens_are_counted_and_shut_out_no_page(embedded: Yamchi) -> None:
    async with serving(embedded) as url:
        token = await token_of(embedded, USER)
        codes = []
        for number in range(OF_AN_ADDRESS.count + 1):
            async with OpenedPage(url, f"{token}{number}") as forged:
                codes.append((await forged.is_closed())[0])
        assert codes == [4401] * OF_AN_ADDRESS.count + [4429]
        async with OpenedPage(url, token) as page:
            await page.hears("welcome")


async def test_a_person_may_have_so_many_pages(embedded: Yamchi) -> None:
    async with serving(embedded, Limits(pages_of_a_person=2)) as url:
        token = await token_of(embedded, USER)
        async with OpenedPage(url, token) as one, OpenedPage(url, token) as two:
            await one.hears("welcome")
            await two.hears("welcome")
            async with OpenedPage(url, token) as three:
                assert (await three.is_closed())[0] == 4429
            async with OpenedPage(url, await token_of(embedded, OTHER)) as other:
                await other.hears("welcome")
        await eventually(lambda: embedded.notifications.hub.pages == [])
        async with OpenedPage(url, token) as again:
            await again.hears("welcome")


# ── Life and death of connections ─────────────────────────────────────────────────────────────────────────────────


async def test_a_slow_page_is_sent_away_and_catches_up(embedded: Yamchi) -> None:
    """It reads nothing; the others hear everything meanwhile, and what waits for it is limited."""
    hub, text = embedded.notifications.hub, "x" * 200_000
    limits = Limits(most_pending=20, most_missed=1_000)
    async with serving(embedded, limits) as url:
        token = await token_of(embedded, USER)
        address = url.replace("http", "ws") + "/ws"
        async with OpenedPage(url, token) as quick, connect(address, proxy=None, max_queue=1) as slow:
            await slow.send('{"type": "hello", "token": "' + token + '", "since": 0}')
            await quick.hears("welcome")
            await eventually(lambda: len(hub.pages) == 2)
            count = 0
            while len(hub.pages) == 2:
                assert count < 500
                await send(embedded, Message(f"m{count:04}", USER, Rendered(text)))
                count += 1
                await quick.hears("item", count)
            heard = []
            with suppress(ConnectionClosed):
                async for frame in slow:
                    heard.append(frame)  # noqa: PERF401 - what came before the end counts
            assert slow.close_code == 1013
            assert 1 <= len(heard) < count
            since = orjson.loads(heard[-1])["seq"]
        async with OpenedPage(url, token, since=since) as back:
            assert len(await back.hears("item", count - since)) == count - since


async def test_a_page_hears_that_we_live(embedded: Yamchi) -> None:
    clock = embedded.clock
    assert isinstance(clock, MovableClock)
    async with serving(embedded) as url, OpenedPage(url, await token_of(embedded, USER)) as page:
        await page.hears("welcome")
        for count in (1, 2):
            await clock.advance("25s")
            assert len(await page.hears("ping", count)) == count


async def test_a_page_that_answers_no_ping_is_forgotten(embedded: Yamchi) -> None:
    """A machine that was switched off says no goodbye."""
    hub, token = embedded.notifications.hub, await token_of(embedded, USER)
    async with serving(embedded, ws_ping_interval=1, ws_ping_timeout=1) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(_handshake())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_masked(f'{{"type": "hello", "token": "{token}"}}'))
        await reader.readuntil(b"welcome")
        await eventually(lambda: not hub.pages)
        writer.close()


def _handshake() -> bytes:
    return (
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )


def _masked(text: str) -> bytes:
    """One text frame, masked with zeros."""
    return b"\x81\xfe" + len(text).to_bytes(2, "big") + bytes(4) + text.encode()


async def test_a_page_that_never_says_hello_is_closed(
    embedded: Yamchi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yamchi.notifications.routes.live.HELLO_TIMEOUT_SECONDS", 0.05)
    async with serving(embedded) as url, OpenedPage(url, None) as page:
        assert (await page.is_closed())[0] == 4408


async def test_a_server_that_stops_tells_its_pages_to_come_back(embedded: Yamchi) -> None:
    async with serving(embedded) as url:
        page = await OpenedPage(url, await token_of(embedded, USER)).__aenter__()
        await page.hears("welcome")
    assert (await page.is_closed())[0] == 1012


def test_a_connection_whose_end_takes_nothing_is_not_kept_for_ever() -> None:
    from yamchi.cli.serving import DEAD_AFTER_MS, listen

    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == DEAD_AFTER_MS


@pytest.mark.parametrize("trouble", [EngineUnavailable("The database is gone."), KeyError("a bug")])
async def test_trouble_that_passes_costs_nothing(
    embedded: Yamchi, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    feed = embedded.notifications.feed
    async with serving(embedded) as url, OpenedPage(url, await token_of(embedded, USER)) as page:
        await page.hears("welcome")
        tries = 0

        async def fail(_seq: int) -> list[Any]:
            nonlocal tries
            tries += 1
            raise trouble

        with monkeypatch.context() as patch:
            patch.setattr(feed, "after", fail)
            await send(embedded, message(1))
            await eventually(lambda: tries > 2)
        await page.hears("item")
        assert len(page.of_type("item")) == 1
