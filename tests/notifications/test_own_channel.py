"""The channel that the documentation writes, as it stands there, through everything that may happen to a message."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.notifications.house import House, a_house
from tests.services.mail import MailServer
from yamchi import Outage, Retryable, Unrecoverable
from yamchi.errors import ConfigurationError
from yamchi.notifications.channels import AnswerLost, Channel, Unreachable

RECIPE = Path(__file__).parents[2] / "docs" / "recipes" / "own-channel.md"


class Provider:
    """What the example calls `page`: does as it is told."""

    def __init__(self) -> None:
        self.answers: list[Exception] = []
        self.paged: list[tuple[str, str]] = []

    async def page(self, to: str, text: str) -> str:
        if self.answers:
            raise self.answers.pop(0)
        self.paged.append((to, text.strip()))
        return f"page-{len(self.paged)}"


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
async def house(tmp_path: Path, mail_server: MailServer, provider: Provider) -> AsyncIterator[House]:
    (code,) = re.findall(r"```python\n(.*?)```", RECIPE.read_text(), re.DOTALL)
    async with a_house(tmp_path, mail_server) as house:
        exec(code, {"app": house.app, "page": provider.page})
        house.template("alarm", "Wake up, {{ user.user_id }}", channel="pager")
        await house.person(attributes={"pager": "12345"})
        yield house


async def _page(house: House) -> str:
    job_id = await house.notify("alarm", channel="pager", data={})
    await house.app.drain()
    return job_id


async def test_sent(house: House, provider: Provider) -> None:
    delivery = await house.delivery(await _page(house))
    assert (delivery["status"], delivery["provider_message_id"]) == ("SENT", "page-1")
    assert provider.paged[0][0] == "12345"
    assert provider.paged[0][1].startswith("Wake up, ")


async def test_without_an_address(house: House, provider: Provider) -> None:
    await house.person(attributes={})
    delivery = await house.delivery(await _page(house))
    assert (delivery["status"], delivery["last_error"]) == ("FAILED", "User has no pager")


@pytest.mark.parametrize("trouble", [Retryable("busy"), RuntimeError("a bug")])
async def test_tried_again_and_then_given_up(house: House, provider: Provider, trouble: Exception) -> None:
    provider.answers = [trouble]
    job_id = await _page(house)
    assert await house.status(job_id) == "RETRYING"
    await house.app.clock.advance("1h")
    assert await house.status(job_id) == "SENT"
    provider.answers = [trouble] * 3
    job_id = await _page(house)
    await house.app.clock.advance("1h")
    assert await house.status(job_id) == "FAILED"
    assert len(await house.dead_letters()) == 1


@pytest.mark.parametrize("trouble", [Unrecoverable("too long"), Unreachable("no such pager")])
async def test_permanent(house: House, provider: Provider, trouble: Exception) -> None:
    provider.answers = [trouble]
    assert await house.status(await _page(house)) == "FAILED"
    again = await house.status(await _page(house))
    assert again == ("SUPPRESSED" if isinstance(trouble, Unreachable) else "SENT")


async def test_an_outage_costs_no_attempt(house: House, provider: Provider) -> None:
    provider.answers = [Outage("down")] * 5
    job_id = await _page(house)
    delivery = await house.delivery(job_id)
    assert (delivery["status"], delivery["attempts"]) == ("RETRYING", 0)
    (circuit,) = await house.app.notifications.circuits.all()
    assert circuit.is_open
    assert "pager" in circuit.name
    await house.app.clock.advance("1h")
    assert await house.status(job_id) == "SENT"


async def test_a_lost_answer_waits_for_a_person(house: House, provider: Provider) -> None:
    provider.answers = [AnswerLost("The line went dead.")]
    job_id = await _page(house)
    await house.app.clock.advance("1h")
    assert await house.status(job_id) == "UNKNOWN"
    assert provider.paged == [], "sent again only when somebody says so"


async def test_a_lost_answer_is_sent_again_where_the_channel_says_so(
    house: House, provider: Provider
) -> None:
    house.app.notifications.channels["pager"].resends_unknown = True
    provider.answers = [AnswerLost("The line went dead.")]
    job_id = await _page(house)
    await house.app.clock.advance("1h")
    assert await house.status(job_id) == "SENT"


async def test_shutdown(house: House, provider: Provider) -> None:
    assert await house.status(await _page(house)) == "SENT"
    assert await house.app.notifications.channels["pager"].ping() is None
    await house.app.notifications.channels["pager"].close()


async def test_one_channel_that_can_not_be_closed_does_not_keep_the_others_open(house: House) -> None:
    closed: list[str] = []

    class Stuck(type(house.pigeon)):  # type: ignore[misc]
        async def close(self) -> None:
            closed.append(self.name)
            raise OSError("stuck")

    for name in ("telegram", "sms"):
        house.app.notifications.register(Stuck(name))
    await house.app.notifications.close()
    assert closed == ["telegram", "sms"]


def test_what_is_no_channel_is_refused(house: House) -> None:
    class Fax:
        name = "fax"

    not_one: Any = Fax()
    with pytest.raises(ConfigurationError, match="Fax is not a channel: derive it from"):
        house.app.notifications.register(not_one)
    with pytest.raises(TypeError, match="abstract"):
        type("Half", (Channel,), {"name": "half"})()
