"""A step's message: to whom, over which channel, in which words. It goes out inside the step's own job."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from yamchi.clock import Clock, as_datetime
from yamchi.notifications.channels.base import ADMIN_GROUP, Channel, NoAddress, Recipient, Unreachable
from yamchi.notifications.people.suppressions import Suppressions
from yamchi.notifications.policy.rules import DEFAULT_LOCALE
from yamchi.notifications.schemas.notification_job import ALIASES, NOBODY, Meta, NotificationJob, derived_id
from yamchi.notifications.sending import direct
from yamchi.notifications.sending.deliveries import Deliveries
from yamchi.notifications.sending.processor import JobProcessor
from yamchi.queues.job import Job
from yamchi.scenarios import flow, store
from yamchi.scenarios.definition import Definition, Send, Step
from yamchi.scenarios.expressions import fill
from yamchi.scenarios.facts import FactReader
from yamchi.scenarios.flow import Facts, Run
from yamchi.scenarios.store import StepId
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

    def delivery_ids(self, step: Step, run: Run, id: StepId) -> dict[str, UUID]:
        """By channel: the delivery of the step's message there."""
        last, found = derived_id("scenario", str(store.message_of(run, id))), {}
        for number, channel in enumerate(step.send.channels if step.send else ()):
            last = derived_id("next", str(last), channel) if number else last
            found[channel] = last
        return found

    async def left(self, step: Step, run: Run, id: StepId) -> str | None:
        """The delivery by which the step's message is known to have left; None if it is not."""
        for delivery in self.delivery_ids(step, run, id).values():
            if await self._deliveries.status(str(delivery)) == "SENT":
                return str(delivery)
        return None

    async def send(
        self,
        job: Job[Any],
        id: StepId,
        definition: Definition,
        step: Step,
        run: Run,
        facts: Facts,
        entering: Callable[[], Awaitable[None]],
    ) -> dict[str, Any]:
        """Send the step's message over the first channel that reaches the person; what became of it."""
        assert step.send is not None
        values = flow.values_of(definition, run, facts, self._clock.now())
        recipient = await self._recipient(step.send, run, facts, values)
        ids = self.delivery_ids(step, run, id)
        meta = Meta(
            event_type=f"scenario.{definition.scenario}", event_id=job.id, priority=step.send.priority
        )
        message = {
            "user_id": _uuid(recipient.user_id),
            "template_code": step.send.template,
            "locale": self._locale(step.send, recipient, run, facts, values),
            "data": await self._data(definition, step.send, run, facts, values),
            "meta": meta,
            "created_at": as_datetime(self._clock.now()),
        }

        async def over(channel: str) -> dict[str, Any]:
            notification = NotificationJob(job_id=ids[channel], channel=channel, **message)
            result = await self._processor.deliver(job, notification, recipient, entering)
            return {**result.as_json(), "delivery": notification.delivery_id, "channel": channel}

        *others, last = await self._ways(step.send, recipient, ids)
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
            if not await self._suppressions.reason(ALIASES.get(name, name), address)
        ]
        return open or list(addressed)[:1] or send.first_of[-1:]

    def _address(self, name: str, recipient: Recipient) -> str | None:
        channel = self._channels.get(ALIASES.get(name, name))
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
