"""`yamchi delivery`: what became of messages, and what a person decides about them."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, get_args

import typer

from yamchi.console.loading import (
    AppOption,
    JsonOption,
    PageOption,
    SizeOption,
    check_choice,
    with_plugin,
)
from yamchi.console.output import answer, number, print_fields, print_json, print_table, table, text
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.sending.statuses import Status

group = typer.Typer(
    help="See what became of messages; cancel one, or decide about one whose answer was lost.\n\n"
    "Example: [cyan]yamchi delivery list --status UNKNOWN[/]",
    no_args_is_help=True,
)

JobId = Annotated[str, typer.Argument(metavar="ID", help="The delivery's id.")]
STATUSES = get_args(Status)


@group.command("list")
def list_(
    status: Annotated[str | None, typer.Option(help=f"One of {', '.join(STATUSES)}.")] = None,
    user: Annotated[str | None, typer.Option(help="Only to this person, by id.")] = None,
    campaign: Annotated[str | None, typer.Option(help="Only of this campaign.")] = None,
    page: PageOption = 1,
    size: SizeOption = 25,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliveries, newest first.

    Example: [cyan]yamchi delivery list --status UNKNOWN[/]
    """
    check_choice("status", status, STATUSES)
    which = {"status": status, "user_id": user, "campaign_id": campaign}
    found = with_plugin(
        Notifications, app, lambda its: its.deliveries.find(offset=(page - 1) * size, limit=size, **which)
    )
    if as_json:
        print_json(found)
        return
    shown = table("id", "status", "channel", "message", "tries", "because", right=["tries"])
    for one in found:
        tries, why = number(one["attempts"]), text(one["last_error"] or "", 200)
        shown.add_row(one["job_id"], one["status"], one["channel"], text(one["template_code"]), tries, why)
    print_table(shown)


@group.command()
def show(job_id: JobId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Everything about one delivery, with its attempts.

    Example: [cyan]yamchi delivery show 0a8cf1d8-6a5c-4f0e-9f0b-2f8d2d9f6c11[/]
    """
    found = with_plugin(Notifications, app, lambda its: its.deliveries.get(job_id))
    print_json(found) if as_json else print_fields(found)


@group.command()
def cancel(job_id: JobId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Cancel it before it is sent.

    Example: [cyan]yamchi delivery cancel 0a8cf1d8-6a5c-4f0e-9f0b-2f8d2d9f6c11[/]
    """
    _decide(app, job_id, lambda its: its.service.cancel(job_id), "is CANCELLED", as_json)


@group.command()
def confirm(job_id: JobId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Its answer was lost, and it did arrive.

    Example: [cyan]yamchi delivery confirm 0a8cf1d8-6a5c-4f0e-9f0b-2f8d2d9f6c11[/]
    """
    _decide(app, job_id, lambda its: its.unknown_deliveries.mark_sent(job_id), "is SENT", as_json)


@group.command()
def resend(job_id: JobId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Its answer was lost, and it did not arrive: send it again.

    Example: [cyan]yamchi delivery resend 0a8cf1d8-6a5c-4f0e-9f0b-2f8d2d9f6c11[/]
    """
    _decide(app, job_id, lambda its: its.unknown_deliveries.send_again(job_id), "is queued again", as_json)


def _decide(
    app: str | None, job_id: str, act: Callable[[Notifications], Awaitable[None]], done: str, as_json: bool
) -> None:
    async def decide(its: Notifications) -> dict[str, Any]:
        await act(its)
        return await its.deliveries.get(job_id)

    answer(with_plugin(Notifications, app, decide), f"{text(job_id)} {done}", as_json=as_json)
