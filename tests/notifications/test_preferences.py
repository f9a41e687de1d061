"""What people chose is obeyed: by channel and by category, with the reason kept; and addresses that reach nobody are left alone."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.notifications.conftest import USER
from tests.notifications.harness import ADDRESS, Harness, open_harness
from tests.services.mail import MailServer
from yamchi.http.callerlocks import MOST_WAITING
from yamchi.notifications.people.model import RecipientPreferences
from yamchi.notifications.people.preferences import Preferences


@pytest.fixture
async def harness(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[Harness]:
    async with open_harness(tmp_path, mail_server) as harness:
        await harness.person()
        yield harness


async def test_everything_is_on_by_default(harness: Harness) -> None:
    shown = (await harness.client.get(f"/users/{USER}/preferences")).json()
    assert shown == {"allowed": {}, "quiet_hours": None}
    job = await harness.notify()
    await harness.app.drain()
    assert await harness.status(job) == "SENT"


@pytest.mark.parametrize(
    ("allowed", "status"),
    [
        ({"email": {"recommendations": False}}, "SUPPRESSED"),
        ({"email": {"*": False}}, "SUPPRESSED"),
        ({"*": {"recommendations": False}}, "SUPPRESSED"),
        ({"*": {"*": False}}, "SUPPRESSED"),
        ({"email": {"promotions": False}}, "SENT"),
        ({"telegram": {"*": False}}, "SENT"),
        ({"email": {"*": False, "recommendations": True}}, "SENT"),
        ({"*": {"*": False}, "email": {"*": True}}, "SENT"),
        ({"email": {"*": True}, "*": {"recommendations": False}}, "SUPPRESSED"),
    ],
)
async def test_a_choice_decides(harness: Harness, allowed: dict[str, dict[str, bool]], status: str) -> None:
    await harness.choose(allowed=allowed)
    job = await harness.notify()
    await harness.app.drain()
    delivery = await harness.delivery(job)
    assert delivery["status"] == status
    assert len(harness.mail.letters) == (status == "SENT")
    assert await harness.dead_letters() == []
    if status == "SUPPRESSED":
        assert "opted out of 'recommendations'" in delivery["last_error"]
        assert delivery["attempts"] == 0


async def test_choices_may_be_given_in_short(harness: Harness) -> None:
    short = {
        "channels": {"sms": False, "browser": True},
        "categories": {"promotions": False},
        "allowed": {"email": {"account": True}},
        "quiet_hours": {"from": "22:00", "to": "08:00"},
    }
    kept = (await harness.client.put(f"/users/{USER}/preferences", json=short)).json()
    assert kept["allowed"] == {
        "sms": {"*": False}, "push": {"*": True}, "*": {"promotions": False}, "email": {"account": True},
    }  # fmt: skip
    assert kept["quiet_hours"] == {"from": "22:00", "until": "08:00"}
    wrong = await harness.client.put(f"/users/{USER}/preferences", json={"channels": {"owl": False}})
    assert (wrong.status_code, "no channel 'owl'" in wrong.json()["detail"]) == (422, True)
    wrong = await harness.client.put(f"/users/{USER}/preferences", json={"channels": ["email"]})
    assert wrong.status_code == 422


async def test_only_a_template_marked_transactional_ignores_choices(harness: Harness) -> None:
    await harness.choose(allowed={"*": {"*": False}})
    receipt = "---\nsubject: Receipt\ncategory: payments\ntransactional: {}\n---\n<p>Paid.</p>"
    harness.template("marked", receipt.replace("{}", "true"))
    harness.template("unmarked", receipt.replace("{}", "false"))
    marked, unmarked = await harness.notify("marked"), await harness.notify("unmarked")
    await harness.app.drain()
    assert (await harness.status(marked), await harness.status(unmarked)) == ("SENT", "SUPPRESSED")


async def test_choices_survive_a_change_of_the_person(harness: Harness) -> None:
    await harness.choose(
        allowed={"sms": {"*": False}, "browser": {"promotions": False}},
        quiet_hours={"from": "22:00", "until": "08:00"},
    )
    await harness.person(locale="kk")
    shown = (await harness.client.get(f"/users/{USER}/preferences")).json()
    assert shown["allowed"] == {"sms": {"*": False}, "push": {"promotions": False}}
    assert shown["quiet_hours"] == {"from": "22:00", "until": "08:00"}
    await harness.choose()
    assert (await harness.client.get(f"/users/{USER}/preferences")).json() == {
        "allowed": {},
        "quiet_hours": None,
    }


async def test_what_is_suppressed_stays_so_when_delivered_again(harness: Harness) -> None:
    await harness.choose(allowed={"email": {"*": False}})
    job = await harness.notify()
    await harness.app.drain()
    await harness.choose()
    await harness.again(job)
    assert await harness.status(job) == "SUPPRESSED"
    assert harness.mail.letters == []


BAD = [
    ({"allowed": {"owl": {"*": False}}}, "owl"),
    ({"allowed": {"email": {"": False}}}, "allowed"),
    ({"allowed": {"email": {"x": "maybe"}}}, "allowed"),
    ({"quiet_hours": {"from": "22", "until": "08:00"}}, "22:00"),
    ({"quiet_hours": {"from": "25:00", "until": "08:00"}}, "25:00"),
    ({"quiet_hours": {"from": "08:00", "until": "08:00"}}, "another time"),
    ({"surprise": 1}, "surprise"),
]


@pytest.mark.parametrize(("body", "named"), BAD)
async def test_bad_choices_are_refused_in_a_sentence(harness: Harness, body: object, named: str) -> None:
    answer = await harness.client.put(f"/users/{USER}/preferences", json=body)
    assert answer.status_code == 422
    assert named in answer.json()["detail"]


CHANNELS, CATEGORIES = st.sampled_from(["email", "*"]), st.sampled_from(["news", "*"])


@given(st.dictionaries(st.tuples(CHANNELS, CATEGORIES), st.booleans()))
def test_the_more_is_said_the_more_it_counts(choices: dict[tuple[str, str], bool]) -> None:
    preferences = RecipientPreferences(choices)
    exact = choices.get(("email", "news"))
    if exact is not None:
        assert preferences.allow("email", "news") is exact
    elif False in (choices.get(("email", "*")), choices.get(("*", "news"))):
        assert not preferences.allow("email", "news")
    elif True in (choices.get(("email", "*")), choices.get(("*", "news"))):
        assert preferences.allow("email", "news")
    else:
        assert preferences.allow("email", "news") is choices.get(("*", "*"), True)


# ── Addresses that reach nobody ───────────────────────────────────────────────────────────────────────────────────


async def test_an_address_that_reached_nobody_is_left_alone(harness: Harness) -> None:
    harness.mail.refusals[ADDRESS] = "550 5.1.1 no such user"
    first = await harness.notify()
    await harness.app.drain()
    assert await harness.status(first) == "FAILED"
    assert len(await harness.dead_letters()) == 1
    (kept,) = (await harness.client.get("/suppressions")).json()["items"]
    assert (kept["channel"], kept["address"], kept["job_id"]) == ("email", ADDRESS, first)
    assert "no such user" in kept["reason"]

    tried = harness.mail.connections
    del harness.mail.refusals[ADDRESS]
    second = await harness.notify()
    await harness.app.drain()
    assert await harness.status(second) == "SUPPRESSED"
    assert "no such user" in (await harness.delivery(second))["last_error"]
    assert (harness.mail.letters, harness.mail.connections) == ([], tried)
    assert len(await harness.dead_letters()) == 1

    assert (await harness.client.delete(f"/suppressions/email/{ADDRESS}")).status_code == 204
    third = await harness.notify()
    await harness.app.drain()
    assert await harness.status(third) == "SENT"
    assert (await harness.client.delete(f"/suppressions/email/{ADDRESS}")).status_code == 404


@pytest.mark.parametrize("refusal", ["550 5.7.1 blocked by policy", "552 5.2.2 mailbox full", "554 spam"])
async def test_a_refusal_that_is_not_about_the_mailbox_suppresses_nobody(
    harness: Harness, refusal: str
) -> None:
    harness.mail.refusals[ADDRESS] = refusal
    job = await harness.notify()
    await harness.app.drain()
    assert await harness.status(job) == "FAILED"
    assert (await harness.client.get("/suppressions")).json()["items"] == []


async def test_another_address_of_the_same_person_is_free(harness: Harness) -> None:
    harness.mail.refusals[ADDRESS] = "550 no such user"
    await harness.notify()
    await harness.app.drain()
    await harness.person(email="new@example.com")
    job = await harness.notify()
    await harness.app.drain()
    assert await harness.status(job) == "SENT"


async def test_a_message_to_a_suppressed_address_without_a_person(harness: Harness) -> None:
    new = {"channel": "email", "address": "x@example.com", "reason": "asked by telephone"}
    assert (await harness.client.post("/suppressions", json=new)).status_code == 204
    assert (await harness.client.post("/suppressions", json=new)).status_code == 204
    options = {"to": ["x@example.com", "y@example.com"], "subject": "Hi", "text": "there"}
    await harness.app.notifications.queue.add({"channel": "email", "options": options})
    await harness.app.drain()
    assert harness.mail.by_recipient() == {"y@example.com": 1}
    assert await harness.dead_letters() == []


async def test_the_domain_of_a_suppressed_address_is_the_same_in_any_case(harness: Harness) -> None:
    local, _, domain = ADDRESS.partition("@")
    shouted = f"{local}@{domain.upper()}"
    new = {"channel": "email", "address": shouted, "reason": "asked by telephone"}
    assert (await harness.client.post("/suppressions", json=new)).status_code == 204
    job_id = await harness.notify()
    direct = {"channel": "email", "options": {"to": shouted, "subject": "Hello", "text": "Hello"}}
    await harness.app.notifications.queue.add(direct, name="send")
    await harness.app.drain()
    assert harness.mail.letters == []
    assert await harness.status(job_id) == "SUPPRESSED"
    assert (await harness.client.delete(f"/suppressions/email/{shouted}")).status_code == 204
    await harness.notify()
    await harness.app.drain()
    assert len(harness.mail.letters) == 1


async def test_a_person_who_is_suppressed_by_id_gets_nothing_there(harness: Harness) -> None:
    """The inbox, open pages and browsers have no other address."""
    new = {"channel": "database", "address": USER, "reason": "asked by telephone"}
    assert (await harness.client.post("/suppressions", json=new)).status_code == 204
    harness.template("new_film_recommendation", "{{ film_title }}", channel="database")
    job_id = await harness.notify(channel="database")
    await harness.app.drain()
    assert await harness.status(job_id) == "SUPPRESSED"


async def test_a_direct_message_to_a_person_who_opted_out(harness: Harness) -> None:
    """With a template that people may opt out of, a user's id in place of an address is no way around it."""
    harness.template("news", "---\ncategory: news\n---\nNews", channel="database")
    await harness.choose(allowed={"database": {"news": False}})
    direct = {"channel": "database", "options": {"to": USER, "template": "news", "locale": "en"}}
    await harness.app.notifications.queue.add(direct, name="send")
    await harness.app.drain()
    assert [status for _, status, _ in await harness.deliveries()] == ["SUPPRESSED"]


async def test_suppressions_in_pages(harness: Harness) -> None:
    for number in range(7):
        body = {"channel": "email", "address": f"a{number}@example.com", "reason": "test"}
        await harness.client.post("/suppressions", json=body)
    seen, cursor = [], ""
    while cursor is not None:
        params = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = (await harness.client.get("/suppressions", params=params)).json()
        seen += [item["address"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert sorted(seen) == [f"a{number}@example.com" for number in range(7)]
    assert (await harness.client.get("/suppressions", params={"cursor": "nonsense"})).status_code == 422


async def test_what_a_page_puts_at_once_is_put_one_after_another(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one transaction all of it would be what everybody else waits for."""
    store = harness.app.notifications.preferences
    put, now, most = store.put, 0, 0

    async def watched(user_id: str, chosen: Preferences) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await put(user_id, chosen)
        now -= 1

    monkeypatch.setattr(store, "put", watched)
    token = (await harness.client.post(f"/users/{USER}/token")).json()["token"]
    page = {"authorization": f"Bearer {token}"}
    place, body = f"/users/{USER}/preferences", {"channels": {"email": False}}
    answers = await asyncio.gather(*(harness.client.put(place, json=body, headers=page) for _ in range(60)))
    codes = Counter(answer.status_code for answer in answers)
    assert most == 1
    assert codes[200] >= MOST_WAITING
    assert codes[200] + codes[429] == 60
