"""The HTTP application: routes, guards and the board, put together for one Yamchi."""

from importlib.metadata import version

from fastapi import Depends, FastAPI
from starlette.staticfiles import StaticFiles

from yamchi.app import Yamchi
from yamchi.http.auth import PEOPLE, Guard, Keys, PageToken, require_admin
from yamchi.http.headers import OriginsOfPages, SecurityHeaders
from yamchi.http.limits import BodyLimit
from yamchi.http.problems import Problem, install_problems
from yamchi.notifications.inbox.tokens import PREFIX
from yamchi.web.routes import (
    board,
    campaigns,
    events,
    health,
    inbox,
    jobs,
    letters,
    live,
    mailbox,
    notifications,
    push,
    queues,
    suppressions,
    templates,
    unsubscribe,
    users,
)

ABOUT = """Everything the board can do, for programs.

A job id may contain slashes. Lists come in pages of `size`. An error is `application/problem+json` (RFC 9457) with one
sentence in `detail`. Where ADMIN_TOKEN is set, send `Authorization: Bearer <token>`; API_TOKENS may only send.
"""


def create_app(yamchi: Yamchi) -> FastAPI:
    """The server of an application: board at `/`, API at `/api`, OpenAPI at `/docs`, `/ws`, `/metrics`, `/healthz`, `/readyz`."""
    web = FastAPI(title="Yamchi", version=version("yamchi"), description=ABOUT, docs_url=None, redoc_url=None)
    web.state.yamchi = yamchi
    web.state.keys = Keys(yamchi.settings, yamchi.clock)
    web.include_router(jobs.senders, prefix="/api")
    web.include_router(events.senders, prefix="/api/v1")
    web.include_router(inbox.senders, prefix="/api/v1")
    web.include_router(inbox.router, prefix="/api/v1")
    web.include_router(push.router, prefix="/api/v1")
    for resource in (queues, jobs, letters):
        web.include_router(resource.router, prefix="/api", dependencies=[Depends(require_admin)])
    for resource in (notifications, users, suppressions, campaigns, templates, mailbox):
        web.include_router(resource.router, prefix="/api/v1", dependencies=[Depends(require_admin)])
    web.router.routes.append(live.route)
    web.include_router(mailbox.pages)
    web.include_router(unsubscribe.pages)
    web.include_router(push.pages)
    web.include_router(health.router)
    web.include_router(board.router)
    web.mount("/board", StaticFiles(directory=board.BOARD), name="board")
    web.mount("/inbox", StaticFiles(directory=inbox.COMPONENT), name="inbox")
    web.mount("/push", StaticFiles(directory=push.FILES), name="push")
    _describe_problems(web)
    install_problems(web)
    _guard(web, yamchi)
    return web


def create_health_app(yamchi: Yamchi) -> FastAPI:
    """Only `/metrics`, `/healthz` and `/readyz`: what a worker without a board serves."""
    web = FastAPI(title="Yamchi worker", docs_url=None, redoc_url=None, openapi_url=None)
    web.state.yamchi = yamchi
    web.state.keys = Keys(yamchi.settings, yamchi.clock)
    web.include_router(health.router)
    install_problems(web)
    _guard(web, yamchi)
    return web


def _guard(web: FastAPI, yamchi: Yamchi) -> None:
    """The last one added is the first one asked."""
    origins = yamchi.settings.cors_origins

    async def whose(token: str) -> str:
        return (await yamchi.notifications.persons.check(token)).user_id

    web.add_middleware(BodyLimit)
    web.add_middleware(Guard, keys=web.state.keys, pages=[PageToken(PREFIX, whose)], origins=origins)
    web.add_middleware(OriginsOfPages, origins=origins, below=PEOPLE)
    web.add_middleware(SecurityHeaders)


def _describe_problems(web: FastAPI) -> None:
    """Put the schema of problems on the OpenAPI page, which routes refer to by name."""
    make = web.openapi

    def openapi() -> dict[str, object]:
        page = make()
        schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        parts = schema.pop("$defs", {})
        page.setdefault("components", {}).setdefault("schemas", {}).update({"Problem": schema, **parts})
        return page

    web.openapi = openapi  # type: ignore[method-assign]
