import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("confluent_kafka")
from yamchi.queues.engines.kafka import envelope, offsets
from yamchi.queues.engines.kafka.envelope import Message
from yamchi.queues.options import Backoff, JobOptions


class Raw:
    """A message as confluent-kafka hands it out; its own class can't be made with a place and a time."""

    def __init__(self, value: bytes | None, headers: Any = None) -> None:
        self._value, self._headers = value, headers

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Any:
        return self._headers

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 41

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_763_728_496_000


def test_a_job_comes_back_as_it_was_sent() -> None:
    options = JobOptions(attempts=7, backoff=Backoff("fixed", 250)).encode()
    sent = Message("j-1", "greet", b'{"n":1}', options, 4, 1_900_000_000_000, 2, "r7")
    got = envelope.read(Raw(sent.payload, sent.headers()))
    assert (got.partition, got.offset, got.stamp) == (3, 41, 1_763_728_496_000)
    sent.partition, sent.offset, sent.stamp = got.partition, got.offset, got.stamp
    assert got == sent


def test_a_plain_message_is_a_job() -> None:
    got = envelope.read(Raw(b'{"job_id":"6f1f","to":"a@b.c"}'))
    assert (got.id, got.name, got.payload) == ("6f1f", "", b'{"job_id":"6f1f","to":"a@b.c"}')


@pytest.mark.parametrize(
    "value",
    [b"not json", b"", None, b'{"job_id":"has space"}', b'["job_id"]', b'{"job_id":null}', b"\xff\x00"],
)
def test_without_a_usable_id_the_place_is_the_id(value: bytes | None) -> None:
    got = envelope.read(Raw(value))
    assert (got.id, got.payload) == ("orders-3-41", value or b"")


@pytest.mark.parametrize(
    "headers",
    [
        [("yamchi-id", b"x")],
        [("yamchi-id", b"x"), ("yamchi-name", b"n"), ("yamchi-priority", b"high")],
        [("yamchi-id", b"x"), ("yamchi-name", b"n"), ("yamchi-options", b"{")],
        [("yamchi-id", b"x"), ("yamchi-name", b"n"), ("yamchi-options", b'{"attempts":0}')],
        [("yamchi-id", b"x"), ("yamchi-name", b"n"), ("yamchi-options", b"{}".ljust(1_000_000))],
        [("yamchi-id", None), ("yamchi-name", b"n")],
        [("yamchi-id", b"\xff"), ("yamchi-name", b"n")],
        [("traceparent", b"00-aa")],
    ],
)
def test_an_envelope_that_yamchi_did_not_write_is_left_aside(headers: Any) -> None:
    got = envelope.read(Raw(b'{"n":1}', headers))
    assert (got.id, got.name, got.options) == ("orders-3-41", "", None)


@pytest.mark.parametrize(
    ("payload", "key"),
    [(b'{"user_id":"u-7"}', b"u-7"), (b'{"user_id":7}', b"7"), (b'{"user_id":""}', b"j"), (b'"user_id"', b"j"), (b"{}", b"j")],
)  # fmt: skip
def test_the_key_is_the_user_where_there_is_one(payload: bytes, key: bytes) -> None:
    assert Message("j", "n", payload).key() == key


@given(st.integers(0, 2**40), st.sets(st.integers(1, 20_000), max_size=300))
def test_offsets_done_beyond_the_committed_one_survive(floor: int, steps: set[int]) -> None:
    done = sorted(floor + step for step in steps)
    text = offsets.encode(floor, done)
    assert len(text) <= offsets.ROOM_BYTES
    assert offsets.decode(floor, text) == done


def test_what_does_not_fit_is_left_out_from_the_end() -> None:
    chance = random.Random(7)
    done = [offset for offset in range(1, 150_000) if chance.random() < 0.5]
    kept = offsets.decode(0, offsets.encode(0, done))
    assert 0 < len(kept) < len(done)
    assert kept == done[: len(kept)]


@pytest.mark.parametrize("text", [None, "", "somebody's own note", "y1:not base85 \x00", "y1:00000"])
def test_a_note_of_somebody_else_says_nothing(text: str | None) -> None:
    assert offsets.decode(5, text) == []
