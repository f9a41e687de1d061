"""`yamchi payment`: look at payments, ask providers, compare the books."""

from typing import Annotated, get_args

import typer

from yamchi.console.loading import AppOption, JsonOption, check_choice, with_plugin
from yamchi.console.output import print_json, print_table, say, table, text
from yamchi.payments.model import Payment
from yamchi.payments.plugin import Payments
from yamchi.payments.providers.base import Status
from yamchi.payments.service import HOW_TO_SET_UP

group = typer.Typer(
    no_args_is_help=True,
    help="Payments: list, show, check, reconcile.\n\nExample: [cyan]yamchi payment list --status pending[/]",
)

PaymentId = Annotated[str, typer.Argument(metavar="ID", help="The payment's id.")]


@group.command("list")
def list_payments(
    status: Annotated[
        str | None, typer.Option(help="Only those of this status, for example pending.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 50,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest payments.

    Example: [cyan]yamchi payment list --status pending[/]
    """
    check_choice("status", status, get_args(Status))
    _show(
        with_plugin(
            Payments,
            app,
            lambda payments: payments.store.page(status=status, order_id=None, before=None, limit=limit),
        ),
        as_json,
    )


@group.command("show")
def show_payment(payment_id: PaymentId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """One payment.

    Example: [cyan]yamchi payment show 2c5f1a7e-000f-5000-8000-18db351245c7[/]
    """
    _show_one(with_plugin(Payments, app, lambda payments: payments.get(payment_id)), as_json)


@group.command("check")
def check_payment(payment_id: PaymentId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Ask the provider how a payment stands, and keep what it says.

    Example: [cyan]yamchi payment check 2c5f1a7e-000f-5000-8000-18db351245c7[/]
    """

    async def check(payments: Payments) -> Payment:
        return await payments.service.refresh(await payments.get(payment_id))

    _show_one(with_plugin(Payments, app, check), as_json)


@group.command("reconcile")
def reconcile(
    days: Annotated[int, typer.Option(min=1, max=90, help="How many days back.")] = 3,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare our books with the providers', and take in what is missing here.

    Example: [cyan]yamchi payment reconcile --days 7[/]
    """
    reports = with_plugin(Payments, app, lambda payments: payments.reconcile(days))
    if as_json:
        print_json([report.to_dict() for report in reports])
        return
    if not reports:
        say(f"Nothing to compare: no payment provider is set up; {HOW_TO_SET_UP}.")
        return
    shown = table("provider", "compared", "taken in", "corrected", "not known there")
    for report in reports:
        missing = text(", ".join(report.missing) or "none", 60)
        shown.add_row(
            report.provider, str(report.compared), str(report.adopted), str(report.corrected), missing
        )
    print_table(shown)


def _show_one(payment: Payment, as_json: bool) -> None:
    print_json(payment.to_dict()) if as_json else _show([payment], as_json=False)


def _show(found: list[Payment], as_json: bool) -> None:
    if as_json:
        print_json([payment.to_dict() for payment in found])
        return
    shown = table("id", "provider", "status", "amount", "order", "created")
    for payment in found:
        fields = payment.to_dict()
        shown.add_row(
            payment.id,
            payment.provider,
            payment.status,
            str(payment.money),
            text(payment.order_id or "", 40),
            fields["created_at"],
        )
    print_table(shown)
