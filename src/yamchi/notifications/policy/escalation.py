"""Escalation: what was put in the inbox and not read within a time is sent over another channel too.

The second message is a job of its own, queued when the first has arrived; at its moment it asks whether that was read.
Its id is derived from the first, so that it is queued once however often the first is delivered.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, or_, select

from yamchi.clock import Millis, as_datetime
from yamchi.notifications.policy.fallback import with_policy
from yamchi.notifications.policy.model import Policy
from yamchi.notifications.schemas.notification_job import NotificationJob, derived_id
from yamchi.notifications.tables import inbox
from yamchi.storage.database import Database

INBOX = "database"


async def was_read(database: Database, job_id: str) -> bool:
    """Whether the person has read the message of this job in the inbox. An archived one counts as read. Looked up in batches."""
    return bool(await database.get(_read, job_id))


def _read(connection: Connection, job_ids: Sequence[str]) -> Mapping[str, bool]:
    is_read = or_(inbox.c.read_at.is_not(None), inbox.c.is_archived)
    query = select(inbox.c.message_id).where(inbox.c.message_id.in_(job_ids) & is_read)
    return dict.fromkeys(connection.execute(query).scalars(), True)


def escalation_of(job: NotificationJob, policy: Policy, now: Millis) -> NotificationJob | None:
    """The message to send if this one, which has just arrived, is not read in time."""
    escalate = policy.escalate
    if escalate is None or job.channel != INBOX:
        return None
    handling = Policy(cap=policy.cap, unless_read=job.delivery_id)
    return job.model_copy(
        update={
            "job_id": derived_id("escalate", job.delivery_id, escalate.channel),
            "channel": escalate.channel,
            "template_code": escalate.template or job.template_code,
            "send_after": as_datetime(now + escalate.after),
            "meta": with_policy(job.meta, handling),
        }
    )
