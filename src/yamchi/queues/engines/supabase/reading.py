"""Messages as PostgREST writes them, each read by itself: one that is nested beyond what can be read spoils no other."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from yamchi.queues import foreign

_PARTS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
"""Strings, which may have brackets in them, and brackets."""

_NUMBER = re.compile(rb'\s*\{\s*"msg_id"\s*:\s*(\d{1,19})\b')
_KEY = re.compile(rb'[\s,]*"((?:[^"\\]|\\.)*)"\s*:\s*', re.DOTALL)
_SCALAR = re.compile(rb'"(?:[^"\\]|\\.)*"|[^,}]*', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Message:
    """A message by its number; `body` is its JSON as it came."""

    number: int
    body: bytes


def read_messages(content: bytes) -> list[Message]:
    """The messages of an answer of `read`."""
    if foreign.is_json(content):
        rows = orjson.loads(content) or []
        return [Message(int(row["msg_id"]), orjson.dumps(row["message"])) for row in rows]
    return [message for row in _rows(content) if (message := _read(row))]


def _rows(content: bytes) -> Iterator[bytes]:
    """The objects of an array, as text."""
    at = content.find(b"{")
    while at >= 0:
        end = _end(content, at)
        yield content[at:end]
        at = content.find(b"{", end)


def _end(text: bytes, begin: int) -> int:
    """Where the value ends that begins here with a bracket."""
    depth = 0
    for part in _PARTS.finditer(text, begin):
        if part[0] in (b"[", b"{"):
            depth += 1
        elif part[0] in (b"]", b"}"):
            depth -= 1
        if depth == 0:
            return part.end()
    return len(text)


def _read(row: bytes) -> Message | None:
    number = _NUMBER.match(row)
    if number is None:
        return None
    if foreign.is_json(row):
        return Message(int(number[1]), orjson.dumps(orjson.loads(row)["message"]))
    return Message(int(number[1]), _message(row))


def _message(row: bytes) -> bytes:
    """The value of `message`, as text; the whole row if it has none that can be told."""
    at = 1
    while key := _KEY.match(row, at):
        begin = key.end()
        end = _end(row, begin) if row[begin : begin + 1] in (b"[", b"{") else _SCALAR.match(row, begin).end()  # type: ignore[union-attr]
        if key[1] == b"message":
            return row[begin:end]
        at = end
    return row
