"""What a kafka:// URL says: where the brokers are, the consumer group, and which topic carries which queue.

    kafka://host:9092,host2:9092
    kafka://user:password@host:9093?group=shop&partitions=12&topic.orders=shop.orders&ssl.ca.location=/etc/ca.pem

A parameter with a dot in it is a setting of librdkafka, or names the topic of a queue (`topic.<queue>`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from yamchi.errors import ConfigurationError

TopicOf = Callable[[str], str | None]
"""The topic that a queue was declared with, if it was."""


def undeclared(queue: str) -> str | None:
    return None


@dataclass(frozen=True)
class Address:
    """A Kafka cluster, and how this application uses it."""

    bootstrap: str
    group: str
    partitions: int
    topics: Mapping[str, str]
    state_store: str | None
    settings: Mapping[str, Any]
    declared: TopicOf = undeclared

    @classmethod
    def parse(cls, url: str, declared: TopicOf = undeclared) -> "Address":
        parts = urlsplit(url)
        credentials, _, bootstrap = parts.netloc.rpartition("@")
        if not bootstrap:
            raise ConfigurationError("A kafka:// URL names no broker: write it as kafka://host:9092")
        asked = dict(parse_qsl(parts.query))
        topics = {
            name.removeprefix("topic."): asked.pop(name) for name in list(asked) if name.startswith("topic.")
        }
        settings = {name: asked.pop(name) for name in list(asked) if "." in name}
        address = cls(
            bootstrap,
            asked.pop("group", "yamchi"),
            _count(asked.pop("partitions", "4")),
            topics,
            asked.pop("ledger", None),
            _sign_in(credentials) | settings,
            declared,
        )
        if asked:
            raise ConfigurationError(
                f"A kafka:// URL has no parameter {', '.join(asked)}: it has group, partitions, ledger, "
                "topic.<queue>, and the settings of librdkafka, which have a dot in their names."
            )
        return address

    def topic(self, queue: str) -> str:
        """As the URL names it, or the queue's declaration; else it has the queue's name."""
        return self.topics.get(queue) or self.declared(queue) or queue

    def dead_letters(self, queue: str) -> str:
        """Always by the queue's own name: notifications.dlq, not notifications.outbox.dlq."""
        return f"{queue}.dlq"

    @property
    def control_topic(self) -> str:
        """The topic on which machines tell each other of pauses and cancellations."""
        return f"{self.group}.bulletin"

    def group_of(self, queue: str) -> str:
        """Each queue has a group of its own, so that a worker who joins one does not halt the others."""
        return f"{self.group}.{queue}"

    def client(self, **settings: Any) -> dict[str, Any]:
        """Settings of one client of this cluster; what the URL says has the last word.

        Its own log is off: while no broker answers it would write twenty lines a second past ours, in a form of its own.
        """
        common = {
            "bootstrap.servers": self.bootstrap,
            "client.id": "yamchi",
            "reconnect.backoff.max.ms": 1_000,
            "log_level": 2,
        }
        return common | settings | dict(self.settings)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ConfigurationError(f"partitions must be a number from 1 on, not {text!r}.")
    return int(text)


def _sign_in(credentials: str) -> dict[str, Any]:
    if not credentials:
        return {}
    user, _, password = credentials.partition(":")
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": unquote(user),
        "sasl.password": unquote(password),
    }
