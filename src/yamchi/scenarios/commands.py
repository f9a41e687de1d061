"""`yamchi scenario`: what is in force, what runs do and would do; `yamchi schema`: what editors need to help."""

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args

import orjson
import typer
from pydantic import TypeAdapter

from yamchi.clock import Millis, check_zone, isoformat, to_millis
from yamchi.console.loading import (
    AppOption,
    JsonOption,
    PageOption,
    SizeOption,
    check_choice,
    read_object,
    with_plugin,
)
from yamchi.console.output import console, print_json, print_table, say, table, text
from yamchi.errors import InvalidJob, WrongState
from yamchi.notifications.policy.rules import Rule
from yamchi.scenarios.definition import Definition
from yamchi.scenarios.flow import Status
from yamchi.scenarios.moments import read_moment
from yamchi.scenarios.picture import picture_of, picture_of_run
from yamchi.scenarios.plugin import Scenarios
from yamchi.scenarios.simulation import Happening, Simulation
from yamchi.scenarios.timeline import line_of

group = typer.Typer(
    help="Follow-ups: what is in force, what runs do and would do.\n\n"
    "Example: [cyan]yamchi scenario runs email_chain[/]",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="SCENARIO", help="The scenario's name.")]
Key = Annotated[str, typer.Option("--key", help="The run's key, such as a lead's id.")]
FIELDS = '{"name": "Marat"}'
Svg = Annotated[Path | None, typer.Option("--svg", help="Write the picture to this file.")]


class Schema(StrEnum):
    """What has a schema."""

    scenario = "scenario"
    rule = "rule"


@group.command("list")
def list_(app: AppOption = None, as_json: JsonOption = False) -> None:
    """The scenarios in force.

    Example: [cyan]yamchi scenario list[/]
    """

    async def body(scenarios: Scenarios) -> list[Definition]:
        return list(scenarios.library.current.values())

    found = with_plugin(Scenarios, app, body)
    if as_json:
        print_json([{**one.body, "version": one.version} for one in found])
        return
    shown = table("scenario", "version", "starts on", "stops on", "queue", "steps")
    for one in found:
        steps = " → ".join(step.job for step in one.steps)
        names = text(one.scenario), one.version, text(", ".join(one.on)), text(", ".join(one.stop_on))
        shown.add_row(*names, one.queue, text(steps))
    print_table(shown)


@group.command()
def show(
    name: Name,
    key: Annotated[str | None, typer.Option("--key", help="The newest run of this key instead.")] = None,
    svg: Svg = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """A scenario as it is written; with --key, a run with its timeline, past and future.

    Example: [cyan]yamchi scenario show email_chain --key 6f1d2c9e --svg run.svg[/]
    """

    async def body(scenarios: Scenarios) -> Any:
        definition = scenarios.library.get(name)
        return definition if key is None else await scenarios.timelines.latest(name, key)

    found = with_plugin(Scenarios, app, body)
    is_run = not isinstance(found, Definition)
    if svg is not None:
        svg.write_text(picture_of_run(found) if is_run else picture_of(found), encoding="utf-8")
    if as_json:
        print_json(found if is_run else {**found.body, "version": found.version})
    elif is_run:
        _print_run(found)
    else:
        console.print_json(orjson.dumps(found.body).decode())
    if svg is not None and not as_json:
        say(f"The picture is in {svg}.")


@group.command()
def runs(
    name: Annotated[str | None, typer.Argument(metavar="SCENARIO", help="Only of this scenario.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only of this key.")] = None,
    status: Annotated[
        str | None, typer.Option(help="Only running, finished, stopped or failed ones.")
    ] = None,
    page: PageOption = 1,
    size: SizeOption = 25,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Runs, newest first.

    Example: [cyan]yamchi scenario runs email_chain --status running[/]
    """
    check_choice("status", status, get_args(Status))

    async def body(scenarios: Scenarios) -> list[dict[str, Any]]:
        return await scenarios.timelines.find(
            scenario=name, key=key, status=status, offset=(page - 1) * size, limit=size
        )

    found = with_plugin(Scenarios, app, body)
    if as_json:
        print_json(found)
        return
    shown = table("scenario", "key", "status", "pending", "due", "started", "why")
    for one in found:
        shown.add_row(
            text(one["scenario"]),
            text(one["key"]),
            one["status"],
            text(one["step"] or ""),
            one["due_at"] or "",
            one["started_at"],
            text(one["reason"] or ""),
        )
    print_table(shown)


@group.command()
def simulate(
    name: Name,
    start: Annotated[str | None, typer.Option(help="When it begins, in ISO form; now by default.")] = None,
    entity: Annotated[
        str | None, typer.Option(help="The id of the lead (or the like) to take; one is made up by default.")
    ] = None,
    fields: Annotated[str, typer.Option(help="Fields of the entity, as JSON.")] = "{}",
    data: Annotated[str, typer.Option(help="The data of the start event, as JSON.")] = "{}",
    event: Annotated[
        list[str] | None,
        typer.Option(help="Something on the way: '25h bot.activated' or '25h moved {\"date\": …}'."),
    ] = None,
    zone: Annotated[str | None, typer.Option(help="The entity's time zone.")] = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a run would do from a given start, step by step, without sending anything.

    Example: [cyan]yamchi scenario simulate lesson_reminders --fields '{"lesson_datetime": "2027-02-25T15:00"}' --zone Asia/Almaty[/]
    """

    async def body(scenarios: Scenarios) -> Simulation:
        now = scenarios.app.clock.now() if start is None else _moment(start, scenarios)
        return await scenarios.timelines.simulate(
            name,
            fields=read_object(fields, "--fields", FIELDS),
            entity_id=entity,
            data=read_object(data, "--data", FIELDS),
            start=now,
            history=[_happening(one, now) for one in event or ()],
            zone=zone and check_zone(zone),
            is_imagined=entity is None,
        )

    _print_simulation(with_plugin(Scenarios, app, body), as_json)


@group.command()
def stop(
    name: Name,
    key: Key,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "stopped from the command line",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop the run of a key: from then on no message of it begins to leave.

    Example: [cyan]yamchi scenario stop email_chain --key 6f1d2c9e[/]
    """
    stopped = with_plugin(Scenarios, app, lambda scenarios: scenarios.stop(name, key, reason))
    if stopped is None:
        raise WrongState(f"No run of {name} is running for {key!r}.")
    if as_json:
        print_json({"run_id": stopped.run_id, "on_its_way": stopped.on_its_way})
        return
    say(f"Stopped {name} for {key}.")
    if stopped.on_its_way:
        still = "is still leaving" if stopped.is_still_sending else "had left already"
        say(f"The message of {stopped.on_its_way} {still}.")


@group.command()
def migrate(
    name: Name,
    key: Annotated[str | None, typer.Option("--key", help="Only the run of this key.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move running runs to the version in force. Shows what would change; --yes does it.

    Example: [cyan]yamchi scenario migrate email_chain --yes[/]
    """

    async def body(scenarios: Scenarios) -> tuple[int, Any, int]:
        total = await scenarios.migrator.count(name)
        preview = await scenarios.migrator.preview(name, key=key)
        return total, preview, await scenarios.migrator.migrate(name, key=key) if yes else 0

    total, preview, moved = with_plugin(Scenarios, app, body)
    if as_json:
        changes = [
            {
                "run_id": one.run_id,
                "key": one.key,
                "step": one.step,
                "new_step": one.new_step,
                "due": one.due and isoformat(one.due),
                "new_due": one.new_due and isoformat(one.new_due),
                "status": one.status,
            }
            for one in preview
        ]
        print_json({"older_runs": total, "changes": changes, "moved": moved})
        return
    shown = table("key", "step", "due", "new step", "new due", "then")
    for one in preview:
        due, new_due = (isoformat(moment) if moment else "" for moment in (one.due, one.new_due))
        shown.add_row(text(one.key), one.step or "", due, one.new_step or "", new_due, one.status)
    print_table(shown)
    more = f", the first {len(preview)} of them above" if total > len(preview) else ""
    said = (
        f"Moved {moved} runs."
        if yes
        else f"{total} runs follow an older version{more}. Add --yes to move them."
    )
    say(said)


@group.command()
def lint(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Check every scenario: files that can't be read, templates that are missing, functions nobody registered.

    Example: [cyan]yamchi scenario lint[/]
    """
    found = with_plugin(Scenarios, app, lambda scenarios: scenarios.linter.lint())
    if as_json:
        print_json([{"scenario": one.scenario, "level": one.level, "said": one.said} for one in found])
    else:
        for one in found:
            console.print(f"{'[red]✘[/]' if one.level == 'error' else '[yellow]![/]'} {text(str(one), 500)}")
        if not found:
            say("Every scenario can be used.")
    if any(one.level == "error" for one in found):
        raise typer.Exit(1)


def schema(
    what: Annotated[Schema, typer.Argument(metavar="WHAT", help="scenario or rule.")] = Schema.scenario,
    as_json: Annotated[
        bool, typer.Option("--json", show_default=False, help="As JSON, which a schema always is.")
    ] = True,
) -> None:
    """The JSON Schema of a file, for editors: completion and checks while you write.

    Example: [cyan]yamchi schema scenario > scenario.schema.json[/]
    """
    print_json(scenario_schema() if what is Schema.scenario else TypeAdapter(list[Rule]).json_schema())


def scenario_schema() -> dict[str, Any]:
    """The JSON Schema of a scenario's file."""
    made = Definition.model_json_schema(mode="validation")
    one_or_more = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    for name in ("on", "stop_on"):
        described = made["properties"][name].get("description")
        made["properties"][name] = {**one_or_more, "description": described}
    for part in ("Step", "Action"):
        emit = made["$defs"][part]["properties"]["emit"]
        emit["anyOf"] = [{"type": "string"}, *emit.get("anyOf", [])]
    step = made["$defs"]["Step"]
    step["properties"]["step"] = {"type": "string", "description": "Another word for `job`."}
    step["required"] = []
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "title": "A scenario of Yamchi",
    }


# ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _moment(said: str, scenarios: Scenarios) -> Millis:
    try:
        return read_moment(said, scenarios.facts.zone_of(None))
    except ValueError as error:
        raise InvalidJob(f"--start: {error}.") from None


def _happening(said: str, start: Millis) -> Happening:
    """`25h bot.activated`, or with what it changes: `25h lesson.rescheduled {"lesson_datetime": "…"}`."""
    span, _, rest = said.strip().partition(" ")
    type, _, changed = rest.strip().partition(" ")
    if not type:
        raise InvalidJob(
            f"--event {said!r}: write how long after the start, and the event: '25h bot.activated'."
        )
    fields = read_object(changed, "--event", FIELDS) if changed.strip() else {}
    return Happening(start + to_millis(span), type, fields)


def _print_simulation(simulation: Simulation, as_json: bool) -> None:
    lines = [line_of(change) for change in simulation.changes]
    run = simulation.run
    if as_json:
        print_json({"status": run.status, "reason": run.reason, "steps": [line.shown() for line in lines]})
        return
    zone = simulation.facts.zone
    shown = table("when", "step", "state", "due", "why")
    for line in lines:
        shown.add_row(
            _local(line.at, zone), line.step, line.state, _local(line.due, zone), text(line.reason or "")
        )
    print_table(shown)
    say(f"{run.status}{f': {run.reason}' if run.reason else ''} (times in {zone.key})")


def _local(moment: Millis | None, zone: Any) -> str:
    if moment is None:
        return ""
    return datetime.fromtimestamp(moment / 1000, zone).strftime("%Y-%m-%d %H:%M:%S")


def _print_run(run: dict[str, Any]) -> None:
    shown = table("when", "step", "state", "due", "why")
    for line in run["timeline"]:
        state = f"[dim]expected: {line['state']}[/]" if line["is_future"] else line["state"]
        shown.add_row(line["at"] or "", line["step"], state, line["due"] or "", text(line["reason"] or ""))
    print_table(shown)
    say(f"{run['status']}{': ' + run['reason'] if run['reason'] else ''}, version {run['version']}")
