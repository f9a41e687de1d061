"""From what a caller asks for to a job that an engine takes: checked, encoded, with the defaults of its queue."""

from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from yamchi.clock import Millis, Span, to_moment
from yamchi.errors import InvalidJob
from yamchi.queues.handlers import QueueDefinition
from yamchi.queues.options import Backoff, BackoffLike, JobOptions, check_timeout, positive_span
from yamchi.queues.processes.importing import check_not_importing
from yamchi.queues.records import NewJob, check_id, check_name, check_priority, new_id


class New(NamedTuple):
    """One job of an `add_many`, with options of its own."""

    data: Any
    name: str | None = None
    id: str | None = None
    delay: Span | None = None
    run_at: datetime | None = None
    priority: int = 0
    attempts: int | None = None
    backoff: BackoffLike | None = None
    expires_at: datetime | None = None
    timeout: Span | None = None
    keep_completed: int | None = None
    keep_failed: int | None = None


def new_job(definition: QueueDefinition, new: New, now: Millis) -> NewJob:
    """The requested job, checked and encoded."""
    if new.id is None:
        check_not_importing("adds a job without an id")
    name = check_name(new.name or definition.default_name)
    payload = definition.encode(name, new.data)
    return NewJob(
        id=new_id(now) if new.id is None else check_id(new.id),
        name=name,
        payload=payload,
        options=_options(definition, new),
        priority=check_priority(new.priority),
        run_at=_due(new, now),
        expires_at=None if new.expires_at is None else _moment("expires_at", new.expires_at),
    )


def _options(definition: QueueDefinition, new: New) -> JobOptions:
    given: dict[str, Any] = {}
    if new.attempts is not None:
        given["attempts"] = new.attempts
    if new.backoff is not None:
        given["backoff"] = Backoff.parse(new.backoff)
    if new.timeout is not None:
        given["timeout"] = check_timeout(new.timeout)
    if new.keep_completed is not None:
        given["keep_completed"] = new.keep_completed
    if new.keep_failed is not None:
        given["keep_failed"] = new.keep_failed
    return replace(definition.options, **given) if given else definition.options


def _due(new: New, now: Millis) -> Millis | None:
    if new.delay is not None and new.run_at is not None:
        raise InvalidJob("Give either delay or run_at, not both.")
    if new.run_at is not None:
        return _moment("run_at", new.run_at)
    return None if new.delay is None else now + positive_span("delay", new.delay)


def _moment(what: str, moment: datetime) -> Millis:
    try:
        return to_moment(moment)
    except InvalidJob as error:
        raise InvalidJob(f"{what}: {error}") from error
