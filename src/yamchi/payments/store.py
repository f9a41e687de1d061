"""The tables of payments: what was asked for, what was given back, and everything that was learned."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, or_, select, update

from yamchi.clock import Clock, Millis, isoformat, isoformat_or_none
from yamchi.errors import WrongState
from yamchi.http.cursors import Place, is_older
from yamchi.payments.applying import (
    EMPTY,
    FIRST_CHECK,
    UnknownPayment,
    adopted,
    apply,
    id_of,
    is_known_as,
    locked,
)
from yamchi.payments.model import Payment, PaymentEvent, Refund
from yamchi.payments.money import Money
from yamchi.payments.providers.base import ProviderPayment, ProviderRefund
from yamchi.payments.refunds import (
    UNPAID_REFUNDS,
    refund_of,
    refund_row,
    reserved_for_refunds,
    same_refund,
)
from yamchi.payments.tables import payment_events, payment_refunds, payments
from yamchi.storage.database import Database
from yamchi.storage.upsert import insert_new

MOST_EVENTS = 200
PUBLISHED_AT_ONCE = 100


class PaymentStore:
    """Payments, their refunds, and what was learned about them."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, payment_id: str) -> Payment:
        found = await self._first(select(payments).where(payments.c.id == payment_id))
        if found is None:
            raise UnknownPayment(f"There is no payment {payment_id!r}.")
        return found

    async def find(self, provider: str, provider_id: str) -> Payment | None:
        """By the id that the provider gave it."""
        return await self._first(select(payments).where(is_known_as(provider, provider_id)))

    async def find_unconfirmed(self, provider: str, payment_id: str) -> Payment | None:
        """A payment of ours that is not known to have reached its provider."""
        is_open = and_(payments.c.provider == provider, payments.c.provider_id.is_(None))
        return await self._first(select(payments).where(payments.c.id == payment_id, is_open))

    async def page(
        self, *, status: str | None, order_id: str | None, before: Place | None, limit: int
    ) -> list[Payment]:
        """The newest first, after this place in the list."""
        query = select(payments).order_by(payments.c.created_at.desc(), payments.c.id.desc()).limit(limit)
        if status:
            query = query.where(payments.c.status == status)
        if order_id:
            query = query.where(payments.c.order_id == order_id)
        if before is not None:
            query = query.where(is_older(payments.c.created_at, payments.c.id, before))
        return [Payment.of(row) for row in await self._database.rows(query)]

    async def refunds(self, payment: Payment) -> list[Refund]:
        query = select(payment_refunds).where(payment_refunds.c.payment_id == payment.id)
        rows = await self._database.rows(query.order_by(payment_refunds.c.created_at))
        return [refund_of(row, payment.money.currency) for row in rows]

    async def has_open_refunds(self, payment: Payment) -> bool:
        return any(refund.status in UNPAID_REFUNDS for refund in await self.refunds(payment))

    async def events(self, payment_id: str) -> list[dict[str, Any]]:
        query = select(payment_events).where(payment_events.c.payment_id == payment_id)
        rows = await self._database.rows(query.order_by(payment_events.c.created_at).limit(MOST_EVENTS))
        return [
            {
                "event_id": row.event_id,
                "kind": row.kind,
                "data": row.data,
                "at": isoformat(row.created_at),
                "told_at": isoformat_or_none(row.told_at),
            }
            for row in rows
        ]

    async def reconciliations(self, limit: int) -> list[dict[str, Any]]:
        rows = await self._database.rows(latest_reconciliations(limit))
        return [{"at": isoformat(row.created_at), **row.data} for row in rows]

    async def overdue(self, before: Millis, limit: int) -> list[Payment]:
        """Payments whose check should have happened by then."""
        query = select(payments).where(payments.c.due_at < before).order_by(payments.c.due_at).limit(limit)
        return [Payment.of(row) for row in await self._database.rows(query)]

    async def unpublished(self, *, payment_id: str | None = None) -> list[PaymentEvent]:
        """What rules and scenarios have not heard of yet."""
        query = (
            select(payment_events, payments.c.user_id)
            .join(payments, payments.c.id == payment_events.c.payment_id)
            .where(payment_events.c.is_for_rules, payment_events.c.told_at.is_(None))
            .order_by(payment_events.c.created_at, payment_events.c.kind.desc())  # succeeded before refunded
            .limit(PUBLISHED_AT_ONCE)
        )
        if payment_id is not None:
            query = query.where(payment_events.c.payment_id == payment_id)
        return [
            PaymentEvent(row.event_id, row.payment_id, row.kind, row.data, row.user_id)
            for row in await self._database.rows(query)
        ]

    # ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(self, row: dict[str, Any]) -> bool:
        """Keep a new payment before its provider hears of it; False if there is one of this id."""
        now = self._clock.now()
        whole = {**EMPTY, "created_at": now, "updated_at": now, "due_at": now + FIRST_CHECK, **row}
        return await self._database.write(lambda c: insert_new(c, payments, [whole]) == 1)

    async def adopt(self, provider: str, found: Sequence[ProviderPayment]) -> list[Payment]:
        """Keep payments that somebody else made at the provider, in one transaction."""
        now = self._clock.now()

        def keep(connection: Connection) -> list[Payment]:
            insert_new(connection, payments, [adopted(provider, one, now) for one in found])
            return [apply(connection, id_of(connection, provider, one.id), one, now) for one in found]

        return await self._database.write(keep)

    async def apply(self, payment_id: str, found: ProviderPayment, asked_at: Millis | None = None) -> Payment:
        """Take over what the provider says, as far as it is news; note what is to be told of it.

        `asked_at` is when the provider was asked: an answer that is certainly newer than what is known may also say that a
        refund came back.
        """
        now = self._clock.now()
        return await self._database.write(
            lambda connection: apply(connection, payment_id, found, now, asked_at)
        )

    async def mark_refused(self, payment_id: str, why: str) -> Payment:
        """The provider did not take it, or never will."""
        now = self._clock.now()
        change = update(payments).where(and_(payments.c.id == payment_id, payments.c.status == "new"))
        gone = {"status": "refused", "reason": why, "final_at": now, "updated_at": now, "due_at": None}
        await self._database.execute(change.values(**gone))
        return await self.get(payment_id)

    async def touch(self, payment_id: str) -> None:
        """Note that the provider refused something: its `updated_at` is a later one, whatever the clock says."""
        now = self._clock.now()

        def note(connection: Connection) -> None:
            later = max(now, locked(connection, payment_id).updated_at + 1)
            connection.execute(update(payments).where(payments.c.id == payment_id).values(updated_at=later))

        await self._database.write(note)

    async def set_next_check(self, payment_id: str, due_at: Millis | None) -> None:
        """Note when the next check is to be; None if there is none."""
        change = update(payments).where(payments.c.id == payment_id).values(due_at=due_at)
        await self._database.execute(change)

    async def move_next_check(self, payment: Payment, due_at: Millis) -> bool:
        """The same for a check that has asked; False if another has noted its own since `payment` was read."""
        as_read = payments.c.due_at.is_not_distinct_from(payment.due_at)
        change = update(payments).where(and_(payments.c.id == payment.id, as_read))
        noted = change.values(due_at=due_at, checks=payments.c.checks + 1)
        return await self._database.execute(noted) == 1

    async def add_refund(self, payment: Payment, refund_id: str, money: Money | None) -> Refund:
        """Keep a refund before the provider hears of it, if there is that much to give back; None is all that is left."""
        now = self._clock.now()
        same_id = select(payment_refunds).where(payment_refunds.c.id == refund_id)

        def keep(connection: Connection) -> Refund:
            kept = locked(connection, payment.id)
            if (known := connection.execute(same_id).first()) is not None:
                return same_refund(known, kept, money)
            gone = max(kept.refunded.minor, reserved_for_refunds(connection, payment.id))
            left = Money.of_minor(kept.captured.minor - gone, kept.money.currency)
            wanted = left if money is None else money.must_be_positive()
            if not 0 < wanted.minor <= left.minor:
                raise WrongState(f"Payment {payment.id} can give back {left}, not {wanted}.")
            refund = Refund(refund_id, payment.id, None, "new", wanted, None, now)
            if not insert_new(
                connection, payment_refunds, [refund_row(refund)]
            ):  # just now, of another payment
                return same_refund(connection.execute(same_id).one(), kept, money)
            connection.execute(
                update(payments).where(payments.c.id == payment.id).values(due_at=now + FIRST_CHECK)
            )
            return refund

        return await self._database.write(keep)

    async def settle_refund(self, refund_id: str, found: ProviderRefund) -> None:
        """Take over what the provider says, unless a later answer was quicker; a bank may send back what had succeeded."""
        before = (*UNPAID_REFUNDS, "refused", *(("succeeded",) if found.status == "canceled" else ()))
        change = (
            update(payment_refunds)
            .where(and_(payment_refunds.c.id == refund_id, payment_refunds.c.status.in_(before)))
            .values(
                provider_id=found.id,
                status=found.status,
                reason=found.reason,
                updated_at=self._clock.now(),
            )
        )
        await self._database.execute(change)

    async def drop_refund(self, refund_id: str, why: str) -> None:
        """The provider said no."""
        change = (
            update(payment_refunds)
            .where(and_(payment_refunds.c.id == refund_id, payment_refunds.c.status == "new"))
            .values(status="refused", reason=why, updated_at=self._clock.now())
        )
        await self._database.execute(change)

    async def record_event(
        self, event_id: str, kind: str, payment_id: str | None, data: dict[str, Any]
    ) -> bool:
        """Write down something that rules are not told of: a webhook, a reconciliation. False if it is known."""
        row = {
            "event_id": event_id,
            "payment_id": payment_id,
            "kind": kind,
            "data": data,
            "created_at": self._clock.now(),
            "told_at": None,
            "is_for_rules": False,
        }
        return await self._database.write(lambda c: insert_new(c, payment_events, [row]) == 1)

    async def mark_published(self, event_ids: Sequence[str]) -> None:
        change = update(payment_events).where(payment_events.c.event_id.in_(event_ids))
        moment = self._clock.now()
        await self._database.execute(change.values(told_at=moment))

    async def give_up_event(self, event_id: str) -> None:
        """Rules and scenarios can't be told of this, now or later."""
        change = update(payment_events).where(payment_events.c.event_id == event_id)
        await self._database.execute(change.values(is_for_rules=False))

    async def reconciled(self, provider: str, provider_ids: Sequence[str], moment: Millis) -> None:
        matching = and_(payments.c.provider == provider, payments.c.provider_id.in_(provider_ids))
        change = update(payments).where(matching).values(reconciled_at=moment)
        await self._database.execute(change)

    async def forget_user(self, user_id: str) -> int:
        """Of whom these payments and what was told of them are, nothing says any more; how many payments they were."""
        whose = payments.c.user_id == user_id
        events = select(payment_events.c.event_id, payment_events.c.data).where(
            payment_events.c.payment_id.in_(select(payments.c.id).where(whose))
        )
        nobody: dict[str, Any] = {"user_id": None, "description": None, "metadata": {}, "return_url": None}

        def forget(connection: Connection) -> int:
            for event_id, data in connection.execute(events).all():
                kept = {**data, **{name: None for name in ("description", "metadata") if name in data}}
                change = update(payment_events).where(payment_events.c.event_id == event_id)
                connection.execute(change.values(data=kept))
            return connection.execute(update(payments).where(whose).values(nobody)).rowcount

        return await self._database.write(forget)

    async def known(self, provider: str, provider_ids: Sequence[str]) -> dict[str, Payment]:
        """Those of these that are kept here, by the provider's id."""
        matching = and_(payments.c.provider == provider, payments.c.provider_id.in_(provider_ids))
        rows = await self._database.rows(select(payments).where(matching))
        return {row.provider_id: Payment.of(row) for row in rows}

    async def unmatched(self, provider: str, since: Millis, run: Millis, limit: int) -> list[Payment]:
        """Payments since then that the provider's own list did not have in this run."""
        query = select(payments).where(
            payments.c.provider == provider,
            payments.c.provider_id.is_not(None),
            payments.c.created_at >= since,
            payments.c.created_at < run,
            or_(payments.c.reconciled_at.is_(None), payments.c.reconciled_at < run),
        )
        return [
            Payment.of(row)
            for row in await self._database.rows(query.order_by(payments.c.created_at).limit(limit))
        ]

    # ── Reading a row ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _first(self, query: Select[Any]) -> Payment | None:
        row = await self._database.first(query)
        return None if row is None else Payment.of(row)


def latest_reconciliations(limit: int) -> Select[Any]:
    """They are of no payment, which is how the index of payments' events finds them."""
    of_no_payment = payment_events.c.payment_id.is_(None)
    query = select(payment_events).where(of_no_payment, payment_events.c.kind == "reconciliation")
    return query.order_by(payment_events.c.created_at.desc()).limit(limit)
