"""Campaigns: everybody once, in variants and at a rate, paused and cancelled, and refused in one sentence when they make no sense."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from sqlalchemy import func, insert, select, update

from tests.notifications.ledger import count_ledger
from yamchi.clock import isoformat
from yamchi.errors import EngineUnavailable, InvalidJob, WrongState
from yamchi.notifications.campaigns import store
from yamchi.notifications.campaigns.audience import Audience
from yamchi.notifications.campaigns.fanout import AHEAD, BATCH, LEASE, FanOut
from yamchi.notifications.campaigns.limits import CampaignLimits
from yamchi.notifications.campaigns.lists import LONGEST_ROW, Broken, Entry, read_list
from yamchi.notifications.campaigns.model import CampaignIn
from yamchi.notifications.campaigns.planning import plan
from yamchi.notifications.channels.base import Channel, Message, Recipient
from yamchi.notifications.channels.null import NullLedger
from yamchi.notifications.commands import campaign as campaign_command
from yamchi.notifications.people.preferences import Preferences
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.notification_job import derived_id
from yamchi.notifications.tables import campaign_people, notification_delivery, null_ledger, users
from yamchi.notifications.tables import campaigns as table
from yamchi.testing import TestApp, eventually
from yamchi.web import create_app

PLANS = ("free", "pro", "team")


def person(number: int) -> str:
    return str(derived_id("person", str(number)))


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[TestApp]:
    async with make_app(tmp_path) as app:
        yield app


@pytest.fixture
async def either(tmp_path: Path, database_url: str) -> AsyncIterator[TestApp]:
    """The same application, with its tables on either database."""
    async with make_app(tmp_path, database_url=database_url) as app:
        await app.database.migrate()
        yield app


def make_app(home: Path, **settings: Any) -> TestApp:
    folder = home / "templates" / "news"
    folder.mkdir(parents=True)
    (folder / "null.en.txt").write_text("Hello {{ name | default('you') }}")
    app = TestApp(home=home, **settings)
    app.notifications.serve()
    return app


@pytest.fixture
async def client(app: TestApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=create_app(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030/api/v1") as client:
        yield client


async def populate(app: TestApp, people: int) -> None:
    now = app.clock.now()
    rows = [
        {
            "user_id": person(number),
            "email": f"user-{number}@example.com",
            "phone": None if number % 4 else f"+770000000{number:02}",
            "locale": ("ru", "kk", "en")[number % 3],
            "attributes": {"plan": PLANS[number % 3], "age": number, "home": {"city": "Almaty"}},
            "created_at": now,
            "updated_at": now,
        }
        for number in range(people)
    ]
    await app.database.write(lambda connection: connection.execute(insert(users), rows).rowcount)


REQUEST = {"campaign_id": "news-1", "template_code": "news", "channel": "null", "audience": {"where": {}}}


def campaign_request(**fields: Any) -> CampaignIn:
    return CampaignIn.model_validate({**REQUEST, **fields})


async def send_all(app: TestApp) -> None:
    """Fan out and send until nothing is left that is due."""
    await app.notifications.fan_out.run()
    await app.drain()


async def sending_moments(app: TestApp) -> list[int]:
    query = select(null_ledger.c.received_at).order_by(null_ledger.c.received_at)
    return list(await app.database.read(lambda connection: connection.execute(query).scalars().all()))


def busiest_second(moments: list[int]) -> int:
    return max(sum(start <= one < start + 1_000 for one in moments) for start in moments)


async def reached(app: TestApp) -> Counter[str]:
    """How often each person is in the ledger."""
    query = select(null_ledger.c.user_id)
    found = await app.database.read(lambda connection: connection.execute(query).scalars().all())
    return Counter(found)


async def statuses(app: TestApp) -> dict[str, int]:
    status = notification_delivery.c.status
    query = select(status, func.count()).group_by(status)
    rows = await app.database.read(lambda connection: connection.execute(query).all())
    return {row[0]: row[1] for row in rows}


async def progress(app: TestApp) -> dict[str, Any]:
    shown = await app.notifications.campaigns.show("news-1")
    return dict(shown["progress"]) | {"state": shown["state"]}


# ── Everybody once ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_everybody_once(either: TestApp) -> None:
    people = BATCH * 2 + 7
    await populate(either, people)
    made = await either.notifications.campaigns.create(campaign_request())
    assert (made["state"], made["progress"]["total"]) == ("running", people)
    await send_all(either)
    told = await progress(either)
    assert (told["state"], told["fanned_out"], told["sent"], told["waiting"]) == (
        "finished",
        people,
        people,
        0,
    )
    assert await reached(either) == {person(number): 1 for number in range(people)}
    assert await count_ledger(either.database) == {"lines": people, "jobs": people, "people": people}


async def test_the_same_campaign_again_reaches_nobody_twice(app: TestApp) -> None:
    await populate(app, 10)
    for _ in range(3):
        await app.notifications.campaigns.create(campaign_request())
        await send_all(app)
    assert await reached(app) == {person(number): 1 for number in range(10)}
    assert (await progress(app))["sent"] == 10


async def test_many_who_fan_out_at_once_are_one(either: TestApp) -> None:
    await populate(either, 50)
    await either.notifications.campaigns.create(campaign_request())
    counts = either.notifications.deliveries.campaign_counts
    queue = either.notifications.queue
    others = [FanOut(either.database, queue, counts, either.clock) for _ in range(4)]
    await asyncio.gather(*(other.run() for other in others))
    await either.clock.advance(LEASE / 1000)
    await asyncio.gather(*(other.run() for other in others))
    await send_all(either)
    assert await reached(either) == {person(number): 1 for number in range(50)}
    assert (await progress(either))["fanned_out"] == 50


async def test_who_takes_over_queues_what_a_crash_left(either: TestApp) -> None:
    """The window is in the table and the cursor is past it, but the process died before the queue had it."""
    await populate(either, 20)
    await either.notifications.campaigns.create(campaign_request())
    dying = either.notifications.fan_out
    campaign = await either.notifications.campaigns.get("news-1")
    assert await dying._hold(campaign)
    people = (await _audience(either).window(None, 12)).people
    planned = plan(campaign, people, either.clock.now())
    advance = {"cursor": people[-1].user_id, "queued": None}
    assert await either.database.write(lambda c: dying._store(c, campaign, planned, advance))
    assert (await progress(either))["waiting"] == 12

    counts, queue = either.notifications.deliveries.campaign_counts, either.notifications.queue
    heir = FanOut(either.database, queue, counts, either.clock)
    await heir.run()
    await either.drain()
    assert await reached(either) == {}, "the campaign is still held by the one that died"
    await either.clock.advance(LEASE / 1000)
    await heir.run()
    await either.drain()
    assert await reached(either) == {person(number): 1 for number in range(20)}
    assert not await either.database.write(lambda c: dying._store(c, campaign, planned, advance))


async def test_a_window_that_the_queue_could_not_take_is_queued_later(
    either: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window is in the table and the cursor is past it, but the queue was away for a moment."""
    await populate(either, 20)
    await either.notifications.campaigns.create(campaign_request())
    with monkeypatch.context() as away:
        away.setattr(either.notifications.queue, "add_prepared", _refuse)
        with pytest.raises(EngineUnavailable):
            await either.notifications.fan_out.step_all()
    assert (await progress(either))["waiting"] == 20

    await send_all(either)
    assert await reached(either) == {person(number): 1 for number in range(20)}
    assert (await progress(either))["state"] == "finished"


async def test_who_held_it_before_queues_what_the_next_one_left(
    either: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process was slow, another took the campaign over and died between the table and the queue."""
    await populate(either, 20)
    await either.notifications.campaigns.create(campaign_request())
    counts, queue = either.notifications.deliveries.campaign_counts, either.notifications.queue
    slow, dying = (FanOut(either.database, queue, counts, either.clock) for _ in range(2))
    assert await slow._hold(await either.notifications.campaigns.get("news-1"))
    await either.clock.advance(LEASE / 1000)
    with monkeypatch.context() as away:
        away.setattr(queue, "add_prepared", _refuse)
        with pytest.raises(EngineUnavailable):
            await dying.step_all()
    await either.clock.advance(LEASE / 1000)

    await slow.run()
    await either.drain()
    assert await reached(either) == {person(number): 1 for number in range(20)}


async def test_who_takes_over_from_one_that_stops_queues_its_last_window(
    either: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process looks at the campaign; another stores a window and lets go of it before the queue has that."""
    await populate(either, 20)
    await either.notifications.campaigns.create(campaign_request())
    seen = await either.notifications.campaigns.get("news-1")
    with monkeypatch.context() as away:
        away.setattr(either.notifications.queue, "add_prepared", _refuse)
        with pytest.raises(EngineUnavailable):
            await either.notifications.fan_out.step_all()
    await either.notifications.fan_out._holds.release()

    counts, queue = either.notifications.deliveries.campaign_counts, either.notifications.queue
    heir = FanOut(either.database, queue, counts, either.clock)
    await heir._try_step(seen)
    await heir.run()
    await either.drain()
    assert await reached(either) == {person(number): 1 for number in range(20)}


async def test_an_outage_ends_the_service_which_is_started_again_ever_more_rarely(
    app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> list[Any]:
        raise EngineUnavailable("The database can't be reached.")

    monkeypatch.setattr(app.notifications.fan_out, "_due", away)
    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(app.notifications.fan_out.watch(), 5)


async def _refuse(_jobs: Any) -> None:
    raise EngineUnavailable("The queue can't be reached.")


def _audience(app: TestApp) -> Any:
    from yamchi.notifications.campaigns.audience import Audience

    return Audience(app.database, "news-1", {})


async def test_ids_are_derived_and_sort_as_the_people_do(app: TestApp) -> None:
    await populate(app, 500)
    await app.notifications.campaigns.create(campaign_request())
    await app.notifications.campaigns.create(campaign_request(campaign_id="news-2"))
    people = (await _audience(app).window(None, 500)).people
    first, second = [
        [one.job_id for one in plan(await app.notifications.campaigns.get(name), people, 0)]
        for name in ("news-1", "news-2")
    ]
    assert first == sorted(first), "what is written together lies together in every index"
    assert len({*first, *second}) == 1_000
    assert [str(UUID(job_id)) for job_id in first] == first


# ── Audiences ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FILTERS: list[tuple[dict[str, Any], set[int]]] = [
    ({}, set(range(12))),
    ({"attributes.plan": "pro"}, {1, 4, 7, 10}),
    ({"attributes.plan": "pro", "locale": "kk"}, {1, 4, 7, 10}),
    ({"attributes.plan": "pro", "locale": "ru"}, set()),
    ({"locale": ["ru", "kk"]}, {0, 1, 3, 4, 6, 7, 9, 10}),
    ({"attributes.age": {"gte": 3, "lt": 6}}, {3, 4, 5}),
    ({"attributes.age": 7}, {7}),
    ({"attributes.age": {"gt": 9.5}}, {10, 11}),
    ({"attributes.age": "7"}, set()),
    ({"attributes.plan": {"gt": 1}}, set()),
    ({"attributes.plan": {"ne": "pro"}}, {0, 2, 3, 5, 6, 8, 9, 11}),
    ({"attributes.plan": {"not_in": ["pro", "team"]}}, {0, 3, 6, 9}),
    ({"attributes.plan": {"in": ["team", 5, None]}}, {2, 5, 8, 11}),
    ({"attributes.age": [*range(5, 1000), 2.0, "7", True, None]}, {2, *range(5, 12)}),
    ({"attributes.age": {"not_in": [*range(5, 1000), 2.0, "7", True, None]}}, {0, 1, 3, 4}),
    ({"attributes.home.city": "Almaty", "attributes.age": {"lte": 0}}, {0}),
    ({"attributes.nothing": None, "phone": {"exists": True}}, {0, 4, 8}),
    ({"attributes.nothing": {"ne": 1}, "phone": None, "attributes.age": {"lt": 3}}, {1, 2}),
    ({"phone": [None], "attributes.age": {"lt": 3}}, {1, 2}),
    ({"email": "user-3@example.com"}, {3}),
    ({"email": "' OR 1=1 --"}, set()),
    ({"created_at": {"lt": "2000-01-01"}}, set()),
    ({"created_at": {"gte": "2026-01-01T00:00:00Z"}, "attributes.age": {"eq": 2}}, {2}),
]


async def test_filters(either: TestApp) -> None:
    await populate(either, 12)
    for number, (where, expected) in enumerate(FILTERS):
        campaign = f"filter-{number}"
        made = await either.notifications.campaigns.create(
            campaign_request(campaign_id=campaign, audience={"where": where})
        )
        assert made["progress"]["total"] == len(expected), where
        await send_all(either)
        query = select(notification_delivery.c.user_id).where(notification_delivery.c.campaign_id == campaign)
        found = await either.database.read(lambda c, query=query: c.execute(query).scalars().all())
        assert set(found) == {person(one) for one in expected}, where


async def test_truth_is_compared_with_truth(either: TestApp) -> None:
    for number, value in enumerate([True, False, 1, "true", None]):
        await either.notifications.recipients.put(person(number), User(attributes={"vip": value}))
    for number, (value, expected) in enumerate(
        [(True, {0}), (False, {1}), (1, {2}), ("true", {3}), (None, {4})]
    ):
        campaign = campaign_request(
            campaign_id=f"vip-{number}", audience={"where": {"attributes.vip": value}}
        )
        made = await either.notifications.campaigns.create(campaign)
        assert made["progress"]["total"] == len(expected), value


async def test_people_by_id_are_counted_once(either: TestApp) -> None:
    await populate(either, 5)
    ids = [person(1), person(3), person(1)]
    made = await either.notifications.campaigns.create(campaign_request(audience={"user_ids": ids}))
    assert (made["progress"]["total"], made["list"]["twice"]) == (2, 1)
    await send_all(either)
    assert await reached(either) == {person(1): 1, person(3): 1}


CSV = f"""user_id;Email;locale;code
{person(1)};;;AAA
;user-2@EXAMPLE.com;;BBB
;new@example.com;en;CCC
not-an-id;;;DDD

;user-2@example.com;;again
;nonsense;;EEE
{person(99)};;;FFF
;;;GGG
;"two
lines@example.com";;HHH
;late@example.com;;III;surplus
;last@example.com;;JJJ
"""


async def test_a_csv_with_broken_rows(either: TestApp) -> None:
    await populate(either, 5)
    made = await either.notifications.campaigns.create(campaign_request(audience={"csv": CSV}))
    report = made["list"]
    assert (report["people"], report["twice"], report["broken_rows"]) == (4, 1, 6)
    assert [one["row"] for one in report["broken"]] == [5, 8, 9, 10, 11, 12]
    assert "no UUID" in report["broken"][0]["error"]
    assert "no user" in report["broken"][2]["error"]
    listed = campaign_people.c
    query = select(listed.user_id, listed.data).where(listed.campaign_id == "news-1")
    rows = await either.database.read(lambda connection: connection.execute(query).all())
    assert {row.data["code"] for row in rows} == {"AAA", "BBB", "CCC", "JJJ"}
    await send_all(either)
    assert await reached(either) | Counter() == dict.fromkeys((row.user_id for row in rows), 1)
    assert person(2) in await reached(either)


async def test_a_long_list_comes_as_a_stream(app: TestApp, client: httpx2.AsyncClient) -> None:
    await populate(app, 1_500)
    draft = await client.post("/campaigns", json={**REQUEST, "audience": {"upload": True}})
    assert (draft.status_code, draft.json()["state"]) == (202, "draft")
    await send_all(app)
    assert await reached(app) == {}

    async def lines() -> AsyncIterator[bytes]:
        yield b"\xef\xbb\xbfemail,name\r\n"
        for number in range(1_500):
            yield f"user-{number}@example.com,Имя\r\n".encode()
            yield b"" if number else b"\xff\xfe@example.com,\r\n"

    answer = await client.put("/campaigns/news-1/audience", content=lines())
    assert answer.status_code == 200, answer.text
    report = answer.json()["list"]
    assert (report["people"], report["broken_rows"]) == (1_500, 1)
    assert report["broken"] == [{"row": 3, "error": "it is not UTF-8"}]
    await send_all(app)
    assert len(await reached(app)) == 1_500
    again = await client.put("/campaigns/news-1/audience", content=b"email\nx@example.com\n")
    assert (again.status_code, "has begun" in again.json()["detail"]) == (409, True)


async def test_a_broken_list_is_mended_under_the_same_id(app: TestApp) -> None:
    await populate(app, 3)
    campaigns = app.notifications.campaigns
    for csv in ("name\nA\n", "email\n", "email\nnonsense\n"):
        with pytest.raises(InvalidJob, match="CSV"):
            await campaigns.create(campaign_request(audience={"csv": csv}))
    assert (await campaigns.show("news-1"))["state"] == "draft"
    mended = campaign_request(audience={"csv": "email\nuser-1@example.com\n"})
    assert (await campaigns.create(mended))["state"] == "running"
    await send_all(app)
    assert await reached(app) == {person(1): 1}
    with pytest.raises(WrongState, match="another one"):
        await campaigns.create(campaign_request())


async def test_lists_sent_at_once_are_not_mixed(either: TestApp) -> None:
    """Of several requests under one id one wins whole, whatever the others had begun."""
    campaigns = either.notifications.campaigns
    lists = ["email\n" + "".join(f"{one}-{n}@example.com\n" for n in range(1_500)) for one in "abc"]
    outcomes = await asyncio.gather(
        *(campaigns.create(campaign_request(audience={"csv": csv})) for csv in lists), return_exceptions=True
    )
    assert all(isinstance(outcome, dict | WrongState) for outcome in outcomes), outcomes
    shown = await campaigns.show("news-1")
    assert (shown["state"], shown["progress"]["total"]) == ("running", 1_500)
    emails = select(users.c.email).join(campaign_people, campaign_people.c.user_id == users.c.user_id)
    found = await either.database.read(lambda connection: connection.execute(emails).scalars().all())
    assert (len(found), len({email[0] for email in found})) == (1_500, 1)


async def test_a_request_that_another_overtook_takes_nobody_off_its_list(
    either: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever got no answer in time sends the same list again, while the first request is about to empty the list."""
    campaigns = either.notifications.campaigns
    await populate(either, 3)
    people = [person(number) for number in range(3)]
    request = campaign_request(audience={"user_ids": people})
    empty = campaigns._enrollment.empty

    async def overtaken(*arguments: Any) -> None:
        monkeypatch.undo()
        await campaigns.create(request)
        await empty(*arguments)

    monkeypatch.setattr(campaigns._enrollment, "empty", overtaken)
    assert (await campaigns.create(request))["state"] == "running"
    await send_all(either)
    assert await reached(either) == dict.fromkeys(people, 1)


async def test_the_same_request_several_times_at_once_is_answered_alike(either: TestApp) -> None:
    people = [person(number) for number in range(1_500)]
    request = campaign_request(audience={"user_ids": people})
    made = await asyncio.gather(*(either.notifications.campaigns.create(request) for _ in range(4)))
    assert [(one["state"], one["progress"]["total"]) for one in made] == [("running", 1_500)] * 4


async def test_the_same_wrong_request_several_times_at_once_is_told_why(either: TestApp) -> None:
    """The template lacks a variable, which the first letter of a list shows."""
    await populate(either, 3)
    people = [person(number) for number in range(3)]
    request = campaign_request(audience={"user_ids": people}, template_code="black_friday_sale", data={})
    made = (either.notifications.campaigns.create(request) for _ in range(4))
    refused = await asyncio.gather(*made, return_exceptions=True)
    assert [type(one) for one in refused] == [InvalidJob] * 4, refused
    assert len({str(one) for one in refused}) == 1


async def test_the_same_request_waits_for_a_list_as_long_as_it_grows(
    app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two that are the same looks five times for each person whom the second one adds."""
    monkeypatch.setattr(store, "LOOKS", 7)
    monkeypatch.setattr(store, "LOOK_AGAIN_SECONDS", 0)
    campaigns = app.notifications.campaigns
    request = campaign_request(audience={"user_ids": [person(number) for number in range(4)]})
    enrollment, may_look, has_looked = campaigns._enrollment, asyncio.Semaphore(0), asyncio.Semaphore(0)
    empty, by_ids, get = enrollment.empty, enrollment.by_ids, campaigns.get
    overtaken, other = asyncio.current_task(), list[asyncio.Task[Any]]()

    async def be_overtaken(campaign_id: str, guard: Any) -> None:
        if asyncio.current_task() is overtaken:
            monkeypatch.setattr(campaigns, "get", look)
            has_begun = asyncio.Event()
            monkeypatch.setattr(enrollment, "by_ids", partial(add_slowly, has_begun))
            other.append(asyncio.create_task(campaigns.create(request)))
            other[0].add_done_callback(lambda _: [may_look.release() for _ in range(100)])
            await has_begun.wait()
        await empty(campaign_id, guard)

    async def add_slowly(has_begun: asyncio.Event, campaign_id: str, user_ids: Any, guard: Any) -> Any:
        has_begun.set()
        for user_id in user_ids:
            report = await by_ids(campaign_id, [user_id], guard)
            for _ in range(5):
                may_look.release()
                await has_looked.acquire()
        return report

    async def look(campaign_id: str) -> Any:
        if asyncio.current_task() is overtaken:
            has_looked.release()
            await may_look.acquire()
        return await get(campaign_id)

    monkeypatch.setattr(enrollment, "empty", be_overtaken)
    made = [await campaigns.create(request), await other[0]]
    assert [(one["state"], one["progress"]["total"]) for one in made] == [("running", 4)] * 2


async def test_a_request_does_not_wait_for_ever_for_one_that_died(
    app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOOKS", 2)
    campaigns = app.notifications.campaigns

    async def overtaken(_campaign_id: str, guard: Any) -> None:
        await app.database.execute(update(table).values(holder="another"))
        await app.database.write(guard)

    monkeypatch.setattr(campaigns._enrollment, "empty", overtaken)
    with pytest.raises(WrongState, match="Another request took the list"):
        await campaigns.create(campaign_request(audience={"user_ids": [person(1)]}))


async def test_an_old_request_again_is_still_the_same(app: TestApp) -> None:
    await populate(app, 2)
    once = campaign_request(expires_at=isoformat(app.clock.now() + 60_000))
    await app.notifications.campaigns.create(once)
    await send_all(app)
    await app.clock.advance("1h")
    assert (await app.notifications.campaigns.create(once))["state"] == "finished"


# ── Steering ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_paused_and_resumed(app: TestApp) -> None:
    await populate(app, 30)
    campaigns = app.notifications.campaigns
    await campaigns.create(campaign_request())
    await app.notifications.fan_out.run()
    assert (await campaigns.pause("news-1"))["state"] == "paused"
    await app.clock.advance("10m")
    assert await reached(app) == {}
    await campaigns.resume("news-1")
    await app.clock.advance("1m")
    assert await reached(app) == {person(number): 1 for number in range(30)}


async def test_of_two_who_pause_it_at_once_the_other_is_told_how_it_is(app: TestApp) -> None:
    await populate(app, 1)
    campaigns = app.notifications.campaigns
    await campaigns.create(campaign_request())
    one, other = await asyncio.gather(*(campaigns.pause("news-1") for _ in range(2)), return_exceptions=True)
    said = {"The campaign news-1 can't become paused: it is paused."}
    assert {str(answer) for answer in (one, other) if isinstance(answer, WrongState)} == said


async def test_cancelled_after_the_clock_was_set_back(app: TestApp) -> None:
    await populate(app, 1)
    campaigns = app.notifications.campaigns
    await campaigns.create(campaign_request())
    elsewhere = CampaignLimits(app.database, app.notifications.queue, app.clock)
    assert not await elsewhere.is_cancelled("news-1")
    app.clock._now -= 3_600_000
    await campaigns.cancel("news-1")
    assert await elsewhere.is_cancelled("news-1")


async def test_paused_before_anybody_was_queued(app: TestApp) -> None:
    await populate(app, 30)
    campaigns = app.notifications.campaigns
    await campaigns.create(campaign_request())
    await campaigns.pause("news-1")
    await send_all(app)
    assert (await progress(app))["fanned_out"] == 0
    await campaigns.resume("news-1")
    await send_all(app)
    assert len(await reached(app)) == 30


async def test_cancelled_at_the_last_moment(either: TestApp) -> None:
    """Those who wait are not sent, and those who were not queued yet leave no trace."""
    people = BATCH + 20
    await populate(either, people)
    campaigns = either.notifications.campaigns
    await campaigns.create(campaign_request())
    assert await either.notifications.fan_out.step_all() == 0  # one window
    assert (await campaigns.cancel("news-1"))["state"] == "cancelled"
    await send_all(either)
    assert await reached(either) == {}
    assert await statuses(either) == {"CANCELLED": BATCH}
    told = await progress(either)
    assert (told["state"], told["fanned_out"], told["cancelled"]) == ("cancelled", BATCH, BATCH)


async def test_not_before_and_not_after(app: TestApp) -> None:
    await populate(app, 10)
    now = app.clock.now()
    early, late = isoformat(now + 3_600_000), isoformat(now + 7_200_000)
    made = await app.notifications.campaigns.create(campaign_request(send_after=early, expires_at=late))
    assert made["state"] == "scheduled"
    await send_all(app)
    assert await reached(app) == {}
    await app.clock.advance("61m")
    await send_all(app)
    assert len(await reached(app)) == 10
    await app.notifications.campaigns.create(campaign_request(campaign_id="late", expires_at=late))
    await app.clock.advance("3h")
    await send_all(app)
    shown = await app.notifications.campaigns.show("late")
    assert (shown["state"], shown["progress"]["fanned_out"]) == ("finished", 0)


# ── Variants and rates ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_variants_share_the_people_and_keep_them(app: TestApp) -> None:
    await populate(app, 2_000)
    variants = [{"name": "a", "percent": 20, "data": {"name": "A"}}, {"name": "b", "percent": 80}]
    await app.notifications.campaigns.create(campaign_request(variants=variants))
    await send_all(app)
    shown = await app.notifications.campaigns.show("news-1")
    share = shown["by_variant"]["a"]["sent"]
    assert share + shown["by_variant"]["b"]["sent"] == 2_000
    assert 300 < share < 500
    campaign = await app.notifications.campaigns.get("news-1")
    people = (await _audience(app).window(None, 2_000)).people
    chosen = [one.variant for one in plan(campaign, people, 0)]
    assert Counter(chosen)["a"] == share
    assert chosen == [one.variant for one in plan(campaign, people, 1)]


async def test_a_rate_holds_over_all_processes(app: TestApp) -> None:
    await populate(app, 60)
    await app.notifications.campaigns.create(campaign_request(rate="10/s"))
    others = [app.notifications.fan_out, _another(app)]
    for _ in range(100):
        for other in others:
            await other.run()
        await app.clock.advance("100ms")
    moments = await sending_moments(app)
    assert len(moments) == 60
    assert busiest_second(moments) <= 10
    assert moments[-1] - moments[0] < 9_000, "as fast as it may be"


async def test_a_rate_is_applied_when_sending_and_nowhere_else(app: TestApp) -> None:
    """The fan-out gives no message a moment of its own; it only queues no more than will be sent soon."""
    await populate(app, 200)
    await app.notifications.campaigns.create(campaign_request(rate="20/s"))
    await app.notifications.fan_out.run()
    jobs = await app.notifications.queue.jobs("waiting", limit=200)
    assert 1 <= len(jobs) <= 20 * AHEAD / 1000 + 1
    assert {job.data["send_after"] for job in jobs} == {None}
    assert (await app.notifications.queue.counts())["delayed"] == 0


async def test_messages_that_become_due_together_keep_to_the_rate(app: TestApp) -> None:
    await populate(app, 20)
    at_night = Preferences.model_validate({"quiet_hours": {"from": "22:00", "until": "08:00"}})
    for number in range(20):
        await app.notifications.preferences.put(person(number), at_night)
    await app.clock.advance_to(datetime(2026, 1, 1, 22, 30, tzinfo=UTC))
    await app.notifications.campaigns.create(campaign_request(rate="5/s"))
    for _ in range(60):
        await app.notifications.fan_out.run()
        await app.clock.advance("100ms")
    assert await reached(app) == {}
    assert (await app.notifications.campaigns.show("news-1"))["progress"]["fanned_out"] == 20
    await app.clock.advance_to(datetime(2026, 1, 2, 8, 0, tzinfo=UTC))
    for _ in range(150):
        await app.clock.advance("100ms")
    moments = await sending_moments(app)
    assert len(moments) == 20
    assert busiest_second(moments) <= 5


async def test_a_slow_rate(app: TestApp) -> None:
    await populate(app, 3)
    await app.notifications.campaigns.create(campaign_request(rate="1/h"))
    for hours in range(1, 4):
        for _ in range(60):
            await app.notifications.fan_out.run()
            await app.clock.advance("1m")
        assert len(await reached(app)) == hours


async def test_the_bar_of_a_watched_campaign_ends_where_all_are_reached(
    app: TestApp, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await populate(app, 3)
    campaigns = app.notifications.campaigns
    await campaigns.create(campaign_request(rate="1/m"))
    looks = 0

    class Watched:
        async def show(self, campaign_id: str) -> dict[str, Any]:
            nonlocal looks
            looks += 1
            return await campaigns.show(campaign_id)

    monkeypatch.setattr(campaign_command, "POLL_SECONDS", 0.01)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal: elsewhere there is no bar
    watching = asyncio.create_task(campaign_command._watch(Watched(), REQUEST["campaign_id"]))  # type: ignore[arg-type]
    for people in range(1, 4):
        while len(await reached(app)) < people:
            await app.notifications.fan_out.run()
            await app.clock.advance("1m")
        seen = looks
        await eventually(lambda seen=seen: watching.done() or looks >= seen + 2)
    await app.notifications.fan_out.run()
    assert (await watching)["state"] == "finished"
    assert "3/3" in capsys.readouterr().err


def _another(app: TestApp) -> FanOut:
    counts = app.notifications.deliveries.campaign_counts
    return FanOut(app.database, app.notifications.queue, counts, app.clock)


# ── Channels of one's own, and what is counted ────────────────────────────────────────────────────────────────────────


class PagerChannel(Channel):
    """A channel that a user wrote."""

    name = "pager"
    provider = "acme"
    resends_unknown = True

    def __init__(self) -> None:
        self.sent: list[str] = []

    def address(self, recipient: Recipient) -> str | None:
        return recipient.email

    async def send(self, message: Message) -> str | None:
        self.sent.append(message.to)
        return None


async def test_a_channel_of_ones_own(app: TestApp, tmp_path: Path) -> None:
    (tmp_path / "templates" / "news" / "pager.en.txt").write_text("News")
    channel = PagerChannel()
    app.notifications.register(channel)
    await populate(app, 3)
    await app.notifications.campaigns.create(campaign_request(channel="pager"))
    await send_all(app)
    assert sorted(channel.sent) == [f"user-{number}@example.com" for number in range(3)]
    page = app.metrics.render({}, {}, [app.notifications.metrics]).decode()
    assert 'yamchi_deliveries_total{channel="pager",status="SENT"} 3.0' in page
    assert 'yamchi_provider_answers_total{answer="sent",channel="pager",provider="acme"} 3.0' in page


async def test_a_rehearsal_uses_the_letter(app: TestApp) -> None:
    await populate(app, 2)
    await app.notifications.campaigns.create(campaign_request(template_code="welcome_email"))
    await send_all(app)
    assert (await progress(app))["sent"] == 2


async def test_what_made_messages_fail_is_shown_with_the_campaign(either: TestApp, tmp_path: Path) -> None:
    await populate(either, 3)
    (tmp_path / "templates" / "news" / "null.en.txt").write_text("Your {{ user.badge }}")
    first = User(email="first@example.com", attributes={"badge": "gold"})
    await either.notifications.recipients.put("00000000-0000-4000-8000-000000000000", first)
    campaigns = either.notifications.campaigns
    await campaigns.create(campaign_request())
    assert (await campaigns.show("news-1"))["failure"] is None
    await send_all(either)
    shown = await campaigns.show("news-1")
    assert (shown["progress"]["sent"], shown["progress"]["failed"]) == (1, 3)
    assert "badge" in shown["failure"]


# ── The rehearsal ─────────────────────────────────────────────────────────────────────────────────────────────────────


SALE = {"template_code": "black_friday_sale"}


async def test_a_campaign_that_lacks_a_variable_is_refused_with_its_name(either: TestApp) -> None:
    await populate(either, 2)
    campaigns = either.notifications.campaigns
    said = "the variable 'discount' is missing. Missing, too: 'promo_code'"
    with pytest.raises(InvalidJob, match=said):
        await campaigns.create(campaign_request(**SALE))
    await send_all(either)
    assert await statuses(either) == {}, "nothing was sent"
    await campaigns.create(campaign_request())  # corrected, under the same id
    await send_all(either)
    assert (await campaigns.show("news-1"))["progress"]["failed"] == 0


async def test_every_variant_is_rehearsed(app: TestApp, tmp_path: Path) -> None:
    await populate(app, 2)
    (tmp_path / "templates" / "other").mkdir()
    (tmp_path / "templates" / "other" / "null.en.txt").write_text("Hello {{ city }}")
    rare = {"name": "rare", "percent": 1, "template_code": "other"}
    variants = [{"name": "most", "percent": 99}, rare]
    with pytest.raises(InvalidJob, match="'city'"):
        await app.notifications.campaigns.create(campaign_request(variants=variants))
    rare["data"] = {"city": "Almaty"}
    await app.notifications.campaigns.create(campaign_request(variants=variants))


@pytest.mark.parametrize("upload", [False, True])
async def test_a_list_is_rehearsed_with_the_data_of_its_first_row(
    app: TestApp, tmp_path: Path, upload: bool
) -> None:
    await populate(app, 2)
    (tmp_path / "templates" / "news" / "null.en.txt").write_text("Hello {{ city }}")
    campaigns = app.notifications.campaigns

    async def send(csv: str) -> None:
        if upload:
            await campaigns.create(campaign_request(audience={"upload": True}))
            await campaigns.upload("news-1", csv.splitlines(keepends=True))
        else:
            await campaigns.create(campaign_request(audience={"csv": csv}))

    with pytest.raises(InvalidJob, match="'city'"):
        await send(f"user_id\n{person(0)}\n")
    await send(f"user_id,city\n{person(0)},Almaty\n{person(1)},Astana\n")
    await send_all(app)
    assert (await campaigns.show("news-1"))["progress"]["sent"] == 2


async def test_the_first_person_is_looked_for_among_all(app: TestApp, tmp_path: Path) -> None:
    """A window in which nobody fits is not the end of the audience."""
    await populate(app, 5)
    (tmp_path / "templates" / "news" / "null.en.txt").write_text("Hello {{ city }}")
    last = max(person(number) for number in range(5))
    number = next(number for number in range(5) if person(number) == last)
    for where in ({"attributes.age": number}, {}):
        with pytest.raises(InvalidJob, match="'city'"):
            await app.notifications.campaigns.create(campaign_request(audience={"where": where}))
    await app.notifications.campaigns.create(campaign_request(audience={"where": {"attributes.age": 99}}))
    await send_all(app)
    assert await statuses(app) == {}, "it is for nobody, so there is nothing to rehearse"


async def test_old_lines_of_the_ledger_go(either: TestApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yamchi.notifications.channels.null.PRUNE_BATCH", 2)
    await populate(either, 5)
    ledger = NullLedger(either.database, either.clock)
    await either.notifications.campaigns.create(campaign_request())
    await send_all(either)
    await either.clock.advance("29d")
    await either.notifications.campaigns.create(campaign_request(campaign_id="news-2"))
    await send_all(either)
    assert await ledger.prune() == 0
    await either.clock.advance("2d")
    assert await ledger.prune() == 5
    assert (await count_ledger(either.database))["lines"] == 5, "those of the second campaign stay"
    assert await ledger.prune() == 0


# ── Over HTTP, and bad input ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_campaign_over_http(app: TestApp, client: httpx2.AsyncClient) -> None:
    await populate(app, 5)
    first = await client.post("/campaigns", json=REQUEST)
    assert (first.status_code, first.json()["progress"]["total"]) == (202, 5)
    assert (await client.post("/campaigns", json=REQUEST)).json() == first.json()
    other = await client.post("/campaigns", json={**REQUEST, "data": {"name": "X"}})
    assert (other.status_code, "is another one" in other.json()["detail"]) == (409, True)
    assert (await client.post("/campaigns/news-1/pause")).json()["state"] == "paused"
    twice = await client.post("/campaigns/news-1/pause")
    assert (twice.status_code, "it is paused" in twice.json()["detail"]) == (409, True)
    assert (await client.post("/campaigns/news-1/resume")).json()["state"] == "running"
    await send_all(app)
    assert [one["state"] for one in (await client.get("/campaigns")).json()] == ["finished"]
    late = await client.post("/campaigns/news-1/cancel")
    assert (late.status_code, "it is finished" in late.json()["detail"]) == (409, True)


def bad(**fields: Any) -> dict[str, Any]:
    return {**REQUEST, **fields}


def where(condition: Any) -> dict[str, Any]:
    return bad(audience={"where": condition})


BAD: list[tuple[dict[str, Any], str]] = [
    (bad(template_code="nothing"), "There is no template 'nothing'"),
    (bad(channel="owl"), "there is no channel 'owl'"),
    (bad(channel="telegram"), "telegram is not set up here"),
    (bad(campaign_id="two words"), "campaign_id"),
    (where({"plan": "pro"}), "there is no field 'plan'"),
    (where({"attributes.": "pro"}), "there is no field 'attributes.'"),
    (where({"attributes.a'b": "pro"}), "there is no field"),
    (where({"attributes.age": {"above": 3}}), "there is no operator 'above'"),
    (where({"attributes.age": {"gt": [1]}}), "gt can't be used with [1]"),
    (where({"attributes.age": {}}), "says nothing"),
    (where({"locale": []}), "0 values"),
    (where({f"attributes.a{n}": n for n in range(51)}), "has 51 conditions: give at most 50"),
    (where({f"attributes.a{n}": ["x"] * 900 for n in range(6)}), "has 5,400 values in its lists"),
    (where({"attributes." + "a" * 5_000: 1}), f"there is no field 'attributes.{'a' * 49}': use"),
    (where({"locale": 5}), "locale can't be compared with 5"),
    (where({"created_at": {"gt": "yesterday"}}), "'yesterday' is no moment"),
    (bad(audience={}), "exactly one of user_ids, where, csv and upload"),
    (bad(audience={"where": {}, "csv": "email"}), "not where and csv"),
    (bad(audience={"user_ids": ["nobody"]}), "user_ids"),
    (bad(audience={"csv": "name,phone\nA,1\n"}), "The CSV has no column user_id or email"),
    (bad(audience={"csv": ""}), "it is empty"),
    (bad(audience={"csv": "email\n"}), "it has no rows"),
    (bad(audience={"csv": "email\nnonsense\n"}), "row 2: email"),
    (bad(audience={"user_ids": []}), "user_ids"),
    (bad(audience={"csv": "email,email\n"}), "two columns of the same name"),
    (
        bad(send_after="2030-01-02T00:00:00Z", expires_at="2030-01-01T00:00:00Z"),
        "expires_at is not after send_after",
    ),
    (bad(expires_at="2020-01-01T00:00:00Z"), "in the past"),
    (bad(variants=[{"name": "a", "percent": 50}, {"name": "b", "percent": 40}]), "add up to 90, not to 100"),
    (bad(variants=[{"name": "a", "percent": 50}, {"name": "a", "percent": 50}]), "the same name"),
    (bad(variants=[{"name": "a", "percent": 100, "template_code": "none"}]), "There is no template 'none'"),
    (bad(rate="fast"), "'fast' is not a rate"),
    (bad(data={"big": "x" * 70_000}), "bytes"),
    (bad(surprise=1), "surprise"),
]


@pytest.mark.parametrize(("body", "named"), BAD)
async def test_bad_input_is_refused_in_a_sentence(
    app: TestApp, client: httpx2.AsyncClient, body: dict[str, Any], named: str
) -> None:
    answer = await client.post("/campaigns", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert named in answer.json()["detail"]
    await send_all(app)
    assert await statuses(app) == {}


@pytest.mark.parametrize("path", ["", "/pause", "/resume", "/cancel", "/audience"])
async def test_an_unknown_campaign(client: httpx2.AsyncClient, path: str) -> None:
    method = "GET" if not path else "PUT" if path == "/audience" else "POST"
    answer = await client.request(method, f"/campaigns/nothing{path}")
    assert (answer.status_code, answer.json()["detail"]) == (404, "There is no campaign 'nothing'.")


async def test_a_campaign_that_can_never_go_on_stops_nobody_behind_it(app: TestApp) -> None:
    """One kept by a version that knew no bounds: its rate can't be read, and its next permit is beyond the calendar."""
    await populate(app, 3)
    for campaign_id in ("a-odd", "b-fine"):
        await app.notifications.campaigns.create(campaign_request(campaign_id=campaign_id))
    odd = table.c.campaign_id == "a-odd"
    body = await app.database.read(lambda one: one.execute(select(table.c.body).where(odd)).scalar_one())
    spoiled = update(table).where(odd).values(body={**body, "rate": "1/99999999999d"})
    await app.database.write(lambda connection: connection.execute(spoiled).rowcount)
    await send_all(app)
    shown = {one["campaign_id"]: one for one in await app.notifications.campaigns.list()}
    assert shown["b-fine"]["state"] == "finished"
    assert shown["a-odd"]["progress"]["fanned_out"] == 0


async def test_a_row_without_end_is_named_and_the_rest_is_taken() -> None:
    endless = "x" * (LONGEST_ROW * 40)
    lines = StringIO(f"email,note\na@example.com,1\n{endless}\nb@example.com,2\n")
    rows = list(read_list(lines))
    assert [type(row).__name__ for row in rows] == ["Entry", "Broken", "Entry"]
    assert "65,536" in rows[1].error  # type: ignore[union-attr]


async def test_a_row_of_many_lines_has_an_end() -> None:
    """A quote that is never closed takes in every line that follows; but no more than a row may have."""
    quoted = ('"' + "x" * 1_000 + '\n",') * 1_000
    rows = list(read_list(StringIO(f"email,note\n{quoted}\nb@example.com,2\n")))
    assert any(isinstance(row, Broken) and "65,536" in row.error for row in rows)
    assert isinstance(rows[-1], Entry)


def test_a_heading_without_end_is_refused() -> None:
    with pytest.raises(InvalidJob, match="first row"):
        list(read_list(StringIO("email," * 100_000)))


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, -(2**63)])
async def test_a_filter_may_name_any_number_that_json_has(app: TestApp, number: int) -> None:
    audience = Audience(app.database, "huge", {"attributes.points": {"lt": number}})
    assert await audience.first() is None
