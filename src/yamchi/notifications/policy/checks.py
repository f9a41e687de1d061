"""Whether a message may be sent now: one decision, with its results as values.

In this order: does the person want it, is it still needed, is it to be collected for a digest, is there an address that
works, are there quiet hours, is there a cap. What nobody set costs nothing: preferences were loaded with the person, and only
a job that has a cap or an escalation asks for more.
"""

from dataclasses import dataclass

from yamchi.clock import Clock, Millis, isoformat
from yamchi.notifications.channels.base import NoAddress
from yamchi.notifications.people.suppressions import Suppressions
from yamchi.notifications.policy.caps import Caps
from yamchi.notifications.policy.context import SendContext
from yamchi.notifications.policy.escalation import was_read
from yamchi.notifications.policy.model import Digest
from yamchi.storage.database import Database

SILENT = ("database", "ws")
"""Channels that wake nobody: what waits in the inbox is there when the person looks."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send it now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do not send it before this moment."""

    until: Millis
    reason: str


@dataclass(frozen=True, slots=True)
class Suppress:
    """Never send it. `is_unreachable`: another channel may reach the person."""

    reason: str
    is_unreachable: bool = False


@dataclass(frozen=True, slots=True)
class Collect:
    """Do not send it by itself: it becomes part of a digest."""

    digest: Digest


Hold = Wait | Suppress | Collect
"""Every decision not to send now."""

CheckResult = Send | Hold


class SendChecks:
    """Decides; writes nothing but the count of a cap."""

    def __init__(self, suppressions: Suppressions, caps: Caps, database: Database, clock: Clock) -> None:
        self._suppressions = suppressions
        self._caps = caps
        self._database = database
        self._clock = clock

    async def decide(self, context: SendContext) -> CheckResult:
        return (
            _unwanted(context)
            or await self._needless(context)
            or _collected(context)
            or await self._unreachable(context)
            or self._quiet(context)
            or await self._capped(context)
            or Send()
        )

    async def _needless(self, context: SendContext) -> Suppress | None:
        first = context.policy.unless_read
        if first and await was_read(self._database, first):
            return Suppress("The person has read it in the inbox")
        return None

    async def _unreachable(self, context: SendContext) -> Suppress | None:
        address, channel = context.address, context.channel.name
        if not address:
            raise NoAddress(f"User has no {channel}")
        reason = context.recipient.preferences.suppressed.get((channel, address))
        if context.recipient.user_id is None:  # nobody was loaded, so nothing with them
            reason = await self._suppressions.reason(channel, address)
        said = f"The address is suppressed: {reason}"
        return Suppress(said, is_unreachable=True) if reason else None

    def _quiet(self, context: SendContext) -> Wait | None:
        hours = context.recipient.preferences.quiet_hours
        if hours is None or context.is_urgent or context.channel.name in SILENT:
            return None
        end = hours.until(self._clock.now(), context.zone)
        return None if end is None else _wait(context, end, f"quiet hours in {context.zone.key}")

    async def _capped(self, context: SendContext) -> Wait | Suppress | None:
        cap = context.policy.cap
        until = await self._caps.claim(context, cap) if cap else None
        if cap is None or until is None:
            return None
        said = f"there may be {cap} of {context.category!r} on {context.channel.name}"
        return _wait(context, until, said) if cap.over == "wait" else Suppress(f"Over the cap: {said}")


def _unwanted(context: SendContext) -> Suppress | None:
    channel, category = context.channel.name, context.category
    if context.is_transactional or context.recipient.preferences.allow(channel, category):
        return None
    return Suppress(f"The person opted out of {category!r} on {channel}")


def _collected(context: SendContext) -> Collect | None:
    return Collect(context.policy.digest) if context.policy.digest else None


def _wait(context: SendContext, until: Millis, reason: str) -> Wait:
    """Wait until this moment, or until the message expires, if that is earlier."""
    end = min(until, context.expires_at or until)
    return Wait(end, f"waits until {isoformat(until)}: {reason}")
