"""How a job is to be run and kept: its attempts and their back-off, its timeout, and how many finished ones stay."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal

import orjson

from yamchi.clock import Millis, Span, in_short, to_millis
from yamchi.errors import InvalidJob
from yamchi.queues import foreign

MOST_ATTEMPTS, MOST_KEPT = foreign.MOST_ATTEMPTS, foreign.MOST_KEPT
MOST_STEPS = 1_000
"""Bounds of options: what every broker can count to, and more than anybody needs."""

LONGEST_WAIT: Millis = 86_400_000
"""Between two attempts, unless a backoff says otherwise."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failed job waits before its next attempt.

    `steps` are taken one by one, the last one repeating; without steps, `delay` is `fixed` or doubles (`exponential`).
    `jitter` 0.2 spreads each wait by up to 20 % either way, so that a crowd does not come back at once.
    """

    kind: Literal["fixed", "exponential", "steps"] = "exponential"
    delay: Millis = 1_000
    steps: tuple[Millis, ...] = ()
    jitter: float = 0.0
    longest: Millis = LONGEST_WAIT

    @classmethod
    def parse(cls, value: "BackoffLike") -> "Backoff":
        """Accepts a `Backoff`, "fixed", "exponential", {"type", "delay", "jitter"}, a span, or spans: a list, or "1m, 5m, 15m".

        {"kind", "delay", …} is a backoff as jobs show it, in milliseconds.
        """
        match value:
            case Backoff():
                return value
            case "fixed":
                return cls(kind="fixed")
            case "exponential":
                return cls(kind="exponential")
            case Mapping() if "kind" in value:
                return cls._from_shown(value)
            case Mapping():
                return cls._from_mapping(value)
            case str() if "," in value:
                return cls.parse(value.split(",", MOST_STEPS))
            case str() | int() | float() | timedelta():
                return cls(kind="fixed", delay=_backoff_span(value))
        if not isinstance(value, Sequence) or not 0 < len(value) <= MOST_STEPS:
            raise InvalidJob(f"backoff needs 1 to {MOST_STEPS:,} steps, such as ['1m', '5m'].")
        return cls(kind="steps", steps=tuple(map(_backoff_span, value)))

    @classmethod
    def _from_mapping(cls, value: Mapping[str, Any]) -> "Backoff":
        kind, jitter = value.get("type", "exponential"), value.get("jitter", 0)
        if kind not in ("fixed", "exponential", "steps"):
            raise InvalidJob(
                f"backoff type {in_short(kind)} is unknown: use 'fixed', 'exponential' or 'steps'."
            )
        if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
            raise InvalidJob(f"backoff jitter must be between 0 and 1, not {in_short(jitter)}.")
        if kind == "steps" or value.get("steps"):
            steps = value.get("steps", ())
            return replace(cls.parse(steps if isinstance(steps, list | tuple) else ()), jitter=jitter)
        return cls(kind=kind, delay=positive_span("backoff delay", value.get("delay", 1)), jitter=jitter)

    @classmethod
    def _from_shown(cls, shown: Mapping[str, Any]) -> "Backoff":
        """Its milliseconds are seconds where one is given."""
        try:
            delay, longest = shown.get("delay", 1_000) / 1000, shown.get("longest", LONGEST_WAIT) / 1000
            steps = [one / 1000 for one in shown.get("steps", ())]
        except (TypeError, OverflowError) as error:
            raise InvalidJob(
                "backoff with a kind has its delay, steps and longest in milliseconds, as numbers."
            ) from error
        given = {"type": shown["kind"], "jitter": shown.get("jitter", 0), "delay": delay, "steps": steps}
        return replace(cls._from_mapping(given), longest=positive_span("backoff longest", longest))

    def wait(self, attempts_made: int) -> Millis:
        """How long to wait after this many attempts (1 after the first)."""
        attempt = max(attempts_made, 1)
        if self.steps:
            base = self.steps[min(attempt, len(self.steps)) - 1]
        else:
            base = self.delay * (2 ** min(attempt - 1, 40) if self.kind == "exponential" else 1)
        base = min(base, self.longest)
        return round(base * random.uniform(1 - self.jitter, 1 + self.jitter)) if self.jitter else base


BackoffLike = Backoff | str | Mapping[str, Any] | Sequence[Span] | Span


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How a job is to be run and kept. Equal options are stored as the same text, so decoding is cached."""

    attempts: int = 3
    backoff: Backoff = Backoff()
    timeout: Millis | None = None
    keep_completed: int = 100
    keep_failed: int = 50

    def __post_init__(self) -> None:
        _check_count("attempts", self.attempts, 1, MOST_ATTEMPTS)
        _check_count("keep_completed", self.keep_completed, 0, MOST_KEPT)
        _check_count("keep_failed", self.keep_failed, 0, MOST_KEPT)

    def keep(self, state: str) -> int:
        """How many jobs that ended so are kept; 0 is said of this job alone, not of those before it."""
        return self.keep_completed if state == "completed" else self.keep_failed

    def encode(self) -> str | None:
        """Compact JSON of what differs from the defaults; None when nothing does."""
        return None if self is DEFAULT_OPTIONS else _encode_options(self)

    @staticmethod
    def decode(text: str | None) -> "JobOptions":
        if not text or not isinstance(text, str):
            return DEFAULT_OPTIONS
        return _decode_options(text) if len(text) <= LONGEST_CACHED else _decode_options.__wrapped__(text)


def _check_count(what: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidJob(f"{what} must be a whole number from {least} to {most:,}, not {in_short(value)}.")


DEFAULT_OPTIONS = JobOptions()
LONGEST_CACHED = 4_096
"""Characters of options that are remembered: those of ours are a tenth of that."""


@lru_cache(maxsize=1024)
def _encode_options(options: JobOptions) -> str | None:
    if options == DEFAULT_OPTIONS:
        return None
    return orjson.dumps({name: getattr(options, name) for name in JobOptions.__slots__}).decode()


@lru_cache(maxsize=1024)
def _decode_options(text: str) -> JobOptions:
    """Never refuses: on a broker that others can write to, the text may be anything."""
    try:
        fields = orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError):
        return DEFAULT_OPTIONS
    known = foreign.options(fields)
    if isinstance(fields, dict) and (backoff := foreign.backoff(fields.get("backoff"))):
        known["backoff"] = Backoff(**backoff)
    return JobOptions(**known)


def check_timeout(span: Span) -> Millis:
    """How long a run may take, if that is any time at all."""
    length = positive_span("timeout", span)
    if length == 0:
        raise InvalidJob(f"timeout must be longer than nothing, not {span!r}.")
    return length


def positive_span(what: str, span: Span) -> Millis:
    """A span that an option gives; the sentence names the option if it can't be used."""
    try:
        length = to_millis(span)
    except InvalidJob as error:
        raise InvalidJob(f"{what}: {error}") from error
    if length < 0:
        raise InvalidJob(f"{what} can't be negative, but is {in_short(span)}.")
    return length


def _backoff_span(span: Span) -> Millis:
    try:
        return positive_span("backoff", span)
    except InvalidJob as error:
        raise InvalidJob(
            f"{error} A backoff is such a span, 'fixed', 'exponential', or steps: ['1m', '5m', '15m']."
        ) from error
