"""`yamchi queues`: all queues with their counts; pause, resume, clean, drain one."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from yamchi.app import Yamchi
from yamchi.cli.loading import load_app, with_queue
from yamchi.clock import Span
from yamchi.console.loading import AppOption, JsonOption, check_choice, run_async, using
from yamchi.console.output import STATE_STYLES, answer, number, print_json, print_table, progress, table, text
from yamchi.discovery import all_queues
from yamchi.queues.overview import QueueView, view_queues
from yamchi.queues.queue import Queue
from yamchi.queues.records import STATES, State

group = typer.Typer()

SHOWN = ("waiting", "active", "delayed", "completed", "failed")
BATCH = 1_000

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
AnyQueue = Annotated[
    str | None, typer.Argument(metavar="QUEUE", help="The queue's name; all queues without it.")
]


@group.callback(invoke_without_command=True)
def run(context: typer.Context, app: AppOption = None, as_json: JsonOption = False) -> None:
    """All queues with their counts; pause, resume, clean and drain them.

    Example: [cyan]yamchi queues --json[/] · [cyan]yamchi queues pause notifications[/]
    """
    if context.invoked_subcommand is None:
        yamchi = load_app(app)
        views = run_async(using(yamchi, _views(yamchi)))
        if as_json:
            print_json([describe(view) for view in views])
        else:
            _print(views)


@group.command()
def pause(queue: QueueName, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let nobody start a job of this queue; running ones finish.

    Example: [cyan]yamchi queues pause notifications[/]
    """
    with_queue(app, queue, lambda found: found.pause())
    said = f"{text(queue)} is paused; [cyan]yamchi queues resume {text(queue)}[/] lets it go on."
    answer({"name": queue, "paused": True}, said, as_json=as_json)


@group.command()
def resume(queue: QueueName, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let jobs of this queue start again.

    Example: [cyan]yamchi queues resume notifications[/]
    """
    with_queue(app, queue, lambda found: found.resume())
    answer({"name": queue, "paused": False}, f"{text(queue)} goes on.", as_json=as_json)


@group.command()
def clean(
    queue: QueueName,
    state: Annotated[str, typer.Option(help="Jobs of which state go.")] = "completed",
    older_than: Annotated[
        str, typer.Option(help="Only jobs in it for at least this long, such as 7d.")
    ] = "0s",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove jobs of one state.

    Example: [cyan]yamchi queues clean media-sync --state failed --older-than 7d[/]
    """
    wanted = check_state(state)
    gone = with_queue(app, queue, lambda found: _clean(found, wanted, older_than))
    answer({"count": gone}, f"{gone:,} {state} jobs of {text(queue)} removed.", as_json=as_json)


@group.command()
def drain(
    queue: QueueName,
    delayed: Annotated[bool, typer.Option("--delayed", help="Delayed jobs too.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove every waiting job.

    Example: [cyan]yamchi queues drain media-sync --delayed[/]
    """
    states: list[State] = ["waiting", "delayed"] if delayed else ["waiting"]
    gone = with_queue(app, queue, lambda found: _drain(found, states))
    answer({"count": gone}, f"{gone:,} waiting jobs of {text(queue)} removed.", as_json=as_json)


def check_state(name: str, states: Sequence[State] = STATES) -> State:
    state: State = check_choice("state", name, states)
    return state


def describe(view: QueueView) -> dict[str, Any]:
    """A queue for programs."""
    return {
        "name": view.queue.name,
        "type": view.queue.type,
        "paused": view.is_paused,
        **view.counts,
        "counts": view.counts,
        "dead_letters": view.dead_letters,
        "concurrency": view.queue.definition.concurrency,
        "jobs": list(view.queue.definition.handlers),
        "error": view.error,
        "warning": view.warning,
    }


async def _views(app: Yamchi) -> list[QueueView]:
    return await view_queues(await all_queues(app), minutes=1)


async def _clean(queue: Queue, state: State, older_than: Span) -> int:
    """Clean in batches, so that workers hardly wait and the bar moves."""
    gone, total = 0, (await queue.counts())[state]
    with progress(f"Removing {state} jobs", total) as advance:
        while done := await queue.clean(state, older_than=older_than, limit=BATCH):
            gone += done
            advance(done)
    return gone


async def _drain(queue: Queue, states: list[State]) -> int:
    return sum([await _clean(queue, state, 0) for state in states])


def _print(views: list[QueueView]) -> None:
    shown = table("queue", "type", *SHOWN, "dead", "", right=(*SHOWN, "dead"))
    for view in views:
        counts = [number(view.counts[state], STATE_STYLES[state]) for state in SHOWN]
        shown.add_row(
            text(view.queue.name),
            view.queue.type,
            *counts,
            number(view.dead_letters, "red"),
            note(view),
        )
    print_table(shown)


def note(view: QueueView) -> str:
    """What to know of a queue beside its counts, if anything."""
    if view.error:
        return f"[red]{text(view.error, 200)}[/]"
    if view.is_paused:
        return "[yellow]paused[/]"
    return f"[yellow]{text(view.warning, 200)}[/]" if view.warning else ""
