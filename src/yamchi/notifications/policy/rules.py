"""Rules: which event leads to which message. `EventRulesHandler` turns one event into notification jobs.

    - on: user_registered
      when: event.data.plan == "pro"
      notify: {channel: email, template: welcome_email, delay: 0s, expires_in: 7d, priority: normal}

`when` is an expression in the sandbox of templates: it sees the event and the user, can't reach Python, and is stopped
when it works too long.
"""

from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import structlog
from jinja2 import TemplateError, Undefined
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from yamchi.clock import Millis, as_datetime
from yamchi.errors import InvalidJob
from yamchi.fields import Locale, Name, few
from yamchi.notifications.channels.base import Channel, Recipient
from yamchi.notifications.people.recipients import as_template_data
from yamchi.notifications.policy.escalation import INBOX
from yamchi.notifications.policy.model import MOST_CHANNELS, Cap, Digest, Escalation, Policy, Span, as_meta
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.schemas.notification_job import (
    CHANNELS,
    DEFAULT_LOCALE,
    Meta,
    NotificationJob,
    Priority,
    canonical_channel,
    derived_id,
)
from yamchi.notifications.templates.meter import METER, Limits, Meter, Outgrown
from yamchi.notifications.templates.offloop import run_metered
from yamchi.notifications.templates.sandbox import Sandbox
from yamchi.queues.handlers import describe, faults_in
from yamchi.yamlfiles import load_file

log = structlog.get_logger("yamchi.rules")

LONGEST_WHEN = 2_000


class Notify(BaseModel):
    """What to send: over one channel, over several, or over the first one that reaches the person."""

    model_config = ConfigDict(extra="forbid")

    channel: Name | Annotated[list[Name], Field(max_length=MOST_CHANNELS)] | None = Field(
        None, validation_alias=AliasChoices("channel", "channels")
    )
    first_of: Annotated[list[Name], Field(max_length=MOST_CHANNELS)] | None = None
    template: Name
    delay: Annotated[Span, Field(ge=0)] = 0
    expires_in: Annotated[Span, Field(gt=0)] | None = None
    priority: Priority = "normal"
    digest: Digest | None = None
    cap: Cap | None = None
    escalate: Escalation | None = None
    _metas: dict[str, dict[str, Any]] = PrivateAttr(default_factory=dict)

    @field_validator("channel", "first_of")
    @classmethod
    def _has_channels(cls, value: str | list[str] | None) -> str | list[str] | None:
        for name in [value] if isinstance(value, str) else value or ():
            if name not in CHANNELS:
                raise ValueError(f"there is no channel {name!r}: choose from {', '.join(CHANNELS)}")
        return value

    @model_validator(mode="after")
    def _has_one_way(self) -> "Notify":
        if (self.channel is None) == (self.first_of is None):
            raise ValueError("name either 'channel' or 'first_of'")
        if self.escalate and INBOX not in self.ways:
            raise ValueError(f"'escalate' asks what was read, which only the channel {INBOX!r} knows: add it")
        return self

    @property
    def channels(self) -> list[str]:
        return [self.channel] if isinstance(self.channel, str) else list(self.channel or ())

    @property
    def ways(self) -> list[str]:
        """Every channel that it names."""
        return [*self.channels, *(self.first_of or ())]

    def meta_of(self, channel: str) -> dict[str, Any]:
        """What a job's `meta` says of its policy: the same for every event, so it is put together once."""
        if channel not in self._metas:
            self._metas[channel] = as_meta(self.policy(channel))
        return self._metas[channel]

    def policy(self, channel: str) -> Policy:
        """How a job on this channel is to be handled."""
        ways = self.first_of or []
        then = ways[ways.index(channel) + 1 :] if channel in ways else []
        is_escalated = INBOX in (channel, *then)
        return Policy(
            then=then, digest=self.digest, cap=self.cap, escalate=self.escalate if is_escalated else None
        )


_Notify = Annotated[Notify, few(50)]


class Rule(BaseModel):
    """One rule. Its name, or else what it says, is part of the ids of the jobs it makes."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: Name | None = None
    on: Name
    when: Annotated[str, Field(max_length=LONGEST_WHEN)] | None = None
    notify: _Notify | Annotated[list[_Notify], Field(max_length=MOST_CHANNELS)]

    @field_validator("when")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                _compiled(value)
            except TemplateError as error:
                raise ValueError(f"{value[:80]!r} is not an expression: {error}") from error
        return value

    @cached_property
    def id(self) -> str:
        return self.name or self.model_dump_json(exclude_none=True)

    @property
    def notifications(self) -> list[Notify]:
        return self.notify if isinstance(self.notify, list) else [self.notify]


_environment = Sandbox(autoescape=False, undefined=Undefined)
"""What an event lacks is no mistake: it is neither equal to anything nor true."""

_rules = TypeAdapter(list[Rule])


@lru_cache(maxsize=1_000)
def _compiled(expression: str) -> Any:
    return _environment.compile_expression(expression)


def _holds(expression: str, values: dict[str, Any], meter: Meter) -> bool:
    token = METER.set(meter)
    try:
        return bool(_compiled(expression)(values))
    finally:
        METER.reset(token)


def read_rules(path: Path) -> list[Rule]:
    """The rules of a file; a sentence that names file, line and field when one is wrong."""
    document = load_file(path)
    if not isinstance(document.data or [], list):
        raise document.error((), "it must be a list of rules, each with 'on' and 'notify'")
    return document.validate(_rules) if document.data else []


class Rules(Protocol):
    """Where rules come from."""

    async def of(self, event_type: str) -> list[Rule]: ...


class EventRulesHandler:
    """Plans what an event leads to. The same event always leads to the same job ids."""

    def __init__(self, rules: Rules, channels: dict[str, Channel]) -> None:
        self._rules = rules
        self._channels = channels

    async def plan(self, event: Event, recipient: Recipient | None, now: Millis) -> list[NotificationJob]:
        if event.user_id is None:
            return []
        rules = await self._rules.of(event.event_type)
        if any(rule.when for rule in rules):
            rules = await run_metered(partial(_applying, rules, event, recipient))
        return [
            _job(event, rule, notify, channel, recipient, now)
            for rule in rules
            for notify in rule.notifications
            for channel in self._chosen(notify, recipient)
        ]

    def _chosen(self, notify: Notify, recipient: Recipient | None) -> list[str]:
        """The first channel that may reach the person: what is known now to have no address need not be tried.

        What is sent later begins with the first of them, since the person may have an address there by then; and whether
        a channel is set up, the worker knows.
        """
        if notify.first_of is None:
            return notify.channels
        if notify.delay or recipient is None:
            return notify.first_of[:1]
        for name in notify.first_of:
            channel = self._channels.get(canonical_channel(name))
            if channel is None or channel.address(recipient):
                return [name]
        return notify.first_of[-1:]


def _applying(rules: list[Rule], event: Event, recipient: Recipient | None, limits: Limits) -> list[Rule]:
    """The rules whose `when` holds. A first try has one account for all of them, the second one for each."""
    values = {
        "event": event.model_dump(mode="json"),
        "user": as_template_data(recipient) if recipient else {},
    }
    shared = Meter(data=values, limits=limits)
    return [
        rule
        for rule in rules
        if _applies(rule, values, shared if limits.is_first_try else Meter(data=values, limits=limits))
    ]


def _applies(rule: Rule, values: dict[str, Any], meter: Meter) -> bool:
    if rule.when is None:
        return True
    try:
        return _holds(rule.when, values, meter)
    except Outgrown:
        raise
    except Exception as error:
        log.warning("the condition of a rule failed; the rule does not apply", rule=rule.id, error=str(error))
        return False


_locale = TypeAdapter(Locale)


def _locale_of(event: Event) -> str | None:
    """The language that the event asks for, if it does."""
    if not (asked := event.data.get("locale")):
        return None
    try:
        return _locale.validate_python(asked)
    except ValidationError as error:
        raise InvalidJob(
            f"data.locale of the event is no language such as 'ru': {describe(error)}.",
            [fault.within("data.locale") for fault in faults_in(error)],
        ) from error


def _job(
    event: Event, rule: Rule, notify: Notify, channel: str, recipient: Recipient | None, now: Millis
) -> NotificationJob:
    assert event.user_id is not None
    user_id, template = str(event.user_id), notify.template
    locale = (recipient and recipient.locale) or _locale_of(event) or DEFAULT_LOCALE
    # Made of what has been checked: the event, the rule and the person. Checking it again would cost more than the rest.
    return NotificationJob.model_construct(
        job_id=derived_id(event.event_id, rule.id, template, user_id, channel),
        user_id=event.user_id,
        channel=channel,
        template_code=template,
        locale=locale,
        data=event.data,
        meta=Meta(
            event_type=event.event_type,
            event_id=event.event_id,
            priority=notify.priority,
            **notify.meta_of(channel),
        ),
        created_at=as_datetime(now),
        send_after=as_datetime(now + notify.delay) if notify.delay else None,
        expires_at=as_datetime(now + notify.expires_in) if notify.expires_in else None,
    )
