"""Each server starts, answers, and keeps its URL and its data through a restart and a kill."""

import socket
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.services.server import Server, ServerFailed, free_port


@dataclass(frozen=True, slots=True)
class Subject:
    """A private server of one kind, and how to write to it and read everything back."""

    server: Server
    write: Callable[[str], None]
    read: Callable[[], list[str]]


@pytest.fixture
def redis_subject(private_redis):
    redis = pytest.importorskip("redis")
    server = private_redis()

    def write(text: str) -> None:
        with redis.Redis.from_url(server.url) as client:
            client.rpush("texts", text)

    def read() -> list[str]:
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            return client.lrange("texts", 0, -1)

    return Subject(server, write, read)


@pytest.fixture
def postgres_subject(private_postgres):
    psycopg = pytest.importorskip("psycopg")
    server = private_postgres()
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE texts (id serial, text text)")

    def write(text: str) -> None:
        with psycopg.connect(server.url) as connection:
            connection.execute("INSERT INTO texts (text) VALUES (%s)", [text])

    def read() -> list[str]:
        with psycopg.connect(server.url) as connection:
            return [text for (text,) in connection.execute("SELECT text FROM texts ORDER BY id")]

    return Subject(server, write, read)


@pytest.fixture
def kafka_subject(private_kafka):
    pytest.importorskip("confluent_kafka")
    server = private_kafka()
    create_topic(server.url, "texts")
    return Subject(
        server,
        lambda text: produce(server.url, "texts", text),
        lambda: consume(server.url, "texts"),
    )


def create_topic(bootstrap: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(timeout=30)


def produce(bootstrap: str, topic: str, text: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce(topic, text)
    assert producer.flush(30) == 0


def consume(bootstrap: str, topic: str) -> list[str]:
    """Everything in the topic's one partition, from its start to its present end."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value().decode() for message in consumer.consume(end, timeout=30)]
    finally:
        consumer.close()


@pytest.fixture(params=["redis", "postgres", "kafka"])
def subject(request: pytest.FixtureRequest) -> Subject:
    return request.getfixturevalue(f"{request.param}_subject")


def test_keeps_url_and_data_through_restart_and_kill(subject):
    url = subject.server.url
    subject.write("one")
    subject.server.restart()
    subject.write("two")
    subject.server.kill()
    assert not subject.server.running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", subject.server.port), timeout=5)
    subject.server.start()
    assert subject.server.url == url
    assert subject.read() == ["one", "two"]


def test_every_command_can_be_said_twice(private_redis, private_postgres):
    for server in (private_redis(), private_postgres()):
        server.start()
        server.stop()
        server.stop()
        server.start()
        server.kill()
        server.kill()
        assert not server.running


def test_a_discarded_server_leaves_nothing(private_redis, private_postgres):
    for server in (private_redis(), private_postgres()):
        server.kill()
        server.discard()
        assert not server.running
        assert not server.folder.exists()


def test_a_server_that_can_not_start_shows_its_log(private_redis):
    with pytest.raises(ServerFailed, match=r"(?s)redis ended with 1 while starting.*Bad directive"):
        private_redis("--no-such-setting", "1")


def test_a_server_can_be_given_settings(private_redis, private_postgres):
    redis = pytest.importorskip("redis")
    psycopg = pytest.importorskip("psycopg")
    guarded = private_redis("--maxclients", "7", password="secret")
    with redis.Redis.from_url(guarded.url) as client:
        assert client.config_get("maxclients") == {"maxclients": "7"}
    wrong = guarded.url.replace("secret", "wrong")
    with redis.Redis.from_url(wrong) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    with psycopg.connect(private_postgres("work_mem=7MB").url) as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)


def test_a_killed_postgres_comes_back_while_clients_were_busy(private_postgres):
    psycopg = pytest.importorskip("psycopg")
    server = private_postgres()
    connections = [psycopg.connect(server.url) for _ in range(5)]
    server.kill()
    server.start()
    for connection in connections:
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        connection.close()


def test_kafka_sends_clients_to_the_advertised_port(private_kafka):
    pytest.importorskip("confluent_kafka")
    from tests.faults.proxy import ChaosProxy

    port = free_port()
    server = private_kafka({"auto.create.topics.enable": "true"}, advertised_port=port)
    with ChaosProxy(server.url, port) as proxy:
        produce(server.url, "texts", "by way of the proxy")
        assert proxy.accepted > 0


def test_kafka_can_forbid_new_topics_and_still_work(private_kafka):
    pytest.importorskip("confluent_kafka")
    from confluent_kafka import KafkaException

    from tests.services.topic_guard import GUARDED, forbid_new_topics

    server = private_kafka(GUARDED)
    create_topic(server.url, "old")
    forbid_new_topics(server.url)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        create_topic(server.url, "new")
    produce(server.url, "old", "still here")
    assert consume(server.url, "old") == ["still here"]


def test_a_port_stays_its_owners_while_nobody_listens_on_it():
    port = free_port()
    for _ in range(2):  # a server, and the same one restarted
        with socket.create_server(("127.0.0.1", port)):
            pass
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
