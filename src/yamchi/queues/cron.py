"""Cron: jobs that are added by the clock. Any number of schedulers may run; each moment fires once.

The id of a run is derived from the schedule and the moment, and the engine adds it only if the schedule has not fired
at that moment or later. After downtime the latest missed moment fires, once.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote
from zoneinfo import ZoneInfo

import structlog
from cronsim import CronSim, CronSimError

from yamchi.clock import Clock, Millis, as_datetime, check_zone, to_moment
from yamchi.errors import ConfigurationError, EngineError, InvalidJob
from yamchi.queues.engines.base import Engine, by_engine
from yamchi.queues.queue import Queue
from yamchi.queues.records import NewJob, check_id

log = structlog.get_logger("yamchi.cron")

LONGEST_SLEEP: Millis = 30_000
"""The scheduler looks at the clock at least this often, so that a changed system time is noticed."""

RETRY: Millis = 1_000
"""When to try a schedule again whose engine did not answer."""

LONGEST_REPEAT: Millis = 7_200_000
"""The longest span that a clock change repeats."""


@dataclass(frozen=True)
class CronLine:
    """A cron expression in a time zone."""

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        try:
            check_zone(self.zone)
        except InvalidJob as error:
            raise ConfigurationError(str(error)) from error
        try:
            CronSim(self.expression, datetime(2026, 1, 1))
        except CronSimError as error:
            raise ConfigurationError(
                f"{self.expression!r} is not a cron line ({error}): write five fields, for example '0 3 * * *'."
            ) from error

    def after(self, moment: Millis) -> Millis:
        """The first moment after this one."""
        # Within the hour that a clock change repeats, CronSim begins with what was due in its first pass.
        return next(found for found in self._moments(self._local(moment)) if found > moment)

    def last_before(self, moment: Millis) -> Millis:
        """The last moment that is not later than this one."""
        begin = self._local(moment - moment % 1000 + 1000)  # a whole second, which CronSim leaves out
        if begin.fold:
            begin = self._local(moment + LONGEST_REPEAT)
        return next(found for found in self._moments(begin, reverse=True) if found <= moment)

    def _moments(self, begin: datetime, *, reverse: bool = False) -> Iterator[Millis]:
        return map(to_moment, CronSim(self.expression, begin, reverse=reverse))

    def describe(self) -> str:
        """The line in words: "At 03:00 AM"."""
        return CronSim(self.expression, datetime(2026, 1, 1)).explain()

    def _local(self, moment: Millis) -> datetime:
        return as_datetime(moment).astimezone(ZoneInfo(self.zone))


@dataclass(frozen=True)
class Schedule:
    """A job that a cron line adds to a queue."""

    name: str
    line: CronLine
    queue: Queue
    job: str

    @property
    def engine(self) -> Engine:
        return self.queue.engine


def run_id(schedule: str, moment: Millis) -> str:
    """The id of a run. Characters that ids may not contain are written as numbers."""
    fit = "".join(quote(char, safe="") if char in ":%" or char.isspace() else char for char in schedule)
    return check_id(f"{fit}@{moment}")


class Scheduler:
    """Adds the jobs of schedules when their moments come.

    Each engine is looked after by itself: one that does not answer holds up only the schedules of its own queues.
    """

    def __init__(self, schedules: list[Schedule], clock: Clock) -> None:
        self.schedules = schedules
        self._clock = clock
        self._failing: set[str] = set()
        """Schedules whose last try failed, so that the log says it once."""

    async def run(self) -> None:
        tasks = [
            asyncio.create_task(self._run_schedules(schedules)) for _, schedules in by_engine(self.schedules)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _run_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Fire the schedules of one engine, for ever."""
        while True:
            due = min([await self._fire_or_retry(schedule) for schedule in schedules])
            await self._clock.sleep(min(max(due - self._clock.now(), 0), LONGEST_SLEEP))

    async def _fire_or_retry(self, schedule: Schedule) -> Millis:
        """Fire the schedule if it is due; when to look at it again."""
        try:
            due = await self._fire(schedule)
        except EngineError as error:
            if schedule.name not in self._failing:
                self._failing.add(schedule.name)
                log.warning(f"could not check the schedule {schedule.name}; trying again", error=str(error))
            return self._clock.now() + RETRY
        self._failing.discard(schedule.name)
        return due

    async def fire_due(self) -> Millis:
        """Fire the schedules that are due; the earliest next moment."""
        moments = [await self._fire(schedule) for schedule in self.schedules]
        return min(moments, default=self._clock.now() + LONGEST_SLEEP)

    async def _fire(self, schedule: Schedule) -> Millis:
        now = self._clock.now()
        engine, queue = schedule.engine, schedule.queue
        last = await engine.last_fired(schedule.name)
        moment = schedule.line.last_before(now)
        if last is None:
            # A schedule seen for the first time begins now: what would have been before it does not count as missed.
            await engine.begin_schedule(schedule.name, now)
        elif moment > last:
            job = NewJob(run_id(schedule.name, moment), schedule.job, b"null", queue.definition.options)
            if await engine.fire(schedule.name, moment, queue.name, job):
                log.info(
                    f"[{queue.name}:{engine.type}] scheduled {schedule.name} for {as_datetime(moment).isoformat()}"
                )
        return schedule.line.after(now)
