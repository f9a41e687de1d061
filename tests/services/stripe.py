"""Stripe's payment intents over a ledger: form-encoded requests, minor units, idempotency keys, signed events."""

import base64
import hmac
import json
import time
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.services.ledger import A_PAGE, BUSY, CUT, PROXY, Entry, Ledger
from tests.services.webserver import Response, WebService

STUCK = 599
SECRET, WEBHOOK_SECRET = "sk_test_51abc", "whsec_test"
_AUTH = "Basic " + base64.b64encode(f"{SECRET}:".encode()).decode()
_NUMBERS = count(1)
_STATUSES = {
    "pending": "requires_payment_method",
    "waiting_for_capture": "requires_capture",
    "succeeded": "succeeded",
    "canceled": "canceled",
}
_EVENTS = {
    "succeeded": "payment_intent.succeeded",
    "canceled": "payment_intent.canceled",
    "waiting_for_capture": "payment_intent.amount_capturable_updated",
    "pending": "payment_intent.processing",
}


def _new_id() -> str:
    return f"pi_{next(_NUMBERS):06}"


@dataclass
class StripeServer(WebService):
    """`troubles` as in `YooKassaServer`. What a key was answered it is answered again, word for word; after `STUCK`, a 500."""

    ledger: Ledger = field(default_factory=lambda: Ledger(new_id=_new_id))
    troubles: list[int | None] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        with self.ledger.lock:
            if headers.get("authorization") != _AUTH:
                return _error(401, "Invalid API Key provided", "invalid_request_error")
            where = urlsplit(path)
            parts = where.path.removeprefix("/v1/").split("/")
            self.ledger.calls[f"{method} {parts[0]}"] += 1
            if method == "GET":
                return self._get(parts, _flat(where.query))
            assert headers["content-type"].startswith("application/x-www-form-urlencoded")
            return self._post(parts, headers.get("idempotency-key", ""), _flat(body.decode()))

    def _get(self, parts: list[str], query: dict[str, str]) -> Response:
        if parts == ["payment_intents"]:
            return self._list(query)
        if parts[0] == "refunds":
            refund = self.ledger.refunds.get(parts[1].replace("re_", "pi_"))
            return _said(200, _refund_shown(refund)) if refund else _missing(parts[1])
        entry = self.ledger.look(parts[1])
        return _said(200, _shown(entry)) if entry else _missing(parts[1])

    def _list(self, query: dict[str, str]) -> Response:
        since, size = float(query.get("created[gte]", 0)), int(query.get("limit", 10))
        found = sorted(
            (entry for entry in self.ledger.entries.values() if entry.created >= since),
            key=lambda entry: entry.id,
            reverse=True,
        )
        if after := query.get("starting_after"):
            found = found[[entry.id for entry in found].index(after) + 1 :]
        page = {
            "object": "list",
            "data": [_shown(entry) for entry in found[:size]],
            "has_more": len(found) > size,
        }
        return _said(200, page)

    def _post(self, parts: list[str], key: str, body: dict[str, str]) -> Response | None:
        if self.ledger.is_reused(key, f"{parts} {body}"):
            said = "Keys for idempotent requests can only be used with the same parameters"
            return _error(400, said, "idempotency_error")
        trouble = self.troubles.pop(0) if self.troubles else 200
        if trouble in (429, 502):
            return _error(trouble, "Too many requests", "rate_limit_error")
        if key not in self.ledger.keys:
            answer = self._act(parts, body)
            if trouble == STUCK:
                answer = _error(500, "An error occurred", "api_error")
            self.ledger.keys[key] = (answer.status, answer)
        if trouble is None:
            return None
        match trouble:
            case 500:
                return _error(500, "An error occurred", "api_error")
            case code if code == BUSY:
                return _error(409, "There is currently another in-progress request", "idempotency_error")
            case code if code == PROXY:
                return Response(200, A_PAGE, {"Content-Type": "text/html"})
            case code if code == CUT:
                return _said(200, {"object": "payment_intent"})
        return self.ledger.keys[key][1]

    def _act(self, parts: list[str], body: dict[str, str]) -> Response:
        match parts:
            case ["payment_intents"]:
                return self._create(body)
            case ["payment_intents", payment_id, act]:
                entry = self.ledger.entries.get(payment_id)
                return self._change(entry, act, body) if entry else _missing(payment_id)
            case ["refunds"]:
                return self._refund(body)
        return _missing("/".join(parts))

    def _create(self, body: dict[str, str]) -> Response:
        if int(body["amount"]) <= 0:
            return _error(400, "Invalid positive integer", "invalid_request_error", "amount")
        entry = self.ledger.create(
            amount=int(body["amount"]),
            currency=body["currency"],
            capture=body["capture_method"] == "automatic",
            metadata={name[9:-1]: value for name, value in body.items() if name.startswith("metadata[")},
            description=body.get("description"),
        )
        return _said(200, _shown(entry))

    def _change(self, entry: Entry, act: str, body: dict[str, str]) -> Response:
        wanted = int(body.get("amount_to_capture", entry.amount))
        if act == "capture" and entry.status == "waiting_for_capture" and wanted <= entry.amount:
            entry.status, entry.captured = "succeeded", wanted
        elif act == "cancel" and entry.status in ("pending", "waiting_for_capture"):
            entry.status, entry.reason = "canceled", "requested_by_customer"
        else:
            return _error(400, f"This PaymentIntent's status is {entry.status}", "invalid_request_error")
        return _said(200, _shown(entry))

    def _refund(self, body: dict[str, str]) -> Response:
        entry = self.ledger.entries.get(body["payment_intent"])
        if entry is None:
            return _missing(body["payment_intent"])
        refund = self.ledger.give_back(entry, int(body["amount"]))
        if refund is None:
            return _error(400, "Refund amount is greater than charge amount", "invalid_request_error")
        return _said(200, _refund_shown(refund))


def webhook(entry: Entry, kind: str | None = None) -> dict[str, Any]:
    """The event that Stripe would send about a payment now."""
    return {
        "id": f"evt_{entry.id}_{kind or entry.status}",
        "object": "event",
        "type": kind or _EVENTS[entry.status],
        "data": {"object": _shown(entry)},
    }


def signature(body: bytes, moment: float | None = None, secret: str = WEBHOOK_SECRET) -> str:
    stamp = str(int(time.time() if moment is None else moment))
    made = hmac.new(secret.encode(), stamp.encode() + b"." + body, sha256).hexdigest()
    return f"t={stamp},v1={'0' * 64},v1={made}"


def _shown(entry: Entry) -> dict[str, Any]:
    charge = {"id": f"ch_{entry.id}", "object": "charge", "amount_refunded": entry.refunded}
    return {
        "id": entry.id,
        "object": "payment_intent",
        "amount": entry.amount,
        "amount_received": entry.captured,
        "currency": entry.currency,
        "status": _STATUSES[entry.status],
        "created": int(entry.created),
        "client_secret": f"{entry.id}_secret_x",
        "description": entry.description,
        "metadata": entry.metadata,
        "latest_charge": charge if entry.status in ("succeeded", "waiting_for_capture") else None,
        "cancellation_reason": entry.reason,
    }


def _refund_shown(refund: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": refund["id"].replace("pi_", "re_"),
        "object": "refund",
        "status": "failed" if refund["status"] == "canceled" else refund["status"],
        "amount": refund["amount"],
        "payment_intent": refund["payment"],
        "failure_reason": "declined" if refund["status"] == "canceled" else None,
    }


def _flat(text: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}


def _said(status: int, body: dict[str, Any]) -> Response:
    return Response(status, json.dumps(body).encode(), {"Content-Type": "application/json"})


def _error(status: int, message: str, kind: str, param: str | None = None) -> Response:
    return _said(status, {"error": {"message": message, "type": kind, "param": param, "code": None}})


def _missing(what: str) -> Response:
    return _error(404, f"No such payment_intent: '{what}'", "invalid_request_error")
