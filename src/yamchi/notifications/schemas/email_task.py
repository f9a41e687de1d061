"""A letter as other programs ask for it on the queue `email_queue`: to whom, what about, and its words or its template."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from yamchi.fields import Address, JsonObject, Locale, Name, Subject, Words, check_json
from yamchi.notifications.schemas.notification_job import (
    DEFAULT_LOCALE,
    MOST_ADDRESSES,
    check_says_something,
    check_split,
)


class EmailTask(BaseModel):
    """`{to, subject, html?, text?, template?, data?, attachments?}`. A template has a subject of its own; a given one wins."""

    model_config = ConfigDict(extra="allow")

    to: Address | Annotated[list[Address], Field(min_length=1, max_length=MOST_ADDRESSES)]
    subject: Subject | None = None
    html: Words | None = None
    text: Words | None = None
    template: Name | None = None
    data: JsonObject = Field(default_factory=dict)
    attachments: list[Any] = Field(default_factory=list)
    locale: Locale = DEFAULT_LOCALE

    @model_validator(mode="after")
    def _fits(self) -> "EmailTask":
        if self.subject is None and self.template is None:
            raise ValueError("a letter needs a subject, or a template that has one")
        check_says_something(self)
        check_json({"attachments": self.attachments, **(self.model_extra or {})})
        check_split(self.to, lambda: self.model_dump_json(exclude={"to"}))
        return self

    @property
    def addresses(self) -> list[str]:
        """Each address once."""
        return [self.to] if isinstance(self.to, str) else list(dict.fromkeys(self.to))
