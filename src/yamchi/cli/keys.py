"""`yamchi keys`: named keys for callers of the API. Make, list, rotate and revoke them."""

from typing import Annotated

import typer

from yamchi.console.auditing import who_types
from yamchi.console.loading import AppOption, JsonOption, load_app, run_async, using
from yamchi.console.output import ago, answer, console, print_json, print_table, table, text
from yamchi.http.apikeys import ApiKey, ApiKeys

group = typer.Typer(
    help="Keys of the API: make, list, rotate and revoke them.\n\n"
    "Example: [cyan]yamchi keys create --name shop --scope send[/]",
    no_args_is_help=True,
)

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="The key's name.")]


@group.command()
def create(
    name: Annotated[str, typer.Option(help="What to call it, such as shop.")],
    scope: Annotated[
        list[str],
        typer.Option(help="What it may do: send, send:QUEUE, people:token, read, admin; may be repeated."),
    ],
    test: Annotated[bool, typer.Option("--test", help="What it sends stays in the mailbox.")] = False,
    expires_in: Annotated[
        str | None, typer.Option(help="How long it is good, such as 90d; for ever by default.")
    ] = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it, this once.

    Example: [cyan]yamchi keys create --name shop --scope send[/]
    """
    loaded = load_app(app)
    keys = ApiKeys(loaded.database, loaded.clock)
    making = keys.create(name, scope, by=who_types(), is_test=test, expires_in=expires_in)
    _show_once(*run_async(using(loaded, making)), as_json=as_json)


@group.command("list")
def list_(app: AppOption = None, as_json: JsonOption = False) -> None:
    """All keys, revoked and expired ones too. Their texts can't be shown again.

    Example: [cyan]yamchi keys list --json[/]
    """
    loaded = load_app(app)
    found = run_async(using(loaded, ApiKeys(loaded.database, loaded.clock).list(limit=10_000)))
    now = loaded.clock.now()
    if as_json:
        print_json([key.to_dict(now) for key in found])
        return
    shown = table("name", "id", "scopes", "state", "made", "by", "expires", "last used")
    for key in found:
        scopes = ", ".join([*key.scopes, *(["test"] if key.is_test else [])])
        shown.add_row(
            text(key.name),
            key.key_id,
            text(scopes),
            key.state(now),
            ago(key.created_at),
            text(key.created_by),
            ago(key.expires_at),
            ago(key.last_used_at),
        )
    print_table(shown)


@group.command()
def rotate(
    name: KeyName,
    grace: Annotated[str, typer.Option(help="How long the old text still works, such as 1h.")] = "0s",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new text for a key and print it, this once. Sessions of the board that were begun with the key end.

    Example: [cyan]yamchi keys rotate shop --grace 1h[/]
    """
    loaded = load_app(app)
    rotating = ApiKeys(loaded.database, loaded.clock).rotate(name, grace=grace)
    _show_once(*run_async(using(loaded, rotating)), as_json=as_json)


@group.command()
def revoke(name: KeyName, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let nobody use a key any more.

    Example: [cyan]yamchi keys revoke shop[/]
    """
    loaded = load_app(app)
    key = run_async(using(loaded, ApiKeys(loaded.database, loaded.clock).revoke(name)))
    said = f"{text(name)} is revoked; every server refuses it within seconds."
    answer(key.to_dict(loaded.clock.now()), said, as_json=as_json)


def _show_once(key: ApiKey, secret: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"key": secret, **key.to_dict(key.created_at)})
        return
    print(secret)
    console.print(f"[dim]Keep it now: it can't be shown again. It may: {text(', '.join(key.scopes))}.[/]")
