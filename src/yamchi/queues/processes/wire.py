"""What a worker and its child processes say to each other over a socket pair: a length, then a message.

The worker is trusted and sends pickles. A child may have been taken over by the file it was decoding, so what it says is
JSON of a bounded size and nothing else.
"""

import asyncio
import pickle
import socket
import struct
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson

from yamchi import errors
from yamchi.clock import to_millis
from yamchi.queues.records import JobRecord, to_json
from yamchi.queues.verdicts import sentence, trace
from yamchi.settingtypes import LogFormat

LARGEST_MESSAGE_BYTES = 16 * 1024 * 1024
"""Bytes that a child may say at once; results and logs are small."""

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message to a child: which function it runs, and within what."""

    queue: str
    name: str
    module: str
    function: str
    main_file: str | None
    path: list[str]
    memory: int | None
    log_level: int
    log_format: LogFormat


@dataclass(frozen=True, slots=True)
class Start:
    """Run this job."""

    job: JobRecord


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the job that runs, and end."""


# ── The worker's side ─────────────────────────────────────────────────────────────────────────────────────────────


def packed(message: Hello | Start | Stop) -> bytes:
    body = pickle.dumps(message)
    return _LENGTH.pack(len(body)) + body


async def receive(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """What a child said; None when it is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > LARGEST_MESSAGE_BYTES:
            return None
        message = orjson.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError, orjson.JSONDecodeError):
        return None
    return message if isinstance(message, dict) else None


def decode_error(message: dict[str, Any]) -> Exception:
    """The error that a child met, as if it had been met here; its traceback goes along as a note."""
    said, wait = str(message.get("message", "")), message.get("wait")
    error: Exception
    match message.get("kind"):
        case "Unrecoverable":
            error = errors.Unrecoverable(said)
        case "Cancelled":
            error = errors.Cancelled(said)
        case "Outage":
            error = errors.Outage(said, retry_after=None if wait is None else timedelta(seconds=float(wait)))
        case "Snooze":
            until = message.get("until")
            error = errors.Snooze(datetime.fromisoformat(str(until)) if until else wait or 0, said)
        case _:
            error = errors.Retryable(said)
    if where := message.get("trace"):
        error.add_note(f"In the child process:\n{where}")
    return error


# ── The child's side ──────────────────────────────────────────────────────────────────────────────────────────────


class WorkerConnection:
    """A child's end of the socket pair. A handler's own threads may tell its progress and log lines, too."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, type: str, **fields: Any) -> None:
        body = to_json({"type": type, **fields})
        if len(body) > LARGEST_MESSAGE_BYTES:
            raise errors.Unrecoverable(
                f"A child process may say {LARGEST_MESSAGE_BYTES:,} bytes at once, and this has {len(body):,}: "
                "keep large things in a file or object store and give their address."
            )
        with self._sending:
            self._connection.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self) -> Hello | Start | Stop | None:
        """What the worker said; None when it is gone."""
        head = self._read(_LENGTH.size)
        body = self._read(_LENGTH.unpack(head)[0]) if head else None
        return pickle.loads(body) if body else None

    def _read(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            part = self._connection.recv(size - len(parts))
            if not part:
                return None
            parts += part
        return bytes(parts)


def encode_error(error: BaseException) -> dict[str, Any]:
    """An error as JSON: its kind, its sentence and where it came from. One that says wrongly what it wants has failed of that."""
    try:
        return _encode_error(error)
    except Exception as wrong:
        return _encode_error(wrong)


def _encode_error(error: BaseException) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": _kind_of(error), "message": sentence(error), "trace": trace(error)}
    wish = None
    if isinstance(error, errors.Snooze):
        wish = error.until
    elif isinstance(error, errors.Outage):
        wish = error.retry_after
    if isinstance(wish, datetime):
        fields["until"] = wish.isoformat()
    elif wish is not None:
        fields["wait"] = to_millis(wish) / 1000
    return fields


def _kind_of(error: BaseException) -> str:
    match error:
        case errors.Unrecoverable() | errors.UnknownJob() | errors.MissingExtra():
            return "Unrecoverable"
        case errors.Outage():
            return "Outage"
        case errors.Snooze():
            return "Snooze"
        case errors.Cancelled():
            return "Cancelled"
    return "Retryable"
