"""From what a handler did to the verdict on its job. A failure has a kind; nothing here guesses."""

import traceback
from datetime import datetime
from typing import Any

from yamchi import errors
from yamchi.clock import Millis, Span, to_millis, to_moment
from yamchi.observe.logging import LONGEST_MASKED, mask
from yamchi.queues.handlers import PoisonMessage
from yamchi.queues.records import (
    Cancelled,
    Claim,
    Completed,
    DeadLetter,
    Failed,
    Released,
    RetryAt,
    Verdict,
    storable,
    to_json,
)

OUTAGE_WAIT: Millis = 10_000
"""How long a job waits for a provider that is down and gave no Retry-After."""

LONGEST_TRACE = 8_000
LONGEST_SENTENCE = 8_000
"""Characters that are kept of a trace, and of an error's text."""


def verdict_on_result(claim: Claim, result: Any, now: Millis) -> Verdict:
    """A handler may return one of the failure kinds as well as raise it."""
    if isinstance(result, errors.YamchiError):
        return verdict_on_error(claim, result, now)
    if result is None:
        return Completed(claim)
    try:
        return Completed(claim, to_json(result))
    except TypeError as error:
        said = f"The result of {claim.job.name} can't be written as JSON: {error}"
        return verdict_on_error(claim, errors.Unrecoverable(said), now)


def verdict_on_error(claim: Claim, error: BaseException, now: Millis) -> Verdict:
    """A failure kind that can't be used, such as a moment without a time zone, is an error of the handler."""
    try:
        return _judge(claim, error, now)
    except Exception as wrong:
        return _judge(claim, wrong, now)


def _judge(claim: Claim, error: BaseException, now: Millis) -> Verdict:
    match error:
        case errors.Snooze(until=until):
            return Released(claim, _moment(until, now), storable(_said(error), LONGEST_SENTENCE) or None)
        case errors.Outage(retry_after=wish):
            wait = OUTAGE_WAIT if wish is None else to_millis(wish)
            return Released(claim, now + wait, f"Outage: {sentence(error)}", is_said=error.is_said)
        case errors.Cancelled():
            return Cancelled(claim)
        case PoisonMessage():
            said = storable(_said(error), LONGEST_SENTENCE)
            return Failed(claim, said, DeadLetter.of_raw(claim.job, said, now))
        case errors.Unrecoverable() | errors.UnknownJob() | errors.MissingExtra():
            return _fail(claim, error, now)
        case _ if claim.job.attempts_made >= claim.job.options.attempts:
            return _fail(claim, error, now)
    moment = now + claim.job.options.backoff.wait(claim.job.attempts_made)
    return RetryAt(claim, moment, sentence(error), trace(error))


def _fail(claim: Claim, error: BaseException, now: Millis) -> Failed:
    said = sentence(error)
    return Failed(claim, said, DeadLetter.of_job(claim.job, said, now), trace(error))


def _moment(until: datetime | Span, now: Millis) -> Millis:
    return to_moment(until) if isinstance(until, datetime) else now + to_millis(until)


def sentence(error: BaseException) -> str:
    """The text of an error, as every engine can keep it."""
    said = _said(error)
    if not (isinstance(error, errors.YamchiError) and said):
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return storable(said, LONGEST_SENTENCE)


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # an exception of the handler's own, which can't even be shown
        return f"its message can't be read ({type(broken).__name__})"


def trace(error: BaseException) -> str | None:
    """The trace of an error, as every engine can keep it."""
    if error.__traceback__ is None:
        return None
    whole = mask("".join(traceback.format_exception(error))[-LONGEST_MASKED:])  # masked before it is cut
    return storable(whole[-LONGEST_TRACE:], LONGEST_TRACE)
