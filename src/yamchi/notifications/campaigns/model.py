"""What a caller asks for: to whom, what, when, how fast, and in which variants."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from yamchi.clock import Millis, to_moment
from yamchi.errors import YamchiError
from yamchi.fields import JsonObject, Locale, Moment, Name, few
from yamchi.notifications.schemas.notification_job import Channel, Priority
from yamchi.queues.rates import RateLimit

State = Literal["draft", "running", "paused", "cancelled"]
"""As kept. A campaign is a draft until its list is complete."""

ShownState = Literal["draft", "scheduled", "running", "paused", "cancelled", "finished"]

WHOLE = 100.0
"""Percent."""


def _is_rate(value: str) -> str:
    try:
        RateLimit.parse(value)
    except YamchiError as error:
        raise ValueError(str(error)) from error
    return value


class AudienceIn(BaseModel):
    """Whom to reach: exactly one of these."""

    model_config = ConfigDict(extra="forbid")

    user_ids: Annotated[list[UUID], Field(fail_fast=True)] | None = Field(
        default=None, min_length=1, description="These people."
    )
    where: JsonObject | None = Field(
        default=None,
        description="Everybody of whom all of this is true; {} is everybody.",
        examples=[{"attributes.plan": "pro", "locale": ["ru", "kk"], "attributes.age": {"gte": 18}}],
    )
    csv: str | None = Field(default=None, description="A table with a column user_id or email, as text.")
    upload: Literal[True] | None = Field(
        default=None, description="The table comes next, by PUT …/audience; the campaign waits for it."
    )

    @model_validator(mode="after")
    def _has_one(self) -> "AudienceIn":
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            said = " and ".join(given) or "none of them"
            raise ValueError(f"give exactly one of user_ids, where, csv and upload, not {said}")
        return self

    @property
    def is_list(self) -> bool:
        """Whether people are named one by one, rather than described."""
        return self.where is None


class Variant(BaseModel):
    """A part of the audience that gets another template or other data."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=64, pattern=r"^[\w.-]+$", examples=["short"])
    percent: float = Field(gt=0, le=100, examples=[50])
    template_code: Name | None = None
    data: JsonObject = Field(default_factory=dict)


class CampaignIn(BaseModel):
    """A campaign to make. The same `campaign_id` with the same content again changes nothing."""

    model_config = ConfigDict(extra="forbid")

    campaign_id: str = Field(max_length=200, pattern=r"^\.*[\w@-][\w.@-]*$", examples=["black-friday-2026"])
    template_code: Name = Field(examples=["black_friday_sale"])
    channel: Channel
    audience: Annotated[AudienceIn, few(10)]
    data: JsonObject = Field(default_factory=dict, examples=[{"discount": 30}])
    send_after: Moment | None = None
    expires_at: Moment | None = None
    rate: Annotated[str, StringConstraints(max_length=40), AfterValidator(_is_rate)] | None = Field(
        default=None, examples=["100/s"]
    )
    variants: list[Variant] = Field(default_factory=list, max_length=20)
    locale: Locale | None = Field(default=None, description="For those who have chosen none.")
    priority: Priority = "normal"

    @field_validator("variants")
    @classmethod
    def _is_whole(cls, variants: list[Variant]) -> list[Variant]:
        total = sum(variant.percent for variant in variants)
        if variants and abs(total - WHOLE) > 1e-6:
            raise ValueError(f"the percentages add up to {total:g}, not to 100")
        if len({variant.name for variant in variants}) < len(variants):
            raise ValueError("two variants have the same name")
        return variants

    @model_validator(mode="after")
    def _can_be_sent(self) -> "CampaignIn":
        if self.expires_at and self.send_after and self.expires_at <= self.send_after:
            raise ValueError("expires_at is not after send_after: nobody would ever get it")
        return self

    @property
    def fingerprint(self) -> str:
        """What tells this request from another under the same id."""
        whole = self.model_dump(mode="json")
        return sha256(orjson.dumps(whole, option=orjson.OPT_SORT_KEYS)).hexdigest()

    def body(self) -> dict[str, Any]:
        """The request as it is kept: a list of people is kept elsewhere."""
        audience = {"where": self.audience.where} if not self.audience.is_list else {"list": True}
        return {**self.model_dump(mode="json", exclude={"audience"}), "audience": audience}


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign as it is kept."""

    campaign_id: str
    body: dict[str, Any]
    state: State
    total: int | None
    report: dict[str, Any] | None
    cursor: str | None
    queued: str | None
    next_turn: Millis | None
    holder: str | None
    held_until: Millis | None
    created_at: Millis
    fanned_out_at: Millis | None
    fingerprint: str

    @property
    def where(self) -> dict[str, Any] | None:
        """The filter; None when people are named one by one."""
        where: dict[str, Any] | None = self.body["audience"].get("where")
        return where

    @property
    def send_after(self) -> Millis | None:
        return _moment(self.body["send_after"])

    @property
    def expires_at(self) -> Millis | None:
        return _moment(self.body["expires_at"])

    @property
    def rate(self) -> RateLimit | None:
        return RateLimit.parse(self.body["rate"]) if self.body["rate"] else None

    @property
    def variants(self) -> Sequence[dict[str, Any]]:
        variants: Sequence[dict[str, Any]] = self.body["variants"]
        return variants


def _moment(value: str | None) -> Millis | None:
    return None if value is None else to_moment(datetime.fromisoformat(value))
