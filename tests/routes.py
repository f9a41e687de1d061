"""Every route and every kind of caller: what the running application answers, as a page.

python -m tests.routes      writes docs/routes.md anew
"""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
from starlette.routing import Mount, Route, WebSocketRoute

from yamchi.testing import TestApp
from yamchi.web import create_app
from yamchi.web.routes import board, health

PAGE = Path(__file__).parents[1] / "docs" / "routes.md"
ADMIN, SENDER = "the-admin-of-the-table", "a-sender-of-the-table"
PERSON = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"
METHODS = ("get", "head", "post", "put", "patch", "delete", "options")
QUEUE = "hello"

HEAD = f"""# Who may call what

Every route of a server with ADMIN_TOKEN, and what each kind of caller is answered: `yes` (the rest is up to what they ask for),
`401` (no token that is known), `403` (known, and not enough), `sign in` (the page sends them there). Written by
`python -m tests.routes` from the OpenAPI document and a running application; a test compares.

- **stranger**: no token · **page**: the token of a person's page, on that person's own routes
- **send**: a key with `send`, or one of API_TOKENS · **send:{QUEUE}**: a key for the queue `{QUEUE}`, which stands in the path
- **tokens**: a key with `people:token` · **read**, **admin**: a key with that scope · **test**: a test key with `send`

"""


async def table() -> str:
    """The whole page."""
    with tempfile.TemporaryDirectory() as home:
        async with TestApp(
            home=Path(home),
            admin_token=ADMIN,
            api_tokens=(SENDER,),
            rate_limit_send="off",
            rate_limit_read="off",
            rate_limit_change="off",
            rate_limit_person="off",
        ) as app:
            app.define(QUEUE)
            return HEAD + await _rows(app)


async def _rows(app: TestApp) -> str:
    web = create_app(app)
    transport = httpx2.ASGITransport(app=web, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
        callers = await _callers(app, client)
        lines = [f"| route | {' | '.join(callers)} |", f"|---|{'---|' * len(callers)}"]
        for method, path, filled in sorted(_routes(app, web), key=lambda route: (route[1], route[0])):
            answers = [await _answer(client, method, filled, headers) for headers in callers.values()]
            lines.append(f"| `{method.upper()} {path}` | {' | '.join(answers)} |")
        return "\n".join([*lines, "", *_others(app, web)]) + "\n"


def _others(app: TestApp, web: Any) -> Iterator[str]:
    """What a request without a body can't be tried on: WebSockets and folders of files."""
    routes = [route for _, router in _routers(app, web) for route in router.routes]
    sockets = sorted(route.path for route in routes if isinstance(route, WebSocketRoute))
    folders = sorted({route.path for route in routes if isinstance(route, Mount)})
    yield f"WebSockets, whose first message carries the token of a page: {', '.join(f'`{one}`' for one in sockets)}."
    yield f"Files that everybody may read: {', '.join(f'`{one}/`' for one in folders)}."


async def _callers(app: TestApp, client: httpx2.AsyncClient) -> dict[str, dict[str, str]]:
    async def key(name: str, *scopes: str, test: bool = False) -> dict[str, str]:
        body = {"name": name, "scopes": list(scopes), "test": test}
        made = await client.post("/api/v1/keys", json=body, headers=_bearer(ADMIN))
        return _bearer(made.json()["key"])

    return {
        "stranger": {},
        "page": _bearer((await app.notifications.persons.mint(PERSON))[0]),
        "send": _bearer(SENDER),
        f"send:{QUEUE}": await key("queue", f"send:{QUEUE}"),
        "tokens": await key("tokens", "people:token"),
        "read": await key("read", "read"),
        "admin": await key("admin", "admin"),
        "test": await key("test", "send", test=True),
    }


async def _answer(client: httpx2.AsyncClient, method: str, path: str, headers: dict[str, str]) -> str:
    answer = await asyncio.wait_for(client.request(method, path, headers=headers), 60)
    status = answer.status_code
    assert status < 500 or path == "/readyz", f"{method} {path} answered {status}: {answer.text}"
    if answer.headers.get("location") == "/sign-in" and path != "/sign-out":
        return "sign in"
    return str(status) if status in (401, 403) and path != "/sign-in" else "yes"


def _routes(app: TestApp, web: Any) -> Iterator[tuple[str, str, str]]:
    """(method, path, path with values): of the OpenAPI document, and the pages that are not in it."""
    for path, methods in web.openapi()["paths"].items():
        for method in METHODS:
            if operation := methods.get(method):
                yield method, path, _filled(path, operation.get("parameters", ()))
    for prefix, router in _routers(app, web):
        for route in router.routes:
            if isinstance(route, Route) and not route.include_in_schema:
                for method in sorted(route.methods or ()):
                    if method.lower() in METHODS:
                        yield (
                            method.lower(),
                            f"{prefix}{route.path_format}",
                            _filled(f"{prefix}{route.path_format}"),
                        )


def _routers(app: TestApp, web: Any) -> list[tuple[str, Any]]:
    of_plugins = [(one.prefix, one.router) for plugin in app.plugins.values() for one in plugin.routers()]
    return [("", board.router), ("", health.router), *of_plugins, ("", web.router)]


def _filled(path: str, parameters: Any = ()) -> str:
    """The path with something plausible for each of its parameters."""
    schemas = {one["name"]: one.get("schema", {}) for one in parameters if one["in"] == "path"}
    for part in [piece.partition("}")[0] for piece in path.split("{")[1:]]:
        schema = schemas.get(part, {})
        known = {"queue": QUEUE, "user_id": PERSON}.get(part)
        value = known or next(iter(schema.get("enum", ())), None) or _example(schema)
        path = path.replace(f"{{{part}}}", str(value))
    return path


def _example(schema: dict[str, Any]) -> str:
    if schema.get("type") == "integer":
        return "1"
    return PERSON if schema.get("format") == "uuid" else "some"


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


if __name__ == "__main__":
    PAGE.write_text(asyncio.run(table()), encoding="utf-8")
