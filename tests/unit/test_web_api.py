"""The API over real HTTP messages: queues, jobs, dead letters, health, and errors that a person can act on."""

import asyncio
from collections.abc import AsyncIterator
from html import escape
from pathlib import Path
from urllib.parse import unquote

import httpx2
import pytest
from pydantic import BaseModel

from yamchi import Job, Unrecoverable, Yamchi
from yamchi.errors import EngineUnavailable
from yamchi.http.limits import BODY_LIMIT
from yamchi.queues.overview import engines_of
from yamchi.queues.records import NewJob
from yamchi.settings import Settings
from yamchi.shipped import shipped_app
from yamchi.testing import TestApp
from yamchi.web import create_app
from yamchi.web.app import _made
from yamchi.web.routes.health import scrape


class Thumb(BaseModel):
    url: str


@pytest.fixture
async def app() -> AsyncIterator[TestApp]:
    async with TestApp(plugins=()) as app:

        @app.job("thumbnails", attempts=2)
        async def make(job: Job[Thumb]) -> str:
            await job.log(f"made {job.data.url}")
            if job.data.url == "bad":
                raise Unrecoverable("not an image")
            return job.data.url

        yield app


@pytest.fixture
async def client(app: TestApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=create_app(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
        yield client


JOBS = "/api/queues/thumbnails/jobs"


async def test_a_job_from_end_to_end(app, client):
    added = await client.post(
        JOBS, json={"data": {"url": "a.jpg"}, "id": "film/1", "delay": "5m", "priority": 3}
    )
    assert (added.status_code, added.json()["state"]) == (201, "delayed")
    assert (await client.post(JOBS, json={"data": {"url": "a.jpg"}, "id": "film/1"})).status_code == 200
    promoted = await client.post(f"{JOBS}/film/1/promote")
    assert promoted.json()["state"] == "waiting"
    await app.drain()
    job = (await client.get(f"{JOBS}/film/1")).json()
    assert (job["state"], job["result"], job["logs"], job["priority"]) == (
        "completed",
        "a.jpg",
        ["made a.jpg"],
        3,
    )
    assert (await client.post(f"{JOBS}/film/1/retry")).json()["state"] == "waiting"
    assert (await client.post(f"{JOBS}/film/1/cancel")).json() == {"id": "film/1", "state": "cancelled"}
    assert (await client.delete(f"{JOBS}/film/1")).status_code == 204
    assert (await client.get(f"{JOBS}/film/1")).status_code == 404


async def test_routes_are_worked_out_before_the_first_request(monkeypatch):
    monkeypatch.setattr("yamchi.web.app._made", _made.__wrapped__)  # as in a process that has just started
    async with TestApp() as app:
        transport = httpx2.ASGITransport(app=create_app(app))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
            late: list[object] = []
            monkeypatch.setattr("fastapi.routing.get_dependant", lambda *given, **named: late.append(named))
            for path in ("/healthz", "/api/queues", "/api/v1/templates", "/api/v1/leads", "/api/v1/nowhere"):
                assert (await client.get(path)).status_code in (200, 404)
            assert late == []


async def test_queues_show_counts_and_pace(app, client):
    await client.post(JOBS, json={"data": {"url": "a.jpg"}})
    await client.post(JOBS, json={"data": {"url": "bad"}})
    await app.drain()
    (queue,) = (await client.get("/api/queues")).json()
    assert (queue["name"], queue["type"], queue["jobs"]) == ("thumbnails", "in-memory", ["make"])
    assert (queue["counts"]["completed"], queue["counts"]["failed"], queue["dead_letters"]) == (1, 1, 1)
    assert [(minute["completed"], minute["failed"]) for minute in queue["history"]] == [(1, 1)]


async def test_a_paused_queue_holds_its_jobs(app, client):
    assert (await client.post("/api/queues/thumbnails/pause")).json()["paused"] is True
    await client.post(JOBS, json={"data": {"url": "a.jpg"}})
    await app.drain()
    assert (await client.get("/api/queues/thumbnails")).json()["counts"]["waiting"] == 1
    assert (await client.post("/api/queues/thumbnails/resume")).json()["paused"] is False


async def test_jobs_are_listed_by_state_searched_and_paged(app, client):
    for number in range(30):
        await client.post(JOBS, json={"data": {"url": f"{number}.jpg"}, "id": f"n{number}"})
    page = (await client.get(JOBS, params={"state": "waiting", "page": 2})).json()
    assert (len(page["jobs"]), page["total"], page["pages"]) == (5, 30, 2)
    found = (await client.get(JOBS, params={"q": "17.jpg"})).json()
    assert [job["id"] for job in found["jobs"]] == ["n17"]
    assert found["jobs"][0]["preview"] == '{"url":"17.jpg"}'


async def test_many_jobs_at_once(app, client):
    for number in range(3):
        await client.post(JOBS, json={"data": {"url": "bad"}, "id": f"n{number}"})
    await app.drain()
    assert (await client.post("/api/queues/thumbnails/retry", json={"ids": ["n0", "nobody"]})).json() == {
        "count": 1
    }
    assert (await client.post("/api/queues/thumbnails/retry-all")).json() == {"count": 2}
    assert (await client.post("/api/queues/thumbnails/remove", json={"ids": ["n0"]})).json() == {"count": 1}
    assert (await client.post("/api/queues/thumbnails/drain")).json() == {"count": 2}


async def test_clean_removes_jobs_of_a_state(app, client):
    await client.post(JOBS, json={"data": {"url": "a.jpg"}})
    await app.drain()
    cleaned = await client.post(
        "/api/queues/thumbnails/clean", json={"state": "completed", "older_than": "1h"}
    )
    assert cleaned.json() == {"count": 0}
    await app.clock.advance("2h")
    cleaned = await client.post(
        "/api/queues/thumbnails/clean", json={"state": "completed", "older_than": "1h"}
    )
    assert cleaned.json() == {"count": 1}


async def test_edit_and_retry(app, client):
    await client.post(JOBS, json={"data": {"url": "bad"}, "id": "n1"})
    await app.drain()
    edited = await client.patch(f"{JOBS}/n1", json={"data": {"url": "good.jpg"}, "retry": True})
    assert edited.json()["state"] == "waiting"
    await app.drain()
    assert (await client.get(f"{JOBS}/n1")).json()["result"] == "good.jpg"


async def test_dead_letters_are_shown_mended_replayed_and_purged(app, client):
    for number in range(3):
        await client.post(JOBS, json={"data": {"url": "bad"}, "id": f"n/{number}"})
    await app.drain()
    letters = "/api/queues/thumbnails/dlq"
    assert (await client.get(letters)).json()["total"] == 3
    whole = (await client.get(f"{letters}/n/1")).json()
    assert (whole["body"]["job"], whole["error"]) == ({"url": "bad"}, "not an image")
    unfit = await client.post(f"{letters}/n/1/replay", json={"data": {"url": 1}})
    assert (unfit.status_code, [fault["field"] for fault in unfit.json()["errors"]]) == (422, ["data.url"])
    assert (await client.post(f"{letters}/n/1/replay", json={"data": {"url": "ok"}})).status_code == 204
    await app.drain()
    assert (await client.get(f"{JOBS}/n/1")).json()["result"] == "ok"
    assert (await client.delete(f"{letters}/n/0")).status_code == 204
    assert (await client.post(f"{letters}/replay-all")).json() == {"count": 1}
    await app.drain()
    assert (await client.post(f"{letters}/purge-all")).json() == {"count": 1}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/api/queues/nope", None, 404, "no queue 'nope'"),
        ("GET", f"{JOBS}/nope", None, 404, "no job 'nope'"),
        ("GET", "/api/nope", None, 404, "nothing at /api/nope"),
        ("GET", "/api/queues/thumbnails/dlq/nope", None, 404, "no dead letter 'nope'"),
        ("POST", JOBS, {"data": {"url": 1}}, 422, "url"),
        ("POST", JOBS, {"data": {"url": "a"}, "name": "nope"}, 404, "no job 'nope'; it has: make"),
        ("POST", JOBS, {"data": {"url": "a"}, "delay": "soon"}, 422, "'soon' is not a span of time"),
        ("POST", JOBS, {"data": {"url": "a"}, "delay": -1}, 422, "delay can't be negative"),
        ("POST", JOBS, {"data": {"url": "a"}, "id": "a:b"}, 422, "a space, a colon or a control character"),
        ("POST", JOBS, {"data": {"url": "a"}, "prioritty": 1}, 422, "prioritty: there is no such field"),
        ("POST", JOBS, {"data": {"url": "a"}, "run_at": "2030-01-01T00:00:00"}, 422, "such as Z or +05:00"),
        ("POST", JOBS, {"data": {"url": "a"}, "backoff": "fixed:5s"}, 422, "steps: ['1m', '5m', '15m']"),
        (
            "PUT",
            "/api/queues/thumbnails/pause",
            None,
            405,
            "PUT does nothing at /api/queues/thumbnails/pause; use POST",
        ),
        ("GET", f"{JOBS}?state=sleeping", None, 422, "state"),
    ],
)
async def test_a_mistake_is_one_sentence_that_names_it(client, method, path, body, status, words):
    answer = await client.request(method, path, json=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert words in problem["detail"]


async def test_a_queue_has_its_statistics_by_name_and_its_jobs_their_data(app, client):
    await client.post(JOBS, json={"data": {"url": "a.jpg"}, "id": "n1"})
    await client.post(JOBS, json={"data": {"url": "b" * 5_000}, "id": "n2", "delay": "1h"})
    queue = (await client.get("/api/queues/thumbnails")).json()
    stats = await app.queue("thumbnails").stats()
    assert {name: queue[name] for name in stats} == stats
    assert queue["counts"]["waiting"] == queue["waiting"] == 1
    rows = {row["id"]: row for row in (await client.get(JOBS)).json()["jobs"]}
    assert (rows["n1"]["queue"], rows["n1"]["data"]) == ("thumbnails", {"url": "a.jpg"})
    assert (rows["n2"]["data"], len(rows["n2"]["preview"])) == (None, 240)


@pytest.mark.parametrize("where", ["in the address", "in the body"])
async def test_the_state_to_clean_or_retry_may_stand_in_either_place(app, client, where):
    async def ask(act: str, state: str) -> int:
        url = f"/api/queues/thumbnails/{act}"
        request = (
            client.post(f"{url}?state={state}")
            if where == "in the address"
            else client.post(url, json={"state": state})
        )
        return (await request).json()["count"]

    for url in ("a.jpg", "b.jpg", "bad"):
        await client.post(JOBS, json={"data": {"url": url}})
    await app.drain()
    assert await ask("retry-all", "completed") == 2
    await app.drain()
    assert await ask("clean", "failed") == 1
    counts = (await client.get("/api/queues/thumbnails")).json()["counts"]
    assert (counts["completed"], counts["failed"]) == (2, 0)


async def test_the_api_itself_leads_to_its_description(client):
    answer = await client.get("/api")
    assert (answer.status_code, answer.headers["location"]) == (303, "/docs")


BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        ("/queues", "/queues"),
        ("/queues/emails/jobs/a%2Fb?x=1", "/queues/emails/jobs/a%2Fb?x=1"),
        ("/workers/", "/workers"),
    ],
)
async def test_a_page_of_the_board_that_is_typed_is_found(client, typed, place):
    """A program that mistook the address is told so."""
    answer = await client.get(typed, headers=BROWSER)
    assert (answer.status_code, answer.headers.get("location")) == (303, f"/#{place}")
    assert (await client.get(typed)).status_code == 404
    assert (await client.post(typed, headers=BROWSER)).status_code == 404


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        ("/leads", "/leads"),
        ("/leads?status=NEW", "/leads?status=NEW"),
        ("/payments/order-1", "/payments/order-1"),
        ("/reports", "/reports"),
        ("/notifications", "/activity"),
        ("/activity", "/activity"),
    ],
)
async def test_the_pages_of_features_are_found_too(typed, place):
    async with TestApp() as app:
        transport = httpx2.ASGITransport(app=create_app(app))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
            assert (await client.get(typed, headers=BROWSER)).headers["location"] == f"/#{place}"
            assert (await client.get(typed)).status_code == 404
            assert (await client.get("/mailbox", headers=BROWSER)).status_code == 200  # a page of its own


async def test_no_page_is_made_up(client):
    assert (await client.get("/nowhere", headers=BROWSER)).status_code == 404
    assert (await client.get("/leadsome", headers=BROWSER)).status_code == 404


@pytest.mark.parametrize("typed", ["/nowhere", "/board/nothing.js", "/queue%22%3E%3Cscript%3E"])
async def test_a_browser_that_is_led_nowhere_gets_a_page_with_the_way_back(client, typed):
    answer = await client.get(typed, headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert f"There is no page at <code>{escape(unquote(typed))}</code>." in answer.text
    assert '<a href="/">To the board</a>' in answer.text
    assert "<script" not in answer.text
    assert (await client.head(typed, headers=BROWSER)).status_code == 404
    long = await client.get(f"/{'x' * 5_000}", headers=BROWSER)
    assert "x" * 100 in long.text
    assert len(long.text) < 2_000


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/nowhere", {}),
        ("GET", "/nowhere", {"accept": "application/json"}),
        ("POST", "/nowhere", BROWSER),
        ("GET", "/api/nowhere", BROWSER),
        ("GET", "/api/queues/nowhere", BROWSER),
    ],
)
async def test_a_program_that_is_led_nowhere_gets_a_problem(client, method, path, headers):
    answer = await client.request(method, path, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json()["title"] == "Not Found"


async def test_the_field_is_named(client):
    answer = (await client.post(JOBS, json={"data": {"url": 1}})).json()
    assert answer["errors"] == [{"field": "data.url", "message": "Input should be a valid string"}]


async def test_the_wrong_state_is_a_conflict(client):
    await client.post(JOBS, json={"data": {"url": "a.jpg"}, "id": "n1"})
    answer = await client.post(f"{JOBS}/n1/retry")
    assert (answer.status_code, "only a finished job" in answer.json()["detail"]) == (409, True)


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_has_a_size(client, is_announced):
    async def stream() -> AsyncIterator[bytes]:
        for _ in range(BODY_LIMIT // 65536 + 2):
            yield b" " * 65536

    content = b" " * (BODY_LIMIT + 1) if is_announced else stream()
    answer = await client.post(JOBS, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert "keep large things in a file" in answer.json()["detail"]


async def test_health(app, client, monkeypatch):
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    ready = await client.get("/readyz")
    assert (ready.status_code, ready.json()["engines"][0]["ok"]) == (200, True)

    async def ping() -> None:
        raise EngineUnavailable("Redis at redis://:secret@host can't be reached: start it.")

    monkeypatch.setattr(engines_of(app.queues)[0], "ping", ping)
    ready = await client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["engines"][0]["error"] == "Redis at redis://:***@host can't be reached: start it."


async def test_what_a_form_leaves_empty_is_absent(app, client):
    await app.queue("thumbnails").add(Thumb(url="a.jpg"))
    listed = await client.get(JOBS, params={"state": "", "q": "", "page": "", "size": ""})
    assert (listed.status_code, listed.json()["page"], listed.json()["total"]) == (200, 1, 1)
    assert (await client.get(JOBS, params={"page": "0"})).status_code == 422
    await app.drain()
    cleaned = await client.post("/api/queues/thumbnails/clean")
    assert (cleaned.status_code, cleaned.json()["count"]) == (200, 1)


async def test_counters_have_a_row_before_the_first_event(app, client):
    with app.services.watching("sweeper", asyncio.Event().wait):
        page = (await client.get("/metrics")).text
    assert 'yamchi_jobs_total{name="make",queue="thumbnails",status="failed"} 0.0' in page
    assert 'yamchi_service_failures_total{service="sweeper"} 0.0' in page


async def test_an_engine_that_is_away_is_shown_not_thrown(app, client, monkeypatch):
    async def counts(_queue: str) -> None:
        raise EngineUnavailable("The broker can't be reached.")

    app.queue("thumbnails")
    monkeypatch.setattr(engines_of(app.queues)[0], "counts", counts)
    (queue,) = (await client.get("/api/queues")).json()
    assert queue["error"] == "The broker can't be reached."
    assert 'yamchi_engine_up{engine="in-memory"} 0.0' in (await client.get("/metrics")).text


async def test_a_queue_of_another_program_is_there_too(app, client):
    await engines_of(app.queues)[0].add("foreign", [NewJob("1", "work", b"{}")])
    await engines_of(app.queues)[0].add("_scratch", [NewJob("1", "work", b"{}")])
    assert [queue["name"] for queue in (await client.get("/api/queues")).json()] == ["thumbnails", "foreign"]
    assert (await client.get("/api/queues/foreign/jobs/1")).json()["state"] == "waiting"


def test_every_route_parameter_and_answer_is_described() -> None:
    spec = create_app(shipped_app()).openapi()
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            unsaid = [one["name"] for one in operation.get("parameters", ()) if not one.get("description")]
            assert unsaid == [], f"{where}: a line in http/parameters.py says what they mean"
            for status, answer in operation["responses"].items():
                assert answer["description"].endswith("."), f"{where} {status}: {answer['description']}"


async def test_the_api_describes_itself_without_the_internet(client):
    spec = (await client.get("/openapi.json")).json()
    assert "/api/queues/{queue}/jobs/{job_id}/retry" in spec["paths"]
    assert all(call["summary"] for calls in spec["paths"].values() for call in calls.values())
    for page in ("/", "/docs"):
        html = (await client.get(page)).text
        assert "http://" not in html.replace("http://www.w3.org", "")
        assert "https://" not in html


async def test_metrics_count_what_became_of_jobs(app, client):
    await client.post(JOBS, json={"data": {"url": "a.jpg"}})
    await client.post(JOBS, json={"data": {"url": "bad"}})
    await app.clock.advance("2s")
    app.metrics.count_switch("bull", "sqlite")
    page = (await client.get("/metrics")).text
    for line in (
        'yamchi_queue_jobs{queue="thumbnails",state="completed"} 1.0',
        'yamchi_jobs_total{name="make",queue="thumbnails",status="failed"} 1.0',
        'yamchi_job_duration_seconds_count{name="make",queue="thumbnails"} 2.0',
        'yamchi_job_wait_seconds_count{queue="thumbnails"} 2.0',
        'notification_queue_switches_total{from="bull",to="sqlite"} 1.0',
    ):
        assert line in page


async def test_switches_between_engines_are_counted_from_zero(tmp_path: Path) -> None:
    """Prometheus sees no increase where a row begins with its first event."""
    nowhere = "redis://127.0.0.1:1/0"
    app = Yamchi(Settings(home=tmp_path, default_queue_url=nowhere, queue_fallback="memory", plugins=()))
    app.define("thumbnails")
    assert app.queue("thumbnails").type == "bull"
    page = (await scrape(app)).decode()
    await app.close()
    assert 'notification_queue_switches_total{from="bull",to="in-memory"} 1.0' in page
    assert 'notification_queue_switches_total{from="in-memory",to="bull"} 0.0' in page


async def test_a_problem_names_the_field_as_its_sender_wrote_it(client: httpx2.AsyncClient) -> None:
    answer = (
        await client.post("/api/queues/thumbnails/jobs", json={"data": {"url": "a"}, "backoff": "no"})
    ).json()
    (fault,) = answer["errors"]
    assert fault["field"] == "backoff"
    assert fault["message"].startswith("backoff: 'no' is not a span of time")
    assert "Value error" not in answer["detail"]
    assert not answer["detail"].endswith("..")
    answer = (
        await client.post("/api/queues/thumbnails/jobs", json={"data": {"url": "a"}, "delay": []})
    ).json()
    assert {fault["field"] for fault in answer["errors"]} == {"delay"}
    answer = (await client.post("/api/queues/thumbnails/jobs", json={"data": {"url": 1}})).json()
    assert [fault["field"] for fault in answer["errors"]] == ["data.url"]


async def test_a_backoff_can_be_given_as_a_job_shows_it(client: httpx2.AsyncClient) -> None:
    path = "/api/queues/thumbnails/jobs"
    for given in ("exponential", ["1m", "5m"], {"type": "fixed", "delay": "2s", "jitter": 0.5}):
        first = (await client.post(path, json={"data": {"url": "a"}, "backoff": given})).json()
        again = (await client.post(path, json={"data": {"url": "a"}, "backoff": first["backoff"]})).json()
        assert again["backoff"] == first["backoff"]
    refused = await client.post(
        path, json={"data": {"url": "a"}, "backoff": {"kind": "fixed", "delay": "1s"}}
    )
    assert "in milliseconds" in refused.json()["detail"]
