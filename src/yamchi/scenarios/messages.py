"""A step's message: to whom, over which channel, in which words. It goes out inside the step's own job."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from yamchi.clock import Clock, as_datetime
from yamchi.notifications.channels.base import ADMIN_GROUP, Channel, NoAddress, Recipient, Unreachable
from yamchi.notifications.people.suppressions import Suppressions
from yamchi.notifications.schemas.notification_job import (
    DEFAULT_LOCALE,
    NOBODY,
    Meta,
    NotificationJob,
    canonical_channel,
    derived_id,
)
from yamchi.notifications.sending import direct
from yamchi.notifications.sending.deliveries import Deliveries
from yamchi.notifications.sending.processor import JobProcessor
from yamchi.queues.job import Job
from yamchi.scenarios import flow, store
from yamchi.scenarios.definition import Definition, Send
from yamchi.scenarios.expressions import fill
from yamchi.scenarios.facts import FactReader
from yamchi.scenarios.flow import Facts, Run
from yamchi.scenarios.store import RunStep
from yamchi.storage.database import Database

Links = Callable[[Definition, Run], Awaitable[Mapping[str, str]]]
"""Addresses of what a person can do by a link, by action."""


class Messages:
    """Makes notifications of steps and hands them to the processor of notifications."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        processor: JobProcessor,
        deliveries: Deliveries,
        suppressions: Suppressions,
        channels: Mapping[str, Channel],
        facts_reader: FactReader,
        links: Links,
        team_locale: str | None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._processor = processor
        self._deliveries = deliveries
        self._suppressions = suppressions
        self._channels = channels
        self._facts = facts_reader
        self._links = links
        self._team_locale = team_locale

    def delivery_ids(self, one: RunStep) -> dict[str, UUID]:
        """By channel: the delivery of the step's message there."""
        last, found = derived_id("scenario", str(store.message_of(one.run, one.id))), {}
        for number, channel in enumerate(one.step.send.channels if one.step.send else ()):
            last = derived_id("next", str(last), channel) if number else last
            found[channel] = last
        return found

    async def left(self, one: RunStep) -> str | None:
        """The delivery by which the step's message is known to have left; None if it is not."""
        for delivery in self.delivery_ids(one).values():
            if await self._deliveries.status(str(delivery)) == "SENT":
                return str(delivery)
        return None

    async def send(
        self, job: Job[Any], one: RunStep, facts: Facts, entering: Callable[[], Awaitable[None]]
    ) -> dict[str, Any]:
        """Send the step's message over the first channel that reaches the person; what became of it."""
        definition, run, send = one.definition, one.run, one.step.send
        assert send is not None
        values = flow.values_of(definition, run, facts, self._clock.now())
        recipient = await self._recipient(send, run, facts, values)
        ids = self.delivery_ids(one)
        meta = Meta(event_type=f"scenario.{definition.scenario}", event_id=job.id, priority=send.priority)
        message = {
            "user_id": _uuid(recipient.user_id),
            "template_code": send.template,
            "locale": self._locale(send, recipient, run, facts, values),
            "data": await self._data(definition, send, run, facts, values),
            "meta": meta,
            "created_at": as_datetime(self._clock.now()),
        }

        async def over(channel: str) -> dict[str, Any]:
            notification = NotificationJob(job_id=ids[channel], channel=channel, **message)
            result = await self._processor.deliver(job, notification, recipient, entering)
            return {**result.as_json(), "delivery": notification.delivery_id, "channel": channel}

        *others, last = await self._ways(send, recipient, ids)
        for channel in others:
            with suppress(Unreachable, NoAddress):  # its delivery says so; the next channel may reach them
                return await over(channel)
        return await over(last)

    async def _ways(self, send: Send, recipient: Recipient, ids: Mapping[str, UUID]) -> Sequence[str]:
        """The channels to try, in order, at least one. If none can reach the person, that one says why."""
        if send.channel:
            return [send.channel]
        for name in send.first_of:
            if await self._deliveries.status(str(ids[name])) in ("SENT", "UNKNOWN"):
                return [name]  # before a crash
        addressed = {name: address for name in send.first_of if (address := self._address(name, recipient))}
        open = [
            name
            for name, address in addressed.items()
            if not await self._suppressions.reason(canonical_channel(name), address)
        ]
        return open or list(addressed)[:1] or send.first_of[-1:]

    def _address(self, name: str, recipient: Recipient) -> str | None:
        channel = self._channels.get(canonical_channel(name))
        return channel.address(recipient) if channel else None

    async def _recipient(self, send: Send, run: Run, facts: Facts, values: Mapping[str, Any]) -> Recipient:
        person = await self._database.read(lambda c: self._facts.recipient(c, run, facts))
        if send.to is None:
            return person
        address = str(fill(send.to, values, facts.zone.key) or "")
        locale = (self._team_locale if address == ADMIN_GROUP else None) or person.locale
        return replace(direct.at(address), locale=locale, timezone=person.timezone)

    def _locale(
        self, send: Send, recipient: Recipient, run: Run, facts: Facts, values: Mapping[str, Any]
    ) -> str:
        asked = fill(send.locale, values, facts.zone.key) if send.locale else None
        told = (run.event.get("data") or {}).get("locale")
        return str(asked or recipient.locale or told or DEFAULT_LOCALE)

    async def _data(
        self, definition: Definition, send: Send, run: Run, facts: Facts, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What the template sees: the event's data, the entity's fields and its id, links, and what the step adds."""
        data = dict(run.event.get("data") or {})
        if definition.entity and facts.entity:
            data |= {name: value for name, value in facts.entity.fields.items() if value is not None}
            data[f"{definition.entity}_id"] = run.entity_id
        if links := await self._links(definition, run):
            data["links"] = dict(links)
        return {**data, **fill(send.data, values, facts.zone.key)}


def _uuid(user_id: str | None) -> UUID:
    try:
        return UUID(user_id or "")
    except ValueError:
        return NOBODY
