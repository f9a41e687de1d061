"""A step's message: to whom, over which channel, in which words. It goes out inside the step's own job."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from yamchi.clock import Clock, as_datetime
from yamchi.notifications.channels.base import Channel, Recipient
from yamchi.notifications.policy.rules import DEFAULT_LOCALE
from yamchi.notifications.schemas.notification_job import ALIASES, Meta, NotificationJob, derived_id
from yamchi.notifications.sending import direct
from yamchi.notifications.sending.deliveries import Deliveries, Status
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
        channels: Mapping[str, Channel],
        facts_reader: FactReader,
        links: Links,
    ) -> None:
        self._database = database
        self._clock = clock
        self._processor = processor
        self._deliveries = deliveries
        self._channels = channels
        self._facts = facts_reader
        self._links = links

    def delivery_id(self, run: Run, id: StepId) -> UUID:
        return derived_id("scenario", str(store.message_of(run, id)))

    async def status(self, run: Run, id: StepId) -> Status | None:
        return await self._deliveries.status(str(self.delivery_id(run, id)))

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
        """Send the step's message; what became of it."""
        assert step.send is not None
        values = flow.values_of(definition, run, facts, self._clock.now())
        recipient = await self._recipient(step.send, run, facts, values)
        channel = self._channel(step.send, recipient)
        notification = NotificationJob(
            job_id=self.delivery_id(run, id),
            user_id=_uuid(recipient.user_id),
            channel=channel,
            template_code=step.send.template,
            locale=self._locale(step.send, recipient, run, facts, values),
            data=await self._data(definition, step.send, run, facts, values),
            meta=Meta(
                event_type=f"scenario.{definition.scenario}", event_id=job.id, priority=step.send.priority
            ),
            created_at=as_datetime(self._clock.now()),
        )
        result = await self._processor.deliver(job, notification, recipient, entering)
        return {**result.as_json(), "delivery": notification.delivery_id, "channel": channel}

    async def _recipient(self, send: Send, run: Run, facts: Facts, values: Mapping[str, Any]) -> Recipient:
        person = await self._database.read(lambda c: self._facts.recipient(c, run, facts))
        if send.to is None:
            return person
        address = str(fill(send.to, values, facts.zone.key) or "")
        return replace(direct.at(address), locale=person.locale, timezone=person.timezone)

    def _channel(self, send: Send, recipient: Recipient) -> str:
        """The first on which the person has an address; the last one, if there is none, says so."""
        for name in send.channels:
            channel = self._channels.get(ALIASES.get(name, name))
            if channel and channel.address(recipient):
                return name
        return send.channels[-1]

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
        return direct.NOBODY
