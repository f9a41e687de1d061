"""`yamchi report`: what can be made, make one, look."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from yamchi.clock import as_datetime
from yamchi.console.loading import (
    AppOption,
    JsonOption,
    check_choice,
    load_app,
    read_object,
    run_async,
    using,
    with_plugin,
)
from yamchi.console.output import answer, print_json, print_table, table, text
from yamchi.errors import ConfigurationError
from yamchi.reports.kinds import Format
from yamchi.reports.plugin import Reports
from yamchi.reports.rendering import write

group = typer.Typer(
    no_args_is_help=True,
    help="Reports: kinds, make, request, list.\n\nExample: [cyan]yamchi report make deliveries --out sent.pdf[/]",
)

Kind = Annotated[str, typer.Argument(metavar="KIND", help="The kind, for example deliveries.")]
Params = Annotated[str, typer.Option(help="Params as JSON.")]
FormatOption = Annotated[str, typer.Option("--format", help="pdf, xlsx or csv.")]


@group.command("kinds")
def list_kinds(app: AppOption = None, as_json: JsonOption = False) -> None:
    """What can be made.

    Example: [cyan]yamchi report kinds[/]
    """
    found = load_app(app).plugin(Reports).kinds.all()
    if as_json:
        print_json([{"name": one.name, "params": one.params.model_json_schema()} for one in found])
        return
    shown = table("kind", "what it is", "params")
    for one in found:
        shown.add_row(one.name, text(one.summary, 80), ", ".join(one.params.model_fields) or "none")
    print_table(shown)


@group.command("make")
def make(
    kind: Kind,
    out: Annotated[Path, typer.Option(help="The file to write.")],
    params: Params = "{}",
    form: FormatOption = "pdf",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a report now, into a file; nothing is stored and nobody is told.

    Example: [cyan]yamchi report make deliveries --out sent.pdf --params '{"locale": "en"}'[/]
    """
    loaded = load_app(app)
    reports = loaded.plugin(Reports)

    async def body() -> None:
        content = await reports.preview(kind, _params(params))
        with Console(stderr=True).status(f"Making {content.title}"):
            made_at = as_datetime(loaded.clock.now())
            try:
                await write(out, content, _format(form), reports.kinds.get(kind).template, made_at, _silent)
            except OSError as error:
                raise ConfigurationError(f"{out} can't be written: {error}.") from error

    run_async(using(loaded, body()))
    made = {"file": str(out), "kind": kind, "format": form, "size": out.stat().st_size}
    answer(made, text(str(out), 200), as_json=as_json)


@group.command("request")
def request(
    kind: Kind,
    params: Params = "{}",
    form: FormatOption = "pdf",
    email: Annotated[list[str] | None, typer.Option(help="Who is told; may be given several times.")] = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a worker make a report and tell people.

    Example: [cyan]yamchi report request deliveries --email boss@example.com[/]
    """
    given, wanted, told = _params(params), _format(form), [{"email": one} for one in email or []]
    report = with_plugin(
        Reports, app, lambda reports: reports.request(kind, given, format=wanted, notify=told)
    )
    answer(report.to_dict(), f"Queued as job {report.job_id}; report {report.id}", as_json=as_json)


@group.command("list")
def list_reports(
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 20,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest reports.

    Example: [cyan]yamchi report list[/]
    """
    found = with_plugin(Reports, app, lambda reports: reports.store.page(None, None, limit))
    if as_json:
        print_json([one.to_dict() for one in found])
        return
    shown = table("id", "kind", "format", "status", "size", "created", "error")
    for one in found:
        fields = one.to_dict()
        shown.add_row(
            one.id,
            one.kind,
            one.format,
            one.status,
            str(one.size or ""),
            fields["created_at"],
            text(one.error or ""),
        )
    print_table(shown)


async def _silent(_: float) -> None:
    """The status line is progress enough."""


def _params(given: str) -> dict[str, Any]:
    return read_object(given, "--params", '{"locale": "en"}')


def _format(given: str) -> Format:
    chosen: Format = check_choice("format", given, get_args(Format))
    return chosen
