"""Unsubscribing: by the page and by one click, signed, with no sign-in; and nothing but a press of the button does it."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.notifications.conftest import USER
from tests.notifications.house import House, a_house
from tests.services.mail import MailServer

PUBLIC = "https://notify.example.com"


@pytest.fixture
async def house(tmp_path: Path, mail_server: MailServer) -> AsyncIterator[House]:
    settings = {"public_url": PUBLIC, "admin_token": "an admin's token"}
    async with a_house(tmp_path, mail_server, **settings) as house:
        house.client.headers["authorization"] = "Bearer an admin's token"
        await house.person()
        yield house


@pytest.fixture
async def stranger(house: House) -> AsyncIterator[httpx2.AsyncClient]:
    """Whoever holds the letter, and no token."""
    transport = house.client._transport  # the same application
    async with httpx2.AsyncClient(transport=transport, base_url=PUBLIC) as client:
        yield client


async def link_of(house: House) -> str:
    """The link in the headers of a letter just sent."""
    await house.notify()
    await house.app.drain()
    header = str(house.mail.letters[-1][1]["List-Unsubscribe"])
    assert header.startswith(f"<{PUBLIC}/unsubscribe/")
    return header.strip("<>")


async def allowed(house: House) -> object:
    return (await house.client.get(f"/users/{USER}/preferences")).json()["allowed"]


async def test_letters_carry_the_link(house: House) -> None:
    link = await link_of(house)
    (_, letter), *_ = house.mail.letters
    assert letter["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    html = letter.get_body(("html",)).get_content()
    assert link in html
    assert link in letter.get_body(("plain",)).get_content()


async def test_what_must_arrive_has_no_link(house: House) -> None:
    house.template("receipt", "---\nsubject: Paid\ntransactional: true\n---\n<p>Paid.</p>")
    await house.notify("receipt")
    await house.app.drain()
    ((_, letter),) = house.mail.letters
    assert letter["List-Unsubscribe"] is None
    assert "unsubscribe" not in letter.get_body(("html",)).get_content().lower()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_looking_changes_nothing(house: House, stranger: httpx2.AsyncClient, method: str) -> None:
    link = await link_of(house)
    for _ in range(3):
        assert (await stranger.request(method, link)).status_code == 200
    assert await allowed(house) == {}


async def test_one_click(house: House, stranger: httpx2.AsyncClient) -> None:
    link = await link_of(house)
    answer = await stranger.post(link, data={"List-Unsubscribe": "One-Click"})
    assert answer.status_code == 200
    assert await allowed(house) == {"email": {"recommendations": False}}
    job = await house.notify()
    await house.app.drain()
    assert await house.status(job) == "SUPPRESSED"
    assert len(house.mail.letters) == 1


async def test_one_click_as_multipart(house: House, stranger: httpx2.AsyncClient) -> None:
    link = await link_of(house)
    answer = await stranger.post(link, files={"List-Unsubscribe": (None, b"One-Click")})
    assert answer.status_code == 200
    assert await allowed(house) == {"email": {"recommendations": False}}


async def test_the_page_offers_the_category_or_all_and_a_way_back(
    house: House, stranger: httpx2.AsyncClient
) -> None:
    link = await link_of(house)
    page = (await stranger.get(link)).text
    assert "Only “Recommendations”" in page
    assert 'value="channel"' in page
    done = await stranger.post(link, data={"scope": "channel"}, headers={"origin": PUBLIC})
    assert "nothing more by e-mail" in done.text
    assert await allowed(house) == {"email": {"*": False}}
    assert "no more “Recommendations”" in (await stranger.get(link)).text  # the link opened again
    await stranger.post(link, data={"scope": "channel", "allow": "yes"})
    assert await allowed(house) == {"email": {"*": True}}


async def test_twice_is_once(house: House, stranger: httpx2.AsyncClient) -> None:
    link = await link_of(house)
    for _ in range(2):
        assert (await stranger.post(link)).status_code == 200
    assert await allowed(house) == {"email": {"recommendations": False}}


@pytest.mark.parametrize(("locale", "said"), [("ru", "Только «Рекомендации»"), ("kk", "Тек «Ұсыныстар»")])
async def test_in_the_persons_language(
    house: House, stranger: httpx2.AsyncClient, locale: str, said: str
) -> None:
    await house.person(locale=locale)
    page = await stranger.get(await link_of(house), headers={"accept-language": "en"})
    assert said in page.text
    assert f'<html lang="{locale}">' in page.text


async def test_a_category_by_the_name_that_its_owner_gave_it(
    house: House, stranger: httpx2.AsyncClient
) -> None:
    brand = house.app.settings.home / "templates" / "brand.yaml"
    brand.parent.mkdir(exist_ok=True)
    brand.write_text("name: Kino <b>\ncategories: {recommendations: {en: 'Films & more', ru: Кино}}\n")
    page = (await stranger.get(await link_of(house))).text
    assert "Films &amp; more" in page
    assert "Kino &lt;b&gt;" in page


async def test_forged_links_get_one_clear_page(house: House, stranger: httpx2.AsyncClient) -> None:
    link = await link_of(house)
    said, _, signature = link.rpartition("/")[2].partition(".")
    other = "A" + said[1:] if said[0] != "A" else "B" + said[1:]
    forged = [
        f"{other}.{signature}",
        f"{said}.{signature[:-1]}0x",
        said,
        f"{said}.",
        ".",
        "x" * 5_000,
        "%00%ff",
    ]
    for token in forged:
        for method in ("GET", "POST"):
            answer = await stranger.request(
                method, f"/unsubscribe/{token}", headers={"accept-language": "ru"}
            )
            assert answer.status_code == 404, token
            assert "Ссылка не работает" in answer.text
    assert await allowed(house) == {}


async def test_a_token_for_another_purpose_is_no_link(house: House, stranger: httpx2.AsyncClient) -> None:
    link = await link_of(house)
    said = link.rpartition("/")[2].partition(".")[0]
    signature = await house.app.notifications.signer.sign("page", said)
    assert (await stranger.post(f"/unsubscribe/{said}.{signature}")).status_code == 404


async def test_the_page_is_locked_up(house: House, stranger: httpx2.AsyncClient) -> None:
    answer = await stranger.get(await link_of(house))
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script" not in answer.text
    assert answer.headers["cache-control"] == "no-store"


async def test_a_page_of_another_site_can_not_press_the_button(
    house: House, stranger: httpx2.AsyncClient
) -> None:
    answer = await stranger.post(await link_of(house), headers={"origin": "https://evil.example"})
    assert answer.status_code == 403
    assert await allowed(house) == {}


async def test_a_process_elsewhere_makes_the_same_links(
    house: House, tmp_path: Path, mail_server: MailServer, stranger: httpx2.AsyncClient
) -> None:
    link = await link_of(house)
    async with a_house(tmp_path, mail_server, public_url=PUBLIC, admin_token="another") as twin:  # a restart
        transport = twin.client._transport
        async with httpx2.AsyncClient(transport=transport, base_url=PUBLIC) as reader:
            assert (await reader.get(link)).status_code == 200


async def test_without_an_address_of_ours_there_is_no_link(tmp_path: Path, mail_server: MailServer) -> None:
    async with a_house(tmp_path, mail_server) as house:
        await house.person()
        await house.notify()
        await house.app.drain()
        ((_, letter),) = house.mail.letters
        assert letter["List-Unsubscribe"] is None
        assert not re.search("unsubscribe", letter.get_body(("html",)).get_content(), re.IGNORECASE)
