"""What must hold of all runs, whatever was done to them: checked after every test that breaks something."""

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any

from sqlalchemy import select

from tests.scenarios.leads import leads, lines
from tests.scenarios.leads import metadata as lead_tables
from yamchi.app import Yamchi
from yamchi.errors import YamchiError
from yamchi.notifications.schemas.notification_job import derived_id
from yamchi.notifications.tables import notification_delivery
from yamchi.scenarios import store
from yamchi.scenarios.plugin import Scenarios
from yamchi.scenarios.store import StepId
from yamchi.scenarios.tables import scenario_outbox, scenario_runs, scenario_steps

PENDING = ("armed", "running")


async def check_invariants(app: Yamchi, keys: Collection[str] | None = None) -> None:
    """Every promise of a run, over all runs, or those of these keys. Call it when nothing is in flight."""
    rows = await _rows(app, keys)
    own = defaultdict(list)
    for step in rows["steps"]:
        own[step.run_id].append(step)
    for run in rows["runs"]:
        await _check_run(app, run, own[run.run_id], rows)
    _check_deliveries(rows)
    await _check_keys(app, rows)
    await _check_timelines(app, rows)


async def _rows(app: Yamchi, keys: Collection[str] | None) -> dict[str, Any]:
    def look(connection: Any) -> dict[str, Any]:
        tables = (("runs", scenario_runs), ("steps", scenario_steps), ("outbox", scenario_outbox))
        found = {name: list(connection.execute(select(table)).all()) for name, table in tables}
        found["deliveries"] = {
            row.job_id: row for row in connection.execute(select(notification_delivery)).all()
        }
        if keys is not None:
            found["runs"] = [run for run in found["runs"] if run.key in keys]
            ids = {run.run_id for run in found["runs"]}
            found["steps"] = [step for step in found["steps"] if step.run_id in ids]
        return found

    return await app.database.read(look)


async def _check_run(app: Yamchi, run: Any, own: list[Any], rows: dict[str, Any]) -> None:
    definition = await app.database.read(
        lambda c: app.plugin(Scenarios).library.version(c, run.scenario, run.version)
    )
    pending = [step for step in own if step.state in PENDING]
    if run.status != "running":
        assert not [step for step in pending if step.state == "armed"], (
            f"{run.status}, but pending: {pending}"
        )
        assert run.armed_step is None
        return
    assert [(step.step, step.arming) for step in pending] == [(run.armed_step, run.arming)], (
        f"one pending step: {pending} {run}"
    )
    id = str(StepId(run.run_id, run.armed_step, run.arming))
    if run.due_at is None:
        assert definition.step(run.armed_step).wait_for
        return
    queued = await _is_living(app, pending[0].queue, id)
    promised = [entry for entry in rows["outbox"] if entry.job_id == id and entry.kind == "job"]
    assert queued or promised, f"a job, or a promise of one: {run}"
    step = definition.step(run.armed_step)
    if step.remember and queued and not promised and run.entity_id:
        name = step.remember.key.replace("{{ lead.id }}", run.entity_id)
        assert await app.keys.get(name) in (id, None), "the key names the pending job, unless it has lapsed"
    # Every job of this run but the pending one is over, or finds itself out of date.
    others = [step for step in own if (step.step, step.arming) != (run.armed_step, run.arming)]
    assert not [step for step in others if step.state == "armed"]


async def _is_living(app: Yamchi, queue: str, job_id: str) -> bool:
    try:
        job = await app.queue(queue).job(job_id)
    except YamchiError:
        return False
    return job.state in ("waiting", "delayed", "active")


def _check_deliveries(rows: dict[str, Any]) -> None:
    """One message a step and arming; what is done was sent, and what was sent is done, or failed afterwards."""
    sent = Counter(row.event_id for row in rows["deliveries"].values() if row.status == "SENT")
    assert all(number == 1 for number in sent.values()), f"sent twice: {sent}"
    runs = {row.run_id: store.restored(row) for row in rows["runs"]}
    last_of_message = {}
    for step in sorted((one for one in rows["steps"] if one.run_id in runs), key=lambda one: one.arming):
        id = StepId(step.run_id, step.step, step.arming)
        last_of_message[store.message_of(runs[step.run_id], id)] = step
        if step.state == "done" and step.effects and "delivery" in step.effects:
            status = rows["deliveries"][step.effects["delivery"]].status
            assert status in ("SENT", "UNKNOWN"), f"done, but {status}"
    for id, step in last_of_message.items():
        delivery = rows["deliveries"].get(str(derived_id("scenario", str(id))))
        if delivery is not None and delivery.status == "SENT":
            # A step may fail after its message has left: its log line could not be filled in.
            assert step.state in ("done", "running", "failed"), f"sent, but {step.state}: {step}"


async def _check_keys(app: Yamchi, rows: dict[str, Any]) -> None:
    """A key with a lifetime names a living job."""
    steps = {str(StepId(one.run_id, one.step, one.arming)): one for one in rows["steps"]}
    for name in {step.key for step in rows["steps"] if step.key}:
        if job_id := await app.keys.get(name):
            step = steps[job_id]
            assert await _is_living(app, step.queue, job_id), f"{name} names {job_id}, which is {step.state}"


async def _check_timelines(app: Yamchi, rows: dict[str, Any]) -> None:
    """What is shown of the past is what the records say."""
    for run in rows["runs"][:20]:
        shown = await app.plugin(Scenarios).timelines.of(run.run_id)
        past = {
            (line["step"], line["arming"], line["state"])
            for line in shown["timeline"]
            if not line["is_future"]
        }
        records = {
            (step.step, step.arming, step.state) for step in rows["steps"] if step.run_id == run.run_id
        }
        assert past == records


async def check_leads(app: Yamchi) -> None:
    """Fields and log agree with the steps that are done. For the shipped scenarios on leads in a table."""

    def look(connection: Any) -> Any:
        lead_tables.create_all(connection)
        return (
            connection.execute(select(leads)).all(),
            connection.execute(select(lines)).all(),
            {row.run_id: store.restored(row) for row in connection.execute(select(scenario_runs))},
            connection.execute(
                select(scenario_runs.c.entity_id, scenario_steps)
                .join(scenario_runs, scenario_runs.c.run_id == scenario_steps.c.run_id)
                .where(scenario_steps.c.state == "done")
            ).all(),
        )

    known, logged, runs, done = await app.database.write(look)
    expected = {
        str(store.message_of(runs[step.run_id], StepId(step.run_id, step.step, step.arming))): step.effects[
            "log"
        ]
        for step in done
        if step.effects and "log" in step.effects
    }
    assert {line.id: line.text for line in logged} == expected
    for lead in known:
        names = {step.step for step in done if step.entity_id == lead.id}
        assert bool(lead.fields.get("email_1_sent")) == ("email1" in names)
        assert bool(lead.fields.get("email_2_sent")) == ("email2" in names)
        assert (lead.fields.get("status") == "CALL_NEEDED") == ("callAlert" in names)
