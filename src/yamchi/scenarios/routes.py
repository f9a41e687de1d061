"""Scenarios over HTTP: what is in force, runs with their timelines, pictures; and the page behind a button in a letter."""

from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from yamchi.errors import TokenRefused, UnknownJob
from yamchi.http.access import TheCaller, seen_by
from yamchi.http.pages import LinkPage, board_page
from yamchi.http.problems import documented
from yamchi.notifications.templates.locales import language_of_page
from yamchi.plugins import Routes, of_request
from yamchi.scenarios.actions import PATH, DeadLink
from yamchi.scenarios.definition import Definition
from yamchi.scenarios.picture import picture_of, picture_of_run
from yamchi.scenarios.plugin import Scenarios

TheScenarios = Annotated[Scenarios, Depends(of_request(Scenarios))]

router = APIRouter(tags=["scenarios"], responses=documented(401, 403, 404, 422, 503))
pages = APIRouter(include_in_schema=False)

STATIC = Path(__file__).parent / "static"
PAGE = LinkPage(STATIC / "act")
LANGUAGES = ("en", "ru", "kk")
_Key = Annotated[str, Query(min_length=1, max_length=255, description="The run's key, such as a lead's id.")]


class Svg(Response):
    media_type = "image/svg+xml"


class ScenarioOut(BaseModel):
    """A scenario in force."""

    scenario: str
    title: str | None
    version: str
    on: list[str]
    stop_on: list[str]
    entity: str | None
    queue: str
    steps: list[str]
    actions: list[str]


class ScenariosOut(BaseModel):
    scenarios: list[ScenarioOut]
    problems: list[str] = Field(description="Files that can't be used, and why.")


class LineOut(BaseModel):
    """One line of a timeline."""

    step: str
    arming: int = Field(description="Grows each time the step is armed: again after a move or a replay.")
    state: str = Field(examples=["done"])
    at: str | None
    due: str | None
    reason: str | None
    effects: dict[str, Any] | None
    is_future: bool = Field(description="Expected, if nothing happens until then.")


class RunOut(BaseModel):
    """One way of one key through a scenario."""

    run_id: str
    scenario: str
    key: str
    generation: int
    version: str
    status: Literal["running", "finished", "stopped", "failed"]
    reason: str | None
    entity_kind: str | None
    entity_id: str | None
    user_id: str | None
    started_at: str
    ended_at: str | None
    step: str | None = Field(description="The step that is pending.")
    due_at: str | None


class RunWithTimelineOut(RunOut):
    timeline: list[LineOut]


class RunsOut(BaseModel):
    runs: list[RunOut]


class StopIn(BaseModel):
    """Why a run is stopped."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(default="stopped by hand", min_length=1, max_length=500)


class StoppedOut(BaseModel):
    """What was stopped. A message that had left or was leaving at that moment is named: it can't be called back."""

    run_id: str
    scenario: str
    key: str
    on_its_way: str | None
    is_still_sending: bool


@router.get("/scenarios", summary="The scenarios in force, and files that can't be used")
async def list_scenarios(scenarios: TheScenarios) -> ScenariosOut:
    return ScenariosOut(
        scenarios=[_shown(one) for one in scenarios.library.current.values()],
        problems=[str(problem) for problem in scenarios.library.problems],
    )


@router.get("/runs", summary="Runs, newest first")
@router.get("/scenarios/runs", summary="Runs, newest first")
async def list_runs(
    scenarios: TheScenarios,
    key: Annotated[str | None, Query(max_length=255, description="Only of this key.")] = None,
    scenario: Annotated[str | None, Query(max_length=64)] = None,
    status: Literal["running", "finished", "stopped", "failed"] | None = None,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> RunsOut:
    found = await scenarios.timelines.find(
        scenario=scenario, key=key, status=status, offset=offset, limit=limit
    )
    return RunsOut(runs=[RunOut(**one) for one in found])


@router.get("/runs/{run_id}", summary="A run with its timeline, past and future, and the reasons for skips")
async def show_run(scenarios: TheScenarios, caller: TheCaller, run_id: str) -> RunWithTimelineOut:
    return RunWithTimelineOut(**await seen_by(caller, await scenarios.timelines.of(run_id)))


@router.get("/runs/{run_id}/picture.svg", summary="A run's timeline as a picture", response_class=Svg)
async def draw_run(scenarios: TheScenarios, run_id: str) -> Response:
    return Svg(picture_of_run(await scenarios.timelines.of(run_id)))


@router.post("/runs/{run_id}/stop", summary="Stop a run: from then on no message of it begins to leave")
async def stop_run(scenarios: TheScenarios, run_id: str, wish: StopIn | None = None) -> StoppedOut:
    reason = (wish or StopIn()).reason
    stopped = await scenarios.scenario_engine.stop_run(run_id, reason)
    if stopped is None:
        run = await scenarios.timelines.of(run_id)
        raise UnknownJob(f"Run {run_id} is {run['status']}: there is nothing to stop.")
    return StoppedOut(
        run_id=stopped.run_id,
        scenario=stopped.scenario,
        key=stopped.key,
        on_its_way=stopped.on_its_way,
        is_still_sending=stopped.is_still_sending,
    )


@router.get("/scenarios/{name}", summary="A scenario as it is written")
async def show_scenario(scenarios: TheScenarios, name: str) -> dict[str, Any]:
    definition = scenarios.library.get(name)
    return {**definition.body, "version": definition.version}


@router.get("/scenarios/{name}/runs", summary="The runs of a key, newest first")
async def runs_of_key(scenarios: TheScenarios, name: str, key: _Key) -> RunsOut:
    scenarios.library.get(name)
    found = await scenarios.timelines.find(scenario=name, key=key)
    return RunsOut(runs=[RunOut(**one) for one in found])


@router.get("/scenarios/{name}/picture.svg", summary="A scenario as a picture", response_class=Svg)
async def draw_scenario(scenarios: TheScenarios, name: str) -> Response:
    return Svg(picture_of(scenarios.library.get(name)))


def _shown(definition: Definition) -> ScenarioOut:
    return ScenarioOut(
        scenario=definition.scenario,
        title=definition.title,
        version=definition.version,
        on=definition.on,
        stop_on=definition.stop_on,
        entity=definition.entity,
        queue=definition.queue,
        steps=[step.job for step in definition.steps],
        actions=list(definition.actions),
    )


# ── The page of the board ─────────────────────────────────────────────────────────────────────────────────────────


@pages.get("/scenarios")
async def page(request: Request) -> Response:
    return board_page(request, STATIC / "scenarios.html")


# ── The page behind a button in a letter ──────────────────────────────────────────────────────────────────────────


@pages.api_route(f"{PATH}/{{token:path}}", methods=["GET", "HEAD"])
async def ask(request: Request, scenarios: TheScenarios, token: str) -> Response:
    """Looking changes nothing: programs that scan letters open every link."""
    texts = _texts(request)
    try:
        link = await scenarios.actions.read(token)
    except (DeadLink, TokenRefused) as error:
        return _page(request, texts, {"state": "wrong", "said": str(error)}, HTTPStatus.GONE)
    return _page(request, texts, {"state": "ask", "action": link.action})


@pages.post(f"{PATH}/{{token:path}}")
async def act(request: Request, scenarios: TheScenarios, token: str) -> Response:
    texts = _texts(request)
    try:
        done = await scenarios.actions.follow_link(token)
    except (DeadLink, TokenRefused, UnknownJob) as error:
        return _page(request, texts, {"state": "wrong", "said": str(error)}, HTTPStatus.GONE)
    return _page(request, texts, {"state": "done", "action": done.action})


def _page(
    request: Request, texts: Any, values: dict[str, str], status: HTTPStatus = HTTPStatus.OK
) -> Response:
    named = texts["actions"].get(values.get("action", ""), texts["actions"]["other"])
    title = texts["wrong"]["title"] if values["state"] == "wrong" else named[values["state"]]
    return PAGE.show(status, locale=texts["locale"], texts=texts, named=named, title=title, **values)


def _texts(request: Request) -> Any:
    """The browser's language, if the page speaks it."""
    language = language_of_page(request.headers.get("accept-language", ""), LANGUAGES)
    return {**PAGE.texts[language], "locale": language}


ROUTES = (Routes(router), Routes(pages, prefix="", access="public"))
