"""What can go wrong, by kind.

A handler says what kind of failure it met by raising (or returning) one of the first five; the worker never guesses.
Everything else here is raised to callers, always as one sentence that says what happened and what to do.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from yamchi.installation import install_command


class YamchiError(Exception):
    """Base of every error that Yamchi raises on purpose."""


# ── What a handler may raise ──────────────────────────────────────────────────────────────────────────────────────


class Retryable(YamchiError):
    """This attempt failed; another may succeed. Any exception that is not one of these kinds counts as this one."""


class Unrecoverable(YamchiError):
    """This job can never succeed: skip the remaining attempts and write its dead letter."""


class Outage(YamchiError):
    """The provider is down, not the job: costs no attempt. `retry_after` is the provider's own wish, if it has one.

    `provider` names it where a channel has several. `source` names who met it, where one alone may be the cause: such an
    outage is the source's own until several of them meet it. `is_said`: the log has a line of it for all jobs that wait, and none
    for each.
    """

    def __init__(
        self,
        message: str = "",
        *,
        retry_after: timedelta | None = None,
        provider: str | None = None,
        source: str | None = None,
        is_said: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.is_said = is_said
        self.provider = provider
        self.source = source


class Snooze(YamchiError):
    """Not now: run this job again at `until` (a moment, or a span from now such as "1h"); costs no attempt."""

    def __init__(self, until: datetime | timedelta | str | float, message: str = "") -> None:
        super().__init__(message)
        self.until = until


class Cancelled(YamchiError):
    """Stop here: the job ends as `cancelled`, with no dead letter."""


# ── What callers may meet ─────────────────────────────────────────────────────────────────────────────────────────


class ConfigurationError(YamchiError):
    """A setting is missing or wrong."""


class MissingExtra(ConfigurationError):
    """A part of Yamchi needs a package that is not installed."""

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what} needs an extra package: {install_command(extra)}")


class MissingEngine(MissingExtra):
    """An extra without which the engine that is configured can't be used, nor any feature that puts something there."""


class InvalidJob(YamchiError, ValueError):
    """A job can't be added as it is: its data, id or an option is wrong. `faults` are the fields, each with what is wrong with it."""

    def __init__(self, message: str, faults: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class UnstorableValue(InvalidJob):
    """A value that no table can keep, such as a text with a NUL character: trying again changes nothing."""


class UnknownQueue(YamchiError, LookupError):
    """No queue of this name is declared."""


class UnknownJob(YamchiError, LookupError):
    """There is no job of this name or id."""


class WrongState(YamchiError):
    """The job is not in a state in which this can be done to it."""


class JobFailed(YamchiError):
    """A job that was waited for has no result: it failed, was cancelled or expired. `state` and `reason` say which and why."""

    def __init__(self, queue: str, job_id: str, state: str, reason: str | None) -> None:
        ended = "was cancelled" if state == "cancelled" else state
        super().__init__(f"Job {job_id} of {queue} {ended}" + (f": {reason}" if reason else "."))
        self.state = state
        self.reason = reason


class TokenRefused(YamchiError):
    """A token that is not valid; the message says why. `is_forged`: it was never made here."""

    def __init__(self, message: str, *, is_forged: bool = True) -> None:
        super().__init__(message)
        self.is_forged = is_forged


class EngineError(YamchiError):
    """The engine could not do a call, and has done nothing of it."""


class EngineUnavailable(EngineError):
    """The broker or database can't be reached now; the same call may succeed later."""


class StorageFull(EngineUnavailable):
    """The disk is full; nothing was written, and the same call succeeds when there is room."""


class StorageReadOnly(EngineUnavailable):
    """The database may not be written."""


class StorageCorrupt(EngineError):
    """The database file is damaged, or is not a database."""


MOST_NAMED = 20


def some_of(names: Iterable[str]) -> str:
    """Names for a sentence, in order. Of many, the first ones and the number of the others."""
    known = sorted(names)
    others = f" and {len(known) - MOST_NAMED:,} others" if len(known) > MOST_NAMED else ""
    return (", ".join(known[:MOST_NAMED]) or "none") + others
