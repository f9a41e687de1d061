"""`yamchi dlq`: dead letters. List, show, mend, replay and purge them."""

from typing import Annotated

import click
import orjson
import typer

from yamchi.cli.jobs import JobIds, Search, each
from yamchi.cli.loading import page_of, with_queue
from yamchi.cli.queues import AnyQueue, QueueName
from yamchi.console.loading import AppOption, JsonOption, PageOption, SizeOption, read_json
from yamchi.console.output import (
    ago,
    answer,
    paging,
    print_fields,
    print_json,
    print_table,
    progress,
    table,
    text,
)
from yamchi.errors import ConfigurationError, YamchiError
from yamchi.queues import foreign
from yamchi.queues.deadletters import is_job, to_dict
from yamchi.queues.queue import Queue
from yamchi.queues.records import DeadLetter

group = typer.Typer(
    help="Dead letters: list, show, mend, replay and purge them.\n\n"
    "Example: [cyan]yamchi dlq list notifications[/]",
    no_args_is_help=True,
)

LetterId = Annotated[str, typer.Argument(metavar="ID", help="The dead letter's id: that of its job.")]


@group.command("list")
def list_(
    queue: AnyQueue = None,
    search: Search = "",
    page: PageOption = 1,
    size: SizeOption = 25,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Dead letters of a queue, or of all, newest first.

    Example: [cyan]yamchi dlq list notifications --search "no email"[/]
    """

    async def read(found: Queue, offset: int, limit: int) -> tuple[list[DeadLetter], int]:
        rows = await found.dead_letters.list(search=search, offset=offset, limit=limit)
        return rows.letters, rows.total

    letters, total = page_of(app, queue, read, lambda letter: letter.failed_at, page, size)
    if as_json:
        print_json({"letters": [to_dict(letter) for letter in letters], "total": total, "page": page})
        return
    before = ["queue"] if queue is None else []
    shown = table(*before, "id", "job", "failed", "error")
    for letter in letters:
        shown.add_row(
            *(text(getattr(letter, field)) for field in before),
            text(letter.id),
            text(letter.name or "–"),
            ago(letter.failed_at),
            text(letter.error, 120),
        )
    print_table(shown)
    paging(letters, total, page, size)


@group.command()
def show(queue: QueueName, letter_id: LetterId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """One dead letter, whole.

    Example: [cyan]yamchi dlq show notifications 42[/]
    """
    letter = with_queue(app, queue, lambda q: q.dead_letters.get(letter_id))
    show_one = print_json if as_json else print_fields
    show_one(to_dict(letter))


@group.command()
def edit(
    queue: QueueName,
    letter_id: LetterId,
    data: Annotated[
        str | None, typer.Argument(metavar="JSON", help="The new data; your editor opens without it.")
    ] = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mend the data of a dead letter and replay it.

    Example: [cyan]yamchi dlq edit notifications 42 '{"to": "a@b.kz"}'[/]
    """

    async def body(found: Queue) -> None:
        letter = await found.dead_letters.get(letter_id)
        await found.dead_letters.replay(letter_id, read_json(_edited(letter) if data is None else data))

    with_queue(app, queue, body)
    said = f"{text(letter_id)} of {text(queue)} replayed with new data."
    answer({"done": [letter_id], "problems": []}, said, as_json=as_json)


@group.command()
def replay(queue: QueueName, letter_ids: JobIds, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Put jobs back in their queue, as they were.

    Example: [cyan]yamchi dlq replay notifications 42 43[/]
    """
    each(app, queue, letter_ids, lambda found, one: found.dead_letters.replay(one), "replayed", as_json)


@group.command("replay-all")
def replay_all(
    queue: QueueName, search: Search = "", app: AppOption = None, as_json: JsonOption = False
) -> None:
    """Replay every dead letter that matches and holds a job.

    Example: [cyan]yamchi dlq replay-all notifications --search "timed out"[/]
    """

    done = with_queue(app, queue, lambda found: _replay_all(found, search))
    answer({"count": done}, f"{done:,} of {text(queue)} replayed.", as_json=as_json)


@group.command()
def purge(
    queue: QueueName,
    letter_ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID…", help="Ids of dead letters.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the queue.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop dead letters for good.

    Example: [cyan]yamchi dlq purge notifications --all[/]
    """
    if bool(letter_ids) == everything:
        raise ConfigurationError("Name the dead letters to purge, or say --all.")
    gone = with_queue(app, queue, lambda q: q.dead_letters.purge(letter_ids or None))
    answer({"count": gone}, f"{gone:,} dead letters of {text(queue)} purged.", as_json=as_json)
    missing = len(set(letter_ids)) - gone if letter_ids else 0
    if missing:
        raise YamchiError(
            f"{missing:,} of those named are no dead letters of {queue}: yamchi dlq list {queue} shows what there is."
        )


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
    total = (await queue.dead_letters.list(search=search, limit=1)).total
    with progress("Replaying dead letters", total) as advance:
        return await queue.dead_letters.replay_all(search=search, on_done=advance)
