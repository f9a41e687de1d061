"""Limits on the answers that `requests` reads for Apprise: so many bytes, and so many seconds for the body.

Apprise calls `requests.post(…)` without a session of ours and reads every answer whole. So the adapter of `requests` is
wrapped once, and reads the body itself where `bounded_answers` is in force; other users of `requests` notice nothing.
The status of an answer counts even if its body is cut.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

MAX_BODY_BYTES = 65_536
"""Far more than the JSON that any gateway answers with."""

BODY_DEADLINE_SECONDS = 10.0
PIECE_BYTES = 8_192

_is_bounded: ContextVar[bool] = ContextVar("_is_bounded", default=False)


@contextmanager
def bounded_answers() -> Iterator[None]:
    """In this thread, answers are cut at the limits."""
    _wrap_adapter()
    token = _is_bounded.set(True)
    try:
        yield
    finally:
        _is_bounded.reset(token)


@cache
def _wrap_adapter() -> None:
    from requests.adapters import HTTPAdapter

    send = HTTPAdapter.send

    @wraps(send)
    def bounded_send(self: HTTPAdapter, request: Any, *arguments: Any, **options: Any) -> Any:
        response = send(self, request, *arguments, **options)
        if _is_bounded.get():
            _read_body(response)
        return response

    HTTPAdapter.send = bounded_send  # type: ignore[method-assign]


def _read_body(response: Any) -> None:
    """Read what the limits allow, as the whole content, and close the connection if there is more."""
    from urllib3.exceptions import HTTPError

    until = time.monotonic() + BODY_DEADLINE_SECONDS
    body = bytearray()
    try:
        while len(body) < MAX_BODY_BYTES and time.monotonic() < until:
            piece = response.raw.read1(PIECE_BYTES, decode_content=True)
            if not piece:
                break
            body += piece
        else:
            response.raw.close()
    except (HTTPError, OSError):  # the connection broke in the middle of the body: the status has arrived
        response.raw.close()
    response._content = bytes(body[:MAX_BODY_BYTES])
    response._content_consumed = True
