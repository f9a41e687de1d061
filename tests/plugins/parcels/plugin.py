"""The feature of parcels: everything that a plugin can bring, once."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from parcels.settings import ParcelSettings
from parcels.tables import parcels
from prometheus_client import Metric
from sqlalchemy import delete, select, update

from yamchi import Job, Plugin
from yamchi.observe.metrics import gauge
from yamchi.plugins import Application, Check

QUEUE = "parcels"


class Parcels(Plugin):
    """Parcels that are brought and weighed."""

    name = "parcels"
    summary = "Parcels that are brought and weighed."
    settings_class = ParcelSettings
    migrations = Path(__file__).parent / "migrations"
    routes = "parcels.routes:ROUTES"
    commands: ClassVar = {"parcel": "parcels.commands:run"}

    def __init__(self, app: Application) -> None:
        super().__init__(app)
        self.settings: ParcelSettings
        self.counted = 0

    async def bring(self, parcel_id: str, user_id: str) -> str:
        row = {"parcel_id": parcel_id, "user_id": user_id}
        await self.app.database.execute(
            self.app.database.insert(parcels).values(row).on_conflict_do_nothing()
        )
        return (await self.app.queue(QUEUE).add({"parcel_id": parcel_id}, id=parcel_id)).id

    async def all(self) -> list[dict[str, Any]]:
        query = select(parcels.c.parcel_id, parcels.c.user_id, parcels.c.grams).order_by(parcels.c.parcel_id)
        rows = await self.app.database.rows(query)
        return [{"parcel_id": row.parcel_id, "user_id": row.user_id, "grams": row.grams} for row in rows]

    # ── What it brings ────────────────────────────────────────────────────────────────────────────────────────────

    def declare(self) -> None:
        self.app.define(QUEUE, concurrency=2, attempts=5)

    def serve(self) -> None:
        self.app.job(QUEUE, name="weigh")(self._weigh)
        self.app.cron("* * * * * *", name="count-parcels")(self._count)

    async def _weigh(self, job: Job[dict[str, str]]) -> None:
        weighed = {"grams": self.settings.parcels_grams, "weighed_at": self.app.clock.now()}
        change = update(parcels).where(parcels.c.parcel_id == job.data["parcel_id"]).values(weighed)
        await self.app.database.execute(change)

    async def _count(self) -> None:
        self.counted = len(await self.all())

    def metrics(self) -> Iterable[Metric]:
        yield gauge("parcels_counted", "Parcels when they were last counted.", [], [((), self.counted)])

    async def checks(self) -> Iterable[Check]:
        return [Check("parcels", True, f"{len(await self.all())} in the store")]

    async def erase(self, user_id: str) -> Mapping[str, int]:
        gone = delete(parcels).where(parcels.c.user_id == user_id)
        return {"parcels": await self.app.database.execute(gone)}
