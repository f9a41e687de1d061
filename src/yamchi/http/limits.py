"""What a request may not exceed: bodies have a size, so that nobody fills the memory of the server."""

import re
from collections.abc import Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from yamchi.http.problems import problem

BODY_LIMIT = 4 * 1024 * 1024
"""The largest body, in bytes: a job of the largest size four times over."""

SENTENCE = "The body is larger than the {:,} bytes allowed: keep large things in a file and send its address."


class BodyLimit:
    """Refuses a body that is too large, whether it says so itself or just keeps coming."""

    def __init__(
        self, app: ASGIApp, limit: int = BODY_LIMIT, larger: Mapping[str, int] | None = None
    ) -> None:
        self.app, self.limit = app, limit
        self.larger = [(re.compile(pattern), size) for pattern, size in (larger or {}).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        limit = next((size for pattern, size in self.larger if pattern.fullmatch(path)), self.limit)
        if scope["type"] == "http" and self._announced(scope) > limit:
            sentence = SENTENCE.format(limit)
            refusal = problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence, headers={"connection": "close"})
            await refusal(scope, receive, send)
            return
        await self.app(scope, self._counted(receive, limit), send)

    def _announced(self, scope: Scope) -> int:
        length = dict(scope["headers"]).get(b"content-length", b"0")
        return int(length) if length.isdigit() else 0

    def _counted(self, receive: Receive, limit: int) -> Receive:
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, SENTENCE.format(limit))
            return message

        return counted
