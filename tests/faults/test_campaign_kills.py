"""A campaign whose workers are killed at random: everybody gets it once, memory stays flat, and a million cost no more each.

`FAULTS=full pytest tests/faults/test_campaign_kills.py -s` sends to a million people with ten kills, and compares what one
person costs there and in a campaign to ten thousand.
"""

import statistics
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from tests.faults.campaign_runs import CampaignRuns
from tests.scale import FULL
from yamchi.notifications.tables import notification_delivery

pytestmark = [pytest.mark.timeout(7_200 if FULL else 300)]

FEW, MANY, KILLS = (10_000, 1_000_000, 10) if FULL else (1_000, 3_000, 3)
ROUNDS = 5 if FULL else 1
GROWTH = 100
"""MB that a worker may grow between the first tenth of the people and the last: caches fill, nothing else may."""


@pytest.fixture
async def campaigns(tmp_path: Path) -> AsyncIterator[CampaignRuns]:
    campaigns = CampaignRuns(tmp_path)
    yield campaigns
    await campaigns.close()


async def test_everybody_once_and_at_the_same_price(campaigns: CampaignRuns) -> None:
    await campaigns.populate(FEW)
    small = [await campaigns.send(f"small-{number}") for number in range(ROUNDS)]
    await campaigns.populate(MANY)
    large = await campaigns.send("large", kills=KILLS)

    before, after = statistics.median(cost.per_person for cost in small), large.per_person
    ledger = await campaigns.ledger()
    expected = FEW * ROUNDS + MANY
    for cost in (*small, large):
        print(cost)
    print(f"cost per person at {MANY:,}: {after / before:.2f} × that at {FEW:,}")
    print(f"ledger: {ledger['lines']:,} lines for {ledger['jobs']:,} messages to {ledger['people']:,} people")

    assert large.kills == KILLS
    assert ledger == {"lines": expected, "jobs": expected, "people": MANY}
    shown = await campaigns.campaigns.show("large")
    assert shown["progress"]["sent"] == shown["progress"]["fanned_out"] == MANY
    assert await statuses(campaigns) == {"SENT": expected}
    if FULL:
        assert after <= 1.2 * before
        assert large.memory[-1] - large.memory[0] <= GROWTH


@pytest.mark.parametrize("point", ["campaign.stored", "campaign.enqueued"])
async def test_a_crash_between_the_table_and_the_queue(campaigns: CampaignRuns, point: str) -> None:
    await campaigns.populate(1_500)
    await campaigns.die_at(point, "news")
    await campaigns.send("news", workers=1)
    assert await campaigns.ledger() == {"lines": 1_500, "jobs": 1_500, "people": 1_500}


async def statuses(campaigns: CampaignRuns) -> dict[str, int]:
    status = notification_delivery.c.status
    query = select(status, func.count()).group_by(status)
    rows = await campaigns.app.database.read(lambda connection: connection.execute(query).all())
    return {row[0]: row[1] for row in rows}
