"""The pictures of reports in the documentation, made anew from invented data: python -m tests.reports.pictures."""

import asyncio
import random
import subprocess
import tempfile
from datetime import timedelta
from pathlib import Path

from sqlalchemy import insert

from tests.reports.test_reports import RESULTS
from yamchi.clock import as_datetime
from yamchi.notifications.tables import notification_delivery
from yamchi.reports.plugin import Reports
from yamchi.testing import TestApp

IMAGES = Path(__file__).parents[2] / "docs/images"
PIXELS = 820
DAYS = 14
A_DAY = {"email": 130, "telegram": 60, "push": 35, "sms": 8}
STATUSES = {"SENT": 92, "FAILED": 3, "SUPPRESSED": 3, "EXPIRED": 2}
ERRORS = ("550 5.1.1 No such mailbox", "Forbidden: bot was blocked by the user", "User has no phone")
MORE = [
    {"name": "Холестерин общий", "value": 5.9, "unit": "ммоль/л", "low": 3.0, "high": 5.2},
    {"name": "Витамин D", "value": 18, "unit": "нг/мл", "low": 30, "high": 100},
    {"name": "Ферритин", "value": 42, "unit": "мкг/л", "low": 10, "high": 120},
]


async def draw() -> None:
    with tempfile.TemporaryDirectory() as home:
        async with TestApp(home=Path(home)) as app:
            app.serve()
            await app.clock.advance(timedelta(days=DAYS))
            await _deliver(app)
            await _interest(app)
            since = str(app.clock.time.date() - timedelta(days=DAYS - 1))
            checkup = {**RESULTS, "results": [*RESULTS["results"], *MORE]}  # type: ignore[misc]
            for kind, params in (
                ("deliveries", {"since": since, "locale": "en"}),
                ("leads", {"since": since, "locale": "en"}),
                ("checkup", checkup),
            ):
                await _picture(app, kind, params)


async def _deliver(app: TestApp) -> None:
    dice, rows = random.Random(1), []
    for day in range(DAYS):
        moment = app.clock.now() - day * 86_400_000
        for channel, usual in A_DAY.items():
            is_weekend = as_datetime(moment).weekday() >= 5
            for _ in range(int(usual * dice.uniform(0.7, 1.3) * (0.4 if is_weekend else 1))):
                (status,) = dice.choices(list(STATUSES), list(STATUSES.values()))
                rows.append(
                    {
                        "job_id": f"demo-{len(rows)}",
                        "channel": channel,
                        "template_code": "welcome_email",
                        "status": status,
                        "attempts": 1,
                        "last_error": dice.choice(ERRORS) if status == "FAILED" else None,
                        "created_at": moment,
                        "updated_at": moment,
                    }
                )
    await app.database.write(lambda c: c.execute(insert(notification_delivery), rows).rowcount)


async def _interest(app: TestApp) -> None:
    """Leads that came to different ends."""
    for number in range(60):
        lead = await app.leads.submit(
            name=f"Lead {number}", email=f"l{number}@example.com", tranid=f"d:{number}"
        )
        if number % 3:
            await app.leads.tell("bot.activated", lead.id)
        if number % 3 == 1:
            lesson = app.clock.time + timedelta(days=3)
            await app.leads.tell("lesson.booked", lead.id, lesson_datetime=lesson.isoformat())
        if number % 6 == 1:
            await app.leads.tell("lesson.confirmed", lead.id)
    await app.drain()


async def _picture(app: TestApp, kind: str, params: dict[str, object]) -> None:
    reports: Reports = app.plugin(Reports)
    asked = await reports.request(kind, params)
    await app.drain()
    report = await reports.get(asked.id)
    assert report.status == "ready", report.error
    target = IMAGES / f"report-{kind}"
    command = ["pdftoppm", "-png", "-singlefile", "-scale-to-y", str(PIXELS), "-scale-to-x", "-1"]
    file = reports.store.file_of(report)
    await asyncio.to_thread(subprocess.run, [*command, str(file), str(target)], check=True)


if __name__ == "__main__":
    asyncio.run(draw())
