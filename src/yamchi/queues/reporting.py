"""What the worker says about settled jobs: a log line each, and a call to each listener."""

import logging
from collections.abc import Sequence
from typing import Any

import structlog

from yamchi.clock import describe_span, isoformat
from yamchi.queues.job import Job
from yamchi.queues.queue import Queue
from yamchi.queues.records import Cancelled, Completed, Expired, Failed, Released, RetryAt, Verdict
from yamchi.queues.runner import Outcome

log = structlog.get_logger("yamchi.worker")
_enabled = logging.getLogger("yamchi.worker").isEnabledFor


def log_outcomes(queue: Queue, outcomes: Sequence[Outcome]) -> None:
    """`[<queue>:<type>] …`: info for completed, error for failed, warning for what will be tried again."""
    says_info = _enabled(logging.INFO)
    for outcome in outcomes:
        if says_info or not isinstance(outcome.verdict, Completed):
            _log_one(f"[{queue.name}:{queue.engine.type}]", outcome)


def _log_one(prefix: str, outcome: Outcome) -> None:
    record = outcome.job
    job = f"{record.name} {record.id}"

    def say(level: str, how: str, sentence: str, **more: Any) -> None:
        fields = record.log_fields(duration=round(outcome.seconds, 3), outcome=how, **more)
        getattr(log, level)(f"{prefix} {sentence}", fields=fields)

    match outcome.verdict:
        case Completed():
            say("info", "completed", f"completed {job} in {describe_span(round(outcome.seconds * 1000))}")
        case RetryAt(moment=moment, error=error):
            made, attempts = record.attempts_made, record.options.attempts
            say(
                "warning",
                "retrying",
                f"attempt {made} of {attempts} of {job} failed, next at {isoformat(moment)}: {error}",
                error=error,
                next_at=isoformat(moment),
            )
        case Failed(error=error):
            made = record.attempts_made
            say(
                "error",
                "failed",
                f"failed {job} after {made} attempt{'s' * (made != 1)}: {error}",
                error=error,
            )
        case Expired():
            say("info", "expired", f"expired {job} before it could run")
        case Cancelled():
            say("info", "cancelled", f"cancelled {job}")
        case Released(until=until, reason=reason, is_said=is_said):
            when = "at once" if until is None else f"at {isoformat(until)}"
            # A backlog under a rate limit, or of a provider that is down, is put back over and over: not worth a line each.
            level = "info" if (reason or until is None) and not is_said else "debug"
            why = f": {reason}" if reason else ""
            say(level, "put back", f"put back {job}, runs again {when}{why}")


def emit_outcomes(queue: Queue, outcomes: Sequence[Outcome]) -> None:
    if not queue.listeners.any:
        return
    emit = queue.listeners.emit
    for outcome in outcomes:
        job = Job[object](queue, outcome.job.changed(**_changes(outcome.verdict)))
        match outcome.verdict:
            case Completed():
                emit("completed", job, outcome.returned)
            case RetryAt(error=error):
                emit("retrying", job, error)
            case Failed(error=error):
                emit("failed", job, error)
            case Expired():
                emit("expired", job)
            case Cancelled():
                emit("cancelled", job)


def _changes(verdict: Verdict) -> dict[str, Any]:
    """What the verdict changes in the record, which is as it was claimed."""
    match verdict:
        case Completed(result=result):
            return {"state": "completed", "result": result, "failed_reason": None}
        case RetryAt(moment=moment, error=error, stacktrace=trace):
            return {"state": "delayed", "run_at": moment, "failed_reason": error, "stacktrace": trace}
        case Failed(error=error, stacktrace=trace):
            return {"state": "failed", "failed_reason": error, "stacktrace": trace}
        case Expired():
            return {"state": "expired"}
        case Cancelled():
            return {"state": "cancelled"}
        case Released():
            return {"state": "waiting"}
