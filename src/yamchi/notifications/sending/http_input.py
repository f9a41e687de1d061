"""Checks on jobs that come over HTTP: internal fields are refused, and jobs of test keys are marked as tests.

A test has ids of its own, so that it never collides with the real message; it is rendered in the same way, and stored in the
mailbox instead of being sent.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import select

from yamchi.errors import InvalidJob
from yamchi.http.scopes import id_of_test
from yamchi.notifications.schemas.event import Event, TrialEvent
from yamchi.notifications.schemas.notification_job import (
    AS_SENT,
    TEST,
    NotificationJob,
    as_test,
    derived_id,
)
from yamchi.notifications.tables import campaigns
from yamchi.storage.database import Database

OWN_META = (AS_SENT, TEST, "variant")
OWN_POLICY = ("gathers", "unless_read")


class HttpInput:
    """Turns the input of HTTP callers into what may be queued."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def job(self, job: NotificationJob, *, is_test: bool) -> NotificationJob:
        """A NotificationJob as it may be queued."""
        await self._check(job.meta.model_extra or {}, job.meta.campaign_id)
        if not is_test:
            return job
        return as_test(job).model_copy(update={"job_id": derived_id(TEST, job.delivery_id)})

    async def data(self, data: Any, is_test: bool) -> Any:
        """The data of a job of the queue, whichever form it has; whether it fits is the queue's to say."""
        if not isinstance(data, dict):
            if is_test:
                raise InvalidJob("The data must be an object: a NotificationJob, or {channel, options}.")
            return data
        given = data.get("meta")
        meta = given if isinstance(given, dict) else {}
        await self._check(meta, meta.get("campaign_id"))
        if TEST in data:
            raise _own([TEST])
        if not is_test:
            return data
        marked = {**data, TEST: True, "meta": {**meta, TEST: True}}
        if "options" in data:
            del marked["meta"]
        if "job_id" in data:
            marked["job_id"] = str(derived_id(TEST, str(data["job_id"])))
        return marked

    async def email(self, data: Any, is_test: bool) -> Any:
        """The data of a job of `email_queue`."""
        if not isinstance(data, dict):
            raise InvalidJob("The data must be an object: {to, subject, html}.")
        if TEST in data:
            raise _own([TEST])
        return {**data, TEST: True} if is_test else data

    async def _check(self, meta: Mapping[str, Any], campaign_id: Any) -> None:
        policy = meta.get("policy")
        own = [f"meta.{name}" for name in OWN_META if name in meta]
        own += [
            f"meta.policy.{name}" for name in OWN_POLICY if isinstance(policy, Mapping) and name in policy
        ]
        if own:
            raise _own(own)
        if isinstance(campaign_id, str) and await self._is_campaign(campaign_id):
            raise InvalidJob(
                f"meta.campaign_id: {campaign_id[:60]!r} is a campaign of this server, which sends its messages itself."
            )

    async def _is_campaign(self, campaign_id: str) -> bool:
        query = select(campaigns.c.campaign_id).where(campaigns.c.campaign_id == campaign_id)
        return await self._database.first(query) is not None


def id_in(data: Any) -> str | None:
    """The job's id, as a message of another program has it: a NotificationJob sent twice is one, also while neither has left."""
    given = data.get("job_id") if isinstance(data, dict) and "options" not in data else None
    try:
        return str(UUID(given)) if isinstance(given, str) else None
    except ValueError:
        return None  # what is wrong with it is said where the data is checked


def event_of_test(event: Event) -> TrialEvent:
    """The same event as a test."""
    return TrialEvent.model_construct(**dict(event) | {"event_id": id_of_test(event.event_id, ":")})


def _own(fields: list[str]) -> InvalidJob:
    return InvalidJob(f"{', '.join(fields)} can't be given from outside: Yamchi sets it itself.")
