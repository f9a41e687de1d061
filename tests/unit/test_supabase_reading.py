"""Answers of PostgREST: each message is read by itself, whatever the one beside it is."""

import orjson
import pytest

from yamchi.queues.engines.supabase.reading import Message, read_messages

DEEP = b"[" * 5_000 + b"]" * 5_000


def row(number: int, message: bytes, rest: bytes = b',"headers":null') -> bytes:
    return b'{"msg_id":%d,"read_ct":1,"vt":"2026-01-01T00:00:00+00:00","message":%b%b}' % (
        number,
        message,
        rest,
    )


def test_an_ordinary_answer() -> None:
    content = b"[" + row(1, b'{"a": 1}') + b"," + row(2, b'"text"') + b"]"
    assert read_messages(content) == [Message(1, b'{"a":1}'), Message(2, b'"text"')]
    assert read_messages(b"null") == []
    assert read_messages(b"[]") == []


@pytest.mark.parametrize("rest", [b"", b',"headers":null', b', "headers": {"a": "}]"}'])
def test_a_deep_message_spoils_no_other(rest: bytes) -> None:
    tricky = b'{"text": "a \\"quoted\\" ]}[{ \\\\"}'
    rows = [
        row(1, tricky, rest),
        row(2, DEEP, rest),
        row(3, b'{"deep": %b}' % DEEP, rest),
        row(4, b"5", rest),
    ]
    found = read_messages(b"[" + b",\n".join(rows) + b"]")
    assert [message.number for message in found] == [1, 2, 3, 4]
    assert orjson.loads(found[0].body) == orjson.loads(tricky)
    assert found[1].body == DEEP
    assert found[2].body == b'{"deep": %b}' % DEEP
    assert found[3].body == b"5"


def test_deep_headers_beside_an_ordinary_message() -> None:
    (message,) = read_messages(b"[" + row(7, b'"a, }"', b',"headers":' + DEEP) + b"]")
    assert message == Message(7, b'"a, }"')
