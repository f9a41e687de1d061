"""Payments against providers that answer as YooKassa and Stripe do: whatever happens on the way, our books become theirs,
and rules hear of it once."""

import asyncio
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.payments.shop import USER, Shop, a_shop, settings_of
from tests.services import stripe
from tests.services.yookassa import YooKassaServer, webhook
from yamchi.payments.plugin import UNKNOWN_WEBHOOKS
from yamchi.payments.tables import payment_events


async def paid(shop: Shop, **fields: Any) -> dict[str, Any]:
    """A payment that its customer has paid, and we know it."""
    payment = await shop.create(**fields)
    shop.ledger.pay(shop.ledger.entries[payment["provider_id"]])
    return dict((await shop.client.post(f"/v1/payments/{payment['id']}/check")).json())


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
    assert answer.status_code == 502
    assert shop.ledger.only.refunded == 3000
    await shop.app.clock.advance(timedelta(hours=1))
    assert shop.ledger.only.refunded == 3000
    assert sorted(await shop.kinds()) == ["payment.refunded", "payment.succeeded"]
    await shop.agrees()


async def test_a_refund_that_takes_its_time_is_followed_to_its_end(shop: Shop) -> None:
    payment = await paid(shop)
    shop.ledger.refunds_begin_as = "pending"
    asked = {"amount": "30.00", "id": "slow"}
    answer = await shop.client.post(f"/v1/payments/{payment['id']}/refund", json=asked)
    assert answer.json()["status"] == "pending"
    await shop.app.clock.advance(timedelta(hours=25))  # longer than a key is remembered
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
    server = stripe.StripeServer()
    server.start()
    try:
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
    finally:
        server.stop()


async def test_a_provider_in_trouble_is_asked_by_one_check_only(shop: Shop) -> None:
    shop.server.troubles = [500] * 1_000
    await shop.create()
    await shop.app.clock.advance(timedelta(hours=3))
    posted = sum(count for call, count in shop.ledger.calls.items() if call.startswith("POST"))
    assert 5 < posted < 20  # 15 s, 5 s, 10 s … up to an hour
    stats = await shop.app.queue("payment_queue").stats()
    assert (stats["delayed"], stats["failed"]) == (1, 0)


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


async def test_strangers_fill_no_table_and_wait_behind_customers(shop: Shop) -> None:
    payment = await shop.create()
    nobody = replace(shop.ledger.only, id="00000000-dead-5000-8000-000000000000")
    kind = "payment.canceled" if shop.name == "yookassa" else None
    for entry in (nobody, shop.ledger.only):
        assert (await shop.webhook(entry, kind)).status_code == 200
    queue = shop.app.queue("payment_queue")
    priorities = {job.data["providerId"]: job.priority for job in await queue.jobs("waiting")}
    assert priorities[payment["provider_id"]] > priorities[nobody.id]
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
    server = stripe.StripeServer()
    server.start()
    try:
        async with a_shop(tmp_path, server) as shop:
            payment = await shop.create(amount=amount, currency=currency)
            assert shop.ledger.only.amount == units
            shop.ledger.pay(shop.ledger.only)
            await shop.client.post(f"/v1/payments/{payment['id']}/check")
            kept = await shop.app.payments.get(payment["id"])
            assert (kept.captured, kept.captured.currency) == (kept.money, currency)
    finally:
        server.stop()


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
    server = YooKassaServer()
    server.start()
    try:
        async with a_shop(tmp_path, server, yookassa_webhook_from="yookassa") as shop:
            await shop.create()
            assert (await shop.webhook(shop.ledger.only)).status_code == 403
    finally:
        server.stop()


async def test_a_missing_package_is_told_at_the_first_attempt(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    data = {"provider": shop.name, "provider_id": "23d93cac-000f-5000-8000-126628f15141"}
    job = await shop.app.queue("payment_queue").add(data, name="check")
    await shop.app.drain()
    found = await job.refresh()
    said = "A payment needs an extra package: pip install 'yamchi[payments]'."
    assert (found.state, found.attempts_made, found.failed_reason) == ("failed", 1, said)
