"""The books of a payment provider that tests talk to: payments, refunds, and keys that make a repeated call the same call.

`YooKassaServer` and `StripeServer` speak of them over HTTP, each in its own words.
"""

import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

BUSY, PROXY, CUT = 202, 203, 206
"""Troubles of both providers: it is done, but said is that it is being worked on (YooKassa 202, Stripe 409); a page of some
proxy; an object without most of its fields."""

A_PAGE = b"<html><body>We'll be right back</body></html>"


@dataclass
class Entry:
    """A payment in the provider's books; amounts in the smallest units."""

    id: str
    amount: int
    currency: str
    created: float
    capture: bool
    metadata: dict[str, str]
    description: str | None
    return_url: str | None = None
    status: str = "pending"
    captured: int = 0
    refunded: int = 0
    reason: str | None = None
    gets: int = 0


@dataclass
class Ledger:
    """What a provider remembers. `pay` and `decline` are what a customer does."""

    new_id: Callable[[], str] = field(default=lambda: str(uuid.uuid4()))
    clock: Callable[[], float] = field(default=lambda: 1_763_700_000.0)
    entries: dict[str, Entry] = field(default_factory=dict)
    refunds: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[str, tuple[int, Any]] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    pays_after: dict[str, int] = field(default_factory=dict)
    refunds_begin_as: str = "succeeded"
    lock: threading.RLock = field(default_factory=threading.RLock)

    def create(self, **fields: Any) -> Entry:
        entry = Entry(id=self.new_id(), created=self.clock(), **fields)
        self.entries[entry.id] = entry
        return entry

    def pay(self, entry: Entry) -> None:
        if entry.capture:
            entry.status, entry.captured = "succeeded", entry.amount
        else:
            entry.status = "waiting_for_capture"

    def decline(self, entry: Entry, reason: str = "insufficient_funds") -> None:
        entry.status, entry.reason = "canceled", reason

    def look(self, payment_id: str) -> Entry | None:
        """A payment as it is asked for; some are paid after they were asked for so many times."""
        entry = self.entries.get(payment_id)
        if entry is not None:
            entry.gets += 1
            if entry.status == "pending" and entry.gets > self.pays_after.get(entry.id, 10**9):
                self.pay(entry)
        return entry

    def give_back(self, entry: Entry, amount: int) -> dict[str, Any] | None:
        if entry.status != "succeeded" or entry.refunded + amount > entry.captured:
            return None
        entry.refunded += amount
        refund = {"id": self.new_id(), "payment": entry.id, "amount": amount, "status": self.refunds_begin_as}
        self.refunds[refund["id"]] = refund
        return refund

    def settle(self, refund: dict[str, Any], status: str) -> None:
        """A refund that was pending goes through, or comes back."""
        refund["status"] = status
        if status == "canceled":
            self.entries[refund["payment"]].refunded -= refund["amount"]

    def forget_keys(self) -> None:
        """A day has passed."""
        self.keys.clear()
        self.requests.clear()

    def is_reused(self, key: str, request: str) -> bool:
        """Whether this key was that of another request."""
        return self.requests.setdefault(key, request) != request

    @property
    def only(self) -> Entry:
        (entry,) = self.entries.values()
        return entry
