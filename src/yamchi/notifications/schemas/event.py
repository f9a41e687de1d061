"""An event: something that happened in the product, and that people may have to be told of."""

from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from yamchi.fields import JsonObject, Moment, Name
from yamchi.notifications.schemas.notification_job import Channel


class Event(BaseModel):
    """`{event_type, event_id, user_id?, data, occurred_at?}`. The same `event_id` again changes nothing."""

    model_config = ConfigDict(extra="forbid")

    event_type: Name = Field(examples=["user_registered"])
    event_id: Name = Field(examples=["6a9f7f26-4c0c-4a91-9f3d-b159c2dcb001"])
    user_id: UUID | None = Field(default=None, examples=["f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"])
    data: JsonObject = Field(default_factory=dict, examples=[{"first_name": "Нуржан", "plan": "pro"}])
    occurred_at: Moment | None = None

    @property
    def person_id(self) -> str | None:
        """The id of whom it is about, as tables have it."""
        return None if self.user_id is None else str(self.user_id)


class TrialEvent(Event):
    """An event told with a test key: what it leads to stays in the mailbox."""


class PlannedJob(BaseModel):
    """A notification that an event led to."""

    job_id: str
    channel: Channel
    template_code: str
    status: str


class EventAnswer(BaseModel):
    """What became of an event. `duplicate` says that it had been accepted before."""

    event_id: str
    jobs: list[PlannedJob]
    duplicate: bool = False
