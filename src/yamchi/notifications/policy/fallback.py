"""`first_of`: when a person can't be reached on one channel, the message goes on to the next.

Each channel has a job and a delivery of its own. Their ids are derived from the job before, so that going on twice,
after a crash or a redelivery, is going on once.
"""

from yamchi.notifications.policy.model import Policy, as_meta
from yamchi.notifications.schemas.notification_job import Meta, NotificationJob, derived_id


def next_channel_job(job: NotificationJob, policy: Policy) -> NotificationJob | None:
    """The same message for the next channel, if there is one."""
    if not policy.then:
        return None
    channel, *rest = policy.then
    return job.model_copy(
        update={
            "job_id": derived_id("next", job.delivery_id, channel),
            "channel": channel,
            "send_after": None,
            "meta": with_policy(job.meta, policy.model_copy(update={"then": rest})),
        }
    )


def with_policy(meta: Meta, policy: Policy) -> Meta:
    """The same `meta` with another policy."""
    kept = {name: value for name, value in meta.model_dump().items() if name != "policy"}
    return Meta.model_validate(kept | as_meta(policy))
