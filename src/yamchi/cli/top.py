"""`yamchi top`: a live view of queues, workers and running jobs, in the terminal."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from yamchi.app import Yamchi
from yamchi.cli.loading import load_app
from yamchi.cli.queues import SHOWN, describe, note
from yamchi.clock import Millis
from yamchi.console.loading import AppOption, JsonOption, run_async, using
from yamchi.console.output import STATE_STYLES, ago, console, number, print_json, table, text
from yamchi.discovery import all_queues
from yamchi.errors import EngineError
from yamchi.queues.overview import QueueView, live_workers, view_queues
from yamchi.queues.records import JobRecord
from yamchi.queues.views import Minute, WorkerInfo

BARS = " ▁▂▃▄▅▆▇█"
MINUTES = 20
WIDE = 100
"""Columns from which on there is room for the type of each queue."""
RUNNING = 10
"""Running jobs shown at most."""
Frame = tuple[list[QueueView], list[WorkerInfo], list[JobRecord]]


def run(
    app: AppOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch queues, workers and running jobs; Ctrl+C ends.

    Example: [cyan]yamchi top --app mymodule:app[/]
    """
    yamchi = load_app(app)
    if as_json:
        print_json(_described(run_async(using(yamchi, _look(yamchi)))))
    elif once or not console.is_terminal:
        console.print(_draw(run_async(using(yamchi, _look(yamchi))), yamchi))
    else:
        _watch(yamchi)


def _watch(app: Yamchi) -> None:
    async def body() -> None:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_draw(await _look(app), app), refresh=True)
                await asyncio.sleep(1)

    try:
        run_async(using(app, body()))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


async def _look(app: Yamchi) -> Frame:
    queues = await all_queues(app)
    views, workers = await asyncio.gather(view_queues(queues, MINUTES), live_workers(app.queues))
    running: list[JobRecord] = []
    for view in views:
        if view.counts["active"] and len(running) < RUNNING:
            running += await _running(view)
    return views, workers, running[:RUNNING]


async def _running(view: QueueView) -> list[JobRecord]:
    try:
        return (await view.queue.page("active", limit=RUNNING)).jobs
    except EngineError:
        return []  # the queue's own row says what is wrong


def _draw(frame: Frame, app: Yamchi) -> RenderableType:
    views, workers, running = frame
    parts: list[RenderableType] = [_queues(views, app.clock.now()), Text(), _workers(workers)]
    return Group(*parts, *([Text(), _jobs(running)] if running else []))


def _queues(views: Sequence[QueueView], now: Millis) -> RenderableType:
    kind = ["type"] if console.width >= WIDE else []
    shown = table("queue", *kind, *SHOWN, "per min", "last 20 min", right=(*SHOWN, "per min"))
    for view in views:
        counts = [number(view.counts[state], STATE_STYLES[state]) for state in SHOWN]
        bars = note(view) or f"[green]{sparkline(view.history, now)}[/]"
        types = [view.queue.type] if kind else []
        shown.add_row(text(view.queue.name), *types, *counts, number(pace(view.history, now)), bars)
    return shown


def _workers(workers: Sequence[WorkerInfo]) -> RenderableType:
    if not workers:
        return Text.from_markup("[dim]No worker is running: start one with[/] yamchi worker")
    shown = table("worker", "host", "pid", "running", "started", "queues", right=["pid", "running"])
    for worker in workers:
        queues = text(", ".join(worker.queues), 60)
        started = ago(worker.started_at)
        shown.add_row(
            text(worker.id),
            text(worker.host),
            str(worker.pid),
            number(len(worker.running), "cyan"),
            started,
            queues,
        )
    return shown


def _jobs(jobs: Sequence[JobRecord]) -> RenderableType:
    shown = table("running job", "queue", "name", "since", "try", "progress", right=["try"])
    for job in jobs:
        made = "" if job.progress is None else text(job.progress.decode(), 30)
        tries = f"{job.attempts_made}/{job.options.attempts}"
        shown.add_row(text(job.id), text(job.queue), text(job.name), ago(job.started_at), tries, made)
    return shown


def pace(history: Sequence[Minute], now: Millis) -> int:
    """What was done in the last full minute, or is being done in this one if that is more."""
    recent = [minute.completed + minute.failed for minute in history if minute.moment > now - 120_000]
    return max(recent, default=0)


def sparkline(history: Sequence[Minute], now: Millis) -> str:
    """Twenty minutes in twenty characters."""
    done = {minute.moment // 60_000: minute.completed + minute.failed for minute in history}
    latest = now // 60_000
    heights = [done.get(latest - age, 0) for age in reversed(range(MINUTES))]
    most = max(heights) or 1
    return "".join(BARS[-(-height * (len(BARS) - 1) // most)] for height in heights)


def _described(frame: Frame) -> dict[str, Any]:
    views, workers, running = frame
    return {
        "queues": [describe(view) for view in views],
        "workers": [
            {
                "id": worker.id,
                "host": worker.host,
                "pid": worker.pid,
                "queues": worker.queues,
                "running": worker.running,
            }
            for worker in workers
        ],
        "running": [{"id": job.id, "queue": job.queue, "name": job.name} for job in running],
    }
