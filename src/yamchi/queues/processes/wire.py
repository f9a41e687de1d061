"""What a worker and its child processes say to each other over a socket pair: a length, then a message.

The worker is trusted and sends pickles. A child may have been taken over by the file it was decoding, so what it says is
JSON of a bounded size and nothing else.
"""

import asyncio
import pickle
import socket
import struct
import threading
import traceback
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson

from yamchi import errors
from yamchi.queues.records import JobRecord
from yamchi.settingtypes import LogFormat

LARGEST_MESSAGE_BYTES = 16 * 1024 * 1024
"""Bytes that a child may say at once; results and logs are small."""

_LENGTH = struct.Struct("!I")
_KINDS = (errors.Unrecoverable, errors.Outage, errors.Snooze, errors.Cancelled)


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
    if trace := message.get("trace"):
        error.add_note(f"In the child process:\n{trace}")
    return error


# ── The child's side ──────────────────────────────────────────────────────────────────────────────────────────────


class WorkerConnection:
    """A child's end of the socket pair. A handler's own threads may tell its progress and log lines, too."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, type: str, **fields: Any) -> None:
        body = orjson.dumps({"type": type, **fields})
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
    """An error as JSON: its kind, its sentence and where it came from."""
    kind = next((kind.__name__ for kind in _KINDS if isinstance(error, kind)), "Retryable")
    said = str(error)
    if not (isinstance(error, errors.YamchiError) and said):
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    fields: dict[str, Any] = {"kind": kind, "message": said}
    if isinstance(error, errors.Outage) and error.retry_after is not None:
        fields["wait"] = error.retry_after.total_seconds()
    if isinstance(error, errors.Snooze):
        match error.until:
            case datetime() as moment:
                fields["until"] = moment.isoformat()
            case timedelta() as span:
                fields["wait"] = span.total_seconds()
            case int() | float() as seconds:
                fields["wait"] = seconds
            case text:
                fields["wait"] = str(text)
    if error.__traceback__ is not None:
        fields["trace"] = "".join(traceback.format_exception(error))[-8_000:]
    return fields
