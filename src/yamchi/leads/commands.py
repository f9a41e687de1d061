"""`yamchi lead`: look at leads and their logs."""

from typing import Annotated, Any

import typer

from yamchi.console.loading import AppOption, JsonOption, with_plugin
from yamchi.console.output import console, print_json, print_table, table, text
from yamchi.leads.model import Lead
from yamchi.leads.plugin import Leads

group = typer.Typer(no_args_is_help=True, help="Leads: list, show.\n\nExample: [cyan]yamchi lead list[/]")


@group.command("list")
def list_leads(
    status: Annotated[str | None, typer.Option(help="Only those of this status, for example NEW.")] = None,
    search: Annotated[str | None, typer.Option(help="Text in the id, the name or a contact.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 50,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest leads.

    Example: [cyan]yamchi lead list --status CALL_NEEDED[/]
    """
    found = with_plugin(Leads, app, lambda leads: leads.store.page(status=status, search=search, limit=limit))
    if as_json:
        print_json([lead.to_dict() for lead in found])
        return
    shown = table("id", "name", "contact", "status", "lesson", "created")
    for lead in found:
        fields = lead.to_dict()
        contact = lead.phone or lead.email or ""
        lesson = fields["lesson_datetime"] or ""
        shown.add_row(
            lead.id, text(lead.name or "", 40), text(contact, 40), lead.status, lesson, fields["created_at"]
        )
    print_table(shown)


@group.command("show")
def show_lead(
    lead_id: Annotated[str, typer.Argument(metavar="ID", help="The lead's id.")],
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """A lead and its log.

    Example: [cyan]yamchi lead show 6f1d2c9e-4b1a-4f7e-9a53-0d7c1b2a3e4f[/]
    """

    async def look(leads: Leads) -> tuple[Lead, list[dict[str, Any]]]:
        return await leads.get(lead_id), await leads.store.log(lead_id)

    lead, lines = with_plugin(Leads, app, look)
    if as_json:
        print_json({**lead.to_dict(), "log": lines})
        return
    fields = table("field", "value")
    for name, value in lead.to_dict().items():
        if value not in (None, {}):
            fields.add_row(name, text(str(value), 100))
    console.print(fields)
    history = table("at", "what")
    for line in lines:
        history.add_row(line["at"], text(line["text"], 60))
    console.print(history)
