"""What each person of a campaign gets: the variant, the id of the job, and the job as it will lie in the queue.

All of it is derived from the campaign and the person, so planning again gives the same. What a thousand jobs have in
common is written as JSON once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import orjson

from yamchi.clock import Millis, isoformat
from yamchi.notifications.campaigns.audience import Person
from yamchi.notifications.campaigns.model import WHOLE, Campaign
from yamchi.notifications.schemas.notification_job import DEFAULT_LOCALE, derived_id

EVENT_TYPE = "campaign"


@dataclass(frozen=True, slots=True)
class Planned:
    """A message to one person, before it is in the table or the queue."""

    job_id: str
    user_id: str
    variant: str | None
    template_code: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class VariantMessage:
    """What the messages of one variant have in common."""

    variant: str | None
    template_code: str
    data: dict[str, Any]
    common: dict[str, Any]

    @classmethod
    def of(cls, campaign: Campaign, variant: dict[str, Any] | None, now: Millis) -> "VariantMessage":
        body, name = campaign.body, variant["name"] if variant else None
        meta = {
            "event_type": EVENT_TYPE,
            "event_id": campaign.campaign_id,
            "campaign_id": campaign.campaign_id,
            "priority": body["priority"],
            **({"variant": name} if name else {}),
        }
        data = {**body["data"], **(variant["data"] if variant else {})}
        code = (variant and variant["template_code"]) or body["template_code"]
        common = {
            "channel": body["channel"],
            "template_code": code,
            "data": orjson.Fragment(orjson.dumps(data)),
            "meta": orjson.Fragment(orjson.dumps(meta)),
            "created_at": isoformat(now),
            "send_after": None,
            "expires_at": body["expires_at"],
        }
        return cls(name, code, data, common)

    def fill(self, job_id: str, person: Person, locale: str) -> bytes:
        own: dict[str, Any] = {"job_id": job_id, "user_id": person.user_id, "locale": locale}
        if person.data:
            own["data"] = {**self.data, **person.data}
        return orjson.dumps({**self.common, **own})


@dataclass(frozen=True, slots=True)
class Message:
    """What a person would get: the template, the language and the data."""

    template_code: str
    locale: str
    data: dict[str, Any]


def messages_to(person: Person, campaign: Campaign, now: Millis) -> list[Message]:
    """What this person would get in each variant."""
    locale = person.locale or campaign.body["locale"] or DEFAULT_LOCALE
    variants = [VariantMessage.of(campaign, variant, now) for variant in campaign.variants or (None,)]
    return [Message(one.template_code, locale, {**one.data, **(person.data or {})}) for one in variants]


def plan(campaign: Campaign, people: Sequence[Person], now: Millis) -> list[Planned]:
    """A message to each of these people."""
    body = campaign.body
    default = body["locale"] or DEFAULT_LOCALE
    variants = [VariantMessage.of(campaign, variant, now) for variant in (*campaign.variants, None)]
    bounds = [bound / WHOLE for bound in accumulate(variant["percent"] for variant in campaign.variants)]
    planned = []
    for person in people:
        chosen = variants[_place(campaign.campaign_id, person.user_id, bounds) if bounds else 0]
        job_id = _job_id(campaign.campaign_id, person.user_id, body["channel"])
        payload = chosen.fill(job_id, person, person.locale or default)
        planned.append(Planned(job_id, person.user_id, chosen.variant, chosen.template_code, payload))
    return planned


def _job_id(campaign_id: str, user_id: str, channel: str) -> str:
    """Begins as the person's id does: the ids of a window lie side by side in every index that has them.

    Random ones would each touch a page of their own, which is what a campaign to a million people would then wait for.
    """
    own = str(derived_id("campaign", campaign_id, user_id, channel))
    return f"{user_id[:13]}-8{own[15:]}"


def _place(campaign_id: str, user_id: str, bounds: Sequence[float]) -> int:
    """Which variant a person gets: always the same one, and another in another campaign."""
    digest = blake2b(f"{campaign_id}\x1f{user_id}".encode(), digest_size=8).digest()
    share = int.from_bytes(digest) / 2**64
    return next((place for place, bound in enumerate(bounds) if share < bound), len(bounds) - 1)
