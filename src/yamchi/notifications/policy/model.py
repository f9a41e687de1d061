"""What a rule says beyond what to send and where: other channels, a digest, a cap, an escalation.

It travels in the job, as `meta.policy`, so that changing a rule never changes what is already under way. A message
without any has no such field.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from yamchi.clock import Millis, to_millis
from yamchi.errors import InvalidJob, Unrecoverable
from yamchi.fields import Name
from yamchi.notifications.people.quiet_hours import TimeOfDay
from yamchi.notifications.schemas.notification_job import Channel, NotificationJob, is_test
from yamchi.queues.handlers import describe

DAY: Millis = 86_400_000
MORNING = "09:00"
MOST_CHANNELS = 20
"""That one rule may name."""
LONGEST_CAP: Millis = 90 * DAY
LONGEST_DIGEST: Millis = 366 * DAY
_UNITS: tuple[tuple[str, Millis], ...] = (("d", DAY), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def _as_span(value: Any) -> Any:
    try:
        return value if value is None else to_millis(value)
    except InvalidJob as error:
        raise ValueError(str(error)) from error


def _as_text(span: Millis | None) -> str | None:
    """As it is read again: a bare number would be seconds."""
    if span is None:
        return None
    exact = (f"{span // size}{unit}" for unit, size in _UNITS if span and span % size == 0)
    return next(exact, f"{span}ms")


Span = Annotated[Millis, BeforeValidator(_as_span), PlainSerializer(_as_text)]
"""Written as `30m`, `1h`, `7d`; milliseconds in the code."""


class Digest(BaseModel):
    """Collect, and tell together: every so often, or on whole days at a time of the person's clock."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every: Annotated[Span, Field(ge=1_000, le=LONGEST_DIGEST)]
    at: TimeOfDay | None = None
    template: Name

    @model_validator(mode="after")
    def _at_only_on_whole_days(self) -> "Digest":
        if self.at and self.every % DAY:
            raise ValueError("'at' goes with whole days: 'every' must be 1d, 2d, 7d …")
        return self

    @property
    def time(self) -> str | None:
        return self.at or (None if self.every % DAY else MORNING)


class Cap(BaseModel):
    """At most so many messages of a category over a channel in any period of this length."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    most: Annotated[int, Field(ge=1, le=1_000)]
    per: Annotated[Span, Field(gt=0, le=LONGEST_CAP)]
    over: Literal["wait", "suppress"] = "wait"

    def __str__(self) -> str:
        return f"{self.most} per {_as_text(self.per)}"


class Escalation(BaseModel):
    """If the message has not been read by then, send it over another channel too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: Annotated[Span, Field(gt=0)]
    channel: Channel
    template: Name | None = None
    unless: Literal["read"] = "read"


class Policy(BaseModel):
    """How one job is to be handled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    then: Annotated[list[Channel], Field(max_length=MOST_CHANNELS)] = []
    """Where to go on to when the person can't be reached here, in this order."""
    digest: Digest | None = None
    cap: Cap | None = None
    escalate: Escalation | None = None
    gathers: Name | None = None
    """This job tells of the digest of this id: what was collected for it is its data."""
    unless_read: Name | None = None
    """The job whose message must not have been read."""


NONE = Policy()


def policy_of(job: NotificationJob) -> Policy:
    """What the job says of its handling; none at all nearly always. A test goes at once, and by itself."""
    given = _given(job)
    if not given:
        return NONE
    try:
        policy = Policy.model_validate(given)
        return Policy(then=policy.then) if is_test(job) else policy
    except ValidationError as error:
        raise Unrecoverable(f"The job's meta.policy can't be used: {describe(error)}.") from error


def digest_of(job: NotificationJob) -> str | None:
    """The digest that this job tells of, if it does."""
    given = None if is_test(job) else _given(job)
    digest_id = given.get("gathers") if isinstance(given, dict) else None
    return digest_id if isinstance(digest_id, str) else None


def _given(job: NotificationJob) -> Any:
    return job.meta.model_extra and job.meta.model_extra.get("policy")


def as_meta(policy: Policy) -> dict[str, Any]:
    """The fields to add to a job's `meta`: none where nothing is said."""
    said = policy.model_dump(mode="json", exclude_defaults=True)
    return {"policy": said} if said else {}
