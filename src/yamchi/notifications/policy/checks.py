"""May this go now? The one question before a message is made, and its answers as values.

Asked in this order: does the person want it, is it still needed, is it to be collected, is there an address that works,
is it night there, has there been enough of it. What nobody set costs nothing: preferences were loaded with the person, and only
a job that has a cap or an escalation asks for more.
"""

from dataclasses import dataclass

from yamchi.clock import Clock, Millis, isoformat
from yamchi.notifications.channels.base import NoAddress
from yamchi.notifications.people.suppressions import Suppressions
from yamchi.notifications.policy.caps import Caps
from yamchi.notifications.policy.context import Errand
from yamchi.notifications.policy.escalation import ReadReceipts
from yamchi.notifications.policy.model import Digest

SILENT = ("database", "ws")
"""Channels that wake nobody: what waits in the inbox is there when the person looks."""


@dataclass(frozen=True, slots=True)
class Go:
    """Now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not before this moment."""

    until: Millis
    reason: str


@dataclass(frozen=True, slots=True)
class Suppress:
    """Never. `is_unreachable` says that another channel may do."""

    reason: str
    is_unreachable: bool = False


@dataclass(frozen=True, slots=True)
class Collect:
    """Not by itself: it is told of together with others."""

    digest: Digest


Answer = Go | Wait | Suppress | Collect


class Gate:
    """Decides; changes nothing but the count of a cap."""

    def __init__(self, suppressions: Suppressions, caps: Caps, receipts: ReadReceipts, clock: Clock) -> None:
        self._suppressions = suppressions
        self._caps = caps
        self._receipts = receipts
        self._clock = clock

    async def ask(self, errand: Errand) -> Answer:
        return (
            _unwanted(errand)
            or await self._needless(errand)
            or _collected(errand)
            or await self._unreachable(errand)
            or self._quiet(errand)
            or await self._capped(errand)
            or Go()
        )

    async def give_back(self, errand: Errand) -> None:
        """It went, but did not arrive: that does not count."""
        await self._caps.release(errand.job.delivery_id)

    async def _needless(self, errand: Errand) -> Suppress | None:
        first = errand.policy.unless_read
        if first and await self._receipts.was_read(first):
            return Suppress("The person has read it in the inbox")
        return None

    async def _unreachable(self, errand: Errand) -> Suppress | None:
        address, channel = errand.address, errand.channel.name
        if not address:
            raise NoAddress(f"User has no {channel}")
        reason = errand.recipient.preferences.suppressed.get((channel, address))
        if errand.recipient.user_id is None:  # nobody was loaded, so nothing with them
            reason = await self._suppressions.reason(channel, address)
        said = f"The address is suppressed: {reason}"
        return Suppress(said, is_unreachable=True) if reason else None

    def _quiet(self, errand: Errand) -> Wait | None:
        hours = errand.recipient.preferences.quiet_hours
        if hours is None or errand.is_urgent or errand.channel.name in SILENT:
            return None
        end = hours.until(self._clock.now(), errand.zone)
        return None if end is None else _wait(errand, end, f"quiet hours in {errand.zone.key}")

    async def _capped(self, errand: Errand) -> Wait | Suppress | None:
        cap = errand.policy.cap
        until = await self._caps.claim(errand, cap) if cap else None
        if cap is None or until is None:
            return None
        said = f"there may be {cap} of {errand.category!r} on {errand.channel.name}"
        return _wait(errand, until, said) if cap.over == "wait" else Suppress(f"Over the cap: {said}")


def _unwanted(errand: Errand) -> Suppress | None:
    channel, category = errand.channel.name, errand.category
    if errand.is_transactional or errand.recipient.preferences.allow(channel, category):
        return None
    return Suppress(f"The person opted out of {category!r} on {channel}")


def _collected(errand: Errand) -> Collect | None:
    return Collect(errand.policy.digest) if errand.policy.digest else None


def _wait(errand: Errand, until: Millis, reason: str) -> Wait:
    """A message that expires while it waits is looked at then, not later."""
    end = min(until, errand.expires_at or until)
    return Wait(end, f"waits until {isoformat(until)}: {reason}")
