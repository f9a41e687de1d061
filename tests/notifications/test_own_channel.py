"""The channel that the documentation writes, as it stands there, through everything that may happen to a message."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.notifications.harness import Harness, ScriptedChannel, open_harness
from tests.services.mail import MailServer
from yamchi import Outage, Retryable, Unrecoverable
from yamchi.errors import ConfigurationError
from yamchi.notifications.channels import AnswerLost, Channel, Recipient, Unreachable

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
async def harness(tmp_path: Path, mail_server: MailServer, provider: Provider) -> AsyncIterator[Harness]:
    (code,) = re.findall(r"```python\n(.*?)```", RECIPE.read_text(), re.DOTALL)
    async with open_harness(tmp_path, mail_server) as harness:
        exec(code, {"app": harness.app, "page": provider.page})
        harness.template("alarm", "Wake up, {{ user.user_id|default('you') }}", channel="pager")
        await harness.person(attributes={"pager": "12345"})
        yield harness


async def _page(harness: Harness) -> str:
    job_id = await harness.notify("alarm", channel="pager", data={})
    await harness.app.drain()
    return job_id


async def test_sent(harness: Harness, provider: Provider) -> None:
    delivery = await harness.delivery(await _page(harness))
    assert (delivery["status"], delivery["provider_message_id"]) == ("SENT", "page-1")
    assert provider.paged[0][0] == "12345"
    assert provider.paged[0][1].startswith("Wake up, ")


async def test_without_an_address(harness: Harness, provider: Provider) -> None:
    await harness.person(attributes={})
    delivery = await harness.delivery(await _page(harness))
    assert (delivery["status"], delivery["last_error"]) == ("FAILED", "User has no pager")


async def test_to_an_address(harness: Harness, provider: Provider) -> None:
    message = {"channel": "pager", "options": {"to": "911", "text": "Wake up"}}
    await harness.app.queue("notifications").add(message)
    answer = await harness.client.post("/templates/alarm/pager/en/test", json={"to": "912", "data": {"x": 1}})
    assert answer.is_success, answer.text
    await harness.app.drain()
    assert provider.paged[0] == ("911", "Wake up")
    assert [to for to, _ in provider.paged] == ["911", "912"]


async def test_to_an_address_where_it_is_an_attribute_of_an_attribute(harness: Harness) -> None:
    class Topics(ScriptedChannel):
        def address(self, recipient: Recipient) -> str | None:
            pager = recipient.attributes.get("pager", {})
            return f"{pager.get('topic')}@{pager['server']}".strip("+")

    topics = Topics(name="topics")
    harness.app.notifications.register(topics)
    await harness.app.queue("notifications").add(
        {"channel": "topics", "options": {"to": "+911", "text": "Hi"}}
    )
    await harness.app.drain()
    assert [message.to for message in topics.sent] == ["911@+911"]


@pytest.mark.parametrize("trouble", [Retryable("busy"), RuntimeError("a bug")])
async def test_tried_again_and_then_given_up(
    harness: Harness, provider: Provider, trouble: Exception
) -> None:
    provider.answers = [trouble]
    job_id = await _page(harness)
    assert await harness.status(job_id) == "RETRYING"
    await harness.app.clock.advance("1h")
    assert await harness.status(job_id) == "SENT"
    provider.answers = [trouble] * 3
    job_id = await _page(harness)
    await harness.app.clock.advance("1h")
    assert await harness.status(job_id) == "FAILED"
    assert len(await harness.dead_letters()) == 1


@pytest.mark.parametrize("trouble", [Unrecoverable("too long"), Unreachable("no such pager")])
async def test_permanent(harness: Harness, provider: Provider, trouble: Exception) -> None:
    provider.answers = [trouble]
    assert await harness.status(await _page(harness)) == "FAILED"
    again = await harness.status(await _page(harness))
    assert again == ("SUPPRESSED" if isinstance(trouble, Unreachable) else "SENT")


async def test_an_outage_costs_no_attempt(harness: Harness, provider: Provider) -> None:
    provider.answers = [Outage("down")] * 5
    job_id = await _page(harness)
    delivery = await harness.delivery(job_id)
    assert (delivery["status"], delivery["attempts"]) == ("RETRYING", 0)
    (circuit,) = await harness.app.notifications.circuits.all()
    assert circuit.is_open
    assert "pager" in circuit.name
    await harness.app.clock.advance("1h")
    assert await harness.status(job_id) == "SENT"


async def test_a_lost_answer_waits_for_a_person(harness: Harness, provider: Provider) -> None:
    provider.answers = [AnswerLost("The line went dead.")]
    job_id = await _page(harness)
    await harness.app.clock.advance("1h")
    assert await harness.status(job_id) == "UNKNOWN"
    assert provider.paged == [], "sent again only when somebody says so"


async def test_a_lost_answer_is_sent_again_where_the_channel_says_so(
    harness: Harness, provider: Provider
) -> None:
    harness.app.notifications.channels["pager"].resends_unknown = True
    provider.answers = [AnswerLost("The line went dead.")]
    job_id = await _page(harness)
    await harness.app.clock.advance("1h")
    assert await harness.status(job_id) == "SENT"


async def test_shutdown(harness: Harness, provider: Provider) -> None:
    assert await harness.status(await _page(harness)) == "SENT"
    assert await harness.app.notifications.channels["pager"].ping() is None
    await harness.app.notifications.channels["pager"].close()


async def test_one_channel_that_can_not_be_closed_does_not_keep_the_others_open(harness: Harness) -> None:
    closed: list[str] = []

    class Stuck(type(harness.channel)):  # type: ignore[misc]
        async def close(self) -> None:
            closed.append(self.name)
            raise OSError("stuck")

    for name in ("telegram", "sms"):
        harness.app.notifications.register(Stuck(name))
    await harness.app.notifications.close()
    assert closed == ["telegram", "sms"]


def test_what_is_no_channel_is_refused(harness: Harness) -> None:
    class Fax:
        name = "fax"

    not_one: Any = Fax()
    with pytest.raises(ConfigurationError, match="Fax is not a channel: derive it from"):
        harness.app.notifications.register(not_one)
    with pytest.raises(ConfigurationError, match="1 to 32 characters, not 33"):
        harness.app.notifications.register(ScriptedChannel(name="x" * 33))
    with pytest.raises(TypeError, match="abstract"):
        type("Half", (Channel,), {"name": "half"})()
