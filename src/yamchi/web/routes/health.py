"""For machines that watch: is the process alive, can it take work, what has it done."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from yamchi.app import Yamchi
from yamchi.discovery import all_queues
from yamchi.http.access import requires
from yamchi.http.problems import documented
from yamchi.observe.logging import mask
from yamchi.plugins import Check, look_at
from yamchi.queues.overview import unattended, view_queues
from yamchi.queues.probes import EngineState, broker_type, ping_engines
from yamchi.web.routes.queues import App
from yamchi.web.schemas import CheckOut, EngineHealth, Readiness, Ready, ServiceHealth

router = APIRouter(tags=["health"])

CHANNEL = "channel "


@router.get("/healthz", summary="The process is alive")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get(
    "/readyz",
    summary="Every engine answers; to who may not look, no more than that",
    responses={503: {"model": Readiness | Ready, "description": "An engine does not answer."}},
)
async def readyz(app: App, request: Request, response: Response) -> Readiness | Ready:
    engines = [_shown(state) for state in await ping_engines(app.queues)]
    is_ready = all(engine.ok for engine in engines)
    response.status_code = 200 if is_ready else 503
    if not request.state.caller.may_look:
        return Ready(ready=is_ready)
    checks = await _checks(app)
    return Readiness(
        ready=is_ready,
        engines=engines,
        channels=_channels(checks),
        services=_services(app),
        checks=[CheckOut(what=one.what, ok=one.ok, found=one.found) for one in checks],
    )


async def _checks(app: Yamchi) -> list[Check]:
    """What the features say of themselves, which of them are not there, and queues that nobody works on."""
    checks = [Check(f"plugin {name}", False, why) for name, why in app.failed_plugins.items()]
    checks += [Check(f"queue {name}", None, why) for name, why in (await unattended(app.queues)).items()]
    for plugin in app.plugins.values():
        checks += await look_at(plugin, plugin.checks)
    return checks


def _channels(checks: Iterable[Check]) -> dict[str, str]:
    """The channels among them, by name."""
    return {one.what.removeprefix(CHANNEL): one.found for one in checks if one.what.startswith(CHANNEL)}


def _services(app: Yamchi) -> list[ServiceHealth]:
    return [
        ServiceHealth(
            name=one.name,
            state=one.state,
            failures=one.failures,
            error=mask(one.error),
        )
        for one in app.services.running
    ]


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    dependencies=requires("read"),
    responses=documented(401, 403),
)
async def metrics(app: App) -> Response:
    return Response(await scrape(app), media_type=CONTENT_TYPE_LATEST)


async def scrape(app: Yamchi) -> bytes:
    """Everything there is to measure, as of now."""
    queues = await all_queues(app)
    views, engines = await asyncio.gather(view_queues(queues, minutes=1), ping_engines(queues))
    up: dict[str, bool] = defaultdict(lambda: True)
    for engine in engines:
        up[engine.type] &= engine.error is None
    for view in views:
        up[broker_type(view.queue)] &= view.error is None
    app.metrics.show_zeros(app.queues, [service.name for service in app.services.running])
    counts = {view.queue.name: view.counts for view in views if view.error is None}
    return app.metrics.render(counts, up, [plugin.metrics for plugin in app.plugins.values()])


def _shown(state: EngineState) -> EngineHealth:
    error = mask(state.error)
    return EngineHealth(type=state.type, queues=state.queues, ok=error is None, error=error)
