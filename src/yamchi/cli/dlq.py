"""`yamchi dlq`: dead letters. List, show, mend, replay and purge them."""

import asyncio
from typing import Annotated, Any

import click
import orjson
import typer

from yamchi.cli.jobs import JobIds, Search
from yamchi.cli.loading import with_queue
from yamchi.cli.queues import QueueName
from yamchi.clock import isoformat
from yamchi.console.loading import AppOption, JsonOption, PageOption, SizeOption, read_json
from yamchi.console.output import ago, console, paging, print_json, progress, say, table, text
from yamchi.errors import ConfigurationError
from yamchi.queues import foreign
from yamchi.queues.deadletters import is_job
from yamchi.queues.queue import Queue
from yamchi.queues.records import DeadLetter

group = typer.Typer(help="Dead letters: list, show, mend, replay and purge them.", no_args_is_help=True)

LetterId = Annotated[str, typer.Argument(metavar="ID", help="The letter's id: that of its job.")]


@group.command("list")
def list_(
    queue: QueueName,
    search: Search = "",
    page: PageOption = 1,
    size: SizeOption = 25,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Dead letters of a queue, newest first.

    Example: [cyan]yamchi dlq list notifications --search "no email"[/]
    """
    found = with_queue(
        app, queue, lambda q: q.dead_letters.list(search=search, offset=(page - 1) * size, limit=size)
    )
    if as_json:
        rows = [_described(letter) for letter in found.letters]
        print_json({"letters": rows, "total": found.total, "page": page})
        return
    shown = table("id", "job", "failed", "error")
    for letter in found.letters:
        shown.add_row(
            text(letter.id), text(letter.name or "–"), ago(letter.failed_at), text(letter.error, 120)
        )
    console.print(shown)
    paging(found.letters, found.total, page)


@group.command()
def show(queue: QueueName, letter_id: LetterId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """One dead letter, whole.

    Example: [cyan]yamchi dlq show notifications 42[/]
    """
    letter = with_queue(app, queue, lambda q: q.dead_letters.get(letter_id))
    if as_json:
        print_json(_described(letter))
        return
    shown = table("", "")
    for field, value in _described(letter).items():
        shown.add_row(f"[bold]{field}[/]", text(value, 4000))
    console.print(shown)


@group.command()
def edit(
    queue: QueueName,
    letter_id: LetterId,
    data: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="The new data; your editor opens without it.")
    ] = None,
    app: AppOption = None,
) -> None:
    """Mend the data of a letter and replay it.

    Example: [cyan]yamchi dlq edit notifications 42 '{"to": "a@b.kz"}'[/]
    """

    async def body(found: Queue) -> None:
        letter = await found.dead_letters.get(letter_id)
        await found.dead_letters.replay(letter_id, read_json(_edited(letter) if data is None else data))

    with_queue(app, queue, body)
    say(f"{text(letter_id)} of {text(queue)} replayed with new data.")


@group.command()
def replay(queue: QueueName, letter_ids: JobIds, app: AppOption = None) -> None:
    """Put jobs back in their queue, as they were.

    Example: [cyan]yamchi dlq replay notifications 42 43[/]
    """

    async def body(found: Queue) -> None:
        for letter_id in letter_ids:
            await found.dead_letters.replay(letter_id)

    with_queue(app, queue, body)
    say(f"{len(letter_ids):,} of {text(queue)} replayed.")


@group.command("replay-all")
def replay_all(queue: QueueName, search: Search = "", app: AppOption = None) -> None:
    """Replay every letter that matches and holds a job.

    Example: [cyan]yamchi dlq replay-all notifications --search "timed out"[/]
    """

    done = with_queue(app, queue, lambda found: _replay_all(found, search))
    say(f"{done:,} of {text(queue)} replayed.")


@group.command()
def purge(
    queue: QueueName,
    letter_ids: Annotated[list[str] | None, typer.Argument(metavar="[ID…]", help="Ids of letters.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All letters of the queue.")] = False,
    app: AppOption = None,
) -> None:
    """Drop dead letters for good.

    Example: [cyan]yamchi dlq purge notifications --all[/]
    """
    if bool(letter_ids) == everything:
        raise ConfigurationError("Name the letters to purge, or say --all.")
    gone = with_queue(app, queue, lambda q: q.dead_letters.purge(letter_ids or None))
    say(f"{gone:,} dead letters of {text(queue)} purged.")


def _edited(letter: DeadLetter) -> str:
    """What comes back from the person's editor."""
    body = foreign.shown(letter.body)
    if is_job(letter):
        before = orjson.dumps(body["job"], option=orjson.OPT_INDENT_2).decode()
    else:
        before = str(body.get("raw_value", body) if isinstance(body, dict) else body)
    after = click.edit(before, extension=".json")
    if after is None:
        raise ConfigurationError(f"Nothing was changed, so dead letter {letter.id} stays where it is.")
    return after


async def _replay_all(queue: Queue, search: str) -> int:
    left = (await queue.dead_letters.list(search=search, limit=1)).total
    with progress("Replaying dead letters", left) as advance:
        task = asyncio.create_task(queue.dead_letters.replay_all(search=search))
        while not task.done():
            await asyncio.wait([task], timeout=0.2)
            now = (await queue.dead_letters.list(search=search, limit=1)).total
            advance(max(left - now, 0))
            left = now
    return await task


def _described(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "queue": letter.queue,
        "name": letter.name,
        "error": letter.error,
        "failed_at": isoformat(letter.failed_at),
        "body": foreign.shown(letter.body),
    }
