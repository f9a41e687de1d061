"""`yamchi template`: list, preview and check templates."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from yamchi.console.loading import AppOption, JsonOption, read_json, with_plugin
from yamchi.console.output import console, print_json, print_table, say, table, text
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.templates.lint import Finding, lint
from yamchi.notifications.templates.preview import preview

group = typer.Typer(
    help="List, preview and check templates.\n\nExample: [cyan]yamchi template preview welcome_email[/]",
    no_args_is_help=True,
)


@group.command("list")
def list_(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Every template, of the table and of the files.

    Example: [cyan]yamchi template list[/]
    """
    found = with_plugin(Notifications, app, lambda its: its.templates.list())
    if as_json:
        print_json([{"code": one.code, "channel": one.channel, "locale": one.locale} for one in found])
        return
    shown = table("code", "channel", "locale", "version", "subject")
    for one in found:
        shown.add_row(
            text(one.code),
            one.channel,
            one.locale,
            text(one.version, 8),
            text(one.subject or one.title or ""),
        )
    print_table(shown)


@group.command("preview")
def preview_(
    code: Annotated[str, typer.Argument(metavar="CODE", help="The template's code.")],
    channel: Annotated[str, typer.Option(help="The channel.")] = "email",
    locale: Annotated[str, typer.Option(help="The language.")] = "ru",
    data: Annotated[
        str | None, typer.Option(help="Data as JSON; the template's own sample by default.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the HTML to this file.")] = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Render a template without sending it.

    Example: [cyan]yamchi template preview welcome_email --locale kk --html /tmp/welcome.html[/]
    """
    given = None if data is None else read_json(data)
    rendered = with_plugin(
        Notifications, app, lambda its: preview(its.templates, code, channel, locale, given)
    )
    if html:
        html.write_text(rendered.html or rendered.text, encoding="utf-8")
    if as_json:
        print_json(asdict(rendered))
        return
    for name in ("subject", "title", "url"):
        if value := getattr(rendered, name):
            console.print(f"[bold]{name.title()}[/]  {text(value, 200)}")
    console.print(rendered.text, markup=False)


@group.command("lint")
def lint_(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Look for missing languages, variables and subjects, and for templates that can't be read.

    Example: [cyan]yamchi template lint[/]
    """
    findings = with_plugin(Notifications, app, _lint)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    elif findings:
        shown = table("", "template", "line", "what to mend")
        for one in findings:
            color = "red" if one.level == "error" else "yellow"
            shown.add_row(
                f"[{color}]{one.level}[/]", text(one.template), str(one.line or ""), text(one.message, 200)
            )
        print_table(shown)
    else:
        say("every template can be sent")
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


async def _lint(notifications: Notifications) -> list[Finding]:
    return await lint(notifications.templates, [notifications.app.settings.home / "templates"])
