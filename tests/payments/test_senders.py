"""What a key that may only send learns of payments: of its own what it asked for, of others no more than their state."""

from pathlib import Path

import pytest

from tests.payments.shop import USER, a_shop
from tests.services.yookassa import YooKassaServer

ADMIN = "the-admin-of-this-shop"
SENDER = "a-sender-of-this-shop"


@pytest.mark.parametrize("server", [YooKassaServer], indirect=True)
async def test_a_sender_does_not_read_a_payment_by_its_id(server: YooKassaServer, tmp_path: Path) -> None:
    async with a_shop(tmp_path, server, admin_token=ADMIN, api_tokens=(SENDER,)) as shop:
        shop.client.headers["authorization"] = f"Bearer {ADMIN}"
        whose = {"user_id": USER, "description": "Приём у врача", "metadata": {"name": "Айдана"}}
        asked = {"id": "order-42", "amount": "4500.00", "return_url": "https://shop.example/"}
        first = (await shop.client.post("/v1/payments", json={**asked, **whose})).json()
        again = (await shop.client.post("/v1/payments", json=asked)).json()
        assert again == {**first, "updated_at": again["updated_at"]}  # who may read gets all of it
        shop.client.headers["authorization"] = f"Bearer {SENDER}"
        other = await shop.client.post("/v1/payments", json={**asked, "amount": "1.00"})
        assert other.status_code == 409
        assert "4500" not in other.text
        assert "yookassa" not in other.text
        seen = (await shop.client.post("/v1/payments", json=asked)).json()
        assert seen == {name: first[name] for name in ("id", "status", "confirmation_url", "client_secret")}
        own = (await shop.client.post("/v1/payments", json={**asked, "id": "order-43"})).json()
        assert own["amount"] == "4500.00"


@pytest.mark.parametrize("server", [YooKassaServer], indirect=True)
async def test_a_sender_takes_no_event_of_a_payment(server: YooKassaServer, tmp_path: Path) -> None:
    """They know the payment's id at the provider, and so what the ids of its events begin with."""
    async with a_shop(tmp_path, server, admin_token=ADMIN, api_tokens=(SENDER,)) as shop:
        shop.client.headers["authorization"] = f"Bearer {SENDER}"
        payment = await shop.create()
        event_id = f"yookassa:{payment['provider_id']}:succeeded"
        made_up = {"event_type": "payment.succeeded", "event_id": event_id, "data": {"amount": "0.01"}}
        assert (await shop.client.post("/v1/events", json=made_up)).status_code == 202
        shop.client.headers["authorization"] = f"Bearer {ADMIN}"
        shop.ledger.pay(shop.ledger.entries[payment["provider_id"]])
        for _ in range(2):
            await shop.client.post(f"/v1/payments/{payment['id']}/check")
        assert [told["amount"] for _, told in await shop.told()] == ["0.01", "100.00"]
