"""The Kafka engine passes the whole contract on a real broker, several engines on one state store standing for processes.

Beyond the contract: several machines, each with a state store of its own, and a cluster that says no.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.services.kafka import Kafka
from yamchi.app import Yamchi
from yamchi.clock import SystemClock
from yamchi.errors import ConfigurationError, EngineUnavailable
from yamchi.queues.engines import EngineContext, make_engine
from yamchi.queues.job import Job
from yamchi.queues.newjobs import New
from yamchi.queues.records import new_id
from yamchi.settings import Settings
from yamchi.testing import eventually
from yamchi.testing.conformance import EngineSuite, ManagementSuite, ProcessSuite, WorkerSuite
from yamchi.testing.conformance.base import Connect, claim_all, complete, new_job, state_of
from yamchi.testing.conformance.worker import working

kafka = pytest.importorskip("yamchi.queues.engines.kafka", reason="confluent-kafka is not installed")
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition  # noqa: E402

from yamchi.queues.engines.kafka import offsets, partitions  # noqa: E402


class TestKafka(EngineSuite, ManagementSuite, WorkerSuite, ProcessSuite):
    @pytest.fixture
    async def connect(self, kafka_bootstrap: str, tmp_path: Path) -> AsyncIterator[Connect]:
        engines: list[kafka.KafkaEngine] = []
        address = kafka.Address.parse(f"kafka://{kafka_bootstrap}?partitions=2")

        async def connect() -> kafka.KafkaEngine:
            engine = kafka.KafkaEngine(address, tmp_path / "state.db", SystemClock())
            await engine.open()
            engines.append(engine)
            return engine

        yield connect
        for engine in engines:
            await engine.close()


Machine = Callable[[str], Awaitable[Any]]


@pytest.fixture
def queue() -> str:
    return f"m-{new_id(0)[-16:]}"


@pytest.fixture
async def machine(kafka_bootstrap: str, tmp_path: Path) -> AsyncIterator[Machine]:
    """Each call is a machine: an engine with a state store of its own on the one cluster."""
    engines: list[Any] = []

    async def start(name: str) -> Any:
        address = kafka.Address.parse(f"kafka://{kafka_bootstrap}")
        engine = kafka.KafkaEngine(address, tmp_path / f"{name}.db", SystemClock())
        await engine.open()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        await engine.close()


def app_on(engine: Any, queue: str, home: Path, handler: Callable[[Job[Any]], Awaitable[Any]]) -> Yamchi:
    app = Yamchi(Settings(home=home, plugins=()), engine=engine)
    app.job(queue, name="work", concurrency=10)(handler)
    return app


class TestManyMachines:
    async def test_a_machine_without_workers_hands_its_jobs_to_one_with(
        self, machine: Machine, queue: str, tmp_path: Path
    ) -> None:
        ran: list[tuple[str, int]] = []

        async def work(job: Job[Any]) -> None:
            ran.append((job.data, job.attempts_made))

        api, worker = await machine("api"), await machine("worker")
        asking = Yamchi(Settings(home=tmp_path, plugins=()), engine=api)
        asking.define(queue)
        target = asking.queue(queue)
        await target.add_many([New("now", name="work"), New("later", name="work", delay="200ms")])
        async with working(app_on(worker, queue, tmp_path, work)):
            await eventually(lambda: sorted(ran) == [("later", 1), ("now", 1)])

    async def test_a_machine_that_leaves_in_the_middle_loses_nothing_and_repeats_nothing(
        self, machine: Machine, queue: str, tmp_path: Path
    ) -> None:
        runs: Counter[int] = Counter()
        where: Counter[str] = Counter()

        def on(name: str) -> Callable[[Job[Any]], Awaitable[Any]]:
            async def work(job: Job[Any]) -> None:
                await asyncio.sleep(0.02)
                runs[job.data] += 1
                where[name] += 1

            return work

        left, right = await machine("left"), await machine("right")
        leaving, staying = (
            app_on(left, queue, tmp_path, on("left")),
            app_on(right, queue, tmp_path, on("right")),
        )
        added = count()

        async def add_until_both_work() -> bool:
            await staying.queue(queue).add_many([next(added) for _ in range(20)])
            return where["left"] > 100 and where["right"] > 100

        async with working(staying):
            async with working(leaving):
                await eventually(add_until_both_work, within=40)
            await left.close()
            total = next(added)
            await eventually(lambda: len(runs) == total, within=40)
        print(f"{total} jobs ran {runs.total()} times: {dict(where)}")
        assert runs.total() == total, "a graceful rebalance repeats nothing"

    async def test_the_next_owner_skips_what_is_done_beyond_a_slow_job(
        self, machine: Machine, queue: str
    ) -> None:
        first, second = await machine("first"), await machine("second")
        await first.add(queue, [new_job(f"j{n:02}", b'{"user_id":"same"}') for n in range(20)])
        held = await claim_all(first, queue, 20)
        slow = held[0]
        await complete(first, queue, held[1:])
        await first.close()
        (again,) = await claim_all(second, queue, 1)
        assert again.job.id == slow.job.id
        assert await complete(second, queue, [again]) == [slow.job.id]
        assert (await second.exchange(queue, [], 5, 20_000, "tester")).claims == []

    async def test_what_is_done_beyond_a_slow_job_is_known_at_every_moment(
        self, machine: Machine, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A machine may die, and then says no more: its other jobs must not take back what it has said."""
        engine = await machine("only")
        await engine.add(queue, [new_job(f"j{n}", b'{"user_id":"same"}') for n in range(5)])
        held = await claim_all(engine, queue, 5)
        await complete(engine, queue, held[1:])
        said = await eventually(lambda: _said_beyond(engine, queue))
        monkeypatch.setattr("yamchi.queues.engines.kafka.consumer.DONE_AFTER_SECONDS", 3_600)
        before = await asyncio.to_thread(engine._cluster.committed, queue)
        await engine.add(queue, [new_job(payload=b'{"user_id":"%d"}' % n) for n in range(20)])
        await complete(engine, queue, await claim_all(engine, queue, 20))

        async def is_committed() -> bool:
            return await asyncio.to_thread(engine._cluster.committed, queue) != before

        await eventually(is_committed)
        assert await _said_beyond(engine, queue) == said

    async def test_a_retry_by_hand_on_another_machine_runs(
        self, machine: Machine, queue: str, tmp_path: Path
    ) -> None:
        api, worker = await machine("api"), await machine("worker")
        await api.add(queue, [new_job("again", run_at=SystemClock().now() + 3_600_000)])
        assert await api.promote(queue, ["again"]) == ["again"]
        (held,) = await claim_all(worker, queue, 1)
        assert held.job.id == "again"
        assert await complete(worker, queue, [held]) == ["again"]

    async def test_a_machine_that_comes_back_does_not_repeat_what_others_did(
        self, machine: Machine, queue: str
    ) -> None:
        first = await machine("first")
        await first.add(queue, [new_job("once")])
        await claim_all(first, queue, 1)
        await first.close()
        second = await machine("second")
        await complete(second, queue, await claim_all(second, queue, 1))
        await second.close()
        back = await machine("first")
        assert (await back.exchange(queue, [], 5, 20_000, "tester")).claims == []

        async def is_gone() -> bool:
            return await state_of(back, queue, "once") is None

        await eventually(is_gone)

    async def test_a_cancellation_reaches_the_machine_that_has_the_job(
        self, machine: Machine, queue: str
    ) -> None:
        api, worker = await machine("api"), await machine("worker")
        await api.add(queue, [new_job("runs"), new_job("parked", run_at=SystemClock().now() + 3_600_000)])
        (held,) = await claim_all(worker, queue, 1)
        await api.cancel(queue, ["runs"])
        await worker.cancel(queue, ["parked"])

        async def told() -> bool:
            parked = await state_of(api, queue, "parked")
            return await worker.cancelled(queue, [held]) == ["runs"] and parked == "cancelled"

        await eventually(told)

    async def test_what_others_write_to_the_control_topic_is_skipped(
        self, machine: Machine, queue: str
    ) -> None:
        one, other = await machine("one"), await machine("other")
        fields = {"origin": "another", "do": "cancel", "queue": queue, "ids": ["a"]}
        wrong = [
            {"ids": None},
            {"ids": [1]},
            {"ids": "a"},
            {"queue": {}},
            {"queue": None},
            {"do": []},
            {"origin": 1},
        ]
        written = [b"no json", b"[]", b"null", *(orjson.dumps(fields | change) for change in wrong)]
        await one._producer.send(one._address.control_topic, [(b"key", value, []) for value in written])
        await one.pause(queue)
        await eventually(lambda: other.paused(queue))

    async def test_a_cancelled_job_that_has_not_arrived_never_runs_and_its_id_may_be_used_again(
        self, machine: Machine, queue: str
    ) -> None:
        api, worker = await machine("api"), await machine("worker")
        await api.add(queue, [new_job("unwanted")])
        added = SystemClock().now()
        await eventually(lambda: SystemClock().now() > added)
        assert await api.remove(queue, ["unwanted"]) == ["unwanted"]
        await eventually(lambda: _knows(worker, queue))
        await api.add(queue, [new_job("wanted")])
        (held,) = await claim_all(worker, queue, 1)
        assert held.job.id == "wanted"
        await api.add(queue, [new_job("unwanted", b'{"n":2}')])
        (again,) = await claim_all(worker, queue, 1)
        assert (again.job.id, again.job.payload) == ("unwanted", b'{"n":2}')

    async def test_a_pause_holds_on_every_machine_also_on_one_that_comes_later(
        self, machine: Machine, queue: str
    ) -> None:
        one = await machine("one")
        await one.pause(queue)
        other = await machine("other")
        await eventually(lambda: other.paused(queue))
        await other.resume(queue)

        async def resumed() -> bool:
            return not await one.paused(queue)

        await eventually(resumed)

    async def test_a_schedule_fires_once_though_each_machine_has_a_scheduler(
        self, machine: Machine, queue: str
    ) -> None:
        one, other = await machine("one"), await machine("other")
        fired, last = (new_job(job_id, b'{"user_id":"same"}') for job_id in ("nightly@1", "last"))
        await one.fire("nightly", 1, queue, fired)
        await other.fire("nightly", 1, queue, fired)
        assert not await one.fire("nightly", 1, queue, fired), "on one machine it is known at once"
        await one.add(queue, [last])
        ran: list[str] = []

        async def is_last_done() -> bool:
            for engine in (one, other):
                claims = (await engine.exchange(queue, [], 5, 20_000, "tester")).claims
                ran.extend(await complete(engine, queue, claims))
            return "last" in ran

        await eventually(is_last_done)
        assert ran == ["nightly@1", "last"]


class TestAnAnswerThatDoesNotCome:
    """Where a partition is begun anew, Kafka is asked how far it is done: it may be away just then."""

    @pytest.fixture
    def lost_answers(self, monkeypatch: pytest.MonkeyPatch) -> list[KafkaError]:
        lost: list[KafkaError] = []

        class Interrupted(Consumer):
            def committed(self, *asked: Any, **options: Any) -> Any:
                if lost:
                    raise KafkaException(lost.pop())
                return super().committed(*asked, **options)

        monkeypatch.setattr("yamchi.queues.engines.kafka.consumer.Consumer", Interrupted)
        return lost

    async def test_jobs_of_a_member_that_was_taken_for_dead_come_back(
        self, machine: Machine, queue: str, lost_answers: list[KafkaError]
    ) -> None:
        engine = await machine("only")
        await engine.add(queue, [new_job("first"), new_job("second")])
        (first,) = await claim_all(engine, queue, 1)
        await complete(engine, queue, [first])
        await eventually(lambda: engine._file.read(lambda db: partitions.waiting(db, queue)))
        lost_answers.append(KafkaError(KafkaError._TRANSPORT))
        await engine._file.write(lambda db: partitions.release_dead_owners(db, 1 << 62))
        (second,) = await claim_all(engine, queue, 1)
        assert second.job.id != first.job.id
        assert not lost_answers

    async def test_the_next_owner_asks_again_and_neither_repeats_nor_misses_a_job(
        self, machine: Machine, queue: str, lost_answers: list[KafkaError]
    ) -> None:
        first, second = await machine("first"), await machine("second")
        await first.add(queue, [new_job(f"j{n:02}", b'{"user_id":"same"}') for n in range(20)])
        held = await claim_all(first, queue, 20)
        await complete(first, queue, held[2:])
        await first.close()
        lost_answers.append(KafkaError(KafkaError._TRANSPORT))
        again = await claim_all(second, queue, 2)
        assert not lost_answers
        assert [one.job.id for one in again] == [one.job.id for one in held[:2]]
        assert len(await complete(second, queue, again)) == 2
        await second.add(queue, [new_job("last", b'{"user_id":"same"}')])
        (last,) = await claim_all(second, queue, 1)
        assert last.job.id == "last"


async def _said_beyond(engine: Any, queue: str) -> dict[int, list[int]]:
    """What Kafka was told of each partition that is done beyond the committed offset."""
    places = [TopicPartition(queue, number) for number in range(4)]
    answers = await asyncio.to_thread(engine._cluster._observer(queue).committed, places, timeout=10)
    return {at.partition: done for at in answers if (done := offsets.decode(at.offset, at.metadata))}


async def _knows(engine: Any, queue: str) -> bool:
    """Whether a removal has reached this machine."""
    look = "SELECT 1 FROM tombstones WHERE queue = ?"
    return bool(await engine._file.read(lambda db: db.execute(look, (queue,)).fetchone()))


class TestAClusterThatSaysNo:
    async def test_nobody_there(self, tmp_path: Path) -> None:
        engine = make_engine("kafka://127.0.0.1:1", EngineContext(SystemClock(), tmp_path))
        with pytest.raises(EngineUnavailable, match=r"Kafka at 127\.0\.0\.1:1 can't be reached .* QUEUE_URL"):
            await engine.open()
        await engine.close()

    async def test_a_topic_that_may_not_be_created(
        self, private_kafka: Callable[..., Kafka], tmp_path: Path
    ) -> None:
        from tests.services.topic_guard import GUARDED, forbid_new_topics

        server = private_kafka(GUARDED)
        await asyncio.to_thread(forbid_new_topics, server.url)
        engine = make_engine(f"kafka://{server.url}", EngineContext(SystemClock(), tmp_path))
        await engine.open()
        sentence = "does not let Yamchi create the topic orders and orders.dlq: have it made"
        with pytest.raises(ConfigurationError, match=sentence):
            await engine.add("orders", [new_job()])
        await engine.close()

    @pytest.mark.timeout(300)  # a broker takes its time to start on a busy machine
    async def test_a_broker_that_goes_and_comes_back(
        self, private_kafka: Callable[..., Kafka], tmp_path: Path, queue: str
    ) -> None:
        server = private_kafka()
        engine = make_engine(f"kafka://{server.url}", EngineContext(SystemClock(), tmp_path))
        await engine.open()
        await engine.add(queue, [new_job(f"before{n}") for n in range(20)])
        held = await claim_all(engine, queue, 20)
        await asyncio.to_thread(server.kill)
        assert len(await complete(engine, queue, held)) == 20, "what was claimed is settled all the same"
        firing = asyncio.create_task(engine.fire("nightly", 1, queue, new_job("nightly@1")))
        with pytest.raises(EngineUnavailable, match="can't be reached"):
            await engine.add(queue, [new_job("during")])
        assert await firing, "a moment comes once, so its job is kept and sent later"
        await asyncio.to_thread(server.start)
        assert await engine.add(queue, [new_job("during")]) == [True], "an id that failed is free"
        after = await claim_all(engine, queue, 2)
        assert {held.job.id for held in after} == {"during", "nightly@1"}
        await engine.close()
