"""YooKassa's API v3 as its documentation has it, over a ledger of its own: Basic auth, idempotence keys, errors in its shapes."""

import base64
import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.services.ledger import A_PAGE, BUSY, CUT, PROXY, Entry, Ledger
from tests.services.webserver import Response, WebService

SHOP, SECRET = "500001", "test_secret"
LONGEST_KEY, MOST_METADATA = 64, 16
_AUTH = "Basic " + base64.b64encode(f"{SHOP}:{SECRET}".encode()).decode()


@dataclass
class YooKassaServer(WebService):
    """`troubles` are given to the next calls that would change something: a status, or None to do it and hang up."""

    ledger: Ledger = field(default_factory=Ledger)
    troubles: list[int | None] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.origin}/v3"

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        with self.ledger.lock:
            if headers.get("authorization") != _AUTH:
                return _error(401, "invalid_credentials", "Basic authentication failed")
            where = urlsplit(path)
            parts = where.path.removeprefix("/v3/").split("/")
            self.ledger.calls[f"{method} {parts[0]}"] += 1
            if method == "GET":
                return self._get(parts, parse_qs(where.query))
            return self._post(parts, headers, json.loads(body or b"{}"))

    def _get(self, parts: list[str], query: dict[str, list[str]]) -> Response:
        if parts == ["payments"]:
            return self._list(query)
        if parts[0] == "refunds":
            refund = self.ledger.refunds.get(parts[1])
            return _said(200, self._refund_shown(refund)) if refund else _not_found(parts[1])
        entry = self.ledger.look(parts[1])
        return _said(200, _shown(entry)) if entry else _not_found(parts[1])

    def _list(self, query: dict[str, list[str]]) -> Response:
        since = datetime.fromisoformat(query["created_at.gte"][0]).timestamp()
        found = sorted(
            (entry for entry in self.ledger.entries.values() if entry.created >= since),
            key=lambda entry: (-entry.created, entry.id),
        )
        size, start = int(query["limit"][0]), int(query.get("cursor", ["0"])[0])
        page: dict[str, Any] = {
            "type": "list",
            "items": [_shown(entry) for entry in found[start : start + size]],
        }
        if len(found) > start + size:
            page["next_cursor"] = str(start + size)
        return _said(200, page)

    def _post(self, parts: list[str], headers: dict[str, str], body: dict[str, Any]) -> Response | None:
        key = headers.get("idempotence-key", "")
        if not key:
            return _error(400, "invalid_request", "Idempotence key is missing", "Idempotence-Key")
        if len(key) > LONGEST_KEY:
            return _error(400, "invalid_request", "Idempotence key is too long", "Idempotence-Key")
        if self.ledger.is_reused(key, f"{parts} {body}"):
            return _error(400, "invalid_request", "Idempotence key duplicated", "Idempotence-Key")
        trouble = self.troubles.pop(0) if self.troubles else 200
        if trouble in (429, 502):
            return _error(trouble, "too_many_requests" if trouble == 429 else "bad_gateway", "Not now")
        if key not in self.ledger.keys:
            answer = self._act(parts, body)
            if answer.status >= 400:
                return answer
            self.ledger.keys[key] = (answer.status, answer)
        if trouble is None:
            return None
        match trouble:
            case 500:
                return _error(500, "internal_server_error", "Internal server error")
            case code if code == BUSY:
                return _said(202, {"type": "processing", "description": "In work", "retry_after": 1800})
            case code if code == PROXY:
                return Response(200, A_PAGE, {"Content-Type": "text/html"})
            case code if code == CUT:
                return _said(200, {"type": "payment"})
        return self._again(self.ledger.keys[key][1])

    def _again(self, answer: Response) -> Response:
        """The same object as it is now: a key gives back the payment, not the moment."""
        known = json.loads(answer.body)
        entry = self.ledger.entries.get(known["id"])
        return _said(200, _shown(entry)) if entry else answer

    def _act(self, parts: list[str], body: dict[str, Any]) -> Response:
        match parts:
            case ["payments"]:
                return self._create(body)
            case ["payments", payment_id, "capture"]:
                return self._capture(payment_id, body)
            case ["payments", payment_id, "cancel"]:
                return self._cancel(payment_id)
            case ["refunds"]:
                return self._refund(body)
        return _not_found("/".join(parts))

    def _create(self, body: dict[str, Any]) -> Response:
        amount = Decimal(body["amount"]["value"])
        if amount <= 0:
            return _error(400, "invalid_request", "Amount must be greater than 0", "amount.value")
        if len(body.get("metadata", {})) > MOST_METADATA:
            return _error(400, "invalid_request", "Metadata has too many keys", "metadata")
        confirmation = body.get("confirmation") or {}
        entry = self.ledger.create(
            amount=int(amount * 100),
            currency=body["amount"]["currency"],
            capture=body.get("capture", False),
            metadata=body.get("metadata", {}),
            description=body.get("description"),
            return_url=confirmation.get("return_url"),
        )
        return _said(200, _shown(entry))

    def _capture(self, payment_id: str, body: dict[str, Any]) -> Response:
        entry = self.ledger.entries.get(payment_id)
        if entry is None:
            return _not_found(payment_id)
        if entry.status != "waiting_for_capture":
            return _error(400, "invalid_request", "Payment is not waiting for capture")
        wanted = int(Decimal(body["amount"]["value"]) * 100)
        if wanted > entry.amount:
            return _error(
                400, "invalid_request", "Capture amount is more than payment amount", "amount.value"
            )
        entry.status, entry.captured = "succeeded", wanted
        entry.amount = entry.captured
        return _said(200, _shown(entry))

    def _cancel(self, payment_id: str) -> Response:
        entry = self.ledger.entries.get(payment_id)
        if entry is None:
            return _not_found(payment_id)
        if entry.status != "waiting_for_capture":
            return _error(400, "invalid_request", "Payment can't be canceled")
        entry.status, entry.reason = "canceled", "canceled_by_merchant"
        return _said(200, _shown(entry))

    def _refund(self, body: dict[str, Any]) -> Response:
        entry = self.ledger.entries.get(body["payment_id"])
        if entry is None:
            return _not_found(body["payment_id"])
        refund = self.ledger.give_back(entry, int(Decimal(body["amount"]["value"]) * 100))
        if refund is None:
            return _error(400, "invalid_request", "Refund amount is more than payment amount", "amount.value")
        return _said(200, self._refund_shown(refund))

    def _refund_shown(self, refund: dict[str, Any]) -> dict[str, Any]:
        entry = self.ledger.entries[refund["payment"]]
        shown = {
            "id": refund["id"],
            "payment_id": entry.id,
            "status": refund["status"],
            "amount": _amount(refund["amount"], entry.currency),
            "created_at": _moment(entry.created),
        }
        if refund["status"] == "canceled":
            shown["cancellation_details"] = {"party": "yoo_money", "reason": "rejected_by_payee"}
        return shown


def webhook(entry: Entry, event: str | None = None) -> dict[str, Any]:
    """What YooKassa would send about a payment now."""
    return {"type": "notification", "event": event or f"payment.{entry.status}", "object": _shown(entry)}


def _shown(entry: Entry) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": entry.id,
        "status": entry.status,
        "paid": entry.status in ("succeeded", "waiting_for_capture"),
        "amount": _amount(entry.amount, entry.currency),
        "created_at": _moment(entry.created),
        "description": entry.description,
        "metadata": entry.metadata,
        "recipient": {"account_id": SHOP, "gateway_id": "1"},
        "refundable": entry.status == "succeeded" and entry.refunded < entry.captured,
        "test": True,
    }
    if entry.return_url and entry.status == "pending":
        shown["confirmation"] = {
            "type": "redirect",
            "return_url": entry.return_url,
            "confirmation_url": f"https://yoomoney.example/checkout?orderId={entry.id}",
        }
    if entry.refunded:
        shown["refunded_amount"] = _amount(entry.refunded, entry.currency)
    if entry.reason:
        shown["cancellation_details"] = {"party": "payment_network", "reason": entry.reason}
    return shown


def _amount(units: int, currency: str) -> dict[str, str]:
    return {"value": f"{Decimal(units) / 100:.2f}", "currency": currency}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(status: int, body: dict[str, Any]) -> Response:
    return Response(status, json.dumps(body).encode(), {"Content-Type": "application/json"})


def _error(status: int, code: str, description: str, parameter: str | None = None) -> Response:
    body = {"type": "error", "id": str(uuid.uuid4()), "code": code, "description": description}
    return _said(status, body | ({"parameter": parameter} if parameter else {}))


def _not_found(what: str) -> Response:
    return _error(404, "not_found", f"{what} was not found")
