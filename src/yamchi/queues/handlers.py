"""What a queue is declared to be: its limits, its defaults, and the functions that handle its jobs.

A handler's annotation is its contract: `Job[Thumb]` means that data which is not a `Thumb` never reaches it.
"""

import inspect
import re
import types
import typing
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict, Unpack

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from yamchi.clock import Millis, Span
from yamchi.errors import ConfigurationError, InvalidJob, UnknownJob
from yamchi.fields import Fault, faults_of
from yamchi.queues.engines.base import RateLimit
from yamchi.queues.options import DEFAULT_OPTIONS, Backoff, BackoffLike, JobOptions, check_timeout
from yamchi.queues.processes.limits import ProcessLimits
from yamchi.queues.records import JobRecord, to_json

_QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""What every broker can name a key, a table or a topic by."""

DEFAULT_TIMEOUT: Millis = 3_600_000
"""A handler that never returns must not hold its slot for ever, even if nobody set a timeout."""

KeyOf = str | Callable[[Any], str]

MOST_FAULTS = 2_000
"""With more faults than this, none is described: that takes ten times as long as finding them."""

INVALID_JSON = "Invalid JSON in Kafka message"
"""Other systems know unparseable messages by this sentence, so it is the same on every engine."""


class PoisonMessage(Exception):
    """Data that is not JSON or does not fit the handler's model: no attempt can mend it."""


class QueueOptions(TypedDict, total=False):
    """What a declaration may say about a queue. Options that are left out or None keep what was said before."""

    concurrency: int | None
    attempts: int | None
    backoff: BackoffLike | None
    timeout: Span | None
    keep_completed: int | None
    keep_failed: int | None
    rate: RateLimit | str | None
    key_rate: RateLimit | str | None
    key: KeyOf | None
    topic: str | None


@dataclass(frozen=True)
class Handler:
    """A function that handles jobs of one name."""

    name: str
    function: Callable[..., Any]
    limits: ProcessLimits | None = None
    """The number and size of its child processes, if it runs in some."""

    def __post_init__(self) -> None:
        """Refuse a function that could not be called, before its first job comes."""
        signature = inspect.signature(self.function)
        try:
            signature.bind(*signature.parameters and ("job",))
        except TypeError as error:
            raise ConfigurationError(
                f"{self.name}{signature} can't handle jobs ({error}): it is called with the job, or with nothing."
            ) from error

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def model(self) -> Any:
        """The T of the `Job[T]` that the function takes; None if it has no annotation."""
        try:
            hints = typing.get_type_hints(self.function, include_extras=True)
        except NameError as error:
            raise TypeError(f"The annotation of {self.name} can't be resolved ({error}).") from error
        names = [name for name in inspect.signature(self.function).parameters if name in hints]
        arguments = typing.get_args(hints[names[0]]) if names else ()
        return arguments[0] if arguments and not isinstance(arguments[0], typing.TypeVar) else None

    @cached_property
    def takes_job(self) -> bool:
        return bool(inspect.signature(self.function).parameters)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any] | None:
        return None if self.model in (None, Any, dict) else TypeAdapter(self.model)

    @cached_property
    def _models(self) -> tuple[type, ...]:
        """The classes whose instances fit as they are."""
        return tuple(part for part in _alternatives(self.model) if isinstance(part, type))

    def decode(self, payload: bytes) -> Any:
        """Data as the handler's annotation wants it."""
        if self._adapter is None:
            return decode_json(payload)
        try:
            return self._adapter.validate_json(payload)
        except ValidationError as error:
            is_json = error.error_count() > 1 or error.errors()[0]["type"] != "json_invalid"
            raise PoisonMessage(describe(error, payload) if is_json else INVALID_JSON) from error

    def encode(self, data: Any) -> bytes:
        """Data as JSON. Refuses what `decode` would refuse."""
        payload = encode_json(data)
        if self._adapter is not None and not isinstance(data, self._models):
            try:
                self._adapter.validate_json(payload)
            except ValidationError as error:
                said = f"The data of {self.name} does not fit: {describe(error, payload)}"
                faults = [fault.within("data") for fault in faults_in(error, payload)]
                raise InvalidJob(said, faults) from error
        return payload


def _alternatives(model: Any) -> list[Any]:
    """The model, or the members of a union."""
    origin, parts = typing.get_origin(model), typing.get_args(model)
    if origin is typing.Annotated:
        return _alternatives(parts[0])
    if origin in (typing.Union, types.UnionType):
        return [one for part in parts for one in _alternatives(part)]
    return [model]


def encode_json(data: Any) -> bytes:
    try:
        return data.model_dump_json().encode() if isinstance(data, BaseModel) else to_json(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"The data can't be written as JSON: {error}.") from error


def check_size(definition: "QueueDefinition", name: str, payload: bytes) -> bytes:
    """The payload, if it is not too large for its queue."""
    if len(payload) > definition.max_bytes:
        raise InvalidJob(
            f"The data of {definition.name}/{name} is {len(payload):,} bytes, more than the {definition.max_bytes:,} allowed: "
            "keep large things in a file or object store and put their address in the job."
        )
    return payload


def decode_json(payload: bytes) -> Any:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise PoisonMessage(INVALID_JSON) from error


def faults_in(error: ValidationError, payload: bytes | None = None) -> list[Fault]:
    if error.error_count() > MOST_FAULTS:
        return [Fault("", f"{error.error_count():,} things are wrong with it, too many to name")]
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return faults_of(found, ... if payload is None else decode_json(payload))


def describe(error: ValidationError, payload: bytes | None = None) -> str:
    """One sentence: each field with what is wrong with it. With a payload, fields are named as they are there."""
    faults = faults_in(error, payload)
    said = [f"{fault.place or 'value'}: {fault.message}" for fault in faults[:5]]
    more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
    return "; ".join(said) + more


UNNAMED = ("", "__default__")
"""What stands where nobody named a job."""


@dataclass
class QueueDefinition:
    """A queue's limits and defaults, with its handlers by job name. The first handler is the default one."""

    name: str
    concurrency: int = 10
    options: JobOptions = DEFAULT_OPTIONS
    rate: RateLimit | None = None
    """How many jobs may start in a period, over all workers."""
    key_rate: RateLimit | None = None
    """The same for each key, for example each chat."""
    key: KeyOf | None = None
    """A field of the data, or a function of the data, that gives a job's key."""
    timeout: Millis | None = DEFAULT_TIMEOUT
    """How long a run may take if its job has no timeout of its own; None for no limit."""
    max_bytes: int = 1_048_576
    topic: str | None = None
    """Its topic on Kafka, if that is not named after the queue."""
    take_in: Callable[[Any, bool], Awaitable[Any]] | None = None
    """Checks and changes data that comes from outside: refuses fields of our own, marks tests.
    Without it, data is taken as it is, and tests are refused."""
    id_in: Callable[[Any], str | None] | None = None
    """The id that such data gives its job, if the sender gave no id."""
    withdraw: Callable[[Sequence[JobRecord]], Awaitable[None]] | None = None
    """Called with unfinished jobs before they are cancelled or removed."""
    restore: Callable[[Sequence[JobRecord]], Awaitable[None]] | None = None
    """Called with cancelled jobs before they are put back."""
    is_own: bool = False
    """Only the application itself adds jobs, and callers with a scope for this queue. A plugin's queue begins so; the plugin may open it."""
    is_foreign: bool = False
    """Another program's queue: it was found on the engine and is not declared here."""
    handlers: dict[str, Handler] = field(default_factory=dict)
    any_name: Handler | None = None
    """Handles jobs whose name has no handler."""

    def __post_init__(self) -> None:
        if not _QUEUE_NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"A queue can't be named {self.name!r}: use up to 200 letters, digits, and - _ ."
            )

    def refine(self, **options: Unpack[QueueOptions]) -> None:
        """Change what is given, and keep the rest."""
        if unknown := options.keys() - QueueOptions.__annotations__.keys():  # Python itself takes any name
            known = ", ".join(QueueOptions.__annotations__)
            raise TypeError(
                f"Queue {self.name} has no option {', '.join(sorted(unknown))}; there are: {known}."
            )
        given = {name: self._read(name, value) for name, value in options.items() if value is not None}
        of_jobs = {name: value for name, value in given.items() if name in JobOptions.__slots__}
        if of_jobs:  # the default ones are known by being the same: those are not written out
            self.options = replace(self.options, **of_jobs)
        for name in given.keys() & self.__dataclass_fields__.keys():
            setattr(self, name, given[name])
        if self.key_rate and not self.key:
            raise ConfigurationError(
                f"Queue {self.name} has a key_rate but no key: name the field of the data to go by."
            )

    def _read(self, name: str, value: Any) -> Any:
        """An option as it is kept."""
        match name:
            case "concurrency" if not (isinstance(value, int) and value >= 1):
                raise ConfigurationError(
                    f"Queue {self.name} has a concurrency of {value!r}: give a whole number, at least 1."
                )
            case "backoff":
                return Backoff.parse(value)
            case "timeout":
                return check_timeout(value)
            case "rate" | "key_rate":
                return RateLimit.parse(value)
        return value

    @property
    def default_name(self) -> str:
        return next(iter(self.handlers), self.name)

    def fill_in(self, job: JobRecord) -> JobRecord:
        """Give another program's message, which has no name, the default name and the options of the queue."""
        if not job.name and self.handlers:
            job.name, job.options = self.default_name, self.options
        return job

    def handler(self, name: str) -> Handler:
        """The handler of jobs of this name.

        Another program's message has no name, or Bull's word for none, and a job that was added by a process without
        handlers has its queue's name: all of these go to the default handler.
        """
        try:
            return self.handlers[self.default_name if name in UNNAMED else name]
        except KeyError:
            if self.any_name:
                return self.any_name
            if name == self.name and self.handlers:
                return self.handlers[self.default_name]
            known = ", ".join(self.handlers) or "none"
            raise UnknownJob(f"Queue {self.name} has no job {name!r}; it has: {known}.") from None

    def encode(self, name: str, data: Any) -> bytes:
        """Data as it will lie on the broker, checked against the handler's model and the size limit."""
        return check_size(self, name, self.handler(name).encode(data) if self.handlers else encode_json(data))

    def key_of(self, data: Any) -> str:
        if callable(self.key):
            return str(self.key(data))
        field_name = self.key or ""
        return str(data.get(field_name) if isinstance(data, dict) else getattr(data, field_name, None))
