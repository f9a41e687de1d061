"""When lessons can be had: the hours of the school, without what is taken. A time is given to whoever takes it first."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, select

from yamchi.clock import Clock, Millis, as_datetime, to_millis, to_moment
from yamchi.leads.settings import DAYS, LeadSettings, read_hours
from yamchi.leads.store import LeadStore
from yamchi.leads.tables import lesson_slots
from yamchi.storage.database import Database


class Slots:
    """The free times, and taking one."""

    def __init__(
        self, database: Database, store: LeadStore, clock: Clock, settings: LeadSettings, zone: str
    ) -> None:
        self._database = database
        self._store = store
        self._clock = clock
        self._zone = ZoneInfo(zone)
        self._days = frozenset(map(DAYS.index, settings.lesson_days))
        self._first, self._last = read_hours(settings.lesson_hours)
        self._length = settings.lesson_duration
        self._notice = to_millis(settings.lesson_notice)
        self._ahead = settings.lesson_ahead

    @property
    def zone(self) -> ZoneInfo:
        return self._zone

    async def free(self, lead_id: str) -> list[Millis]:
        """Everything that this lead could take, the soonest first."""
        today = self._today()
        days = [today + timedelta(days=number) for number in range(self._ahead + 1)]
        return await self._free([moment for day in days for moment in self._possible(day)], lead_id)

    async def take(self, lead_id: str, starts_at: Millis) -> bool:
        """Have this time for a lead; False if it is not offered, or somebody else was quicker."""
        if starts_at not in self._possible(as_datetime(starts_at).astimezone(self._zone).date()):
            return False

        def claim(connection: Connection) -> bool:
            if starts_at not in _without(
                self._taken(connection, [starts_at], lead_id), [starts_at], self._millis
            ):
                return False
            return self._store.hold_in(connection, lead_id, starts_at)

        return await self._database.write(claim)

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _millis(self) -> Millis:
        return to_millis(self._length)

    def _today(self) -> date:
        return as_datetime(self._clock.now()).astimezone(self._zone).date()

    def _possible(self, day: date) -> list[Millis]:
        """What the school offers on a day, taken or not; an hour that the clocks skip is not there."""
        is_near = 0 <= (day - self._today()).days <= self._ahead
        if day.weekday() not in self._days or not is_near:
            return []
        found = []
        start = datetime.combine(day, self._first)
        end = datetime.combine(day, self._last)
        while start + self._length <= end:
            local = start.replace(tzinfo=self._zone)
            moment = to_moment(local)
            is_real = as_datetime(moment).astimezone(self._zone).replace(tzinfo=None) == start
            if is_real and moment >= self._clock.now() + self._notice:
                found.append(moment)
            start += self._length
        return found

    async def _free(self, moments: Sequence[Millis], lead_id: str) -> list[Millis]:
        if not moments:
            return []
        taken = await self._database.read(lambda connection: self._taken(connection, moments, lead_id))
        return _without(taken, moments, self._millis)

    def _taken(self, connection: Connection, moments: Sequence[Millis], lead_id: str) -> list[Millis]:
        """Lessons of others that begin near any of these."""
        starts = lesson_slots.c.starts_at
        query = select(starts).where(
            starts > min(moments) - self._millis,
            starts < max(moments) + self._millis,
            lesson_slots.c.lead_id != lead_id,
        )
        return list(connection.execute(query).scalars())


def _without(taken: Sequence[Millis], moments: Sequence[Millis], length: Millis) -> list[Millis]:
    """Those that overlap none of the lessons."""
    return [one for one in moments if all(abs(one - other) >= length for other in taken)]
