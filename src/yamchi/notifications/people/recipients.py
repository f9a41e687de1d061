"""People: where each one is reached, in which language, and what else is known of them.

A person's preferences are loaded in the same query: choices, quiet hours, suppressed addresses.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from sqlalchemy import Connection, bindparam, delete, or_, select

from yamchi.clock import Clock
from yamchi.fields import Email, JsonObject, Locale, Name, Phone, Timezone
from yamchi.notifications.people.model import NO_PREFERENCES, Recipient, RecipientPreferences
from yamchi.notifications.people.preferences import quiet_hours
from yamchi.notifications.tables import preferences, suppressions, users
from yamchi.storage.database import Database, as_object

KNOWN = tuple(field.name for field in fields(Recipient) if field.name not in ("attributes", "preferences"))
_ADDRESSES = (users.c.email, users.c.phone, users.c.telegram_id, users.c.user_id)
_PEOPLE = (
    select(
        *(column for column in users.c if column.name not in ("created_at", "updated_at")),
        preferences.c.channel.label("choice_channel"),
        preferences.c.category.label("choice_category"),
        preferences.c.is_allowed,
        suppressions.c.channel.label("suppressed_channel"),
        suppressions.c.address.label("suppressed_address"),
        suppressions.c.reason.label("suppressed_reason"),
    )
    .outerjoin_from(users, preferences, preferences.c.user_id == users.c.user_id)
    .outerjoin(
        suppressions,
        or_(
            suppressions.c.user_id == users.c.user_id,
            *(suppressions.c.address == address for address in _ADDRESSES),
        ),
    )
    .where(users.c.user_id.in_(bindparam("user_ids", expanding=True)))
    .order_by(users.c.user_id)
)
"""A row a person; one more for each further choice and suppressed address, which few have."""


ATTRIBUTES_LIMIT = 65_536
"""Bytes of attributes: they are read with every message to the person."""


def _is_small(attributes: dict[str, Any]) -> dict[str, Any]:
    if (size := len(orjson.dumps(attributes))) > ATTRIBUTES_LIMIT:
        raise ValueError(f"{size:,} bytes are more than the {ATTRIBUTES_LIMIT:,} allowed")
    return attributes


Attributes = Annotated[JsonObject, AfterValidator(_is_small)]
TelegramId = Name | Annotated[int, Field(ge=-(2**63), lt=2**63)]


class User(BaseModel):
    """What a caller tells of a person."""

    model_config = ConfigDict(extra="forbid")

    email: Email | None = Field(default=None, examples=["nurzhan@example.com"])
    phone: Phone | None = Field(default=None, examples=["+77010000000"])
    telegram_id: TelegramId | None = Field(default=None, examples=[123456789])
    locale: Locale | None = Field(default=None, examples=["kk"])
    timezone: Timezone | None = Field(default=None, examples=["Asia/Almaty"])
    attributes: Attributes = Field(default_factory=dict, examples=[{"first_name": "Нуржан", "plan": "pro"}])


class Recipients:
    """The table `users`, looked up in batches."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        changed = ("email", "phone", "telegram_id", "locale", "timezone", "attributes", "updated_at")
        self._save = database.upsert(users, ["user_id"], changed)

    async def get(self, user_id: str) -> Recipient | None:
        return await self._database.get(_found, user_id)

    async def get_all(self, user_ids: Iterable[str]) -> Mapping[str, Recipient]:
        """Those of these people who are known, in one query."""
        return await self._database.get_all(_found, user_ids)

    async def put(self, user_id: str, user: User) -> Recipient:
        """Make or replace a person."""
        now = self._clock.now()
        fields = user.model_dump()
        fields["telegram_id"] = None if user.telegram_id is None else str(user.telegram_id)
        await self._database.put(
            self._save, {"user_id": user_id, **fields, "created_at": now, "updated_at": now}
        )
        return Recipient(user_id, **fields)

    async def forget(self, user_id: str) -> bool:
        statement = delete(users).where(users.c.user_id == user_id)
        return bool(await self._database.execute(statement))

    def get_in(self, connection: Connection, user_id: str) -> Recipient | None:
        """The same inside a transaction of the caller."""
        return _found(connection, [user_id]).get(user_id)


def _found(connection: Connection, user_ids: Sequence[str]) -> Mapping[str, Recipient]:
    rows = connection.execute(_PEOPLE, {"user_ids": user_ids}).all()
    return {user_id: _recipient(list(own)) for user_id, own in groupby(rows, lambda row: row.user_id)}


def _recipient(rows: Sequence[Any]) -> Recipient:
    row = rows[0]
    return Recipient(
        row.user_id,
        row.email,
        row.phone,
        row.telegram_id,
        row.locale,
        row.timezone,
        as_object(row.attributes or {}),
        _preferences(rows),
    )


def _preferences(rows: Sequence[Any]) -> RecipientPreferences:
    first = rows[0]
    if first.is_allowed is None and first.suppressed_reason is None and first.quiet_from is None:
        return NO_PREFERENCES
    choices = {
        (row.choice_channel, row.choice_category): row.is_allowed for row in rows if row.choice_channel
    }
    suppressed = {
        (row.suppressed_channel, row.suppressed_address): row.suppressed_reason
        for row in rows
        if row.suppressed_reason is not None
    }
    return RecipientPreferences(choices, quiet_hours(first.quiet_from, first.quiet_until), suppressed)


def as_template_data(recipient: Recipient) -> dict[str, Any]:
    """What templates see as `user`: the known fields, and the attributes beside them."""
    known = {name: value for name in KNOWN if (value := getattr(recipient, name)) is not None}
    return {**recipient.attributes, **known}
