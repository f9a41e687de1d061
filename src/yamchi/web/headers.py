"""Security headers on every response: nothing from elsewhere is loaded, and nobody frames the board."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class SecurityHeaders:
    """Adds the headers to whatever the application answers; a route that sets one itself knows better."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        caching = _caching(scope["path"])

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if caching:
                    headers["cache-control"] = caching
            await send(message)

        await self.app(scope, receive, send_with_headers)


def _caching(path: str) -> str | None:
    """Data is never kept; the board's files are asked for again, so that a new version shows at once."""
    if path.startswith("/api"):
        return "no-store"
    return "no-cache" if path.startswith("/board/") else None
