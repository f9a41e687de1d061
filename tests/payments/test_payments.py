"""Payments against providers that answer as YooKassa and Stripe do: whatever happens on the way, our books become theirs,
and rules hear of it once."""

import asyncio
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from tests.payments.shop import USER, Shop, a_shop, paid, settings_of
from tests.services import stripe
from tests.services.yookassa import YooKassaServer, webhook
from yamchi.errors import InvalidJob
from yamchi.installation import install_command
from yamchi.payments.plugin import KNOWN_WEBHOOKS, UNKNOWN_WEBHOOKS
from yamchi.payments.providers.base import ProviderRefund
from yamchi.payments.tables import payment_events
from yamchi.payments.tables import payments as payments_table


async def test_paid(shop: Shop) -> None:
    payment = await shop.create(return_url="https://shop.example/thanks", description="A year")
    assert payment["status"] == "pending"
    assert payment["amount"] == "100.00"
    if shop.name == "yookassa":
        assert payment["confirmation_url"].startswith("https://yoomoney.example/checkout")
    else:
        assert payment["client_secret"] == f"{payment['provider_id']}_secret_x"
    shop.ledger.pay(shop.ledger.only)
    assert (await shop.webhook(shop.ledger.only)).status_code == 200
    await shop.app.drain()
    ((kind, data),) = await shop.told()
    assert (kind, data["amount"], data["order_id"]) == ("payment.succeeded", "100.00", "42")
    await shop.agrees()


async def test_a_person_is_told_by_the_shipped_rules(shop: Shop) -> None:
    await shop.client.put(f"/v1/users/{USER}", json={"email": "aidana@example.com", "locale": "ru"})
    await shop.create(description="Годовая подписка")
    shop.ledger.pay(shop.ledger.only)
    await shop.app.clock.advance(timedelta(minutes=1))
    (letter,) = (await shop.client.get("/v1/mailbox")).json()
    assert letter["recipients"] == ["aidana@example.com"]
    assert "100" in letter["subject"]


async def test_declined(shop: Shop) -> None:
    await shop.create()
    shop.ledger.decline(shop.ledger.only)
    await shop.webhook(shop.ledger.only)
    await shop.app.drain()
    ((kind, data),) = await shop.told()
    assert (kind, data["status"]) == ("payment.canceled", "canceled")
    assert "insufficient_funds" in data["reason"]
    await shop.agrees()


async def test_pending_for_three_checks_then_paid_without_any_webhook(shop: Shop) -> None:
    payment = await shop.create()
    shop.ledger.pays_after[payment["provider_id"]] = 3
    await shop.app.clock.advance(timedelta(minutes=1))
    assert await shop.kinds() == ["payment.succeeded"]
    assert shop.ledger.only.gets == 4  # 15 s, then 5 s, 10 s and 20 s later
    await shop.app.clock.advance(timedelta(days=2))
    assert shop.ledger.only.gets == 4  # what is final is not asked after
    await shop.agrees()


@pytest.mark.parametrize("trouble", [500, None], ids=["500", "answer lost"])
async def test_an_unknown_result_is_asked_for_again_with_the_same_key(
    shop: Shop, trouble: int | None
) -> None:
    shop.server.troubles = [trouble, trouble]
    payment = await shop.create(id="order-42")
    assert (payment["status"], payment["provider_id"]) == ("new", None)
    assert len(shop.ledger.entries) == 1  # the provider did it; we don't know yet
    await shop.app.clock.advance(timedelta(minutes=2))
    assert len(shop.ledger.entries) == 1
    shop.ledger.pay(shop.ledger.only)
    await shop.app.clock.advance(timedelta(hours=2))
    assert await shop.kinds() == ["payment.succeeded"]
    await shop.agrees()


async def test_the_webhook_of_a_payment_whose_answer_was_lost_finds_it(shop: Shop) -> None:
    shop.server.troubles = [None]
    payment = await shop.create()
    shop.ledger.pay(shop.ledger.only)
    await shop.webhook(shop.ledger.only)
    await shop.app.drain()
    assert (await shop.app.payments.get(payment["id"])).status == "succeeded"
    await shop.app.clock.advance(timedelta(hours=1))
    assert await shop.kinds() == ["payment.succeeded"]
    await shop.agrees()


async def test_the_same_id_is_the_same_payment(shop: Shop) -> None:
    first, second = await shop.create(id="order-42"), await shop.create(id="order-42")
    assert first["provider_id"] == second["provider_id"]
    assert len(shop.ledger.entries) == 1
    other = await shop.client.post("/v1/payments", json={"amount": "7.00", "id": "order-42"})
    assert other.status_code == 409
    assert "use another id" in other.json()["detail"]


@pytest.mark.parametrize("order", ["order:7", "x" * 64], ids=["no id of a job", "as long as can be"])
async def test_any_id_of_the_products_own_is_followed_to_the_end(shop: Shop, order: str) -> None:
    payment = await shop.create(id=order)
    assert payment["id"] == order
    service = shop.app.payments.service
    await service.recheck(await service.store.get(order), shop.app.clock.now())
    shop.ledger.pays_after[payment["provider_id"]] = 1
    await shop.app.clock.advance(timedelta(minutes=1))
    assert await shop.kinds() == ["payment.succeeded"]
    await shop.agrees()


async def test_repeated_and_late_webhooks_change_nothing(shop: Shop) -> None:
    await shop.create()
    entry = shop.ledger.only
    shop.ledger.pay(entry)
    for _ in range(3):
        assert (await shop.webhook(entry)).status_code == 200
    await shop.app.drain()
    late = "payment.waiting_for_capture" if shop.name == "yookassa" else "payment_intent.processing"
    await shop.webhook(entry, late)
    await shop.app.drain()
    assert await shop.kinds() == ["payment.succeeded"]
    await shop.agrees()


async def test_a_late_answer_does_not_undo_what_is_known(shop: Shop) -> None:
    payment = await shop.create()
    provider = shop.app.payments.providers[shop.name]
    before = await provider.get(payment["provider_id"])  # said "pending", and is still on its way
    shop.ledger.pay(shop.ledger.only)
    await shop.app.payments.service.refresh(await shop.app.payments.get(payment["id"]))
    await shop.app.payments.store.apply(payment["id"], before)
    await shop.agrees()


async def test_money_set_aside_is_captured_in_part(shop: Shop) -> None:
    payment = await shop.create(capture=False)
    shop.ledger.pay(shop.ledger.only)
    await shop.webhook(shop.ledger.only)
    await shop.app.drain()
    assert await shop.kinds() == []
    answer = await shop.client.post(f"/v1/payments/{payment['id']}/capture", json={"amount": "60.00"})
    assert (answer.json()["status"], answer.json()["captured"]) == ("succeeded", "60.00")
    await shop.app.clock.advance(timedelta(hours=1))
    assert await shop.kinds() == ["payment.succeeded"]


async def test_money_set_aside_is_given_back(shop: Shop) -> None:
    payment = await shop.create(capture=False)
    shop.ledger.pay(shop.ledger.only)
    await shop.client.post(f"/v1/payments/{payment['id']}/check")
    answer = await shop.client.post(f"/v1/payments/{payment['id']}/cancel")
    assert answer.json()["status"] == "canceled"
    await shop.app.clock.advance(timedelta(hours=1))
    assert await shop.kinds() == ["payment.canceled"]
    await shop.agrees()


@pytest.mark.parametrize(("act", "outcome"), [("cancel", "canceled"), ("capture", "succeeded")])
async def test_what_was_refused_is_asked_for_anew(shop: Shop, act: str, outcome: str) -> None:
    """Stripe keeps its no under the key of the call; what it refuses while a payment is being worked on, it may do later."""
    payment = await shop.create(capture=False)
    entry = shop.ledger.only
    shop.ledger.pay(entry)
    await shop.client.post(f"/v1/payments/{payment['id']}/check")
    url = f"/v1/payments/{payment['id']}/{act}"
    entry.status = "processing"
    assert (await shop.client.post(url)).status_code == 409
    assert (await shop.client.post(url)).status_code == 409
    entry.status = "waiting_for_capture"
    assert (await shop.client.post(url)).json()["status"] == outcome
    await shop.agrees()


@pytest.mark.parametrize("act", ["cancel", "capture"])
async def test_a_repeat_after_an_unclear_answer_is_the_same_call(shop: Shop, act: str) -> None:
    payment = await shop.create(capture=False)
    shop.ledger.pay(shop.ledger.only)
    await shop.client.post(f"/v1/payments/{payment['id']}/check")
    url = f"/v1/payments/{payment['id']}/{act}"
    shop.server.troubles = [500]
    assert (await shop.client.post(url)).status_code == 502
    known = set(shop.ledger.keys)
    assert (await shop.client.post(url)).status_code == 200
    assert set(shop.ledger.keys) == known


async def test_refunds(shop: Shop) -> None:
    payment = await shop.create()
    shop.ledger.pay(shop.ledger.only)
    await shop.client.post(f"/v1/payments/{payment['id']}/check")
    url = f"/v1/payments/{payment['id']}/refund"
    for _ in range(2):  # the same id is the same refund
        answer = await shop.client.post(url, json={"amount": "30.00", "id": "refund-1"})
        assert answer.json()["status"] == "succeeded"
    too_much = await shop.client.post(url, json={"amount": "70.01"})
    assert too_much.status_code == 409
    assert "can give back 70.00" in too_much.json()["detail"]
    assert (await shop.client.post(url)).json()["amount"] == "70.00"
    await shop.app.clock.advance(timedelta(hours=1))
    told = await shop.told()
    assert sorted(kind for kind, _ in told) == ["payment.refunded", "payment.refunded", "payment.succeeded"]
    assert sorted(data["refund_amount"] for kind, data in told if kind == "payment.refunded") == [
        "30.00",
        "70.00",
    ]
    await shop.agrees()


async def test_a_refund_whose_answer_was_lost_is_given_once(shop: Shop) -> None:
    payment = await shop.create()
    shop.ledger.pay(shop.ledger.only)
    await shop.client.post(f"/v1/payments/{payment['id']}/check")
    shop.server.troubles = [None]
    answer = await shop.client.post(f"/v1/payments/{payment['id']}/refund", json={"amount": "30.00"})
    assert (answer.status_code, answer.json()["status"]) == (202, "new")
    assert shop.ledger.only.refunded == 3000
    again = {"amount": "30.00", "id": answer.json()["id"]}
    answer = await shop.client.post(f"/v1/payments/{payment['id']}/refund", json=again)
    assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")
    await shop.app.clock.advance(timedelta(hours=1))
    assert shop.ledger.only.refunded == 3000
    assert sorted(await shop.kinds()) == ["payment.refunded", "payment.succeeded"]
    await shop.agrees()


async def test_a_refund_that_takes_its_time_is_followed_to_its_end(shop: Shop) -> None:
    payment = await paid(shop)
    shop.ledger.refunds_begin_as = "pending"
    asked = {"amount": "30.00", "id": "slow"}
    answer = await shop.client.post(f"/v1/payments/{payment['id']}/refund", json=asked)
    assert (answer.status_code, answer.json()["status"]) == (202, "pending")
    await shop.app.clock.advance(timedelta(hours=25))  # longer than a key is remembered
    shop.ledger.forget_keys()
    answer = await shop.client.post(f"/v1/payments/{payment['id']}/refund", json=asked)
    assert (answer.status_code, answer.json()["status"]) == (202, "pending")
    (refund,) = shop.ledger.refunds.values()
    shop.ledger.settle(refund, "succeeded")
    await shop.app.clock.advance(timedelta(hours=2))
    (kept,) = (await shop.client.get(f"/v1/payments/{payment['id']}")).json()["refunds"]
    assert kept["status"] == "succeeded"
    asked = shop.ledger.only.gets
    await shop.app.clock.advance(timedelta(days=1))
    assert shop.ledger.only.gets == asked  # nothing is left to ask
    assert sorted(await shop.kinds()) == ["payment.refunded", "payment.succeeded"]
    await shop.agrees()


async def test_a_refund_that_comes_back_can_be_given_again(shop: Shop) -> None:
    payment = await paid(shop)
    shop.ledger.refunds_begin_as = "pending"
    url = f"/v1/payments/{payment['id']}/refund"
    await shop.client.post(url, json={"amount": "100.00", "id": "first"})
    (refund,) = shop.ledger.refunds.values()
    shop.ledger.settle(refund, "canceled")
    await shop.app.clock.advance(timedelta(hours=2))
    kept = (await shop.client.get(f"/v1/payments/{payment['id']}")).json()
    assert (kept["refunded"], kept["refunds"][0]["status"]) == ("0.00", "canceled")
    shop.ledger.refunds_begin_as = "succeeded"
    assert (await shop.client.post(url, json={"amount": "60.00"})).json()["status"] == "succeeded"
    await shop.agrees()


async def test_a_refund_that_came_back_and_is_given_again_is_told_again(shop: Shop) -> None:
    payment = await paid(shop)
    url = f"/v1/payments/{payment['id']}/refund"
    await shop.client.post(url, json={"id": "first"})
    (refund,) = shop.ledger.refunds.values()
    shop.ledger.settle(refund, "canceled")
    await shop.app.clock.advance(timedelta(minutes=1))
    await shop.client.post(f"/v1/payments/{payment['id']}/check")
    await shop.app.payments.store.settle_refund("first", ProviderRefund(refund["id"], "canceled"))
    await shop.app.clock.advance(timedelta(minutes=1))
    assert (await shop.client.post(url, json={"id": "second"})).json()["status"] == "succeeded"
    assert (await shop.kinds()).count("payment.refunded") == 2
    await shop.agrees()


async def test_ids_of_refunds_and_payments_never_meet(shop: Shop) -> None:
    """One number for an order and for its refund is one key for two calls, unless the call is part of the key."""
    payment = await paid(shop, id="42")
    other = await paid(shop, id="43")
    answer = await shop.client.post("/v1/payments/42/refund", json={"amount": "30.00", "id": "42"})
    assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")
    assert shop.ledger.entries[payment["provider_id"]].refunded == 3_000
    for path, body in (("43", {"amount": "30.00", "id": "42"}), ("42", {"amount": "31.00", "id": "42"})):
        answer = await shop.client.post(f"/v1/payments/{path}/refund", json=body)
        assert answer.status_code == 409
        assert "of 30.00 RUB of payment 42: use another id" in answer.json()["detail"]
    assert shop.ledger.entries[other["provider_id"]].refunded == 0


async def test_many_refunds_at_once_give_back_no_more_than_there_is(shop: Shop) -> None:
    payment = await paid(shop)
    url = f"/v1/payments/{payment['id']}/refund"
    asked = [shop.client.post(url, json={"amount": "30.00", "id": f"part-{n}"}) for n in range(8)]
    answers = await asyncio.gather(*asked)
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [409] * 5
    assert (await shop.client.post(url)).json()["amount"] == "10.00"
    nothing_left = await shop.client.post(url)
    assert (nothing_left.status_code, "can give back 0.00 RUB" in nothing_left.text) == (409, True)
    await shop.app.clock.advance(timedelta(hours=1))
    await shop.agrees()


async def test_a_refused_capture_is_asked_for_again_with_another_amount(shop: Shop) -> None:
    payment = await shop.create(capture=False, id="x" * 64)
    shop.ledger.pay(shop.ledger.only)
    await shop.client.post(f"/v1/payments/{payment['id']}/check")
    url = f"/v1/payments/{payment['id']}/capture"
    assert (await shop.client.post(url, json={"amount": "100.01"})).status_code == 409
    assert (await shop.client.post(url, json={"amount": "99.00"})).json()["captured"] == "99.00"


async def test_a_refund_made_at_the_provider_is_heard_of(shop: Shop) -> None:
    payment = await shop.create()
    entry = shop.ledger.only
    shop.ledger.pay(entry)
    await shop.client.post(f"/v1/payments/{payment['id']}/check")
    shop.ledger.give_back(entry, 2500)
    await shop.webhook(entry, "payment.succeeded" if shop.name == "yookassa" else None)
    await shop.app.drain()
    assert sorted(await shop.kinds()) == ["payment.refunded", "payment.succeeded"]
    await shop.agrees()


async def test_a_payment_made_elsewhere_is_taken_in(shop: Shop) -> None:
    entry = shop.ledger.create(
        amount=5000, currency="RUB", capture=True, metadata={"order_id": "7"}, description="By telephone"
    )
    shop.ledger.pay(entry)
    await shop.webhook(entry)
    await shop.app.drain()
    ((kind, data),) = await shop.told()
    assert (kind, data["order_id"], data["amount"]) == ("payment.succeeded", "7", "50.00")
    await shop.agrees()


async def test_a_provider_that_is_down_costs_no_attempt(shop: Shop) -> None:
    shop.server.stop()
    payment = await shop.create()
    assert payment["status"] == "new"
    await shop.app.clock.advance(timedelta(hours=3))
    shop.server.start()
    await shop.app.clock.advance(timedelta(hours=1))
    shop.ledger.pay(shop.ledger.only)
    await shop.app.clock.advance(timedelta(hours=2))
    assert await shop.kinds() == ["payment.succeeded"]
    await shop.agrees()


async def test_after_a_day_an_unanswered_payment_is_given_up(shop: Shop) -> None:
    shop.server.stop()
    payment = await shop.create()
    await shop.app.clock.advance(timedelta(hours=25))
    shop.server.start()
    await shop.app.clock.advance(timedelta(hours=2))
    assert (await shop.app.payments.get(payment["id"])).status == "refused"
    assert (
        shop.ledger.entries == {}
    )  # its key is no longer remembered: asking again might have taken money twice


async def test_the_same_id_after_a_day_takes_no_money_twice(shop: Shop) -> None:
    """Nobody was running to give it up, and the provider has forgotten the key."""
    shop.server.troubles = [None]
    payment = await shop.create(id="order-42")
    yesterday = {"created_at": shop.app.clock.now() - 25 * 3_600_000}
    change = update(payments_table).where(payments_table.c.id == "order-42").values(yesterday)
    await shop.app.database.write(lambda c: c.execute(change).rowcount)
    shop.ledger.forget_keys()
    again = await shop.create(id="order-42")
    assert (payment["status"], again["status"]) == ("new", "refused")
    assert len(shop.ledger.entries) == 1


async def test_a_refund_without_a_clear_answer_keeps_no_other_waiting(shop: Shop) -> None:
    payment = await paid(shop)
    url = f"/v1/payments/{payment['id']}/refund"
    shop.server.troubles = [500, 500]
    first = await shop.client.post(url, json={"amount": "30.00", "id": "first"})
    second = await shop.client.post(url, json={"amount": "20.00", "id": "second"})
    assert (first.json()["status"], second.json()["status"]) == ("new", "succeeded")
    assert "payment.refunded" in await shop.kinds()
    await shop.app.clock.advance(timedelta(hours=1))
    assert shop.ledger.only.refunded == 5_000
    await shop.agrees()


async def test_a_refused_refund_is_refused_again(shop: Shop) -> None:
    payment = await paid(shop)
    shop.ledger.give_back(shop.ledger.only, 9_000)  # at the provider's own page; we don't know yet
    for _ in range(2):
        asked = {"amount": "30.00", "id": "too-much"}
        answer = await shop.client.post(f"/v1/payments/{payment['id']}/refund", json=asked)
        assert answer.status_code == 409
    await shop.app.clock.advance(timedelta(hours=1))
    await shop.agrees()


async def test_what_was_given_up_counts_when_the_provider_has_it_after_all(shop: Shop) -> None:
    shop.server.troubles = [None] * 500
    payment = await shop.create()
    entry = shop.ledger.entries.pop(shop.ledger.only.id)  # its list, which is compared at night, is behind
    await shop.app.clock.advance(timedelta(hours=26))
    assert (await shop.app.payments.get(payment["id"])).status == "refused"
    shop.server.troubles = []
    shop.ledger.entries[entry.id] = entry
    kind = "payment.waiting_for_capture" if shop.name == "yookassa" else None
    await shop.webhook(entry, kind)
    await shop.app.drain()
    found = await shop.app.payments.get(payment["id"])
    assert (found.status, found.final_at) == ("pending", None)
    shop.ledger.pay(entry)
    await shop.app.clock.advance(timedelta(hours=2))
    assert await shop.kinds() == ["payment.succeeded"]
    await shop.agrees()


async def test_a_key_that_stripe_answers_with_500_for_ever_is_found_in_its_list(tmp_path: Path) -> None:
    with stripe.StripeServer() as server:
        async with a_shop(tmp_path, server) as shop:
            server.troubles = [stripe.STUCK]
            payment = await shop.create()
            await shop.app.clock.advance(timedelta(hours=2))
            assert (await shop.app.payments.get(payment["id"])).status == "new"
            shop.ledger.pay(shop.ledger.only)
            (report,) = await shop.app.payments.reconcile()
            assert (report.compared, report.adopted) == (1, 1)
            assert await shop.kinds() == ["payment.succeeded"]
            await shop.agrees()


async def test_a_provider_in_trouble_is_asked_by_one_check_only(shop: Shop) -> None:
    shop.server.troubles = [500] * 1_000
    await shop.create()
    await shop.app.clock.advance(timedelta(hours=3))
    posted = sum(count for call, count in shop.ledger.calls.items() if call.startswith("POST"))
    assert 5 < posted < 20  # 15 s, 5 s, 10 s … up to an hour
    stats = await shop.app.queue("payment_queue").stats()
    assert (stats["delayed"], stats["failed"]) == (1, 0)


async def test_a_check_that_is_late_is_not_multiplied(shop: Shop) -> None:
    """The sweeper can't tell a check that waits in a long queue from one that got lost."""
    payment = await shop.app.payments.get((await shop.create())["id"])
    queue, service = shop.app.queue("payment_queue"), shop.app.payments.service
    for minutes in range(6):
        await service.recheck(payment, shop.app.clock.now() - minutes * 60_000)
    stats = await queue.stats()
    assert stats["waiting"] + stats["delayed"] <= 3  # the payment's own, and one an hour
    await shop.app.clock.advance(timedelta(minutes=5))
    stats = await queue.stats()
    assert (stats["waiting"], stats["delayed"], stats["failed"]) == (0, 1, 0)
    asked = shop.ledger.only.gets
    await shop.app.clock.advance(timedelta(hours=1))
    assert shop.ledger.only.gets - asked < 6


async def test_a_lost_check_is_found(shop: Shop) -> None:
    payment = await shop.create()
    queue = shop.app.queue("payment_queue")
    await (await queue.job(f"check-{payment['id']}")).remove()
    shop.ledger.pay(shop.ledger.only)
    await shop.app.clock.advance(timedelta(minutes=5))
    assert await shop.app.payments.payment_checks.sweep() == 1
    await shop.app.drain()
    assert await shop.kinds() == ["payment.succeeded"]


async def test_the_books_are_compared(shop: Shop) -> None:
    known = await shop.create()
    for number in range(250):
        entry = shop.ledger.create(
            amount=100 + number, currency="RUB", capture=True, metadata={}, description=None
        )
        shop.ledger.pay(entry)
    ours = shop.ledger.entries[known["provider_id"]]
    shop.ledger.pay(ours)
    (report,) = await shop.app.payments.reconcile()
    assert (report.compared, report.adopted, report.corrected, report.missing) == (251, 250, 1, [])
    await shop.agrees()
    assert len(await shop.kinds()) == 251
    del shop.ledger.entries[known["provider_id"]]
    await shop.app.clock.advance(timedelta(hours=2))
    (report,) = await shop.app.payments.reconcile()
    assert report.adopted == report.corrected == 0
    assert report.missing == [known["id"]]
    (listed,) = [
        one for one in (await shop.client.get("/v1/payments/reconciliations")).json() if one["adopted"]
    ]
    assert listed["compared"] == 251


async def test_a_forged_webhook_changes_nothing(shop: Shop) -> None:
    await shop.create()
    entry = shop.ledger.only
    if shop.name == "yookassa":
        forged = webhook(entry)
        forged["event"], forged["object"]["status"] = "payment.succeeded", "succeeded"
        nobody = {**forged, "object": {**forged["object"], "id": "00000000-dead-5000-8000-000000000000"}}
        for body in (forged, nobody):
            assert (await shop.client.post("/webhooks/payments/yookassa", json=body)).status_code == 200
        for body in (b"{}", b"[]", b"\xff", b'{"event": 5, "object": null}'):
            answer = await shop.client.post("/webhooks/payments/yookassa", content=body)
            assert answer.status_code == 400, body
    else:
        answer = await shop.client.post(
            "/webhooks/payments/stripe", json={"type": "payment_intent.succeeded"}
        )
        assert answer.status_code == 400
        assert "signature" in answer.json()["detail"]
    await shop.app.drain()
    assert await shop.kinds() == []
    assert (await shop.client.post("/webhooks/payments/other", json={})).status_code == 404
    await shop.agrees()


async def test_a_webhook_of_any_shape_is_refused(shop: Shop) -> None:
    """Whatever it says of its type, by which it would be looked at before its route."""
    for odd in (b"[" * 1_000 + b"]" * 1_000, b'"x"', b"1e999", b"\xff", b"{", b""):
        for body in (odd, b'{"event": %b, "type": %b, "id": %b, "object": {"id": "x"}}' % (odd, odd, odd)):
            signed = stripe.signature(body, shop.app.clock.now() / 1000)
            headers = {"content-type": "text/plain", "stripe-signature": signed}
            path = f"/webhooks/payments/{shop.name}"
            answer = await shop.client.post(path, content=body, headers=headers)
            assert answer.status_code in (200, 400), answer.text


async def test_a_webhook_before_its_time_does_not_hide_the_true_one(shop: Shop) -> None:
    await shop.create(capture=False)
    entry = shop.ledger.only
    kind = "payment.succeeded" if shop.name == "yookassa" else "payment_intent.succeeded"
    await shop.webhook(entry, kind)
    await shop.app.drain()
    await shop.app.clock.advance(timedelta(minutes=20))  # the payment's own check comes seldom by now
    entry.status, entry.captured = "succeeded", entry.amount
    await shop.webhook(entry, kind)
    await shop.app.drain()
    assert await shop.kinds() == ["payment.succeeded"]


async def test_a_webhook_just_before_its_time_does_not_hide_the_true_one(shop: Shop) -> None:
    await shop.create()
    entry = shop.ledger.only
    kind = "payment.succeeded" if shop.name == "yookassa" else "payment_intent.succeeded"
    await shop.webhook(entry, kind)
    await shop.app.drain()
    shop.ledger.pay(entry)
    for _ in range(2):
        await shop.webhook(entry, kind)
    await shop.app.drain()
    assert await shop.kinds() == ["payment.succeeded"]


async def test_strangers_fill_no_table_and_wait_behind_customers(shop: Shop) -> None:
    payment = await shop.create()
    nobody = replace(shop.ledger.only, id="00000000-dead-5000-8000-000000000000")
    kind = "payment.canceled" if shop.name == "yookassa" else None
    for entry in (nobody, shop.ledger.only):
        assert (await shop.webhook(entry, kind)).status_code == 200
    queue = shop.app.queue("payment_queue")
    priorities = {job.data["providerId"]: job.priority for job in await queue.jobs("waiting")}
    assert priorities[payment["provider_id"]] > priorities[nobody.id] > 0, "none would go first on Redis"
    await shop.app.drain()
    learned = (await shop.client.get(f"/v1/payments/{payment['id']}")).json()["events"]
    assert [one["kind"] for one in learned] == ["webhook"]
    counted = select(func.count()).select_from(payment_events)
    assert await shop.app.database.read(lambda c: c.execute(counted).scalar()) == 1


async def test_what_happened_at_once_is_told_in_order(shop: Shop) -> None:
    payment = await shop.create()
    shop.ledger.pay(shop.ledger.only)
    shop.ledger.give_back(shop.ledger.only, 2_500)
    provider, store = shop.app.payments.providers[shop.name], shop.app.payments.store
    await store.apply(payment["id"], await provider.get(payment["provider_id"]))
    assert [one.kind for one in await store.unpublished()] == ["payment.succeeded", "payment.refunded"]


@pytest.mark.parametrize(
    ("amount", "currency", "units"),
    [
        ("500", "JPY", 500),
        ("1.250", "KWD", 1_250),
        ("4500.00", "KZT", 450_000),
        ("100.50", "RSD", 10_050),
        ("100", "UGX", 10_000),
        ("7", "MGA", 7),
    ],
)
async def test_amounts_reach_stripe_in_its_own_units(
    tmp_path: Path, amount: str, currency: str, units: int
) -> None:
    with stripe.StripeServer() as server:
        async with a_shop(tmp_path, server) as shop:
            payment = await shop.create(amount=amount, currency=currency)
            assert shop.ledger.only.amount == units
            shop.ledger.pay(shop.ledger.only)
            await shop.client.post(f"/v1/payments/{payment['id']}/check")
            kept = await shop.app.payments.get(payment["id"])
            assert (kept.captured, kept.captured.currency) == (kept.money, currency)


async def test_a_person_who_is_erased_is_in_no_event(shop: Shop) -> None:
    payment = await paid(shop, description="Приём у врача", metadata={"name": "Айдана"})
    assert await shop.app.payments.erase(USER) == {"payments": 1}
    kept = (await shop.client.get(f"/v1/payments/{payment['id']}")).text
    assert "Айдана" not in kept
    assert "врача" not in kept
    assert "100.00" in kept


async def test_no_secret_is_logged(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.server.troubles = [500, 429]
    await shop.create()
    await shop.client.post(f"/webhooks/payments/{shop.name}", json={"type": "x"})
    await shop.app.clock.advance(timedelta(minutes=5))
    said = "".join(capsys.readouterr())
    for value in settings_of(shop.server).values():
        if str(value).startswith("http"):
            continue
        assert str(value) not in said


@pytest.mark.parametrize("server", [YooKassaServer], indirect=True)
async def test_made_up_webhooks_are_few_and_real_ones_come_through(shop: Shop) -> None:
    """Each of them is asked about, and anybody can make them up."""
    await shop.create()
    entry = shop.ledger.only

    async def about(payment_id: str) -> int:
        body = {"event": "payment.succeeded", "object": {"id": payment_id}}
        return (await shop.client.post("/webhooks/payments/yookassa", json=body)).status_code

    answers = [await about(f"made-up-{number}") for number in range(UNKNOWN_WEBHOOKS.count + 20)]
    assert answers == [200] * UNKNOWN_WEBHOOKS.count + [429] * 20
    assert await about(entry.id) == 200


@pytest.mark.parametrize("server", [YooKassaServer], indirect=True)
async def test_made_up_webhooks_about_a_payment_are_few(shop: Shop) -> None:
    await shop.create()
    entry = shop.ledger.only

    async def about(number: int) -> int:
        refund = {"id": f"made-up-{number}", "payment_id": entry.id}
        body = {"event": "refund.succeeded", "object": refund}
        return (await shop.client.post("/webhooks/payments/yookassa", json=body)).status_code

    answers = [await about(number) for number in range(KNOWN_WEBHOOKS.count + 5)]
    assert answers == [200] * KNOWN_WEBHOOKS.count + [429] * 5
    await shop.app.clock.advance(timedelta(minutes=1))
    assert (await shop.webhook(entry, "payment.succeeded")).status_code == 200


async def test_an_event_that_cannot_be_told_keeps_no_other_waiting(shop: Shop) -> None:
    with pytest.raises(InvalidJob, match="user_id: '42' is no UUID"):
        await shop.app.payments.create("100.00", user_id="42")
    payments = [await shop.create(id=f"order-{number}") for number in range(2)]
    wrong = update(payments_table).where(payments_table.c.id == "order-0").values(user_id="42")
    await shop.app.database.write(lambda c: c.execute(wrong).rowcount)
    provider, store = shop.app.payments.providers[shop.name], shop.app.payments.store
    for payment in payments:
        shop.ledger.pay(shop.ledger.entries[payment["provider_id"]])
        await store.apply(payment["id"], await provider.get(payment["provider_id"]))
    await shop.app.payments.payment_checks.sweep()
    ((kind, data),) = await shop.told()
    assert (kind, data["payment_id"]) == ("payment.succeeded", "order-1")
    assert await store.unpublished() == []


async def test_a_provider_that_is_no_longer_set_up_is_named(shop: Shop) -> None:
    payment = await shop.create()
    known = shop.app.payments.providers.pop(shop.name)
    await shop.app.clock.advance(timedelta(minutes=1))
    job = await shop.app.queue("payment_queue").job(f"check-{payment['id']}")
    shop.app.payments.register(known)
    assert f"There is no payment provider '{shop.name}'" in (job.failed_reason or "")


async def test_where_no_provider_is_set_up_it_is_said_how_to(shop: Shop) -> None:
    known = shop.app.payments.providers.pop(shop.name)
    answer = await shop.client.post("/v1/payments", json={"amount": "10.00"})
    shop.app.payments.register(known)
    assert answer.json()["detail"].startswith("No payment provider is set up: set YOOKASSA_SHOP_ID and")


async def test_bad_requests(shop: Shop) -> None:
    for body, said in (
        ({"amount": "1.001"}, "digits after the point"),
        ({"amount": "0.00"}, "is nothing"),
        ({"amount": "1e5"}, "amount"),
        ({"amount": "10.00", "currency": "XXQ"}, "is not a currency"),
        ({"amount": "10.00", "provider": "paypal"}, "no payment provider 'paypal'"),
        ({"amount": "10.00", "surprise": 1}, "surprise"),
    ):
        answer = await shop.client.post("/v1/payments", json=body)
        assert answer.status_code in (409, 422), answer.text
        assert said in answer.json()["detail"]
    assert (await shop.client.get("/v1/payments/nobody")).status_code == 404


async def test_webhooks_only_from_where_they_may_come(tmp_path) -> None:
    with YooKassaServer() as server:
        async with a_shop(tmp_path, server, yookassa_webhook_from="yookassa") as shop:
            await shop.create()
            assert (await shop.webhook(shop.ledger.only)).status_code == 403


async def test_a_missing_package_is_told_at_the_first_attempt(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    data = {"provider": shop.name, "provider_id": "23d93cac-000f-5000-8000-126628f15141"}
    job = await shop.app.queue("payment_queue").add(data, name="check")
    await shop.app.drain()
    found = await job.refresh()
    said = f"A payment needs an extra package: {install_command('payments')}"
    assert (found.state, found.attempts_made, found.failed_reason) == ("failed", 1, said)
