"""A scenario as it is written: who starts it, its steps, what stops it. The version is a hash of what it says.

Everything stays as the author wrote it (`30m`, `lesson_datetime - 24h`), so that a stored version reads like its file.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from yamchi.clock import Millis
from yamchi.notifications.schemas.notification_job import CHANNELS, Priority
from yamchi.scenarios.entities import RESERVED
from yamchi.scenarios.expressions import check_expression, check_text
from yamchi.scenarios.moments import At, read_at, read_span

END = "end"
CONTINUE, STOP = "continue", "stop"
DEFAULT_QUEUE = "scenarios"
MOST_STEPS = 200

_NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"
_KEY_OF_KIND = re.compile(r"\s*\{\{\s*([A-Za-z_]\w*)\.\w+\s*\}\}\s*")


def _span(value: str | int | float) -> str | int | float:
    read_span(value)
    return value


def _at(value: str) -> str:
    read_at(value)
    return value


def _texts(value: Any) -> Any:
    """Every template inside compiles."""
    if isinstance(value, str):
        check_text(value)
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        _texts(part)
    return value


def _kind_in(key: Any) -> str | None:
    """The kind of thing whose field is the key: `lead`, if that is `{{ lead.id }}`."""
    found = _KEY_OF_KIND.fullmatch(key) if isinstance(key, str) else None
    return found[1] if found and found[1] not in RESERVED else None


def _listed(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, str) else value


Name = Annotated[str, Field(pattern=_NAME)]
EventType = Annotated[str, Field(min_length=1, max_length=255)]
EventTypes = Annotated[list[EventType], BeforeValidator(_listed)]
SpanText = Annotated[str | int | float, AfterValidator(_span)]
Expression = Annotated[str, AfterValidator(check_expression)]
Text = Annotated[str, AfterValidator(check_text)]
Texts = Annotated[dict[str, Any], AfterValidator(_texts)]


class Part(BaseModel):
    """A part of a scenario; a field that it does not have is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Send(Part):
    """A message: over one channel, or over the first of several that reaches the person."""

    channel: str | None = Field(default=None, description="email, telegram, push, sms, database, …")
    first_of: list[str] = Field(
        default=[],
        description="Channels in the order in which to try them: the first that reaches the person is used.",
    )
    template: str = Field(min_length=1, description="The template's code.")
    to: Text | None = Field(
        default=None, description="Another address than the person's: admin_group, {{ lead.manager }}."
    )
    locale: Text | None = Field(default=None, description="Defaults to the person's language.")
    data: Texts = Field(default={}, description="More values for the template.")
    priority: Priority = "normal"

    @model_validator(mode="after")
    def _has_one_way(self) -> Self:
        if (self.channel is None) == (not self.first_of):
            raise ValueError("name either 'channel' or 'first_of'")
        for name in self.channels:
            if name not in CHANNELS:
                raise ValueError(f"there is no channel {name!r}: choose from {', '.join(CHANNELS)}")
        return self

    @property
    def channels(self) -> list[str]:
        return [self.channel] if self.channel else self.first_of


class Emit(Part):
    """An event for this installation's own rules and scenarios, about the same entity."""

    event: EventType
    data: Texts = {}

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        """`emit: lesson.missed` says as much as `emit: {event: lesson.missed}`."""
        return {"event": value} if isinstance(value, str) else value


def _shortened(emit: Emit | None) -> Any:
    """As actions had it before an event of theirs could say anything: what is written as it was has the version that it had."""
    if emit is None or emit.data:
        return emit
    return emit.event


class Remember(Part):
    """Where the id of the pending job is kept for other programs: a key, and how long it lives."""

    key: Text
    ttl: SpanText


class Step(Part):
    """One step, which is one job: when, whether, what, and what then."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    job: Name = Field(alias="job", description="The step's name, and its job's name on the queue.")
    wait: SpanText | None = Field(default=None, description="How long after the end of the step before: 30m.")
    at: Annotated[str, AfterValidator(_at)] | None = Field(
        default=None, description="A moment that hangs on a date: lesson_datetime - 24h."
    )
    past: Literal["skip", "now"] = Field(
        default="skip", description="What to do when the moment of `at` has passed already."
    )
    expires: SpanText | None = Field(
        default=None, description="How late it may be before it is not worth doing."
    )
    wait_for: EventType | None = Field(default=None, description="Go on when this event comes for the key.")
    since: Literal["previous", "start"] = Field(
        default="previous", description="From when on such an event counts: the step before, or the start."
    )
    timeout: SpanText | None = Field(default=None, description="How long to wait for the event.")
    on_timeout: str = Field(default=CONTINUE, description="continue, stop, or the step to go to.")
    when: Expression | None = Field(default=None, description="Only if this is true at that moment.")
    unless: Expression | None = Field(default=None, description="Not if this is true at that moment.")
    send: Send | None = None
    call: str | None = Field(
        default=None, description="A Python function registered with @app.scenarios.function."
    )
    set: Texts = Field(default={}, description="Fields of the entity, written when the step is done.")
    log: Text | None = Field(default=None, description="A line for the entity's log.")
    set_first: bool = Field(
        default=False,
        description="Write `set` and `log` before the message is sent, once: they hold whether or not it gets through.",
    )
    emit: Emit | None = None
    data: Texts | None = Field(default=None, description="The data of the step's job.")
    remember: Remember | None = None
    on_failure: str = Field(default=STOP, description="stop, continue, or the step to go to.")
    next: str | None = Field(
        default=None, description="A later step to go to, or end; otherwise the one below."
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        """`step` is another word for `job`."""
        if isinstance(value, dict) and "step" in value and "job" not in value:
            return {"job" if name == "step" else name: part for name, part in value.items()}
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.wait is not None and self.at is not None:
            raise ValueError("has both 'wait' and 'at': a step is due by one of them")
        if self.wait_for is None and (self.timeout is not None or self.on_timeout != CONTINUE):
            raise ValueError("has a 'timeout' but waits for no event: add 'wait_for'")
        if self.wait_for is not None and (self.wait is not None or self.at is not None):
            raise ValueError("has 'wait_for', so how long it waits is its 'timeout'")
        if self.wait_for is not None and (self.send or self.call or self.set or self.log or self.emit):
            raise ValueError("waits for an event: what is to be done then is the next step's")
        if self.at is None and self.past != "skip":
            raise ValueError("has 'past', which only a step with 'at' can have")
        if self.set_first and not self.acts_outside:
            raise ValueError("has 'set_first', which only a step with 'send' or 'call' can have")
        if self.emit and self.wait_for:
            raise ValueError("can't both emit an event and wait for one")
        return self

    @cached_property
    def delay(self) -> Millis:
        return read_span(self.wait or 0)

    @cached_property
    def moment(self) -> At | None:
        return read_at(self.at) if self.at else None

    @cached_property
    def lateness(self) -> Millis | None:
        return None if self.expires is None else read_span(self.expires)

    @cached_property
    def longest_wait(self) -> Millis | None:
        return None if self.timeout is None else read_span(self.timeout)

    @property
    def acts_outside(self) -> bool:
        """Whether it does what no transaction can take back."""
        return bool(self.send or self.call)

    @property
    def jumps(self) -> Iterator[tuple[str, str]]:
        """(field, target) of every place it may go to besides the step below."""
        for name in ("next", "on_timeout", "on_failure"):
            target = getattr(self, name)
            if target not in (None, CONTINUE, STOP):
                yield name, target


class Action(Part):
    """What a button does: for a person in a chat, or behind a link in a letter."""

    emit: Annotated[Emit | None, PlainSerializer(_shortened)] = Field(
        default=None, description="An event with the entity's id and who did it."
    )
    set: Texts = {}
    log: Text | None = None
    stop: bool = Field(default=False, description="Stop the run.")

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not (self.emit or self.set or self.log or self.stop):
            raise ValueError("does nothing: give it emit, set, log or stop")
        return self


class Definition(Part):
    """A scenario."""

    scenario: Name = Field(description="Its name.")
    title: str | None = Field(default=None, max_length=200, description="A few words for people.")
    on: EventTypes = Field(min_length=1, description="The event, or events, that start a run.")
    entity: str | None = Field(
        default=None,
        description="The kind of thing it works on: lead. May be left out if the key names it, as {{ lead.id }} does.",
    )
    key: Text = Field(description="One living run per key: {{ lead.id }}.")
    when: Expression | None = Field(default=None, description="Start only if this is true.")
    again: Literal["when_finished", "never", "restart"] = Field(
        default="when_finished", description="What another start event for the same key does."
    )
    stop_on: EventTypes = Field(default=[], description="The event, or events, that cancel what is pending.")
    queue: str = Field(default=DEFAULT_QUEUE, max_length=200, pattern=r"^[A-Za-z0-9_.-]+$")
    data: Texts = Field(default={}, description="The data of the steps' jobs, unless a step has its own.")
    actions: dict[Name, Action] = Field(default={}, description="What buttons and links can do.")
    steps: list[Step] = Field(min_length=1, max_length=MOST_STEPS)

    @model_validator(mode="before")
    @classmethod
    def _entity_of_key(cls, value: Any) -> Any:
        """Without its kind such a key can't be made of any event, so no run ever began under the version without it."""
        if isinstance(value, dict) and value.get("entity") is None and (kind := _kind_in(value.get("key"))):
            return {**value, "entity": kind}
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.entity is not None and (not self.entity.isidentifier() or self.entity in RESERVED):
            raise ValueError(
                f"entity: {self.entity!r} is not the name of a kind of thing: use one like 'lead'"
            )
        for event in self.stop_on:
            if event in self.on:
                raise ValueError(f"stop_on: {event!r} starts this scenario too: it can do only one of them")
        self._check_names()
        self._check_jumps()
        self._check_echo()
        if self.entity is None and (any(step.set or step.log for step in self.steps)):
            raise ValueError("steps: 'set' and 'log' write to an entity: say which kind with 'entity'")
        return self

    def _check_names(self) -> None:
        seen: set[str] = set()
        for number, step in enumerate(self.steps):
            if step.job in seen or step.job in (END, CONTINUE, STOP):
                raise ValueError(f"steps.{number}.job: {step.job!r} is taken: give this step another name")
            seen.add(step.job)

    def _check_jumps(self) -> None:
        for number, step in enumerate(self.steps):
            for name, target in step.jumps:
                if target == END:
                    continue
                if target not in self.places:
                    raise ValueError(f"steps.{number}.{name}: there is no step {target!r}")
                if self.places[target] <= number:
                    way = " → ".join(step.job for step in self.steps[self.places[target] : number + 1])
                    raise ValueError(
                        f"steps.{number}.{name}: goes back to {target!r}, and {way} → {target} is a cycle: "
                        "a step can only go on to a later one"
                    )

    def _check_echo(self) -> None:
        for number, step in enumerate(self.steps):
            if step.emit and step.emit.event in self.on:
                raise ValueError(
                    f"steps.{number}.emit: {step.emit.event!r} starts this scenario, which is a cycle"
                )

    @cached_property
    def places(self) -> Mapping[str, int]:
        return {step.job: place for place, step in enumerate(self.steps)}

    @cached_property
    def listens_to(self) -> frozenset[str]:
        """Every event type that matters to a run of it."""
        return frozenset((*self.on, *self.stop_on, *self.waits_for))

    @cached_property
    def waits_for(self) -> frozenset[str]:
        return frozenset(step.wait_for for step in self.steps if step.wait_for)

    @cached_property
    def emits(self) -> frozenset[str]:
        return frozenset(step.emit.event for step in self.steps if step.emit)

    @cached_property
    def body(self) -> dict[str, Any]:
        """What it says, without what it leaves to the defaults: the form that is stored and hashed."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @cached_property
    def version(self) -> str:
        return sha256(orjson.dumps(self.body, option=orjson.OPT_SORT_KEYS)).hexdigest()[:12]

    def step(self, name: str) -> Step:
        return self.steps[self.places[name]]

    def after(self, step: Step) -> str | None:
        """The step that follows this one; None at the end."""
        if step.next is not None:
            return None if step.next == END else step.next
        place = self.places[step.job] + 1
        return self.steps[place].job if place < len(self.steps) else None

    def data_of(self, step: Step) -> dict[str, Any]:
        return self.data if step.data is None else step.data
