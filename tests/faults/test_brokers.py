"""Brokers that go away under load: restarted, cut off, or fed with poison. Nothing acknowledged is lost."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.faults.conftest import BROKERS
from tests.faults.harness import Site, Tally
from tests.faults.proxy import ChaosProxy
from tests.scale import scaled
from tests.services.server import Server, free_port
from yamchi import New
from yamchi.queues.records import NewJob

pytestmark = [pytest.mark.timeout(300), pytest.mark.services]
MakeSite = Callable[..., Site]
Publish = Callable[[Tally], None]
PrivateBroker = Callable[..., Server]
each_broker = pytest.mark.parametrize("engine_name", BROKERS)
SERVERS = {"bull": "private_redis", "pgmq": "private_postgres", "kafka": "private_kafka"}


@pytest.fixture
def private_broker(engine_name: str, request: pytest.FixtureRequest) -> PrivateBroker:
    """Each call starts a server of this test's own."""
    start: PrivateBroker = request.getfixturevalue(SERVERS[engine_name])
    return start


@pytest.fixture
def proxied(engine_name: str, private_broker: PrivateBroker) -> Iterator[tuple[str, ChaosProxy]]:
    """The URL of a broker of this test's own by way of a proxy, and the proxy."""
    with ExitStack() as stack:
        port = free_port()
        options: dict[str, Any] = {"advertised_port": port} if engine_name == "kafka" else {}
        broker = private_broker(**options)
        proxy = stack.enter_context(ChaosProxy(broker.url, port))
        yield url_of(engine_name, proxy.through(broker.url)), proxy


def url_of(engine_name: str, address: str) -> str:
    return f"kafka://{address}" if engine_name == "kafka" else address


async def begin(site: Site, jobs: int) -> None:
    """Jobs in the queue, two workers at them, a fifth of them done."""
    await site.queue.add_many([New({"pause": site.pause}, id=f"job-{n}", name="work") for n in range(jobs)])
    for _ in range(2):
        site.start_worker()
    await site.ran(jobs // 5)


def finish(site: Site, fault: str, jobs: int, interruptions: int) -> Tally:
    """All must have run; twice only what two workers may have held at each interruption."""
    site.kills = interruptions
    site.in_flight = interruptions * 2 * 2 * 10  # workers, trips on their way, slots
    tally = site.tally(fault, jobs, added=[f"job-{n}" for n in range(jobs)])
    assert tally.lost == 0, tally
    assert tally.duplicates <= tally.in_flight, tally
    return tally


@each_broker
async def test_a_broker_that_is_restarted_loses_nothing(
    make_site: MakeSite, private_broker: PrivateBroker, engine_name: str, published: Publish
) -> None:
    jobs = scaled(400, 10_000)
    broker = private_broker()
    site = make_site(url_of(engine_name, broker.url))
    await begin(site, jobs)
    broker.restart()
    await site.all_settled(jobs)
    published(finish(site, "restart the broker", jobs, 1))


@each_broker
async def test_a_connection_that_is_cut_loses_nothing(
    make_site: MakeSite, proxied: tuple[str, ChaosProxy], published: Publish
) -> None:
    jobs, (url, proxy) = scaled(400, 10_000), proxied
    site = make_site(url)
    await begin(site, jobs)
    for share in (0.4, 0.6):
        proxy.cut()
        proxy.heal()
        await site.ran(round(jobs * share))
    await site.all_settled(jobs)
    published(finish(site, "cut the connection twice", jobs, 2))


@pytest.mark.parametrize("engine_name", ["kafka"])
async def test_members_that_come_and_go_lose_nothing(
    make_site: MakeSite, engine_url: str, published: Publish
) -> None:
    """Each of them makes Kafka deal the partitions anew."""
    jobs = scaled(400, 10_000)
    site = make_site(engine_url)
    await begin(site, jobs)
    leaving = site.processes[-1]
    site.start_worker()
    await site.ran(jobs * 2 // 5)
    leaving.signal(signal.SIGTERM)
    assert await leaving.ended() == 0
    await site.ran(jobs * 3 // 5)
    site.start_worker()
    await site.all_settled(jobs)
    published(finish(site, "three rebalances", jobs, 3))


@each_broker
async def test_poison_between_good_jobs_stops_none_of_them(
    make_site: MakeSite, engine_url: str, published: Publish
) -> None:
    jobs, poisoned = scaled(100, 1_000), scaled(10, 100)
    site = make_site(engine_url)
    good = [New({"pause": 0}, id=f"job-{n}", name="work") for n in range(jobs)]
    for n in range(poisoned):
        await site.queue.add_many(good[n * jobs // poisoned : (n + 1) * jobs // poisoned])
        poison = NewJob(f"poison-{n}", "block", b'{"seconds":"many"}', site.queue.definition.options)
        await site.queue.engine.add(site.queue_name, [poison])
    site.start_worker()
    await site.all_settled(jobs + poisoned)
    letters = await site.queue.dead_letters.list(limit=1_000)
    assert {letter.id for letter in letters.letters} == {f"poison-{n}" for n in range(poisoned)}
    published(finish(site, "poison between good jobs", jobs, 0))
