"""Unsubscribing: by the page and by one click, signed, with no sign-in; and nothing but a press of the button does it."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.notifications.conftest import USER
from tests.notifications.harness import Harness, ScriptedChannel, open_harness
from tests.services.mail import MailServer
from yamchi.notifications.channels.base import Recipient

PUBLIC = "https://notify.example.com"


@pytest.fixture
async def harness(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[Harness]:
    settings = {"public_url": PUBLIC, "admin_token": "an admin's token"}
    async with open_harness(tmp_path, mail_server, **settings) as harness:
        harness.client.headers["authorization"] = "Bearer an admin's token"
        await harness.person()
        yield harness


@pytest.fixture
async def stranger(harness: Harness) -> AsyncIterator[httpx2.AsyncClient]:
    """Whoever holds the letter, and no token."""
    transport = harness.client._transport  # the same application
    async with httpx2.AsyncClient(transport=transport, base_url=PUBLIC) as client:
        yield client


async def link_of(harness: Harness) -> str:
    """The link in the headers of a letter just sent."""
    await harness.notify()
    await harness.app.drain()
    header = str(harness.mail.letters[-1][1]["List-Unsubscribe"])
    assert header.startswith(f"<{PUBLIC}/unsubscribe/")
    return header.strip("<>")


async def allowed(harness: Harness) -> object:
    return (await harness.client.get(f"/users/{USER}/preferences")).json()["allowed"]


async def test_letters_carry_the_link(harness: Harness) -> None:
    link = await link_of(harness)
    (_, letter), *_ = harness.mail.letters
    assert letter["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    html = letter.get_body(("html",)).get_content()
    assert link in html
    assert link in letter.get_body(("plain",)).get_content()


async def test_what_must_arrive_has_no_link(harness: Harness) -> None:
    harness.template("receipt", "---\nsubject: Paid\ntransactional: true\n---\n<p>Paid.</p>")
    await harness.notify("receipt")
    await harness.app.drain()
    ((_, letter),) = harness.mail.letters
    assert letter["List-Unsubscribe"] is None
    assert "unsubscribe" not in letter.get_body(("html",)).get_content().lower()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_looking_changes_nothing(harness: Harness, stranger: httpx2.AsyncClient, method: str) -> None:
    link = await link_of(harness)
    for _ in range(3):
        assert (await stranger.request(method, link)).status_code == 200
    assert await allowed(harness) == {}


async def test_one_click(harness: Harness, stranger: httpx2.AsyncClient) -> None:
    link = await link_of(harness)
    answer = await stranger.post(link, data={"List-Unsubscribe": "One-Click"})
    assert answer.status_code == 200
    assert await allowed(harness) == {"email": {"recommendations": False}}
    job = await harness.notify()
    await harness.app.drain()
    assert await harness.status(job) == "SUPPRESSED"
    assert len(harness.mail.letters) == 1


async def test_one_click_as_multipart(harness: Harness, stranger: httpx2.AsyncClient) -> None:
    link = await link_of(harness)
    answer = await stranger.post(link, files={"List-Unsubscribe": (None, b"One-Click")})
    assert answer.status_code == 200
    assert await allowed(harness) == {"email": {"recommendations": False}}


async def test_the_page_offers_the_category_or_all_and_a_way_back(
    harness: Harness, stranger: httpx2.AsyncClient
) -> None:
    link = await link_of(harness)
    page = (await stranger.get(link)).text
    assert "Only “Recommendations”" in page
    assert 'value="channel"' in page
    done = await stranger.post(link, data={"scope": "channel"}, headers={"origin": PUBLIC})
    assert "nothing more by e-mail" in done.text
    assert await allowed(harness) == {"email": {"*": False}}
    assert "no more “Recommendations”" in (await stranger.get(link)).text  # the link opened again
    await stranger.post(link, data={"scope": "channel", "allow": "yes"})
    assert await allowed(harness) == {"email": {"*": True}}


async def test_twice_is_once(harness: Harness, stranger: httpx2.AsyncClient) -> None:
    link = await link_of(harness)
    for _ in range(2):
        assert (await stranger.post(link)).status_code == 200
    assert await allowed(harness) == {"email": {"recommendations": False}}


async def test_a_letter_makes_nobody_anew_who_was_erased(
    harness: Harness, stranger: httpx2.AsyncClient
) -> None:
    """Its link answers as before: they get nothing any more."""
    link = await link_of(harness)
    assert (await harness.client.delete(f"/users/{USER}")).status_code == 200
    assert (await stranger.post(link, data={"List-Unsubscribe": "One-Click"})).status_code == 200
    assert (await harness.client.get(f"/users/{USER}")).status_code == 404
    assert await allowed(harness) == {}


class Pager(ScriptedChannel):
    """A channel that knows by itself where people are."""

    def address(self, recipient: Recipient) -> str | None:
        return recipient.user_id


@pytest.mark.parametrize("scope", ["category", "channel"])
async def test_who_is_known_to_nobody_but_their_channel_is_heard(
    harness: Harness, stranger: httpx2.AsyncClient, scope: str
) -> None:
    """Nobody put them as a user, as for the inbox, push, and channels of one's own nobody must."""
    pager, person = Pager("sms"), "6c1a1f0e-5a6b-4c3d-9e2f-000000000042"
    harness.app.notifications.register(pager)
    (harness.app.settings.home / "templates" / "news" / "sms.en.txt").parent.mkdir(parents=True)
    (harness.app.settings.home / "templates" / "news" / "sms.en.txt").write_text("{{ unsubscribe_url }}")
    await harness.notify("news", channel="sms", user_id=person)
    await harness.app.drain()
    (message,) = pager.sent
    assert message.unsubscribe_url
    assert (await stranger.post(message.unsubscribe_url, data={"scope": scope})).status_code == 200
    await harness.notify("news", channel="sms", user_id=person)
    await harness.app.drain()
    assert len(pager.sent) == 1


@pytest.mark.parametrize(("locale", "said"), [("ru", "Только «Рекомендации»"), ("kk", "Тек «Ұсыныстар»")])
async def test_in_the_persons_language(
    harness: Harness, stranger: httpx2.AsyncClient, locale: str, said: str
) -> None:
    await harness.person(locale=locale)
    page = await stranger.get(await link_of(harness), headers={"accept-language": "en"})
    assert said in page.text
    assert f'<html lang="{locale}">' in page.text


async def test_a_category_by_the_name_that_its_owner_gave_it(
    harness: Harness, stranger: httpx2.AsyncClient
) -> None:
    brand = harness.app.settings.home / "templates" / "brand.yaml"
    brand.parent.mkdir(exist_ok=True)
    brand.write_text("name: Kino <b>\ncategories: {recommendations: {en: 'Films & more', ru: Кино}}\n")
    page = (await stranger.get(await link_of(harness))).text
    assert "Films &amp; more" in page
    assert "Kino &lt;b&gt;" in page


async def test_forged_links_get_one_clear_page(harness: Harness, stranger: httpx2.AsyncClient) -> None:
    link = await link_of(harness)
    said, _, signature = link.rpartition("/")[2].partition(".")
    other = "A" + said[1:] if said[0] != "A" else "B" + said[1:]
    forged = [
        f"{other}.{signature}",
        f"{said}.{signature[:-1]}0x",
        said,
        f"{said}.",
        ".",
        "x" * 5_000,
        "%ff",
    ]
    for token in forged:
        for method in ("GET", "POST"):
            answer = await stranger.request(
                method, f"/unsubscribe/{token}", headers={"accept-language": "ru"}
            )
            assert answer.status_code == 404, token
            assert "Ссылка не работает" in answer.text
    assert (
        await stranger.post("/unsubscribe/%00%ff")
    ).status_code == 422  # as with any address that has a NUL
    assert await allowed(harness) == {}


async def test_a_token_for_another_purpose_is_no_link(harness: Harness, stranger: httpx2.AsyncClient) -> None:
    link = await link_of(harness)
    said = link.rpartition("/")[2].partition(".")[0]
    signature = await harness.app.notifications.signer.sign("page", said)
    assert (await stranger.post(f"/unsubscribe/{said}.{signature}")).status_code == 404


async def test_the_page_is_locked_up(harness: Harness, stranger: httpx2.AsyncClient) -> None:
    answer = await stranger.get(await link_of(harness))
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script" not in answer.text
    assert answer.headers["cache-control"] == "no-store"


async def test_a_page_of_another_site_can_not_press_the_button(
    harness: Harness, stranger: httpx2.AsyncClient
) -> None:
    answer = await stranger.post(await link_of(harness), headers={"origin": "https://evil.example"})
    assert answer.status_code == 403
    assert await allowed(harness) == {}


async def test_a_process_elsewhere_makes_the_same_links(
    harness: Harness, tmp_path: Path, mail_server: MailServer, stranger: httpx2.AsyncClient
) -> None:
    link = await link_of(harness)
    async with open_harness(
        tmp_path, mail_server, public_url=PUBLIC, admin_token="another"
    ) as twin:  # a restart
        transport = twin.client._transport
        async with httpx2.AsyncClient(transport=transport, base_url=PUBLIC) as reader:
            assert (await reader.get(link)).status_code == 200


async def test_without_an_address_of_ours_there_is_no_link(tmp_path: Path, mail_server: MailServer) -> None:
    async with open_harness(tmp_path, mail_server) as harness:
        await harness.person()
        await harness.notify()
        await harness.app.drain()
        ((_, letter),) = harness.mail.letters
        assert letter["List-Unsubscribe"] is None
        assert not re.search("unsubscribe", letter.get_body(("html",)).get_content(), re.IGNORECASE)
