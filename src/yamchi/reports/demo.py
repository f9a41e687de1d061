"""The part of reports in `yamchi demo`: what was sent until now, as a PDF in a letter; a person's results."""

from yamchi.plugins import Stage
from yamchi.reports.plugin import Reports
from yamchi.reports.store import Report

RESULTS = {
    "name": "Айгүл Әбдіғали",
    "results": [
        {"name": "Гемоглобин", "value": 128, "unit": "г/л", "low": 120, "high": 160},
        {"name": "Глюкоза", "value": 7.4, "unit": "ммоль/л", "low": 3.9, "high": 6.1},
    ],
    "conclusion": "Қант деңгейі жоғары. Повторный анализ: 4 500 ₸.",
}


async def play(reports: Reports, stage: Stage) -> None:
    boss = [{"email": "boss@example.com", "locale": "en"}]
    sent = await reports.request("deliveries", {"locale": "en"}, notify=boss)
    results = await reports.request("checkup", RESULTS, notify=[{"email": "aigul@example.com"}])
    await stage.wait("1m")
    for asked in (sent, results):
        stage.say(_said(reports, await reports.get(asked.id)))


def _said(reports: Reports, report: Report) -> str:
    if report.status != "ready":
        return f"{report.kind} was not made: {report.error}"
    return f"{report.title}: {reports.store.file_of(report)}, and in a letter"
