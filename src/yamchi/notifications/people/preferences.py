"""Preferences: which messages a person wants on which channel, and when it must be quiet. Everything is on by default."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, model_validator
from sqlalchemy import Connection, delete, select

from yamchi.clock import Clock
from yamchi.fields import few
from yamchi.notifications.people.model import ANY
from yamchi.notifications.people.quiet_hours import QuietHours, TimeOfDay, read_time
from yamchi.notifications.schemas.notification_job import CHANNELS, canonical_channel
from yamchi.notifications.tables import notification_delivery as deliveries
from yamchi.notifications.tables import preferences, users
from yamchi.storage.database import Database


def _is_channel(name: str) -> str:
    if name != ANY and name not in CHANNELS:
        raise ValueError(f"there is no channel {name!r}: choose from {', '.join(CHANNELS)} or {ANY}")
    return canonical_channel(name)


ChannelOrAny = Annotated[str, AfterValidator(_is_channel)]
Category = Annotated[str, Field(min_length=1, max_length=64)]


class Quiet(BaseModel):
    """Quiet hours by the person's own clock: `{"from": "22:00", "until": "08:00"}`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    start: TimeOfDay = Field(alias="from", examples=["22:00"])
    until: TimeOfDay = Field(validation_alias=AliasChoices("until", "to"), examples=["08:00"])

    @model_validator(mode="after")
    def _lasts(self) -> "Quiet":
        if self.start == self.until:
            raise ValueError("quiet hours must end at another time than they begin")
        return self


Categories = Annotated[dict[Category, bool], Field(max_length=200), few(200)]


class Preferences(BaseModel):
    """What a person chose: by channel, then by category; `*` stands for all of them.

    `{"channels": {"sms": false}, "categories": {"promotions": false}}` says it without a `*`.
    """

    model_config = ConfigDict(extra="forbid")

    allowed: Annotated[dict[ChannelOrAny, Categories], few(50)] = Field(
        default_factory=dict,
        max_length=50,
        examples=[{"email": {"recommendations": False}, "sms": {ANY: False}}],
    )
    quiet_hours: Annotated[Quiet | None, few(10)] = None
    channels: Annotated[dict[ChannelOrAny, bool], few(50)] = Field(
        default_factory=dict, max_length=50, exclude=True
    )
    categories: Categories = Field(default_factory=dict, exclude=True)

    @model_validator(mode="after")
    def _in_full(self) -> "Preferences":
        short = {channel: {ANY: is_on} for channel, is_on in self.channels.items()}
        if self.categories:
            short[ANY] = self.categories
        self.allowed = short | self.allowed
        return self


class PreferenceStore:
    """The table `preferences`, and the quiet hours beside the person."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._person = database.insert(users).on_conflict_do_nothing()
        self._quiet = database.upsert(users, ["user_id"], ["quiet_from", "quiet_until", "updated_at"])
        choice = ["user_id", "channel", "category"]
        self._choose = database.upsert(preferences, choice, ["is_allowed", "updated_at"])

    async def get(self, user_id: str) -> Preferences:
        """What the person chose; all by default."""
        chosen = select(preferences).where(preferences.c.user_id == user_id)
        quiet = select(users.c.quiet_from, users.c.quiet_until).where(users.c.user_id == user_id)

        def look(connection: Connection) -> tuple[Sequence[Any], Any]:
            return connection.execute(chosen).all(), connection.execute(quiet).first()

        choices, hours = await self._database.read(look)
        allowed: dict[str, dict[str, bool]] = {}
        for row in choices:
            allowed.setdefault(row.channel, {})[row.category] = row.is_allowed
        kept = hours and _quiet(hours.quiet_from, hours.quiet_until)
        return Preferences.model_construct(allowed=allowed, quiet_hours=kept)  # checked when it came

    async def put(self, user_id: str, chosen: Preferences) -> None:
        """Replace all of the person's choices. A person who is not known yet becomes known."""
        pairs = [
            (channel, category, is_allowed)
            for channel, categories in chosen.allowed.items()
            for category, is_allowed in categories.items()
        ]
        quiet = chosen.quiet_hours
        hours = {"quiet_from": quiet and quiet.start, "quiet_until": quiet and quiet.until}

        def save(connection: Connection) -> None:
            connection.execute(self._quiet, self._new_person(user_id) | hours)
            connection.execute(delete(preferences).where(preferences.c.user_id == user_id))
            self._save_choices(connection, user_id, pairs)

        await self._database.write(save)

    async def choose(
        self, user_id: str, channel: str, category: str, is_allowed: bool, *, if_known: bool = False
    ) -> None:
        """Set one choice. One about all of a channel takes the place of those about its categories.

        A person who is not known yet becomes known; with `if_known` only one to whom something was sent, for whoever was
        erased stays so.
        """

        def save(connection: Connection) -> None:
            if if_known and not _is_known(connection, user_id):
                return
            connection.execute(self._person, self._new_person(user_id))
            if category == ANY:
                whole = (preferences.c.user_id == user_id) & (preferences.c.channel == channel)
                connection.execute(delete(preferences).where(whole))
            self._save_choices(connection, user_id, [(channel, category, is_allowed)])

        await self._database.write(save)

    def _save_choices(
        self, connection: Connection, user_id: str, pairs: Iterable[tuple[str, str, bool]]
    ) -> None:
        now = self._clock.now()
        rows = [
            {"user_id": user_id, "channel": channel, "category": category}
            | {"is_allowed": is_allowed, "updated_at": now}
            for channel, category, is_allowed in pairs
        ]
        if rows:
            connection.execute(self._choose, rows)

    def _new_person(self, user_id: str) -> dict[str, Any]:
        now = self._clock.now()
        return {"user_id": user_id, "attributes": {}, "created_at": now, "updated_at": now}


def _is_known(connection: Connection, user_id: str) -> bool:
    """Whether there is anything of theirs. What is found stays until the transaction ends: an erasure waits for it."""
    places = (users.c.user_id, deliveries.c.user_id)
    looks = (select(place).where(place == user_id).limit(1).with_for_update() for place in places)
    return any(connection.execute(look).first() for look in looks)


def _quiet(start: str | None, until: str | None) -> Quiet | None:
    return Quiet.model_construct(start=start, until=until) if start and until else None


def quiet_hours(start: str | None, until: str | None) -> QuietHours | None:
    """The columns of a person as hours."""
    return QuietHours(read_time(start), read_time(until)) if start and until else None
