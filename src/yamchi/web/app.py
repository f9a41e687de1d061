"""The HTTP application: routes, guards and the board, put together for one Yamchi."""

from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles

from yamchi.app import Yamchi
from yamchi.errors import ConfigurationError
from yamchi.http.access import is_guarded, requires
from yamchi.http.auth import PEOPLE, AccessControl, Guard
from yamchi.http.headers import OriginsOfPages, SecurityHeaders
from yamchi.http.limits import BodyLimit, StrictContent
from yamchi.http.parameters import MEANINGS
from yamchi.http.problems import Problem, documented, install_problems
from yamchi.plugins import Routes
from yamchi.web.routes import audit, board, health, jobs, keys, letters, pages, queues

ABOUT = """Everything the board can do, for programs.

A job id may contain slashes. Lists come in pages of `size`. An error is `application/problem+json` (RFC 9457) with one
sentence in `detail`. Where ADMIN_TOKEN is set, send `Authorization: Bearer <token>`; a named key (`/api/v1/keys`) may do
what its scopes say, API_TOKENS may only send. Too many requests are answered 429 with `Retry-After`; `RateLimit-Policy` and
`RateLimit` say what is left. Changes are kept in `/api/v1/audit`.
"""

OWN = (
    Routes(jobs.senders, "/api", "send+test"),
    Routes(keys.callers, "/api/v1", "anyone"),
    *(Routes(resource.router, "/api") for resource in (queues, jobs, letters, pages)),
    *(Routes(resource.router, "/api/v1") for resource in (keys, audit)),
)
"""What every application offers; a feature's come with its plugin."""

NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False}
"""Newer versions of FastAPI look for OpenTelemetry in every request; Yamchi counts for itself, in `/metrics`."""


def create_app(yamchi: Yamchi) -> FastAPI:
    """The server of an application: board at `/`, API at `/api`, OpenAPI at `/docs`, `/ws`, `/metrics`, `/healthz`, `/readyz`."""
    web = FastAPI(
        title="Yamchi",
        version=version("yamchi"),
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry=NO_TELEMETRY,
    )
    web.state.yamchi = yamchi
    web.state.access = AccessControl(yamchi.settings, yamchi.database, yamchi.clock)
    brought = yamchi.brought(lambda plugin: plugin.routers())
    for routes in _in_order([*OWN, *brought]):
        web.router.routes.extend(_made(routes))
    web.include_router(health.router)
    web.include_router(board.router)
    files = dict(yamchi.brought(lambda plugin: plugin.static().items()))
    for prefix, folder in {**files, "/board": board.BOARD}.items():
        web.mount(prefix, StaticFiles(directory=folder), name=prefix.strip("/"))
    web.router.routes.extend(board.typed_addresses(yamchi.brought(lambda plugin: plugin.pages())))
    _describe_problems(web)
    install_problems(web)
    web.add_exception_handler(HTTPStatus.NOT_FOUND, board.no_such_page)
    _guard(web, yamchi, brought, files)
    _work_out(web.routes)
    return web


def _in_order(found: list[Routes]) -> list[Routes]:
    """Routes are tried in order, and the first one that fits an address answers.

    The ways in for senders, which are the hot ones, stand before all others: behind fifty others, finding the route would take
    longer than to accept the event.
    """
    return sorted(found, key=lambda routes: not routes.access.startswith("send"))


@lru_cache(maxsize=256)
def _made(routes: Routes) -> list[BaseRoute]:
    """The routes, made once for all applications of a process: making them takes longer than most requests."""
    holder = APIRouter()
    holder.include_router(routes.router, prefix=routes.prefix, dependencies=requires(routes.access))
    return holder.routes


def _work_out(routes: Iterable[BaseRoute]) -> None:
    """FastAPI prepares routes at the first request, which would block the event loop for a quarter of a second. Do it now."""
    somewhere = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "root_path": "",
        "headers": [],
        "path_params": {},
    }
    for route in routes:
        route.matches(somewhere)


def create_health_app(yamchi: Yamchi) -> FastAPI:
    """Only `/metrics`, `/healthz` and `/readyz`: what a worker without a board serves."""
    web = FastAPI(title="Yamchi worker", docs_url=None, redoc_url=None, openapi_url=None)
    web.state.yamchi = yamchi
    web.state.access = AccessControl(yamchi.settings, yamchi.database, yamchi.clock)
    web.include_router(health.router)
    install_problems(web)
    _guard(web, yamchi, (), ())
    return web


def _guard(web: FastAPI, yamchi: Yamchi, brought: Iterable[Routes], files: Iterable[str]) -> None:
    """Add the middleware. The last one added is called first."""
    origins = yamchi.settings.cors_origins
    tokens = yamchi.brought(lambda plugin: plugin.tokens())
    larger = dict(yamchi.brought(lambda plugin: plugin.body_limits().items()))
    web.add_middleware(StrictContent)
    web.add_middleware(BodyLimit, larger=larger)
    web.add_middleware(
        Guard, access=web.state.access, pages=tokens, origins=origins, public=_public_prefixes(brought)
    )
    web.add_middleware(OriginsOfPages, origins=origins, below=PEOPLE)
    web.add_middleware(SecurityHeaders, files=list(files))


def _public_prefixes(brought: Iterable[Routes]) -> tuple[str, ...]:
    """Prefixes below /api whose routes everybody may call, such as /api/webhooks."""
    prefixes = {
        routes.prefix for routes in brought if routes.access == "public" and is_guarded(routes.prefix)
    }
    if wrong := prefixes & {"/api", "/api/v1"}:
        raise ConfigurationError(
            f"Public routes need a prefix of their own below {wrong.pop()}, such as /api/webhooks."
        )
    return tuple(prefixes)


UNPROCESSABLE = "422"
OF_FASTAPI = "Successful Response"


def _describe(operation: dict[str, Any]) -> None:
    """Add descriptions of answers and parameters that the route does not describe."""
    answers = operation.get("responses", {})
    if UNPROCESSABLE in answers:  # whatever a route says: FastAPI adds its own form
        answers[UNPROCESSABLE] = documented(422)[422]
    for answer in answers.values():
        if answer["description"] == OF_FASTAPI:
            answer["description"] = "Done." if answer.get("content") is None else "The answer."
    for one in operation.get("parameters", ()):
        if one["name"] in MEANINGS:
            one.setdefault("description", MEANINGS[one["name"]])


def _describe_problems(web: FastAPI) -> None:
    """Put the schema of problems on the OpenAPI page, which routes refer to by name."""
    make = web.openapi

    def openapi() -> dict[str, object]:
        page = make()
        schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        parts = schema.pop("$defs", {})
        page.setdefault("components", {}).setdefault("schemas", {}).update({"Problem": schema, **parts})
        for operation in (one for path in page["paths"].values() for one in path.values()):
            _describe(operation)
        return page

    web.openapi = openapi  # type: ignore[method-assign]
