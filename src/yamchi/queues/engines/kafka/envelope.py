"""Between a job and a Kafka message: the value is the job's data and nothing else, the envelope rides in headers.

A message without headers, written by somebody else, is a valid job: its id is the payload's `job_id`, or else its
place in the topic, and its name is left empty for the queue's default handler.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
import structlog

from yamchi.clock import Millis
from yamchi.errors import InvalidJob
from yamchi.queues import foreign
from yamchi.queues.records import NewJob, check_id

log = structlog.get_logger("yamchi.kafka")

Headers = list[tuple[str, bytes]]

ID, NAME, OPTIONS = "yamchi-id", "yamchi-name", "yamchi-options"
PRIORITY, EXPIRES_AT, ATTEMPTS, ROUND = (
    "yamchi-priority",
    "yamchi-expires-at",
    "yamchi-attempts",
    "yamchi-round",
)

LONGEST_OPTIONS = 65_536
OPTION_FIELDS = ("attempts", "timeout", "keep_completed", "keep_failed")

AGAIN = "again-"
"""How the round of a job begins that was run or parked before, and is sent on."""


@dataclass(slots=True)
class Message:
    """A job as it lies on a topic. `round` tells another job of the same id from the same message sent twice."""

    id: str
    name: str
    payload: bytes
    options: str | None = None
    priority: int = 0
    expires_at: Millis | None = None
    attempts_made: int = 0
    round: str = ""
    partition: int = -1
    offset: int = -1
    stamp: Millis = 0
    """When it was written, by Kafka's own record: an offset alone does not survive a topic made anew."""

    @classmethod
    def of(cls, job: NewJob, round: str) -> "Message":
        """A new job, for its first delivery."""
        options = job.options.encode()
        return cls(job.id, job.name, job.payload, options, job.priority, job.expires_at, 0, round)

    def headers(self) -> Headers:
        """What differs from the defaults, after the id and the name."""
        headers = [(ID, self.id.encode()), (NAME, self.name.encode())]
        if self.options:
            headers.append((OPTIONS, self.options.encode()))
        if self.priority:
            headers.append((PRIORITY, b"%d" % self.priority))
        if self.expires_at is not None:
            headers.append((EXPIRES_AT, b"%d" % self.expires_at))
        if self.attempts_made:
            headers.append((ATTEMPTS, b"%d" % self.attempts_made))
        if self.round:
            headers.append((ROUND, self.round.encode()))
        return headers

    def size(self) -> int:
        """Bytes on the topic, but for a few of Kafka's own."""
        return (
            len(self.key())
            + len(self.payload)
            + sum(len(name) + len(value) for name, value in self.headers())
        )

    def key(self) -> bytes:
        """The user whose messages stay in order, where the payload names one."""
        user = _field(self.payload, "user_id")
        return (user or self.id).encode()


def read(raw: Any) -> Message:
    """The job in a message of confluent-kafka. Never refuses: what is wrong with the value is for the worker to say."""
    message = _enveloped(raw) or _foreign(raw)
    message.partition, message.offset = raw.partition(), raw.offset()
    message.stamp = foreign.whole(raw.timestamp()[1], 0, 0, foreign.LATEST)
    return message


def _enveloped(raw: Any) -> Message | None:
    """None where there is no envelope, or one that Yamchi did not write."""
    try:
        envelope = dict(raw.headers() or ())
        return _read(envelope, raw.value() or b"") if ID in envelope else None
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        said = foreign.text(str(error), 200)
        log.warning(f"the envelope of {_place(raw)} can't be read; taken as a plain message", error=said)
        return None


def _read(envelope: dict[str, bytes], payload: bytes) -> Message:
    """An envelope of ours. One that says what we would not is somebody else's, and a `ValueError`."""
    return Message(
        check_id(envelope[ID].decode()),
        _read_name(envelope[NAME]),
        payload,
        _read_options(envelope[OPTIONS]) if OPTIONS in envelope else None,
        _read_number(envelope[PRIORITY], 10) if PRIORITY in envelope else 0,
        _read_number(envelope[EXPIRES_AT], foreign.LATEST) if EXPIRES_AT in envelope else None,
        _read_number(envelope[ATTEMPTS], foreign.MOST_ATTEMPTS) if ATTEMPTS in envelope else 0,
        _read_text(envelope[ROUND]) if ROUND in envelope else "",
    )


def _read_text(given: bytes) -> str:
    text = given.decode()
    if not text.isprintable() or len(text) > foreign.LONGEST_NAME:
        raise ValueError("a name or round that no job has")
    return text


_read_name = lru_cache(maxsize=256)(_read_text)


@lru_cache(maxsize=256)
def _read_options(given: bytes) -> str:
    if len(given) > LONGEST_OPTIONS:
        raise ValueError("options out of bounds")
    fields = orjson.loads(given)
    known = foreign.options(fields)
    if any(fields[name] not in (None, known.get(name)) for name in OPTION_FIELDS if name in fields):
        raise ValueError("options out of bounds")
    return given.decode()


def _read_number(given: bytes, most: int) -> int:
    if not given.isdigit() or len(given) > 15 or int(given) > most:
        raise ValueError(f"{given[:20]!r} is out of bounds")
    return int(given)


def _foreign(raw: Any) -> Message:
    payload = raw.value() or b""
    return Message(_foreign_id(payload) or _place(raw), _foreign_name(raw), payload)


def _foreign_name(raw: Any) -> str:
    """The job that another program names, by that header alone; none where it can't be one."""
    headers = dict(raw.headers() or ())
    if ID in headers or not isinstance(given := headers.get(NAME), bytes):
        return ""
    try:
        return _read_name(given)
    except ValueError:
        return ""


def _place(raw: Any) -> str:
    return f"{raw.topic()}-{raw.partition()}-{raw.offset()}"


def read_all(raws: Sequence[Any]) -> list[Message]:
    return [read(raw) for raw in raws]


def _foreign_id(payload: bytes) -> str | None:
    job_id = _field(payload, "job_id")
    try:
        return check_id(job_id) if job_id else None
    except InvalidJob:
        return None  # an id that not every engine can keep; its place in the topic is one that can


def _field(payload: bytes, name: str) -> str | None:
    """A text field of a JSON object; a look at the bytes first, since most payloads don't have it."""
    if f'"{name}"'.encode() not in payload:
        return None
    try:
        data = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    value = data.get(name) if isinstance(data, dict) else None
    return str(value) if isinstance(value, str | int) and value != "" else None
