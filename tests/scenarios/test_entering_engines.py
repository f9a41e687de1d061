"""Jobs of other programs on every engine, put there as those programs do: Node's BullMQ, plain SQL, a producer of Kafka."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from confluent_kafka import Producer

from tests.interop.node import peer
from tests.notifications.conftest import mail_server  # noqa: F401 - a fixture
from tests.scenarios.harness import LEAD
from tests.scenarios.invariants import check_invariants, check_leads
from tests.scenarios.leads import TableLeads
from tests.scenarios.test_engines import TIMEOUT_SECONDS, an_app, shortened, status, urls, working  # noqa: F401
from tests.services.mail import MailServer
from yamchi import Yamchi
from yamchi.testing import eventually

pytestmark = pytest.mark.interop

LETTER = {"leadId": LEAD, "email": "marat@example.com", "name": "Марат"}

Put = Callable[[Yamchi, str, dict[str, Any]], Awaitable[None]]


async def by_hand(app: Yamchi, name: str, data: dict[str, Any]) -> None:
    await app.queue("emailChain").add(data, name=name)


def by_sql(url: str) -> Put:
    async def put(app: Yamchi, name: str, data: dict[str, Any]) -> None:
        await app.queue("emailChain").stats()  # makes the queue
        headers = orjson.dumps({"name": name}).decode()
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(
                "SELECT pgmq.send('emailChain', %s::jsonb, %s::jsonb, 0)",
                (orjson.dumps(data).decode(), headers),
            )

    return put


def by_kafka(url: str) -> Put:
    async def put(app: Yamchi, name: str, data: dict[str, Any]) -> None:
        await app.queue("emailChain").stats()
        producer = Producer({"bootstrap.servers": url.removeprefix("kafka://")})
        producer.produce("emailChain", orjson.dumps(data), headers={"yamchi-name": name})
        await asyncio.to_thread(producer.flush, TIMEOUT_SECONDS)

    return put


def by_node(url: str) -> Put:
    async def put(app: Yamchi, name: str, data: dict[str, Any]) -> None:
        """As the worker of before did: with a delay."""
        async with peer(url) as node:
            await node.ask("add", queue="emailChain", name=name, data=data, opts={"delay": 50})

    return put


def putting(queue: str) -> Put:
    match queue.partition(":")[0]:
        case "redis":
            return by_node(queue)
        case "postgresql":
            return by_sql(queue)
        case "kafka":
            return by_kafka(queue)
    return by_hand


async def test_a_chain_that_another_program_began(
    urls: tuple[str, str],  # noqa: F811
    tmp_path: Path,
    mail_server: MailServer,  # noqa: F811
) -> None:
    """The second letter comes in three times, and the chain goes on from it by itself."""
    shortened(tmp_path, **{"24h": "300ms"})
    put = putting(urls[0])
    async with an_app(tmp_path, *urls, mail_server) as app:
        leads = TableLeads(app.database)
        await leads.create(LEAD, email="marat@example.com", name="Марат", phone="+77010000000")
        for _ in range(3):
            await put(app, "email2", LETTER)

        async def all_are_over() -> bool:
            over = await app.queue("emailChain").jobs("completed")
            return sum(job.name == "email2" and job.data == LETTER for job in over) == 4

        async with working(app):
            await eventually(all_are_over, TIMEOUT_SECONDS)
            await eventually(lambda: _is(app, "finished"), TIMEOUT_SECONDS)
        assert await leads.log(LEAD) == ["CALL_NEEDED", "EMAIL_2_SENT"]
        assert mail_server.by_recipient() == {"marat@example.com": 2}
        assert await app.keys.get(f"email_job:{LEAD}") is None
        await check_invariants(app)
        await check_leads(app)


async def _is(app: Yamchi, wanted: str) -> bool:
    return await status(app, "email_chain") == wanted
