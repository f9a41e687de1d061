"""`yamchi audit`: who changed what, newest first."""

from typing import Annotated, Any

import typer

from yamchi.clock import isoformat, to_millis
from yamchi.console.loading import AppOption, JsonOption, load_app, run_async, using
from yamchi.console.output import ago, print_json, print_table, table, text
from yamchi.http.audit import AuditLog


def run(
    who: Annotated[str | None, typer.Option(help='Only changes of this caller, such as "key shop".')] = None,
    action: Annotated[str | None, typer.Option(help="Only actions that contain this.")] = None,
    target: Annotated[str | None, typer.Option(help="Only targets that contain this.")] = None,
    since: Annotated[str | None, typer.Option(help="Only the last while, such as 7d.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 50,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Who changed what, when, from where, newest first.

    Example: [cyan]yamchi audit --who "key shop" --since 7d[/]
    """
    loaded = load_app(app)
    audit = AuditLog(loaded.database, loaded.clock, loaded.settings.audit_keep)
    after = None if since is None else loaded.clock.now() - to_millis(since)
    rows = run_async(
        using(loaded, audit.page(who=who, action=action, target=target, since=after, limit=limit))
    )
    if as_json:
        print_json([_described(row) for row in rows])
        return
    shown = table("when", "who", "from", "action", "target", "outcome", "after")
    for row in rows:
        shown.add_row(
            ago(row["moment"]),
            text(row["who"]),
            text(row["address"] or "–"),
            text(row["action"]),
            text(row["target"] or "–", 60),
            text(row["outcome"] or "not known"),
            text(row["after"] or "–", 60),
        )
    print_table(shown)


def _described(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "moment": isoformat(row["moment"])}
