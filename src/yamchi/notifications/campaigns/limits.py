"""What a worker asks right before it sends a message of a campaign: is the campaign running, does its rate allow one more?

Pausing and cancelling a campaign change one row, not a million: each of its messages asks here. The answer may be half a
second old. This is the only place where the rate is enforced; the queue's engine counts, so all processes share it.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection, func, select

from yamchi.clock import Clock, Millis
from yamchi.errors import Snooze, YamchiError
from yamchi.notifications.tables import campaign_counts, campaigns
from yamchi.queues.queue import Queue
from yamchi.queues.rates import LONGEST_PERIOD, RateLimit
from yamchi.storage.database import Database

MAX_AGE: Millis = 500
"""How old the known status of a campaign may be."""

PAUSED_WAIT: Millis = 30_000
"""How long a message of a paused campaign waits before it asks again."""

LONGEST_SLEEP: Millis = 250
"""The worker sleeps until a permit that is this near; for a later one the message goes back to the queue."""

TOLERANCE: Millis = 20
"""A permit is used within this time after its moment, or lost."""

TRIES = 3
LONGEST_SPREAD: Millis = 300_000
MOST_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class CampaignStatus:
    """What messages need to know of their campaign."""

    state: str
    rate: RateLimit | None
    waiting: int
    read_at: Millis = 0


UNKNOWN = CampaignStatus("running", None, 0)
"""A message may name a campaign that another system runs."""


class CampaignLimits:
    """Lets a message of a campaign be sent, wait or end."""

    def __init__(self, database: Database, queue: Queue, clock: Clock) -> None:
        self._database = database
        self._queue = queue
        self._clock = clock
        self._known: dict[str, CampaignStatus] = {}

    async def is_cancelled(self, campaign_id: str) -> bool:
        """Whether its messages are not to be sent any more; raise `Snooze` while it is paused."""
        status = await self._status(campaign_id)
        if status.state == "paused":
            wait = timedelta(milliseconds=PAUSED_WAIT * random.uniform(0.5, 1.5))
            raise Snooze(wait, f"the campaign {campaign_id} is paused")
        return status.state == "cancelled"

    async def wait_for_rate(self, campaign_id: str) -> None:
        """Return when the campaign's rate allows one more message; raise `Snooze` if that takes long."""
        status = await self._status(campaign_id)
        if status.rate is None:
            return
        for _ in range(TRIES):
            moment = await self._take_permit(campaign_id, status, status.rate)
            if (wait := moment - self._clock.now()) > 0:
                await self._clock.sleep(wait)
            if self._clock.now() - moment <= TOLERANCE:
                return

    async def _take_permit(self, campaign_id: str, status: CampaignStatus, rate: RateLimit) -> Millis:
        """The moment of the next permit, if it is near."""
        key = f"campaign-{campaign_id}"
        moment = await self._queue.take_permit(rate, key)
        wait = moment - self._clock.now()
        if wait <= LONGEST_SLEEP:
            return moment
        await self._queue.return_permit(rate, key)
        # Spread over the time that all waiting messages will take, so that they do not come back all at once.
        spread = min((status.waiting - 1) * rate.spacing, LONGEST_SPREAD)
        later = timedelta(milliseconds=wait + random.uniform(0, max(spread, 0)))
        raise Snooze(later, f"the campaign {campaign_id} sends {rate.count} per {rate.period / 1000:g} s")

    def forget(self, campaign_id: str) -> None:
        """Read the status again at the next message: the campaign has just changed."""
        self._known.pop(campaign_id, None)

    async def _status(self, campaign_id: str) -> CampaignStatus:
        known = self._known.get(campaign_id)
        if known is None or not 0 <= self._clock.now() - known.read_at < MAX_AGE:  # a clock may be set back
            known = await self._database.get(self._fetch, campaign_id) or UNKNOWN
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[campaign_id] = known
        return known

    def _fetch(self, connection: Connection, campaign_ids: Sequence[str]) -> Mapping[str, CampaignStatus]:
        now = self._clock.now()
        counted = (
            select(func.sum(campaign_counts.c.n))
            .where(
                (campaign_counts.c.campaign_id == campaigns.c.campaign_id)
                & campaign_counts.c.status.in_(("QUEUED", "RETRYING"))
            )
            .scalar_subquery()
        )
        query = select(campaigns.c.campaign_id, campaigns.c.state, campaigns.c.body, counted).where(
            campaigns.c.campaign_id.in_(campaign_ids)
        )
        rows = connection.execute(query)
        found = {key: CampaignStatus(state, _rate(body), int(n or 0), now) for key, state, body, n in rows}
        return {key: found.get(key) or CampaignStatus("running", None, 0, now) for key in campaign_ids}


def _rate(body: Mapping[str, object]) -> RateLimit | None:
    rate = body.get("rate")
    try:
        return RateLimit.parse(rate) if isinstance(rate, str) else None
    except YamchiError:  # kept by a version that knew no bounds: as slow as can be, and no trouble to others
        return RateLimit(1, LONGEST_PERIOD)
