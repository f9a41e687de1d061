"""From the audience to the queue, so that a crash anywhere loses nobody and doubles nobody.

A window of people gets its deliveries, and the cursor moves past it, in one transaction; then the jobs are queued. Ids are
derived, so queueing may be repeated: a process that takes a campaign over queues the last window again. One process at a time
holds a campaign; a move of the cursor counts only if it is still the holder's and stands where the holder saw it.
The queue is never flooded: while many jobs wait in it, nobody is added, so that pausing or cancelling costs nothing.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import structlog
from sqlalchemy import Connection, select, update

from yamchi.clock import Clock, Millis
from yamchi.errors import EngineUnavailable
from yamchi.faultpoints import fault_point
from yamchi.notifications.campaigns.audience import Audience
from yamchi.notifications.campaigns.model import Campaign
from yamchi.notifications.campaigns.planning import Planned, plan
from yamchi.notifications.sending.campaign_counts import CampaignCounts
from yamchi.notifications.sending.service import JOB
from yamchi.notifications.tables import campaigns, notification_delivery
from yamchi.queues.queue import Queue
from yamchi.queues.records import NewJob
from yamchi.storage.bulkinsert import write_rows
from yamchi.storage.database import Database
from yamchi.storage.holds import Holds

log = structlog.get_logger("yamchi.campaigns")

PRIORITIES = {"normal": 1, "high": 10}
"""Below those of single notifications, so that campaigns do not delay them."""

BATCH = 1_000
"""People in one transaction."""

MAX_BACKLOG = 5_000
"""Jobs that wait in the queue; when there are more, nobody is added."""

AHEAD: Millis = 250
"""A campaign with a rate queues what it may send within this time. The rate itself is enforced in `limits.py`, at sending."""

CATCH_UP: Millis = 1_000
"""What the fan-out missed of a rate, it queues later, but no more than for this time."""

LEASE: Millis = 5_000
"""How long a process holds a campaign without a sign of life."""

IDLE_WAIT: Millis = 1_000
BUSY_WAIT: Millis = 50
LONGEST_BACKOFF: Millis = 300_000
"""Waits between two steps: without a campaign, with one that queues nothing now, and after failures at most."""

table = campaigns
delivery = notification_delivery.c


class FanOut:
    """Fans out whatever campaigns are due. Every worker has one."""

    def __init__(self, database: Database, queue: Queue, counts: CampaignCounts, clock: Clock) -> None:
        self._database = database
        self._queue = queue
        self._counts = counts
        self._clock = clock
        self._holds = Holds(database, table.c.campaign_id, clock, LEASE)
        self._failing: dict[str, tuple[int, Millis]] = {}
        """Campaigns whose step failed: how often, and when they are tried again."""
        self._new = database.insert(notification_delivery).on_conflict_do_nothing()

    async def watch(self) -> None:
        """Fan out again and again; any number of processes may run this."""
        try:
            while True:
                await self._clock.sleep(await self.step_all())
        finally:
            await self._holds.release()

    async def run(self) -> None:
        """Fan out until nothing is left that may be queued now."""
        while await self.step_all() == 0:
            continue

    async def step_all(self) -> Millis:
        """A window of every campaign that is due; how long to wait before the next one."""
        due, has_moved = await self._due(), False
        for campaign in due:
            has_moved |= await self._try_step(campaign)
        return 0 if has_moved else BUSY_WAIT if due else IDLE_WAIT

    async def _try_step(self, campaign: Campaign) -> bool:
        """A step that fails stops only its own campaign, which is tried again with growing back-off."""
        now, (tries, again_at) = self._clock.now(), self._failing.get(campaign.campaign_id, (0, 0))
        if now < again_at:
            return False
        try:
            moved = await self._hold(campaign) and await self._has_room() and await self._step(campaign)
        except EngineUnavailable:
            raise
        except Exception as error:
            pause = min(IDLE_WAIT * 2 ** min(tries, 10), LONGEST_BACKOFF)
            self._failing[campaign.campaign_id] = (tries + 1, now + pause)
            log.exception(f"the fan-out of campaign {campaign.campaign_id} failed: {error}")
            return False
        self._failing.pop(campaign.campaign_id, None)
        return moved

    async def _due(self) -> list[Campaign]:
        query = select(table).where(table.c.fanned_out_at.is_(None), table.c.state == "running")
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [campaign for row in rows if self._is_due(campaign := Campaign(**row))]

    def _is_due(self, campaign: Campaign) -> bool:
        try:
            return (campaign.send_after or 0) <= self._clock.now()
        except (ValueError, LookupError, TypeError) as error:
            log.error(f"campaign {campaign.campaign_id} can't be read: {error}")
            return False

    async def _has_room(self) -> bool:
        return (await self._queue.counts())["waiting"] < MAX_BACKLOG

    # ── Holding ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _hold(self, campaign: Campaign) -> bool:
        """Whether this process is the one that fans the campaign out. Who takes it over queues the last window again."""
        was_mine = self._holds.has(campaign.campaign_id) and campaign.holder == self._holds.name
        taken = await self._holds.take(
            campaign.campaign_id,
            _is(campaign),
            _has_not_moved(campaign),
            holder=campaign.holder,
            held_until=campaign.held_until,
        )
        if taken and not was_mine and campaign.cursor is not None:
            try:
                await self._queue_again(campaign, campaign.cursor)
            except BaseException:
                self._holds.forget(campaign.campaign_id)  # whoever goes on with it queues that window first
                raise
        return taken

    async def _queue_again(self, campaign: Campaign, cursor: str) -> None:
        people = await Audience.of(self._database, campaign).fanned_out(campaign.queued, cursor)
        await self._enqueue(campaign, plan(campaign, people, self._clock.now()))

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _step(self, campaign: Campaign) -> bool:
        """One window: a look, a transaction, a call to the queue. False if there was nothing to do."""
        if campaign.expires_at and campaign.expires_at <= self._clock.now():
            return await self._finish(campaign)
        now = self._clock.now()
        size = self._window_size(campaign, now)
        if size == 0:
            return False
        window = await Audience.of(self._database, campaign).window(campaign.cursor, size)
        if window.end is None:
            return await self._finish(campaign)
        planned = plan(campaign, window.people, now)
        next_window = (
            _paced_from(campaign, now) + round(len(planned) * campaign.rate.spacing)
            if campaign.rate
            else None
        )
        advance = {"cursor": window.end, "queued": campaign.cursor, "next_turn": next_window}
        if not await self._database.write(lambda c: self._store(c, campaign, planned, advance)):
            return False
        fault_point("campaign.stored")
        try:
            await self._enqueue(campaign, planned)
        except BaseException:
            self._holds.forget(campaign.campaign_id)  # whoever goes on with it queues this window first
            raise
        fault_point("campaign.enqueued")
        return True

    def _window_size(self, campaign: Campaign, now: Millis) -> int:
        """How many people may be queued now: with a rate, about as many as will be sent until the next look."""
        if campaign.rate is None:
            return BATCH
        start = _paced_from(campaign, now)
        if start > now + AHEAD // 2:
            return 0
        return min(BATCH, 1 + int((now + AHEAD - start) / campaign.rate.spacing))

    def _store(
        self, connection: Connection, campaign: Campaign, planned: Sequence[Planned], advance: dict[str, Any]
    ) -> bool:
        """The deliveries of a window, and the cursor past it. False if the campaign is no longer ours, or not running."""
        now = self._clock.now()
        is_ours = self._holds.is_mine & _has_not_moved(campaign)
        move = update(table).where(_is(campaign), is_ours).values(**advance, **self._holds.renewal())
        if not connection.execute(move).rowcount:
            return False
        known = select(delivery.job_id).where(delivery.job_id.in_([one.job_id for one in planned]))
        taken = set(connection.execute(known).scalars())  # nobody, unless a job's id was made by another hand
        if new := [one for one in planned if one.job_id not in taken]:
            write_rows(connection, self._new, [_delivery(campaign, one, now) for one in new])
            places = Counter((campaign.campaign_id, one.variant or "", "QUEUED") for one in new)
            self._counts.shift(connection, places)
        return True

    async def _enqueue(self, campaign: Campaign, planned: Sequence[Planned]) -> None:
        if planned:
            options = self._queue.definition.options
            priority = PRIORITIES[campaign.body["priority"]]
            jobs = [NewJob(one.job_id, JOB, one.payload, options, priority) for one in planned]
            await self._queue.add_prepared(jobs)

    async def _finish(self, campaign: Campaign) -> bool:
        """Mark the campaign as fanned out: everybody up to the cursor was queued by the step before."""
        now = self._clock.now()
        done = update(table).where(_is(campaign), self._holds.is_mine)
        ended = done.values(fanned_out_at=now, queued=campaign.cursor, holder=None, held_until=None)
        await self._database.execute(ended)
        self._holds.forget(campaign.campaign_id)
        log.info(f"campaign {campaign.campaign_id} is fanned out")
        return True


def _paced_from(campaign: Campaign, now: Millis) -> Millis:
    """Up to which moment the campaign has queued what its rate allows."""
    return now if campaign.next_turn is None else max(campaign.next_turn, now - CATCH_UP)


def _is(campaign: Campaign) -> Any:
    """The campaign, while it is running and not fanned out."""
    return (
        (table.c.campaign_id == campaign.campaign_id)
        & (table.c.state == "running")
        & table.c.fanned_out_at.is_(None)
    )


def _has_not_moved(campaign: Campaign) -> Any:
    return table.c.cursor.is_not_distinct_from(campaign.cursor)


def _delivery(campaign: Campaign, one: Planned, now: Millis) -> dict[str, Any]:
    return {
        "job_id": one.job_id,
        "channel": campaign.body["channel"],
        "template_code": one.template_code,
        "user_id": one.user_id,
        "event_id": campaign.campaign_id,
        "campaign_id": campaign.campaign_id,
        "status": "QUEUED",
        "attempts": 0,
        "created_at": now,
        "updated_at": now,
        "variant": one.variant,
    }
