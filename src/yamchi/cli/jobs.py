"""`yamchi jobs`: list, show, add, retry, promote, remove and cancel jobs."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from yamchi.cli.loading import page_of, with_queue
from yamchi.cli.queues import AnyQueue, QueueName, check_state
from yamchi.console.loading import AppOption, JsonOption, PageOption, SizeOption, read_json
from yamchi.console.output import (
    ago,
    answer,
    number,
    paging,
    print_json,
    print_table,
    progress,
    state,
    table,
    text,
)
from yamchi.errors import InvalidJob, YamchiError
from yamchi.queues.job import Job
from yamchi.queues.queue import Queue
from yamchi.queues.records import FINISHED, JobRecord, State

group = typer.Typer(
    help="List, show, add, retry, promote, remove and cancel jobs.\n\n"
    "Example: [cyan]yamchi jobs list hello --state failed[/]",
    no_args_is_help=True,
)

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
JobIds = Annotated[list[str], typer.Argument(metavar="ID…", help="Ids of jobs.")]
Search = Annotated[str, typer.Option(help="Text in the id, the name or the data.")]


@group.command("list")
def list_(
    queue: AnyQueue = None,
    wanted: Annotated[str | None, typer.Option("--state", help="Only jobs of this state.")] = None,
    search: Search = "",
    page: PageOption = 1,
    size: SizeOption = 25,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Jobs of a queue, or of all.

    Example: [cyan]yamchi jobs list hello --state failed --search you[/]
    """
    only = None if wanted is None else check_state(wanted)

    async def read(found: Queue, offset: int, limit: int) -> tuple[list[Job[Any]], int]:
        rows = await found.page(only, search=search, offset=offset, limit=limit)
        return [Job[Any](found, record) for record in rows.jobs], rows.total

    jobs, total = page_of(app, queue, read, lambda job: job.record.created_at, page, size)
    if as_json:
        print_json({"jobs": [job.to_dict() for job in jobs], "total": total, "page": page})
    else:
        _print_list([job.record for job in jobs], ["queue"] if queue is None else [])
        paging(jobs, total, page, size)


@group.command()
def show(queue: QueueName, job_id: JobId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Everything about one job.

    Example: [cyan]yamchi jobs show hello 42[/]
    """
    job = with_queue(app, queue, lambda found: found.job(job_id)).to_dict()
    if as_json:
        print_json(job)
        return
    shown = table("", "")
    for field, value in job.items():
        if value not in (None, [], ""):
            shown.add_row(f"[bold]{field}[/]", state(value) if field == "state" else _value(value))
    print_table(shown)


@group.command()
def add(
    queue: QueueName,
    data: Annotated[
        str, typer.Argument(metavar="JSON", help="The job's data; - reads standard input.")
    ] = "null",
    name: Annotated[str | None, typer.Option(help="Which of the queue's jobs; the first by default.")] = None,
    job_id: Annotated[str | None, typer.Option("--id", help="The same id again is the same job.")] = None,
    delay: Annotated[str | None, typer.Option(help="Run in this long: 30s, 5m, 1h30m.")] = None,
    run_at: Annotated[str | None, typer.Option(help="Run at this moment: 2026-01-31T09:00:00+05:00.")] = None,
    priority: Annotated[int, typer.Option(help="1 to 10, higher first.")] = 0,
    attempts: Annotated[int | None, typer.Option(help="How often it is tried.")] = None,
    backoff: Annotated[
        str | None, typer.Option(help="fixed, exponential, or steps such as 1m,5m,15m.")
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(help="Not run after this moment: 2026-01-31T18:00:00+05:00.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="How long it may run.")] = None,
    keep_completed: Annotated[
        int | None, typer.Option(help="How many completed jobs of the queue stay when this one is.")
    ] = None,
    keep_failed: Annotated[
        int | None, typer.Option(help="How many failed jobs of the queue stay when this one is.")
    ] = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a job.

    Example: [cyan]yamchi jobs add hello '{"name": "you"}' --delay 10s[/]
    """
    value = read_json(data)
    due, expiry = _moment("--run-at", run_at), _moment("--expires-at", expires_at)
    job = with_queue(
        app,
        queue,
        lambda found: found.add(
            value,
            name=name,
            id=job_id,
            delay=delay,
            run_at=due,
            priority=priority,
            attempts=attempts,
            backoff=backoff,
            expires_at=expiry,
            timeout=timeout,
            keep_completed=keep_completed,
            keep_failed=keep_failed,
        ),
    )
    done = "added" if job.is_new else "was there already"
    said = f"{text(job.name)} [bold]{text(job.id)}[/] {done}: {state(job.state)} in {text(queue)}."
    answer({**job.to_dict(), "is_new": job.is_new}, said, as_json=as_json)


@group.command()
def retry(queue: QueueName, job_ids: JobIds, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Put finished jobs back, with all their attempts.

    Example: [cyan]yamchi jobs retry hello 42 43[/]
    """
    _each_job(app, queue, job_ids, lambda job: job.retry(), "put back", as_json)


@group.command()
def promote(queue: QueueName, job_ids: JobIds, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let delayed jobs run now.

    Example: [cyan]yamchi jobs promote hello 42[/]
    """
    _each_job(app, queue, job_ids, lambda job: job.promote(), "promoted", as_json)


@group.command()
def remove(queue: QueueName, job_ids: JobIds, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Forget jobs that are not running.

    Example: [cyan]yamchi jobs remove hello 42[/]
    """
    _each_job(app, queue, job_ids, lambda job: job.remove(), "removed", as_json)


@group.command()
def cancel(queue: QueueName, job_ids: JobIds, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Cancel jobs that wait; ask running ones to stop.

    Example: [cyan]yamchi jobs cancel hello 42[/]
    """
    _each_job(app, queue, job_ids, lambda job: job.cancel(), "cancelled", as_json)


@group.command("retry-all")
def retry_all(
    queue: QueueName,
    wanted: Annotated[str, typer.Option("--state", help="Jobs of which finished state.")] = "failed",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put every failed job back.

    Example: [cyan]yamchi jobs retry-all notifications[/]
    """
    only = check_state(wanted, FINISHED)
    retried = with_queue(app, queue, lambda found: _retry_all(found, only))
    answer({"count": retried}, f"{retried:,} {wanted} jobs of {text(queue)} put back.", as_json=as_json)


async def _retry_all(queue: Queue, only: State) -> int:
    with progress(f"Retrying {only} jobs", (await queue.counts())[only]) as advance:
        return await queue.retry_all(only, on_done=advance)


def _each_job(
    reference: str | None,
    queue: str,
    job_ids: Sequence[str],
    act: Callable[[Job[Any]], Awaitable[Any]],
    done: str,
    as_json: bool,
) -> None:
    async def body(found: Queue, job_id: str) -> None:
        await act(await found.job(job_id))

    each(reference, queue, job_ids, body, done, as_json)


def each(
    reference: str | None,
    queue: str,
    ids: Sequence[str],
    act: Callable[[Queue, str], Awaitable[Any]],
    said: str,
    as_json: bool,
) -> None:
    """Do it to each. An error of one does not stop the others."""
    wanted = list(dict.fromkeys(ids))

    async def body(found: Queue) -> dict[str, YamchiError]:
        problems = {}
        for one in wanted:
            try:
                await act(found, one)
            except YamchiError as error:
                problems[one] = error
        return problems

    problems = with_queue(reference, queue, body)
    done = [one for one in wanted if one not in problems]
    if done or as_json:
        told = [{"id": one, "error": str(error)} for one, error in problems.items()]
        answer({"done": done, "problems": told}, f"{len(done):,} of {text(queue)} {said}.", as_json=as_json)
    if problems:
        raise YamchiError("\n".join(map(str, problems.values())))


def _moment(option: str, given: str | None) -> datetime | None:
    try:
        return None if given is None else datetime.fromisoformat(given)
    except ValueError as error:
        raise InvalidJob(
            f"{option} {given!r} is not a moment: write it as 2026-01-31T09:00:00+05:00."
        ) from error


def _print_list(jobs: Sequence[JobRecord], before: Sequence[str]) -> None:
    shown = table(*before, "id", "name", "state", "tries", "added", "data", right=["tries"])
    for job in jobs:
        shown.add_row(
            *(text(getattr(job, field)) for field in before),
            text(job.id),
            text(job.name),
            state(job.state),
            number(job.attempts_made),
            ago(job.created_at),
            text(job.failed_reason or job.payload.decode("utf-8", "replace")),
        )
    print_table(shown)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return "\n".join(text(line, 400) for line in value.splitlines())
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(text(item, 400) for item in value)
    return text(value, 2000)
