"""`yamchi campaign`: send to many, and watch, pause, resume or cancel it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from pydantic import ValidationError

from yamchi.console.loading import (
    AppOption,
    JsonOption,
    PageOption,
    SizeOption,
    read_json,
    with_plugin,
)
from yamchi.console.output import answer, console, number, print_json, print_table, progress, table, text
from yamchi.errors import ConfigurationError, InvalidJob
from yamchi.notifications.campaigns.model import CampaignIn
from yamchi.notifications.campaigns.store import Campaigns
from yamchi.notifications.plugin import Notifications
from yamchi.queues.handlers import describe

group = typer.Typer(
    help="Send to many, and watch, pause, resume or cancel it.\n\n"
    "Example: [cyan]yamchi campaign show spring --wait[/]",
    no_args_is_help=True,
)

CampaignId = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="The campaign's id.")]
Wait = Annotated[bool, typer.Option("--wait", help="Show the progress until it is finished.")]
POLL_SECONDS = 0.5
"""Seconds between two looks at a campaign that is watched."""

OVER = ("finished", "cancelled")
COUNTED = ("sent", "failed", "suppressed", "expired", "cancelled", "unknown")


@group.command()
def create(
    campaign_id: CampaignId,
    template: Annotated[str, typer.Option(help="The template's code.")],
    channel: Annotated[str, typer.Option(help="The channel; null sends nothing and counts.")] = "email",
    where: Annotated[str | None, typer.Option(help="Whom, as a filter in JSON; '{}' is everybody.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Whom, as a table with a column user_id or email.")] = None,
    user: Annotated[list[str] | None, typer.Option(help="Whom, by id; may be given several times.")] = None,
    data: Annotated[str, typer.Option(help="The template's data, as JSON.")] = "{}",
    send_after: Annotated[str | None, typer.Option(help="Begin at this moment, in ISO form.")] = None,
    expires_at: Annotated[str | None, typer.Option(help="Send nothing after this moment.")] = None,
    rate: Annotated[str | None, typer.Option(help="At most so many, such as 100/s or 5000/h.")] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="A variant as JSON: {name, percent, template_code?, data?}.")
    ] = None,
    wait: Wait = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send to many; the same campaign again changes nothing.

    Example: [cyan]yamchi campaign create spring --template welcome_email --where '{"attributes.plan": "pro"}' --rate 100/s[/]
    """
    audience = {
        "where": None if where is None else read_json(where),
        "user_ids": user or None,
        "upload": True if csv else None,
    }
    request = _read(
        campaign_id=campaign_id,
        template_code=template,
        channel=channel,
        audience=audience,
        data=read_json(data),
        send_after=send_after,
        expires_at=expires_at,
        rate=rate,
        variants=[read_json(one) for one in variant or ()],
    )
    lines = None if csv is None else _open(csv)
    _tell(_with(app, lambda campaigns: _create(campaigns, request, lines), wait=wait), as_json)


@group.command("list")
def list_(
    page: PageOption = 1, size: SizeOption = 25, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """Campaigns, newest first.

    Example: [cyan]yamchi campaign list[/]
    """
    found = _with(app, lambda campaigns: campaigns.list(offset=(page - 1) * size, limit=size))
    if as_json:
        print_json(found)
        return
    columns = ("people", "waiting", "sent", "failed", "suppressed")
    shown = table("campaign", "state", "channel", *columns, "template", right=columns)
    for one in found:
        told = one["progress"]
        counts = [number(told["total"] or 0), *(number(told[name]) for name in columns[1:])]
        shown.add_row(
            text(one["campaign_id"]), one["state"], one["channel"], *counts, text(one["template_code"])
        )
    print_table(shown)


@group.command()
def show(
    campaign_id: CampaignId, wait: Wait = False, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """How far a campaign is; with --wait, until it is finished.

    Example: [cyan]yamchi campaign show spring --wait[/]
    """
    _tell(_with(app, lambda campaigns: campaigns.show(campaign_id), wait=wait), as_json)


@group.command()
def pause(campaign_id: CampaignId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Send nothing more for now.

    Example: [cyan]yamchi campaign pause spring[/]
    """
    _steer(app, campaign_id, lambda campaigns: campaigns.pause(campaign_id), as_json)


@group.command()
def resume(campaign_id: CampaignId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Go on with a paused campaign.

    Example: [cyan]yamchi campaign resume spring[/]
    """
    _steer(app, campaign_id, lambda campaigns: campaigns.resume(campaign_id), as_json)


@group.command()
def cancel(campaign_id: CampaignId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Send nothing more, ever.

    Example: [cyan]yamchi campaign cancel spring[/]
    """
    _steer(app, campaign_id, lambda campaigns: campaigns.cancel(campaign_id), as_json)


# ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(**fields: Any) -> CampaignIn:
    try:
        return CampaignIn.model_validate(fields)
    except ValidationError as error:
        raise InvalidJob(f"The campaign can't be made: {describe(error)}.") from error


def _open(csv: Path) -> TextIO:
    try:
        return csv.open(encoding="utf-8", errors="surrogateescape", newline="")
    except OSError as error:
        raise ConfigurationError(f"--csv {csv} can't be read: {(error.strerror or '').lower()}.") from error


async def _create(campaigns: Campaigns, request: CampaignIn, lines: TextIO | None) -> dict[str, Any]:
    shown = await campaigns.create(request)
    if lines is not None and shown["state"] == "draft":
        with lines:
            return await campaigns.upload(request.campaign_id, lines)
    return shown


def _with(app: str | None, act: Callable[[Campaigns], Awaitable[Any]], *, wait: bool = False) -> Any:
    async def body(notifications: Notifications) -> Any:
        done = await act(notifications.campaigns)
        return await _watch(notifications.campaigns, done["campaign_id"]) if wait else done

    return with_plugin(Notifications, app, body)


def _steer(
    app: str | None, campaign_id: str, act: Callable[[Campaigns], Awaitable[Any]], as_json: bool
) -> None:
    shown = _with(app, act)
    answer(shown, f"campaign {text(campaign_id)} is {shown['state']}", as_json=as_json)


def _tell(shown: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(shown)
    else:
        _print(shown)


async def _watch(campaigns: Campaigns, campaign_id: str) -> dict[str, Any]:
    """A bar that moves as people are reached."""
    shown = await campaigns.show(campaign_id)
    done = 0
    with progress(f"campaign {campaign_id}", shown["progress"]["total"]) as advance:
        while True:
            now = sum(shown["progress"][name] for name in COUNTED)
            advance(now - done)
            done = now
            if shown["state"] in OVER:
                return shown
            await asyncio.sleep(POLL_SECONDS)
            shown = await campaigns.show(campaign_id)


def _print(shown: dict[str, Any]) -> None:
    counts = ("total", "fanned_out", "waiting", *COUNTED)
    rows = table("", *counts, right=counts)
    rows.add_row(
        f"[bold]{text(shown['campaign_id'])}[/] {shown['state']}", *_counts(shown["progress"], counts)
    )
    for name, told in shown["by_variant"].items():
        rows.add_row(f"  {text(name)}", *_counts(told, counts))
    console.print(rows)
    if shown["failure"]:
        console.print(f"[red]failed[/], one of them: {text(shown['failure'], 300)}")
    for broken in (shown["list"] or {}).get("broken", ()):
        console.print(f"[yellow]row {broken['row']}[/]: {text(broken['error'], 200)}")


def _counts(told: dict[str, int | None], names: tuple[str, ...]) -> list[str]:
    return [number(told.get(name) or 0) for name in names]
