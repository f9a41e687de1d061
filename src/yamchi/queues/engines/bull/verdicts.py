"""Verdicts as the script `exchange` takes them: a letter for the kind, then what that kind needs."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, assert_never

import orjson

from yamchi.clock import Millis
from yamchi.queues.engines.bull.codec import BullOptions, letter_args, pack_fields, packed, traces
from yamchi.queues.engines.bull.connection import Arg
from yamchi.queues.records import Cancelled, Completed, Expired, Failed, Released, RetryAt, Verdict

METRICS_MINUTES = 20_160
"""Two weeks of BullMQ's own metrics, as its MetricsTime.TWO_WEEKS."""

KEPT_TRACES = 10


class Held(NamedTuple):
    """What the engine remembers of a claim. `stalled`: its worker died and we took it over; `deferred`: why it is to fail."""

    bull_options: BullOptions
    failures: int = 0
    traces: bytes | None = None
    stalled: bool = False
    deferred: bytes | None = None


def encode(base: str, verdicts: Sequence[Verdict], now: Millis) -> list[Arg]:
    # Old jobs are trimmed when the last job of a kind is settled: once a batch is enough.
    trimming = {
        verdict.claim.key.bull_options: verdict for verdict in verdicts if isinstance(verdict, Completed)
    }
    args: list[Arg] = []
    for verdict in verdicts:
        if isinstance(verdict, Completed):
            claim, bull_options = verdict.claim, verdict.claim.key.bull_options
            opts = _completed(claim.token, bull_options, trimming[bull_options] is verdict)
            args += ("c", claim.job.id, opts, verdict.result or b"null")
        else:
            args += _encode_one(base, verdict, now)
    return args


def _encode_one(base: str, verdict: Verdict, now: Millis) -> tuple[Arg, ...]:
    claim, job = verdict.claim, verdict.claim.job
    held: Held = claim.key
    fields: dict[str, str | int]
    match verdict:
        case RetryAt(moment=moment, error=error, stacktrace=trace):
            fields = _failure(held, error, trace) | _permit_field(claim.has_permit, False)
            # A stall is counted by itself, so it does not count as an attempt that failed.
            kind, delay = ("p" if held.stalled else "r"), max(moment - now, 0)
            return kind, job.id, claim.token, delay, pack_fields(fields)
        case Released(until=until, reason=reason, has_permit=has_permit):
            fields = _permit_field(claim.has_permit, has_permit)
            if reason:
                fields["failedReason"] = reason
            return "p", job.id, claim.token, max((until or now) - now, 0), pack_fields(fields)
        case Failed(error=error, letter=letter, stacktrace=trace):
            fields = _failure(held, error, trace)
            if held.stalled:
                fields["atm"] = held.failures - 1  # BullMQ is about to count this end as a failed attempt
            opts = _finish(claim.token, held.bull_options, held.bull_options.keep_failed)
            return "f", job.id, opts, error, pack_fields(fields), *letter_args(base, letter)
        case Expired():
            return "e", job.id, claim.token, "expired"
        case Cancelled():
            return "e", job.id, claim.token, "cancelled"
        case Completed():
            raise AssertionError("completed jobs are encoded on the fast path")
    assert_never(verdict)


def _failure(held: Held, error: str, trace: str | None) -> dict[str, str | int]:
    kept = [*traces(held.traces), trace][-KEPT_TRACES:] if trace else None
    fields: dict[str, str | int] = {"failedReason": error}
    return fields | {"stacktrace": orjson.dumps(kept).decode()} if kept else fields


def _permit_field(had: bool, has: bool) -> dict[str, str | int]:
    """Whether the job has a permit under a rate limit; written only where it changes."""
    return {"ymSlotted": "1" if has else ""} if had or has else {}


@lru_cache(maxsize=4096)
def _completed(token: str, bull_options: BullOptions, trims: bool) -> bytes:
    """Options of BullMQ's moveToFinished. Jobs claimed together on the same bull_options share them."""
    keep = bull_options.keep_completed
    return _finish(token, bull_options, keep if trims or keep.get("count") == 0 else {"count": -1})


def _finish(token: str, bull_options: BullOptions, keep: Mapping[str, Any]) -> bytes:
    return packed(
        {
            "token": token,
            "keepJobs": keep,
            "lockDuration": 0,
            "attempts": bull_options.options.attempts,
            "maxMetricsSize": METRICS_MINUTES,
        }
    )
