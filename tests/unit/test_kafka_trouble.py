"""What can go wrong with Kafka's client in this process, and how work goes on, or ends, after it."""

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from structlog.testing import capture_logs

from yamchi.clock import SystemClock
from yamchi.errors import EngineUnavailable, InvalidJob
from yamchi.queues.engines import statestore
from yamchi.queues.options import JobOptions
from yamchi.queues.records import DeadLetter, Failed, JobRecord, new_id
from yamchi.storage.sqlite import SqliteFile
from yamchi.testing import eventually
from yamchi.testing.conformance.base import claim_all, complete, new_job, settle

pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from yamchi.queues.engines.kafka import Address, KafkaEngine
from yamchi.queues.engines.kafka.cluster import Cluster, explain
from yamchi.queues.engines.kafka.consumer import QueueConsumer
from yamchi.queues.engines.kafka.producer import MessageProducer


@pytest.fixture
def queue() -> str:
    return f"t-{new_id(0)[-16:]}"


@pytest.fixture
async def engine(kafka_bootstrap: str, tmp_path: Path) -> AsyncIterator[KafkaEngine]:
    engine = KafkaEngine(Address.parse(f"kafka://{kafka_bootstrap}"), tmp_path / "state.db", SystemClock())
    yield engine
    await engine.close()


def test_nobody_there_is_one_sentence_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The client's own log would be many lines a second, past our log and its form."""
    monkeypatch.setattr("yamchi.queues.engines.kafka.cluster.ANSWER_SECONDS", 0.5)
    cluster = Cluster(Address.parse("kafka://127.0.0.1:1"))
    with pytest.raises(EngineUnavailable, match=r"can't be reached .*Connection refused"):
        cluster.connect()
    cluster.close()
    assert capfd.readouterr().err == ""


async def test_a_client_that_can_not_be_made_is_made_later(
    engine: KafkaEngine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the process has no thread or file descriptor left: its queues must be read once it has."""
    refused: list[str] = []

    def make(settings: dict[str, Any]) -> Any:
        if settings["group.id"] not in refused:
            refused.append(settings["group.id"])
            raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "no thread left"))
        return Consumer(settings)

    monkeypatch.setattr("yamchi.queues.engines.kafka.consumer.Consumer", make)
    monkeypatch.setattr("yamchi.queues.engines.kafka.control.Consumer", make)
    await engine.open()
    await engine.add(queue, [new_job("a")])
    (held,) = await claim_all(engine, queue, 1)
    assert held.job.id == "a"
    assert len(refused) == 2
    command = {"origin": "another", "do": "pause", "queue": queue, "ids": []}
    await engine._producer.send(engine._address.control_topic, [(b"key", orjson.dumps(command), [])])
    await eventually(lambda: engine.paused(queue))


@pytest.mark.parametrize(("way", "expected"), [("add", {"next"}), ("fire", {"lost", "next"})])
async def test_what_nobody_waits_for_any_more_is_not_added_but_a_moment_has_fired(
    kafka_bootstrap: str,
    tmp_path: Path,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    expected: set[str],
) -> None:
    """A broker that dies has perhaps the job, and the failover has it in its spool by then: it must not run here too.

    But the mark of a moment stays, and nobody fires it again.
    """
    address = Address.parse(f"kafka://{kafka_bootstrap}?partitions=1")
    engine = KafkaEngine(address, tmp_path / "state.db", SystemClock())
    await engine.open()
    send, is_sent = engine._producer.send, asyncio.Event()

    async def lose_the_answer(topic: str, outgoing: Any) -> None:
        await send(topic, outgoing)
        is_sent.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(engine._producer, "send", lose_the_answer)
    lost = new_job("lost")
    work = engine.add(queue, [lost]) if way == "add" else engine.fire("nightly", 1, queue, lost)
    adding = asyncio.ensure_future(work)
    await is_sent.wait()
    adding.cancel()
    await asyncio.wait([adding])
    assert adding.cancelled()
    monkeypatch.setattr(engine._producer, "send", send)
    assert await engine.add(queue, [new_job("next")]) == [True]
    assert {held.job.id for held in await claim_all(engine, queue, len(expected))} == expected
    assert (await engine.get(queue, "lost") is None) == (way == "add")
    await engine.close()


def test_trouble_of_a_consumer_is_said_once_and_a_new_topic_is_none(queue: str) -> None:
    address = Address.parse("kafka://127.0.0.1:1")
    consumer = QueueConsumer(queue, "me", address, cast("SqliteFile", None), SystemClock(), 30_000, print)
    consumer.stop()
    away = KafkaException(KafkaError(KafkaError._TRANSPORT, "nobody there"))
    unknown = SimpleNamespace(error=lambda: KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic"))

    def fail() -> None:
        raise away

    with capture_logs() as lines:
        consumer._joined_at = monotonic()
        assert consumer._usable([unknown]) == []
        for work in (fail, fail, fail, int, fail):
            consumer._guard(work)
        consumer._joined_at -= 60
        assert consumer._usable([unknown]) == []
    said = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert [("no such topic" in line, "can't be reached" in line) for line in said] == [
        (False, True),
        (False, True),
        (True, False),
    ]


async def test_a_producer_that_is_closed_answers_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is there to take the message, and nobody will tell what became of it later on."""
    monkeypatch.setattr("yamchi.queues.engines.kafka.producer.DELIVERY_TIMEOUT", 100)
    producer = MessageProducer(Address.parse("kafka://127.0.0.1:1?delivery.timeout.ms=600000"))
    producer.open()
    sending = asyncio.create_task(producer.send("orders", [(b"key", b"{}", [])]))
    await asyncio.sleep(0)
    await asyncio.to_thread(producer.close)
    await eventually(sending.done)
    assert isinstance(producer.first_error(sending.result()), EngineUnavailable)


async def test_what_kafka_refuses_for_good_keeps_nothing_else_from_its_way(
    engine: KafkaEngine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead letter is larger than its job was. This process has no workers: what waits here must go to Kafka."""
    monkeypatch.setattr("yamchi.queues.engines.kafka.SEND_AGAIN_AFTER", 0)
    await engine.open()
    large, other, why = f"{queue}-a", f"{queue}-b", "too much " * 200
    await engine.add(large, [new_job("a", orjson.dumps("x" * 999_000), options=JobOptions(attempts=1))])
    (held,) = await claim_all(engine, large, 1)
    failed = Failed(held, why, DeadLetter.of_job(held.job, why, SystemClock().now()))
    assert await settle(engine, large, [failed]) == ["a"]
    await engine.add(other, [new_job("b", run_at=SystemClock().now() + 200)])

    async def is_on_kafka() -> bool:
        return await engine._file.read(lambda db: statestore.sent(db, other)) == 1

    await eventually(is_on_kafka)

    async def is_given_up() -> bool:
        far = SystemClock().now() + 60_000
        return not await engine._file.read(lambda db: statestore.unsent_letters(db, large, far, 10))

    await eventually(is_given_up)
    assert [letter.id for letter in (await engine.letters(large, "", 0, 10)).letters] == ["a"]


async def make_narrow_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, 1, 1, config={"max.message.bytes": "10000"})
    await asyncio.to_thread(admin.create_topics([topic])[name].result)


async def test_a_delayed_job_that_no_broker_takes_is_refused_when_it_is_added(
    engine: KafkaEngine, queue: str
) -> None:
    await engine.open()
    later = SystemClock().now() + 60_000
    jobs = [new_job("small"), new_job("large", orjson.dumps("x" * 1_000_000), run_at=later)]
    with pytest.raises(
        InvalidJob, match=r"Job large is too large for Kafka \(1,000,0.. bytes of at most 1,000,000\)"
    ):
        await engine.add(queue, jobs)
    assert sum((await engine.counts(queue)).values()) == 0, "all of a batch, or nothing"


async def test_a_delayed_job_that_turns_out_to_be_too_large_fails_for_good(
    engine: KafkaEngine, queue: str, kafka_bootstrap: str
) -> None:
    """How large messages may be is a setting of the topic. This process has no workers: what is due must go to Kafka."""
    await make_narrow_topic(kafka_bootstrap, queue)
    await engine.open()
    soon, dense = SystemClock().now() + 200, orjson.dumps(secrets.token_hex(20_000))
    await engine.add(queue, [new_job("large", dense, run_at=soon), new_job("small", run_at=soon)])

    async def has_failed() -> JobRecord | None:
        job = await engine.get(queue, "large")
        return job if job and job.state == "failed" else None

    job = await eventually(has_failed)
    assert job.failed_reason is not None
    assert job.failed_reason.startswith(
        f"It is too large for the topic {queue} of Kafka: keep large data elsewhere"
    )
    (letter,) = (await engine.letters(queue, "", 0, 10)).letters
    assert orjson.loads(letter.body)["job"] == orjson.loads(dense)
    await eventually(lambda: engine._file.read(lambda db: statestore.sent(db, queue) == 1))
    (small,) = await claim_all(engine, queue, 1)
    assert small.job.id == "small"


async def test_jobs_that_are_too_large_together_go_one_by_one(
    engine: KafkaEngine, queue: str, kafka_bootstrap: str
) -> None:
    await make_narrow_topic(kafka_bootstrap, queue)
    await engine.open()
    jobs = [new_job(f"{n}", orjson.dumps(secrets.token_hex(2_000))) for n in range(10)]
    assert await engine.add(queue, jobs) == [True] * 10
    assert {held.job.id for held in await claim_all(engine, queue, 10)} == {job.id for job in jobs}


@pytest.mark.timeout(120)
async def test_a_topic_that_was_deleted_is_made_anew(
    engine: KafkaEngine, queue: str, kafka_bootstrap: str
) -> None:
    await engine.open()
    await engine.add(queue, [new_job("before")])
    (before,) = await claim_all(engine, queue, 1)
    await complete(engine, queue, [before])
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    await asyncio.to_thread(admin.delete_topics([queue])[queue].result)

    async def is_added() -> bool:
        with suppress(EngineUnavailable):
            return await engine.add(queue, [new_job("after")]) == [True]
        return False

    await eventually(is_added, within=60)
    (after,) = await claim_all(engine, queue, 1)
    assert after.job.id == "after"


async def test_an_opening_that_fails_leaves_nothing_behind(
    engine: KafkaEngine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for Kafka to come back tries again and again."""
    before = set(threading.enumerate())

    def refuse(cluster: Cluster) -> None:
        raise EngineUnavailable("there is no controller yet")

    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "prepare_control_topic", refuse)
        for _ in range(3):
            with pytest.raises(EngineUnavailable, match="no controller yet"):
                await engine.open()
            await eventually(lambda: not set(threading.enumerate()) - before)
    await engine.open()
    assert await engine.add(queue, [new_job()]) == [True]


def test_a_broker_that_goes_down_is_away() -> None:
    """Then its partitions have no leader, in the words of a question about offsets."""
    no_leaders = KafkaError(KafkaError._NOENT, "Failed to query partition leaders: No leaders found")
    assert isinstance(explain(no_leaders, Address.parse("kafka://one:9092")), EngineUnavailable)
