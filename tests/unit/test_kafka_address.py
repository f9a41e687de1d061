import pytest

from yamchi.errors import ConfigurationError

pytest.importorskip("confluent_kafka")
from yamchi.queues.engines.kafka.address import Address
from yamchi.queues.engines.kafka.cluster import Cluster


def test_a_plain_url_names_brokers_and_leaves_the_rest_to_defaults() -> None:
    address = Address.parse("kafka://one:9092,two:9092")
    assert address.bootstrap == "one:9092,two:9092"
    assert (address.group, address.partitions, address.state_store) == ("yamchi", 4, None)
    assert address.client()["bootstrap.servers"] == "one:9092,two:9092"


def test_a_queue_may_be_declared_with_the_topic_that_other_systems_know() -> None:
    address = Address.parse("kafka://one:9092", {"notifications": "notifications.outbox"}.get)
    assert address.topic("notifications") == "notifications.outbox"
    assert address.dead_letters("notifications") == "notifications.dlq"
    assert (address.topic("orders"), address.dead_letters("orders")) == ("orders", "orders.dlq")


def test_topics_group_and_settings_of_the_client_come_from_the_query() -> None:
    address = Address.parse(
        "kafka://one:9092?group=shop&partitions=12&topic.orders=shop.orders&topic.notifications=mail&ssl.ca.location=/ca"
    )
    assert (address.group, address.partitions) == ("shop", 12)
    assert (address.topic("orders"), address.topic("notifications")) == ("shop.orders", "mail")
    assert address.client()["ssl.ca.location"] == "/ca"


def test_credentials_sign_in_over_tls() -> None:
    settings = Address.parse("kafka://nur:p%40ss@one:9093").client()
    assert (settings["sasl.username"], settings["sasl.password"]) == ("nur", "p@ss")
    assert settings["security.protocol"] == "SASL_SSL"


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("kafka://", "names no broker"),
        ("kafka://one:9092?gruop=shop", "gruop"),
        ("kafka://one:9092?partitions=none", "'none'"),
    ],
)
def test_a_wrong_url_is_one_sentence(url: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Address.parse(url)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("security.protocl=SSL", "No such configuration property"),
        (
            "sasl.mechanism=SCRAM-SHA-999&sasl.username=a&sasl.password=b&security.protocol=SASL_SSL",
            "Unsupported hash function",
        ),
        ("security.protocol=SSL&ssl.ca.location=/nowhere", "ssl.ca.location failed"),
    ],
)
def test_a_setting_that_librdkafka_does_not_take_is_one_sentence(setting: str, said: str) -> None:
    cluster = Cluster(Address.parse(f"kafka://127.0.0.1:1?{setting}"))
    with pytest.raises(ConfigurationError, match=f"a setting that librdkafka does not take: .*{said}"):
        cluster.connect()
