"""The gate before sending: is the campaign still on, and is it this message's turn?

Pausing and cancelling a campaign touch one row, not a million: each of its messages asks here at the last moment. The
answer may be half a second old. Turns under a campaign's rate are kept by the queue's engine, so all processes share them.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, select

from yamchi.clock import Clock, Millis
from yamchi.errors import Snooze, YamchiError
from yamchi.notifications.tables import campaign_counts, campaigns
from yamchi.queues.queue import Queue
from yamchi.queues.rates import LONGEST_PERIOD, RateLimit
from yamchi.storage.batching import Loader
from yamchi.storage.database import Database

FRESH: Millis = 500
PAUSED: Millis = 30_000
"""How long a message of a paused campaign waits before it asks again."""

SHORT: Millis = 250
"""A turn that is this near is waited for; for a later one the message goes back to the queue."""

LATE: Millis = 20
"""Who is later than this has missed the turn: others have theirs now."""

TRIES = 3
LONGEST: Millis = 300_000
REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class Standing:
    """What messages need to know of their campaign."""

    state: str
    rate: RateLimit | None
    waiting: int
    read_at: Millis = 0


UNKNOWN = Standing("running", None, 0)
"""A message may name a campaign of somebody else's."""


class CampaignGate:
    """Lets messages of campaigns pass, wait or end."""

    def __init__(self, database: Database, queue: Queue, clock: Clock) -> None:
        self._database = database
        self._queue = queue
        self._clock = clock
        self._known: dict[str, Standing] = {}
        self._loader = Loader(self._fetch)

    async def is_cancelled(self, campaign_id: str) -> bool:
        """Whether its messages are not to be sent any more; while it is paused, they wait."""
        standing = await self._standing(campaign_id)
        if standing.state == "paused":
            wait = timedelta(milliseconds=PAUSED * random.uniform(0.5, 1.5))
            raise Snooze(wait, f"the campaign {campaign_id} is paused")
        return standing.state == "cancelled"

    async def take_turn(self, campaign_id: str) -> None:
        """Return when the campaign's rate allows one more message; if that takes long, send it back to wait."""
        standing = await self._standing(campaign_id)
        if standing.rate is None:
            return
        for _ in range(TRIES):
            turn = await self._reserve(campaign_id, standing, standing.rate)
            if (wait := turn - self._clock.now()) > 0:
                await self._clock.sleep(wait)
            if self._clock.now() - turn <= LATE:
                return

    async def _reserve(self, campaign_id: str, standing: Standing, rate: RateLimit) -> Millis:
        """The next turn, if it is near."""
        key = f"campaign-{campaign_id}"
        turn = await self._queue.take_permit(rate, key)
        wait = turn - self._clock.now()
        if wait <= SHORT:
            return turn
        await self._queue.return_permit(rate, key)
        # Spread over the time that all who wait will take, so that they do not come back all at once.
        crowd = min(standing.waiting * rate.spacing, LONGEST)
        later = timedelta(milliseconds=wait + random.uniform(0, max(crowd, wait)))
        raise Snooze(later, f"the campaign {campaign_id} sends {rate.count} per {rate.period / 1000:g} s")

    def forget(self, campaign_id: str) -> None:
        """Look again at the next message: the campaign has just changed."""
        self._known.pop(campaign_id, None)

    async def _standing(self, campaign_id: str) -> Standing:
        known = self._known.get(campaign_id)
        if known is None or self._clock.now() - known.read_at >= FRESH:
            known = await self._loader.get(campaign_id) or UNKNOWN
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[campaign_id] = known
        return known

    async def _fetch(self, campaign_ids: Sequence[str]) -> Mapping[str, Standing]:
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
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        found = {key: Standing(state, _rate(body), int(n or 0), now) for key, state, body, n in rows}
        return {key: found.get(key) or Standing("running", None, 0, now) for key in campaign_ids}


def _rate(body: Mapping[str, object]) -> RateLimit | None:
    rate = body.get("rate")
    try:
        return RateLimit.parse(rate) if isinstance(rate, str) else None
    except YamchiError:  # kept by a version that knew no bounds: as slow as can be, and no trouble to others
        return RateLimit(1, LONGEST_PERIOD)
