"""The browsers of people: the table `push_subscriptions`. A browser belongs to whoever signed in to it last."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from pydantic import BaseModel, ConfigDict, Field, field_validator
from sqlalchemy import Connection, delete, desc, select

from yamchi.clock import Clock, Millis
from yamchi.http.base64url import from_base64url
from yamchi.notifications.channels.push.endpoints import MAX_URL_LENGTH, WRITABLE
from yamchi.notifications.tables import push_subscriptions as table
from yamchi.storage.database import Database

MOST_BROWSERS = 20
"""Of one person; the one that was heard of longest ago makes room for another."""


class BrowserKeys(BaseModel):
    """The keys that messages to this browser are encrypted with."""

    p256dh: str = Field(max_length=128)
    auth: str = Field(max_length=32)

    @field_validator("p256dh", "auth")
    @classmethod
    def _is_base64(cls, value: str) -> str:
        from_base64url(value)
        return value


class BrowserSubscription(BaseModel):
    """What `PushSubscription.toJSON()` gives in a browser, and a name for the device if you like."""

    model_config = ConfigDict(extra="ignore")

    endpoint: str = Field(
        max_length=MAX_URL_LENGTH, pattern=WRITABLE, examples=["https://fcm.googleapis.com/fcm/send/…"]
    )
    keys: BrowserKeys
    device: str | None = Field(default=None, max_length=255, examples=["Chrome on Android"])


@dataclass(frozen=True, slots=True)
class Subscription:
    """A browser that asked for messages."""

    subscription_id: str
    user_id: str
    endpoint: str
    p256dh: str
    auth: str
    device: str | None
    created_at: Millis
    updated_at: Millis


class Subscriptions:
    """Looked up in batches, by person."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        changed = ("user_id", "p256dh", "auth", "device", "updated_at")
        self._save = database.upsert(table, ["subscription_id"], changed)

    async def of(self, user_id: str) -> Sequence[Subscription]:
        return await self._database.get(_of_people, user_id) or ()

    async def add(self, user_id: str, browser: BrowserSubscription) -> Subscription:
        """The same browser again is the same subscription, whoever it belonged to."""
        now = self._clock.now()
        keys = browser.keys
        made = Subscription(
            id_of(browser.endpoint),
            user_id,
            browser.endpoint,
            keys.p256dh,
            keys.auth,
            browser.device,
            now,
            now,
        )

        def save(connection: Connection) -> None:
            row = {name: getattr(made, name) for name in Subscription.__slots__}
            connection.execute(self._save, row)
            theirs = select(table.c.subscription_id).where(table.c.user_id == user_id)
            newest = theirs.order_by(desc(table.c.updated_at), desc(table.c.created_at)).limit(MOST_BROWSERS)
            kept = connection.execute(newest).scalars().all()
            connection.execute(
                delete(table).where(table.c.user_id == user_id, table.c.subscription_id.not_in(kept))
            )

        await self._database.write(save)
        return made

    async def remove(self, subscription_id: str, *, user_id: str | None = None) -> bool:
        """Whether it was there."""
        gone = delete(table).where(table.c.subscription_id == subscription_id)
        if user_id is not None:
            gone = gone.where(table.c.user_id == user_id)
        return bool(await self._database.execute(gone))


def _of_people(connection: Connection, user_ids: Sequence[str]) -> Mapping[str, Sequence[Subscription]]:
    query = select(table).where(table.c.user_id.in_(user_ids)).order_by(table.c.created_at)
    found: dict[str, list[Subscription]] = defaultdict(list)
    for row in connection.execute(query):
        found[row.user_id].append(Subscription(**row._mapping))
    return found


def id_of(endpoint: str) -> str:
    return sha256(endpoint.encode()).hexdigest()
