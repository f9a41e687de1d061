"""What the null channel has accepted."""

from collections import Counter

from sqlalchemy import distinct, func, select

from yamchi.notifications.tables import null_ledger
from yamchi.storage.database import Database


async def count_ledger(database: Database) -> Counter[str]:
    """How many lines there are, and to how many jobs and people they belong."""
    ledger = null_ledger.c
    query = select(func.count(), func.count(distinct(ledger.job_id)), func.count(distinct(ledger.user_id)))
    row = await database.first(query)
    assert row is not None
    return Counter(lines=row[0], jobs=row[1], people=row[2])
