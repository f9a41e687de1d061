"""The feature of payments: what an application gets as `app.payments`."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from yamchi.errors import Outage
from yamchi.http.buckets import Buckets
from yamchi.notifications.plugin import Notifications
from yamchi.payments.model import Payment, Refund
from yamchi.payments.money import Money
from yamchi.payments.providers.base import Provider
from yamchi.payments.providers.stripe import Stripe
from yamchi.payments.providers.yookassa import YooKassa
from yamchi.payments.publishing import EventPublisher
from yamchi.payments.reconciliation import Reconciliation, ReconciliationReport
from yamchi.payments.service import CHECK, PaymentService
from yamchi.payments.settings import PaymentSettings
from yamchi.payments.store import PaymentStore
from yamchi.payments.tasks import PaymentChecks
from yamchi.plugins import Application, BoardPage, Check, Plugin, ask
from yamchi.queues.handlers import Handler
from yamchi.settingtypes import Quota, reveal

if TYPE_CHECKING:
    from yamchi.queues.queue import Queue

QUEUE = "payment_queue"
DAY = 86_400_000
OUTAGE_WAIT = timedelta(minutes=15)
"""How long the nightly comparison waits for a provider that is down."""

UNKNOWN_WEBHOOKS = Quota(600, 60_000)
"""Unsigned webhooks about payments that are not known here, a provider: each is kept, and asked about."""

KNOWN_WEBHOOKS = Quota(20, 60_000)
"""Unsigned webhooks about a payment that is known here: a provider sends a few, and repeats what was not taken."""


class Payments(Plugin):
    """Money asked of a provider, and everything that is learned about it, told once."""

    name = "payments"
    summary = (
        "Payments through YooKassa and Stripe: create, capture, refund; webhooks looked up, books compared."
    )
    requires = ("notifications",)
    settings_class = PaymentSettings
    migrations = Path(__file__).parent / "migrations"
    demo = "yamchi.payments.demo:play"
    routes = "yamchi.payments.routes:ROUTES"
    commands: ClassVar = {"payment": "yamchi.payments.commands:group"}
    extras: ClassVar = {"payments": "httpx2"}

    def __init__(self, app: Application) -> None:
        super().__init__(app)
        self.declare()
        self.settings: PaymentSettings
        self.queue: Queue = app.queue(QUEUE)
        self.providers: dict[str, Provider] = {one.name: one for one in _providers(self.settings)}
        self.store = PaymentStore(app.database, app.clock)
        notifications = app.plugin(Notifications)
        events = EventPublisher(self.store, notifications.service.handle_events, app.signer)
        self.service = PaymentService(self.store, self.providers, self.queue, events, app.clock)
        self.payment_checks = PaymentChecks(self.service, app.clock)
        self.reconciliation = Reconciliation(self.service, app.clock)
        self.unknown_webhooks = Buckets(UNKNOWN_WEBHOOKS, app.clock)
        self.known_webhooks = Buckets(KNOWN_WEBHOOKS, app.clock)

    # ── For your code ─────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, amount: str | int, currency: str = "RUB", **fields: Any) -> Payment:
        """Ask for money: `await app.payments.create("100.00", "RUB", order_id="42", return_url="https://…")`.

        `payment_id` makes a second call the same payment.
        """
        asked = await self.service.create(Money.parse(amount, currency), **fields)
        return asked.payment

    async def get(self, payment_id: str) -> Payment:
        return await self.store.get(payment_id)

    async def capture(self, payment_id: str, amount: str | int | None = None) -> Payment:
        return await self.service.capture(payment_id, await self._money(payment_id, amount))

    async def cancel(self, payment_id: str) -> Payment:
        return await self.service.cancel(payment_id)

    async def refund(
        self, payment_id: str, amount: str | int | None = None, *, refund_id: str | None = None
    ) -> Refund:
        """Give money back: a part, or all that is left. `refund_id` makes a second call the same refund."""
        money = await self._money(payment_id, amount)
        return await self.service.refund(payment_id, money, refund_id=refund_id)

    async def reconcile(self, days: int | None = None) -> list[ReconciliationReport]:
        """Compare our books with the providers'."""
        return await self.reconciliation.run((days or self.settings.payments_reconcile_days) * DAY)

    def register(self, provider: Provider) -> None:
        """Add a provider of your own, or put another in the place of one."""
        self.providers[provider.name] = provider

    async def _money(self, payment_id: str, amount: str | int | None) -> Money | None:
        if amount is None:
            return None
        return Money.parse(amount, (await self.store.get(payment_id)).money.currency)

    # ── For the rest of Yamchi ────────────────────────────────────────────────────────────────────────────────────

    def declare(self) -> None:
        self.app.define(QUEUE, concurrency=5, attempts=10, backoff={"type": "exponential", "delay": 5})

    def serve(self) -> None:
        self.queue.definition.handlers.setdefault(CHECK, Handler(CHECK, self.payment_checks.check))
        self.app.service("payments", self.payment_checks.watch)
        self.app.cron("15 3 * * *", name="payments-reconcile")(self._reconcile_nightly)

    async def _reconcile_nightly(self) -> list[dict[str, Any]]:
        try:
            return [report.to_dict() for report in await self.reconcile()]
        except Outage as error:
            raise Outage(str(error), retry_after=error.retry_after or OUTAGE_WAIT) from error

    def static(self) -> dict[str, Path]:
        return {"/payments-board": Path(__file__).parent / "static" / "board"}

    def pages(self) -> Iterable[BoardPage]:
        yield BoardPage("Payments", "/payments", "/payments-board/payments.js")

    async def checks(self) -> Iterable[Check]:
        if not self.providers:
            found = "none set up; to take payments set YOOKASSA_SHOP_ID and YOOKASSA_SECRET_KEY, or STRIPE_SECRET_KEY"
            return [Check("payments", None, found)]
        return [Check("payments", True, f"through {', '.join(self.providers)}")]

    async def probes(self) -> Iterable[Check]:
        providers = self.providers.values()
        return [check for one in providers for check in await ask(f"provider {one.name}", one.ping)]

    async def erase(self, user_id: str) -> Mapping[str, int]:
        """Books are kept as the law asks; they no longer say whose they are."""

        return {"payments": await self.store.forget_user(user_id)}

    async def close(self) -> None:
        for provider in self.providers.values():
            await provider.close()


def _providers(settings: PaymentSettings) -> Iterable[Provider]:
    if settings.yookassa_shop_id and (key := reveal(settings.yookassa_secret_key)):
        yield YooKassa(settings.yookassa_shop_id, key, settings.yookassa_url)
    if key := reveal(settings.stripe_secret_key):
        yield Stripe(key, reveal(settings.stripe_webhook_secret), settings.stripe_url)
