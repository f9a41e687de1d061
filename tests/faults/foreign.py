"""Somebody else on the same broker: writes with a client of their own, good jobs and nonsense, one among the other.

`odd_…(chance)` make the values, half of them with the generator that HTTP is attacked with (`hostile.py`); a `Producer` for each
broker puts them where its jobs lie.
"""

import json
import random
from collections.abc import Sequence
from typing import Any, Protocol

from tests.faults import hostile

NUMBERS = (
    b"1e308", b"-1e308", b"nan", b"inf", b"-inf", b"-1", b"-99999999999999999999", b"9" * 400, b"9223372036854775807",
    b"abc", b"", b"1.5", b"0x10", b" 5 ", "٣".encode(), b"\xff\xfe", b"true", b"null", b"[]", b"99999999999999",
)  # fmt: skip
ODD_NUMBERS = (1e308, -1, -1e308, 10**400, 1.5, "3", "abc", None, True, [], {}, 2**63, 2**64, -(2**63))
TEXTS = (
    b"",
    b"\xff\xfe\x00\x80",
    b"x" * 1_000_000,
    "ж".encode() * 1_000,
    b"\x00\x1b[31m\r\n",
    b"a:b:c",
    b"work",
)
DATA = (
    b"", b"not json", b"{", b"\xff\xfe\x00", b"NaN", b"1e999", b'"\\ud800"', b"null", b"[]", b"5", b'"text"', b"\x00",
    b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 300 + b"1" + b"}" * 300, b"[" * 1_000 + b"]" * 1_000,
    b'{"job_id": {}}', b'{"job_id": "a b:c"}', b'{"job_id": "\\u0000"}', b'{"job_id": ' + b"9" * 400 + b"}",
    b'{"pause": "long"}', json.dumps({"big": "x" * 300_000}).encode(),
)  # fmt: skip


JOB = {
    "job_id": "odd",
    "user_id": "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001",
    "pause": 0,
    "data": {"name": "you", "tags": ["a", "b"], "at": "2026-01-01T00:00:00Z", "n": 1},
}
"""Data of a good job, for what is to be made of it."""

LARGEST = 900_000
"""Bytes that every broker takes."""


def odd_data(chance: random.Random) -> bytes:
    """Data of a job that may be anything."""
    if chance.random() < 0.5:
        return chance.choice(DATA)
    made = hostile.as_json(hostile.mutated(JOB, chance))
    made = hostile.broken(chance, made) if chance.random() < 0.1 else made
    return made[:LARGEST]


def odd_options(chance: random.Random) -> dict[str, Any]:
    """Options of a job, BullMQ's and ours, each of which may be anything."""
    names = (
        "attempts", "delay", "backoff", "removeOnComplete", "removeOnFail", "priority", "timestamp", "yamchi", "repeat",
        "jobId", "lifo", "parent", "keep_completed", "keep_failed", "timeout",
    )  # fmt: skip
    made = {name: odd_value(chance) for name in names if chance.random() < 0.4}
    if chance.random() < 0.3:
        made["yamchi"] = {name: odd_value(chance) for name in ("timeout", "steps", "jitter", "longest")}
    if chance.random() < 0.3:
        made["backoff"] = {name: odd_value(chance) for name in ("type", "kind", "delay", "steps", "jitter")}
    if chance.random() < 0.3:
        made["removeOnFail"] = {name: odd_value(chance) for name in ("count", "age", "limit")}
    return made


def odd_value(chance: random.Random) -> Any:
    nested = [[[{}]], [1, "a", None], {"a": {"b": 1}}, "fixed", "exponential", "x" * 10_000]
    return chance.choice([*ODD_NUMBERS, *nested])


def odd_hash(chance: random.Random) -> dict[bytes, bytes]:
    """A job's hash in Redis, some of whose fields may be anything."""
    fields: dict[bytes, bytes] = {
        b"name": b"work",
        b"data": b"{}",
        b"opts": b"{}",
        b"timestamp": b"1763000000000",
    }
    for name in (
        b"timestamp", b"delay", b"priority", b"atm", b"ats", b"stc", b"processedOn", b"finishedOn", b"ymExpiresAt",
    ):  # fmt: skip
        if chance.random() < 0.3:
            fields[name] = chance.choice(NUMBERS)
    for name in (
        b"name", b"failedReason", b"progress", b"returnvalue", b"stacktrace", b"pb", b"rjk", b"deid", b"parentKey",
        b"parent", b"ymSlotted", b"ymLetter", b"ymDue", b"defa",
    ):  # fmt: skip
        if chance.random() < 0.12:
            fields[name] = chance.choice([*TEXTS, *DATA[:8], b'["a", 5, {}]', b"{}"])
    if chance.random() < 0.4:
        fields[b"data"] = odd_data(chance)
    if chance.random() < 0.6:
        choices = [json.dumps(odd_options(chance)).encode(), odd_data(chance)]
        fields[b"opts"] = chance.choice(choices)
    return fields


def odd_headers(chance: random.Random) -> Any:
    """Headers of a message of pgmq."""
    if chance.random() < 0.2:
        return chance.choice([None, 5, "yamchi_id", ["yamchi_id"], ["yamchi_id", "rise"], "rise", [], True])
    names = (
        "name", "options", "priority", "expires_at", "worker", "reason", "stack", "progress", "slotted", "rise", "cancelling",
    )  # fmt: skip
    made = {name: odd_value(chance) for name in names if chance.random() < 0.3}
    if chance.random() < 0.5:
        made["yamchi_id"] = chance.choice(
            [5, None, "", "a b", f"fake-{chance.random()}", "x" * 5_000, {}, []]
        )
    if chance.random() < 0.3:
        made["options"] = json.dumps(odd_options(chance))
    return made


class Producer(Protocol):
    """Writes to one queue of a broker."""

    def good(self, ids: Sequence[str]) -> None:
        """Jobs as they should be."""

    def bad(self, chance: random.Random, count: int) -> None:
        """Records as they should not be."""

    def close(self) -> None: ...


class RedisProducer:
    """BullMQ's keys, written by hand."""

    def __init__(self, url: str, queue: str) -> None:
        import redis

        self._redis = redis.Redis.from_url(url)
        self._base = f"bull:{queue}:".encode()
        self._turn = 0

    def good(self, ids: Sequence[str]) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in ids:
                job = {"name": "work", "data": "{}", "opts": '{"attempts":3}', "timestamp": 1_763_000_000_000}
                pipe.hset(self._base + job_id.encode(), mapping={**job, "delay": 0, "priority": 0})
                pipe.lpush(self._base + b"wait", job_id)
            pipe.zadd(self._base + b"marker", {"0": 0})
            pipe.execute()

    def bad(self, chance: random.Random, count: int) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            for _ in range(count):
                self._turn += 1
                job_id = chance.choice(
                    [b"bad-%d", b"\xff\xfe%d", b"a b %d", "ж-%d".encode(), b"x" * 10_000 + b"%d"]
                )
                self._bad(pipe, chance, job_id % self._turn)
            pipe.zadd(self._base + b"marker", {"0": chance.choice([0, float("inf"), -1])})
            pipe.execute()

    def _bad(self, pipe: Any, chance: random.Random, job_id: bytes) -> None:
        key = self._base + job_id
        match chance.randrange(10):
            case 0:
                pipe.set(key, odd_data(chance))
            case 1:
                pipe.rpush(key, b"a", b"list")
            case 2:
                pass  # an id, and nothing behind it
            case _:
                pipe.hset(key, mapping=odd_hash(chance))
        match chance.randrange(8):
            case 0:
                score = chance.choice([float("inf"), float("-inf"), -5, 0, 1e308])
                pipe.zadd(self._base + b"delayed", {job_id: score})
            case 1:
                pipe.zadd(self._base + b"prioritized", {job_id: chance.choice([0, 1e308, float("inf")])})
            case 2:
                pipe.lpush(self._base + b"active", job_id)
            case 3:
                pipe.zadd(self._base + chance.choice([b"completed", b"failed"]), {job_id: 1e308})
            case _:
                pipe.lpush(self._base + b"wait", job_id)
        if chance.random() < 0.1:
            pipe.xadd(
                self._base + b"events", {"event": chance.choice([b"completed", b"\xff"]), "jobId": job_id}
            )

    def close(self) -> None:
        self._redis.close()


class PgmqProducer:
    """Rows of pgmq's table, as its functions and a careless INSERT write them."""

    def __init__(self, url: str, queue: str) -> None:
        import psycopg

        self._db = psycopg.connect(url, autocommit=True)
        self._queue = queue.replace("-", "_")  # as tables are named
        self._table = f"pgmq.q_{self._queue}"
        self._db.execute(
            "SELECT pgmq.create(%s)", (self._queue,)
        )  # at Supabase its owner does; else it is there

    def good(self, ids: Sequence[str]) -> None:
        messages = [json.dumps({"job_id": job_id}) for job_id in ids]
        self._db.execute("SELECT pgmq.send_batch(%s, %s::jsonb[])", (self._queue, messages))

    def bad(self, chance: random.Random, count: int) -> None:
        import psycopg

        moments = [
            "now()",
            "'infinity'",
            "'-infinity'",
            "'0001-01-01'",
            "'294276-01-01'",
            "now() - interval '1 y'",
        ]
        for _ in range(count):
            vt = chance.choice(
                [*["now()"] * 4, *moments[2:], moments[1] if chance.random() < 0.2 else "now()"]
            )
            read = chance.choice(["NULL"] * 8 + ["'-infinity'", "'0001-01-01'"])
            values = {
                "message": self._message(chance),
                "headers": json.dumps(odd_headers(chance)),
                "read_ct": chance.choice([0, 0, 0, 2_147_483_647, -2_147_483_648, 5]),
            }
            try:
                self._db.execute(
                    f"INSERT INTO {self._table} (message, headers, read_ct, vt, enqueued_at, last_read_at) VALUES "
                    f"(%(message)s::jsonb, %(headers)s::jsonb, %(read_ct)s, {vt}, {chance.choice(moments)}, {read})",
                    values,
                )
            except (psycopg.DataError, psycopg.OperationalError):
                continue  # what PostgreSQL itself refuses

    def _message(self, chance: random.Random) -> str:
        return chance.choice([odd_data(chance), odd_data(chance), b"{}", b'{"pause": 0}']).decode(
            "utf-8", "replace"
        )

    def close(self) -> None:
        self._db.close()


class KafkaProducer:
    """Records with headers, keys and values of any kind."""

    def __init__(self, url: str, queue: str) -> None:
        from confluent_kafka import Producer as Client

        self._client = Client(
            {"bootstrap.servers": url.removeprefix("kafka://"), "message.max.bytes": 2_000_000}
        )
        self._topic = queue
        self._turn = 0

    def good(self, ids: Sequence[str]) -> None:
        for job_id in ids:
            self._client.produce(self._topic, json.dumps({"job_id": job_id}).encode(), key=job_id.encode())
        assert self._client.flush(60) == 0

    def bad(self, chance: random.Random, count: int) -> None:
        for _ in range(count):
            self._turn += 1
            value = chance.choice([odd_data(chance), odd_data(chance), None, b"{}"])
            key = chance.choice([None, b"", b"\xff\xfe", b"k" * 10_000])
            stamp = chance.choice([0, 1, 1_763_000_000_000])
            self._client.produce(self._topic, value, key=key, headers=self._headers(chance), timestamp=stamp)
            self._client.poll(0)
        assert self._client.flush(60) == 0

    def _headers(self, chance: random.Random) -> list[tuple[str, bytes | None]]:
        headers: list[tuple[str, bytes | None]] = []
        if chance.random() < 0.7:
            headers.append(
                ("yamchi-id", chance.choice([b"fake-%d" % self._turn, None, b"\xff", b"", b"a b"]))
            )
            headers.append(("yamchi-name", chance.choice([*TEXTS, None])))
        asked = [name for name in ("priority", "expires-at", "attempts", "round") if chance.random() < 0.4]
        headers += [(f"yamchi-{name}", chance.choice([*NUMBERS, None])) for name in asked]
        if chance.random() < 0.5:
            headers.append(
                ("yamchi-options", chance.choice([json.dumps(odd_options(chance)).encode(), *DATA[:12]]))
            )
        return headers

    def close(self) -> None:
        """Everything was flushed."""


PRODUCERS: dict[str, type[RedisProducer] | type[PgmqProducer] | type[KafkaProducer]] = {
    "bull": RedisProducer,
    "pgmq": PgmqProducer,
    "kafka": KafkaProducer,
}
