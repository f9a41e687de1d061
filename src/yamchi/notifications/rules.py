"""Rules: which event leads to which message. `EventRulesHandler` turns one event into notification jobs.

    - on: user_registered
      when: event.data.plan == "pro"
      notify: {channel: email, template: welcome_email, delay: 0s, expires_in: 7d, priority: normal}

`when` is a Jinja2 expression in a sandbox: it sees the event and the user, and can't reach Python.
"""

from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Protocol

import structlog
import yaml
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from yamchi.clock import Millis, as_datetime, to_millis
from yamchi.errors import ConfigurationError, InvalidJob
from yamchi.notifications.channels.base import Channel, Recipient
from yamchi.notifications.recipients import as_template_data
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.schemas.notification_job import (
    CHANNELS,
    Meta,
    NotificationJob,
    Priority,
    derived_id,
)
from yamchi.queues.handlers import describe

log = structlog.get_logger("yamchi.rules")

DEFAULT_LOCALE = "ru"


def _as_span(value: Any) -> Millis:
    try:
        return to_millis(value)
    except InvalidJob as error:
        raise ValueError(str(error)) from error


class Notify(BaseModel):
    """What to send: over one channel, over several, or over the first one that reaches the person."""

    model_config = ConfigDict(extra="forbid")

    channel: str | list[str] | None = None
    first_of: list[str] | None = None
    template: str
    delay: Annotated[Millis, Field(ge=0)] = 0
    expires_in: Annotated[Millis, Field(gt=0)] | None = None
    priority: Priority = "normal"

    @field_validator("delay", "expires_in", mode="before")
    @classmethod
    def _read_span(cls, value: Any) -> Any:
        return None if value is None else _as_span(value)

    @model_validator(mode="after")
    def _has_one_way(self) -> "Notify":
        if (self.channel is None) == (self.first_of is None):
            raise ValueError("name either 'channel' or 'first_of'")
        for name in (*self.channels, *(self.first_of or ())):
            if name not in CHANNELS:
                raise ValueError(f"there is no channel {name!r}: choose from {', '.join(CHANNELS)}")
        return self

    @property
    def channels(self) -> list[str]:
        return [self.channel] if isinstance(self.channel, str) else list(self.channel or ())


class Rule(BaseModel):
    """One rule. Its name, or else what it says, is part of the ids of the jobs it makes."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: str | None = None
    on: str
    when: str | None = None
    notify: Notify | list[Notify]

    @field_validator("when")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                _compiled(value)
            except TemplateError as error:
                raise ValueError(f"{value!r} is not an expression: {error}") from error
        return value

    @cached_property
    def id(self) -> str:
        return self.name or self.model_dump_json(exclude_none=True)

    @property
    def notifications(self) -> list[Notify]:
        return self.notify if isinstance(self.notify, list) else [self.notify]


_environment = ImmutableSandboxedEnvironment()
_rules = TypeAdapter(list[Rule])


@lru_cache(maxsize=1_000)
def _compiled(expression: str) -> Any:
    return _environment.compile_expression(expression)


def read_rules(path: Path) -> list[Rule]:
    """The rules of a file; a sentence that names the rule and the field when one is wrong."""
    try:
        # YAML 1.1 reads the key `on` as True.
        content = [
            {"on" if key is True else key: value for key, value in rule.items()} for rule in _load(path)
        ]
        return _rules.validate_python(content)
    except ValidationError as error:
        raise ConfigurationError(f"{path} has a rule that can't be used: {describe(error)}.") from error
    except AttributeError as error:
        raise ConfigurationError(f"{path} must be a list of rules, each with 'on' and 'notify'.") from error


def _load(path: Path) -> list[Any]:
    try:
        return yaml.safe_load(path.read_text()) or []
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} can't be read: {error}") from error


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
        jobs = []
        for rule in await self._rules.of(event.event_type):
            if self._applies(rule, event, recipient):
                for notify in rule.notifications:
                    jobs += [
                        _job(event, rule, notify, channel, recipient, now)
                        for channel in self._chosen(notify, recipient)
                    ]
        return jobs

    def _applies(self, rule: Rule, event: Event, recipient: Recipient | None) -> bool:
        if rule.when is None:
            return True
        user = as_template_data(recipient) if recipient else {}
        try:
            return bool(_compiled(rule.when)(event=event.model_dump(mode="json"), user=user))
        except Exception as error:
            log.warning("a rule could not be asked, and does not apply", rule=rule.id, error=str(error))
            return False

    def _chosen(self, notify: Notify, recipient: Recipient | None) -> list[str]:
        if notify.first_of is None:
            return notify.channels
        for name in notify.first_of:
            channel = self._channels.get(name)
            if recipient and channel and channel.address(recipient):
                return [name]
        return notify.first_of[-1:]


def _job(
    event: Event, rule: Rule, notify: Notify, channel: str, recipient: Recipient | None, now: Millis
) -> NotificationJob:
    assert event.user_id is not None
    user_id, template = str(event.user_id), notify.template
    locale = (recipient and recipient.locale) or event.data.get("locale") or DEFAULT_LOCALE
    return NotificationJob(
        job_id=derived_id(event.event_id, rule.id, template, user_id, channel),
        user_id=event.user_id,
        channel=channel,
        template_code=template,
        locale=locale,
        data=event.data,
        meta=Meta(event_type=event.event_type, event_id=event.event_id, priority=notify.priority),
        created_at=as_datetime(now),
        send_after=as_datetime(now + notify.delay) if notify.delay else None,
        expires_at=as_datetime(now + notify.expires_in) if notify.expires_in else None,
    )
