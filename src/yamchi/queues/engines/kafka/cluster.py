"""The Kafka cluster itself: is it there, does a topic exist, how much lies on it; and its errors as sentences."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from yamchi.errors import ConfigurationError, EngineError, EngineUnavailable
from yamchi.queues.engines.kafka.address import Address

T = TypeVar("T")

ANSWER_SECONDS = 6.0
"""How long to wait for an answer of the cluster."""

_FORBIDDEN = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
)

_SETTLING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError._NOENT,
)
"""What a broker says of a topic or group that is new or has just moved, or when it has just been restarted."""


class Cluster:
    """Questions to the cluster. They block: ask from a thread."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._ready: set[str] = set()
        self._making = threading.Lock()
        self._closing = threading.Event()
        self._admin: Any = None
        self._observers: dict[str, Any] = {}
        self._met = ""

    def connect(self) -> None:
        self._closing.clear()
        try:
            self._admin = AdminClient(self._address.client(error_cb=self._meet))
        except KafkaException as error:
            raise ConfigurationError(
                f"The kafka:// URL has a setting that librdkafka does not take: {error.args[0].str()}."
            ) from error
        self.ping()

    def close(self) -> None:
        self._closing.set()
        for observer in self._observers.values():
            observer.close()
        self._observers.clear()
        self._admin = None

    def ping(self) -> None:
        self._topics()

    def is_ready(self, queue: str) -> bool:
        """Whether the queue's topics are known to exist."""
        return self._address.topic(queue) in self._ready

    def prepare(self, queue: str) -> None:
        """See to it that the queue's topics exist."""
        with self._making:
            wanted = {
                self._address.topic(queue): self._address.partitions,
                self._address.dead_letters(queue): 1,
            }
            if self._ready.issuperset(wanted):
                return
            there = self._topics()
            missing = [NewTopic(topic, count, -1) for topic, count in wanted.items() if topic not in there]
            if missing:
                self._create(missing)
            self._ready.update(wanted)

    def forget_deleted(self) -> None:
        """Somebody may have deleted topics: they are made again by whoever needs them next."""
        there = self._topics()
        with self._making:
            self._ready &= there

    def prepare_control_topic(self) -> None:
        if self._address.control_topic not in self._topics():
            kept = {"retention.ms": str(7 * 86_400_000)}
            self._create([NewTopic(self._address.control_topic, 1, -1, config=kept)])

    def _create(self, topics: Sequence[Any]) -> None:
        refused: dict[str, KafkaError] = {}
        for topic, made in self._admin.create_topics(topics, request_timeout=ANSWER_SECONDS).items():
            try:
                made.result(2 * ANSWER_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    refused[topic] = error.args[0]
        if not refused:
            return
        reason = next(iter(refused.values()))
        names = " and ".join(refused)
        if reason.code() in _FORBIDDEN:
            raise ConfigurationError(
                f"Kafka at {self._address.bootstrap} does not let Yamchi create the topic {names}: have it made, "
                f"for example with {self._address.partitions} partitions, or grant the right to create topics."
            )
        raise explain(reason, self._address, f"the topic {names} can't be created")

    def _topics(self) -> set[str]:
        try:
            return set(self._admin.list_topics(timeout=ANSWER_SECONDS).topics)
        except KafkaException as error:
            raise explain(error.args[0], self._address, self._why()) from error

    def _why(self) -> str:
        """What its connections met last, which the answer to a question does not say: a closed port, a wrong certificate."""
        self._met = ""
        if self._admin is not None:
            self._admin.poll(0)
        return self._met

    def _meet(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._met = error.str()

    # ── What lies on a topic ──────────────────────────────────────────────────────────────────────────────────────

    def ends(self, queue: str) -> dict[int, int]:
        """The offset that the next message of each partition will have."""
        topic = self._address.topic(queue)
        asked = {
            TopicPartition(topic, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for number in self._partitions(topic)
        }

        def ask() -> dict[int, int]:
            answers: Mapping[Any, Future[Any]] = self._admin.list_offsets(
                asked, request_timeout=ANSWER_SECONDS
            )
            return {place.partition: end.result(2 * ANSWER_SECONDS).offset for place, end in answers.items()}

        return self._ask_while_settling(ask) if asked else {}

    def committed(self, queue: str) -> dict[int, int]:
        """How far the queue's group has come in each partition; partitions it never committed are left out."""
        topic = self._address.topic(queue)
        places = [TopicPartition(topic, number) for number in self._partitions(topic)]

        def ask() -> dict[int, int]:
            answers = self._observer(queue).committed(places, timeout=ANSWER_SECONDS)
            return {place.partition: place.offset for place in answers if place.offset >= 0}

        return self._ask_while_settling(ask) if places else {}

    def _partitions(self, topic: str) -> list[int]:
        return self._ask_while_settling(
            lambda: list(self._admin.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions)
        )

    def _ask_while_settling(self, ask: Callable[[], T]) -> T:
        """The answer of a cluster that may still be settling."""
        deadline = monotonic() + ANSWER_SECONDS
        while True:
            try:
                return ask()
            except KafkaException as error:
                if error.args[0].code() not in _SETTLING or monotonic() > deadline:
                    raise explain(error.args[0], self._address, self._why()) from error
                self._closing.wait(0.05)

    def _observer(self, queue: str) -> Any:
        """A consumer that only asks: it never joins the group."""
        if queue not in self._observers:
            settings = self._address.client(**{"group.id": self._address.group_of(queue)})
            self._observers[queue] = Consumer(settings)
        return self._observers[queue]


def explain(error: Any, address: Address, what: str = "") -> EngineError | ConfigurationError:
    """The same error as a sentence a person can act on."""
    code, said = error.code(), f"{error.str()}{f': {what}' if what else ''}"
    where = f"Kafka at {address.bootstrap}"
    if code in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
        return ConfigurationError(f"{where} refused the user or password ({said}): check QUEUE_URL.")
    if code in (*_FORBIDDEN, KafkaError.GROUP_AUTHORIZATION_FAILED):
        return ConfigurationError(f"{where} does not allow this ({said}): grant the right to this user.")
    if code in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE,
                KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):  # fmt: skip
        return EngineUnavailable(f"{where} can't be reached ({said}): check that it runs, and QUEUE_URL.")
    is_passing = error.retriable() or code in _SETTLING
    return (EngineUnavailable if is_passing else EngineError)(f"{where} refused ({said}).")
