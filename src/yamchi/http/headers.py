"""Security headers on every response: nothing from elsewhere is loaded, and nobody frames the board.

Two things are made for pages of other sites: the files that features offer, which hold no secrets and any page may load, and what
belongs to a person, which pages of CORS_ORIGINS may ask for with that person's token.
"""

from collections.abc import Iterable, Mapping, Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_POLICY = "content-security-policy"


def content_policy(*images_from: str) -> str:
    """What a page may load: what is ours, and pictures from these origins."""
    images = " ".join(("'self'", "data:", *images_from))
    return (
        f"default-src 'self'; img-src {images}; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'; object-src 'none'"
    )


HEADERS = {
    CONTENT_POLICY: content_policy(),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

FOR_ANY_PAGE = {"access-control-allow-origin": "*", "cross-origin-resource-policy": "cross-origin"}


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


_OURS, _OF_FILES = _raw(HEADERS), _raw(HEADERS | FOR_ANY_PAGE)
_NAMES = frozenset(name for name, _ in _OF_FILES)


class SecurityHeaders:
    """Adds the headers to whatever the application answers; a route that sets one itself knows better."""

    def __init__(self, app: ASGIApp, files: Iterable[str] = ()) -> None:
        self.app, self.files = app, tuple(f"{prefix.rstrip('/')}/" for prefix in files)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_file = scope["path"].startswith(self.files)
        caching = b"no-cache" if is_file else _caching(scope["path"])
        ours = _OF_FILES if is_file else _OURS

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name: value for name, value in message["headers"] if name in _NAMES}
                added = [pair for pair in ours if pair[0] not in given] if given else ours
                if caching:
                    kept = [pair for pair in message["headers"] if pair[0] != b"cache-control"]
                    message["headers"] = [*kept, *added, (b"cache-control", caching)]
                else:
                    message["headers"] = [*message["headers"], *added]
            await send(message)

        await self.app(scope, receive, send_with_headers)


SENT_BY_UPLOADS = ("tus-resumable", "upload-length", "upload-metadata", "upload-offset")
READ_BY_UPLOADS = ("location", *SENT_BY_UPLOADS, "x-media-id", "x-job-id")
"""The headers by which an upload that broke off goes on."""


class OriginsOfPages:
    """Lets pages of these origins ask for what belongs to a person; the rest of the API is for no other site's pages."""

    def __init__(self, app: ASGIApp, origins: Sequence[str], below: str) -> None:
        self.app, self.below = app, below
        methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
        self.open = CORSMiddleware(
            app,
            origins,
            methods,
            ["authorization", "content-type", *SENT_BY_UPLOADS],
            expose_headers=READ_BY_UPLOADS,
            max_age=3600,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_theirs = scope["type"] == "http" and scope["path"].startswith(self.below)
        await (self.open if is_theirs else self.app)(scope, receive, send)


def _caching(path: str) -> bytes | None:
    """Data is never kept; our files are asked for again, so that a new version shows at once."""
    if path.startswith("/api"):
        return b"no-store"
    return b"no-cache" if path.startswith("/board/") else None
