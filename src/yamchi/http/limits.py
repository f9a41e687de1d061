"""What a request may not exceed: a body has a size and a deadline; the address and JSON are looked at before any route reads them."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from yamchi.errors import InvalidJob
from yamchi.fields import MOST_DEPTH, MOST_KEYS, check_few, check_json
from yamchi.http.problems import FieldProblem, problem

T = TypeVar("T")

BODY_LIMIT = 4 * 1024 * 1024
"""The largest body, in bytes: a job of the largest size four times over."""

KEYLESS_LIMIT = 256 * 1024
"""The same for strangers and people's pages: an update of Telegram or a webhook about a payment has a tenth of it."""

FORM_LIMIT = 64 * 1024
MOST_FIELDS = 200
"""The same for a form, and how many fields it may have: reading one takes longer than reading JSON."""

MOST_VALUES = 200_000
"""Values in one JSON document: each becomes an object, whose making nothing can interrupt."""

BODY_WITHIN = 30.0
SLOWEST = 16 * 1024
"""Seconds in which a body must have come, and bytes a second beyond them for one that is longer."""

LOOK_EVERY = 1.0

READ_AT_ONCE = 64 * 1024
"""Bytes of JSON that are read within a few milliseconds."""

MOST_READING = 1_000
"""Requests whose bodies are waited for at the same time; beyond it the one that has been silent longest is given up."""

MOST_HELD = 256 * 1024 * 1024
"""Bytes of all bodies beyond a form's size that are in memory; beyond it the one that has been silent longest is given up, too."""

TOO_LARGE = "The body is larger than the {:,} bytes allowed"
ADVICE = ": keep large things in a file and send its address."
"""For a body that is read whole. What is streamed is such a file."""

NUL = "has a NUL character (%00), which no id and no name can have."

_FORM = b"application/x-www-form-urlencoded"
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
"""What may not fit into 64 bits; orjson would make a float of it."""


def _too_large(limit: int, is_kept: bool) -> str:
    return TOO_LARGE.format(limit) + (ADVICE if is_kept else ".")


class BodyLimit:
    """Refuses a body that is too large or too slow, whether it says so itself or just keeps coming."""

    def __init__(self, app: ASGIApp, larger: Mapping[str, int] | None = None) -> None:
        self.app = app
        self.larger = [(re.compile(pattern), size) for pattern, size in (larger or {}).items()]
        self._reading: dict[int, _Reading] = {}
        """In the order in which something last came of them."""
        self._looking: asyncio.TimerHandle | None = None
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = _announced(dict(scope["headers"]))
        # A body has no more than was announced, and none is too large with so little: nearly every one is such.
        is_small = 0 < announced <= FORM_LIMIT
        limit, is_kept = (FORM_LIMIT, False) if is_small else self._limit(scope)
        if announced > limit:
            sentence = _too_large(limit, is_kept)
            refusal = problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence, headers={"connection": "close"})
            await refusal(scope, receive, send)
            return
        held = _Held() if is_kept else None
        try:
            await self.app(scope, self._counted(receive, limit, held), send)
        finally:
            if held:
                self._held -= held.size

    def _limit(self, scope: Scope) -> tuple[int, bool]:
        """How large a body may be, and whether all of it will be in memory: what a path takes that allows more is a stream.

        What is read whole before a route asks who calls, as JSON is, is never larger than usual.
        """
        kind, path = _content_type(scope).lower(), scope["path"]
        if kind.startswith(_FORM):
            return FORM_LIMIT, False
        usual = BODY_LIMIT if scope["state"]["caller"].scopes else KEYLESS_LIMIT
        if not _is_json(kind):
            for pattern, size in self.larger:
                if pattern.fullmatch(path):
                    return size, False
        return usual, True

    def _counted(self, receive: Receive, limit: int, held: "_Held | None") -> Receive:
        size, is_complete = 0, False
        began = asyncio.get_running_loop().time()

        async def counted() -> Message:
            nonlocal size, is_complete
            if is_complete:  # from here on it is waited for the end of the connection
                return await receive()
            message = await self._in_time(receive, began + BODY_WITHIN + size / SLOWEST, held)
            come = len(message.get("body", b""))
            size += come
            is_complete = not message.get("more_body", False)
            if size > limit:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large(limit, held is not None))
            if held:
                self._hold(held, come)
            return message

        return counted

    def _hold(self, held: "_Held", size: int) -> None:
        """Count what came of a large body. If there is no room for it, those that have been silent longest must go."""
        held.size += size
        self._held += size
        while self._held > MOST_HELD:
            silent = next((one for one in self._reading.values() if one.held and one.held.size), None)
            if silent is None:
                raise HTTPException(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "Too many large bodies are being worked on: try again in a moment.",
                    {"connection": "close", "retry-after": "1"},
                )
            assert silent.held is not None
            self._held -= silent.held.size
            silent.held.size = 0
            self._interrupt(silent)

    async def _in_time(self, receive: Receive, deadline: float, held: "_Held | None") -> Message:
        """Nearly every body is there already: a timer for each would cost more than all the rest of this."""
        if len(self._reading) >= MOST_READING:
            self._interrupt(next(iter(self._reading.values())))
        task = asyncio.current_task()
        assert task is not None
        reading = _Reading(deadline, task, held)
        self._reading[id(reading)] = reading
        if self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(LOOK_EVERY, self._look, loop)
        try:
            return await receive()
        except asyncio.CancelledError:
            if not reading.is_late or reading.task.uncancel():
                raise
            raise HTTPException(
                HTTPStatus.REQUEST_TIMEOUT, "The body came too slowly.", {"connection": "close"}
            ) from None
        finally:
            self._reading.pop(id(reading), None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Interrupt those who have waited too long for the rest of a body."""
        for reading in tuple(self._reading.values()):
            if reading.deadline <= loop.time():
                self._interrupt(reading)
        self._looking = loop.call_later(LOOK_EVERY, self._look, loop) if self._reading else None

    def _interrupt(self, reading: "_Reading") -> None:
        del self._reading[id(reading)]
        reading.is_late = True
        reading.task.cancel()


@dataclass(slots=True, eq=False)
class _Held:
    """How much of one large body is in memory, until its request is answered."""

    size: int = 0


@dataclass(slots=True, eq=False)
class _Reading:
    """A request whose body is waited for."""

    deadline: float
    task: "asyncio.Task[Any]"
    held: _Held | None
    is_late: bool = False


def _announced(headers: Mapping[bytes, bytes]) -> int:
    length = headers.get(b"content-length", b"0")[:20]
    return int(length) if length.isdigit() else 0


class StrictContent:
    """Looks at the address and at JSON before a route does: what can't be kept is refused in a sentence that names the place."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if place := _place_of_nul(scope):
            await problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{place} {NUL}")(scope, receive, send)
            return
        if not is_json(scope):
            await self.app(scope, receive, send)
            return
        try:
            body = await _whole(receive)
            value = await off_loop(read_json, body) if body else None
            if type(value) is dict and len(value) > MOST_KEYS:
                check_few(value)
        except HTTPException as error:
            await problem(error.status_code, error.detail, headers=error.headers)(scope, receive, send)
        except InvalidJob as error:
            await _refusal(error)(scope, receive, send)
        except ConnectionAbortedError:
            return  # nobody is there to be answered
        else:
            await self.app(scope, _again(body, receive), send)


def _place_of_nul(scope: Scope) -> str | None:
    """Where an address has a character that no table can keep."""
    if "\0" in scope["path"]:
        return "The address"
    query: bytes = scope["query_string"]
    if b"%00" not in query:
        return None
    names = (name for name, value in parse_qsl(query.decode("latin-1")) if "\0" in value)
    return next(names, "The address")


def _content_type(scope: Scope) -> bytes:
    """The first one, which is the one that routes see."""
    for name, value in scope["headers"]:
        if name == b"content-type":
            given: bytes = value
            return given
    return b""


def is_json(scope: Scope) -> bool:
    """Whether the body of a request was looked at before its route."""
    return _is_json(_content_type(scope))


def _is_json(given: bytes) -> bool:
    if given == b"application/json":
        return True
    kind = given.partition(b";")[0].strip().lower()
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))


async def _whole(receive: Receive) -> bytes:
    message = await receive()
    if not message.get("more_body") and message["type"] == "http.request":
        return bytes(message.get("body", b""))
    parts = [message.get("body", b"")]
    while message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
    if message["type"] == "http.disconnect":
        raise ConnectionAbortedError
    return b"".join(parts)


async def off_loop(read: Callable[[bytes], T], body: bytes) -> T:
    """What `read` makes of a body; of a large one in a thread, since to look at all its values may take a fifth of a second."""
    return read(body) if len(body) <= READ_AT_ONCE else await asyncio.to_thread(read, body)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, and then whatever comes."""
    is_given = False

    async def again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def check_values(body: bytes) -> int:
    """How many objects and lists begin in it, if it does not have too many values."""
    opened = body.count(b"[") + body.count(b"{")
    if opened + body.count(b",") > MOST_VALUES:
        raise InvalidJob(f"The body has more than {MOST_VALUES:,} values: send it in parts.")
    return opened


def read_json(body: bytes) -> Any:
    """Cheap for nearly every body: read once, and looked through for the few signs of what reading does not refuse."""
    opened = check_values(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _explain(body, error) from error
    has_long_number = _LONG_NUMBER.search(body)
    if opened > MOST_DEPTH or has_long_number or b"\\u0000" in body:
        check_json(value)
    if has_long_number:
        check_json(json.loads(body))  # after the depth, which Python's reader does not survive
    return value


def _explain(body: bytes, error: orjson.JSONDecodeError) -> InvalidJob:
    """What Python's own reader lets pass, such as NaN and half a surrogate pair, has a place that can be named."""
    try:
        check_json(json.loads(body))
    except InvalidJob as named:
        return named
    except (ValueError, RecursionError):
        pass
    return InvalidJob(f"The body is not JSON: {error}.")


def _refusal(error: InvalidJob) -> ASGIApp:
    place, colon, said = str(error).partition(": ")
    fields = [FieldProblem(field=place, message=said)] if colon and " " not in place else []
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"The request can't be understood: {error}", fields)


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, the last of each name; one sentence if there are too many."""
    body = (await request.body()).decode("utf-8", "replace")
    try:
        pairs: list[tuple[str, Any]] = parse_qsl(body, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise InvalidJob(f"A form may have {MOST_FIELDS} fields: this one has more.") from error
    return dict(pairs)
