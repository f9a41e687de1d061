"""Lists of deliveries are read from an index, newest first: no list sorts the whole table, on either database."""

from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest
from sqlalchemy import Select, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ClauseElement, Executable

from yamchi.clock import SystemClock, isoformat
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.sending.deliveries import Deliveries
from yamchi.notifications.sending.delivery_views import newest
from yamchi.notifications.sending.statuses import Status
from yamchi.notifications.tables import notification_delivery
from yamchi.storage.database import Database

ROWS = 3_000
STATUSES = get_args(Status)
START = 1_700_000_000_000
FILTERS: list[dict[str, str]] = [
    {},
    {"status": "SENT"},
    {"status": "FAILED"},
    {"campaign_id": "c-1"},
    {"campaign_id": "c-1", "status": "SENT"},
    {"user_id": "u-1"},
    {"event_id": "e-10"},
    {"event_id": "e-10", "status": "FAILED"},
]


def _row(number: int) -> dict[str, Any]:
    """Most are sent; three come at the same moment."""
    moment = START + number // 3
    return {
        "job_id": f"j{number * 7919 % ROWS:05}",
        "channel": "email",
        "template_code": "welcome",
        "user_id": f"u-{number % 50}",
        "event_id": f"e-{number % 100}",
        "campaign_id": f"c-{number % 3}" if number % 2 else None,
        "status": STATUSES[number % 8] if number % 10 == 0 else "SENT",
        "attempts": 1,
        "job": {"data": "x" * 100},
        "created_at": moment,
        "updated_at": moment,
    }


KEPT = [_row(number) for number in range(ROWS)]


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, [Notifications.schema()])
    await database.migrate()
    await database.write(lambda connection: connection.execute(notification_delivery.insert(), KEPT))
    await database.write(lambda connection: connection.execute(text("ANALYZE notification_delivery")))
    yield database
    await database.close()


class Explain(Executable, ClauseElement):
    """How the database would answer a query."""

    inherit_cache = False

    def __init__(self, query: Select[Any]) -> None:
        self.query = query


@compiles(Explain)
def _explain(element: Explain, compiler: Any, **options: Any) -> str:
    how = "EXPLAIN QUERY PLAN" if compiler.dialect.name == "sqlite" else "EXPLAIN"
    return f"{how} {compiler.process(element.query, **options)}"


async def test_lists_are_newest_first_and_filtered(database: Database) -> None:
    deliveries = Deliveries(database, SystemClock())
    for filters in FILTERS:
        passing = [row for row in KEPT if filters.items() <= row.items()]
        passing.sort(key=lambda row: (-row["created_at"], row["job_id"]))
        for offset in (0, 15, len(passing) - 1, len(passing)):
            found = await deliveries.find(offset=offset, limit=10, **filters)
            assert [one["job_id"] for one in found] == [
                row["job_id"] for row in passing[offset : offset + 10]
            ], (filters, offset)
    (first,) = await deliveries.find(limit=1)
    assert first["created_at"] == isoformat(START + (ROWS - 1) // 3)


@pytest.mark.parametrize("filters", FILTERS[:5], ids=str)
async def test_no_list_reads_the_whole_table(database: Database, filters: dict[str, str]) -> None:
    query = Explain(newest(filters, 0, 10))
    rows = await database.read(lambda connection: connection.execute(query).all())
    plan = "\n".join(str(row[-1]) for row in rows)
    index = "delivery_of_campaign" if "campaign_id" in filters else "delivery_by_time"
    looks = 1 if "status" in filters else len(STATUSES)
    assert plan.count(index) == looks, plan
    assert "Seq Scan" not in plan, plan
    assert "SCAN notification_delivery" not in plan, plan
