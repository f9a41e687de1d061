"""Reports by the clock: `reports.yaml` in YAMCHI_HOME says which, when, and to whom.

- kind: deliveries
  cron: "0 9 * * 1"            # every Monday at nine
  zone: Asia/Almaty
  notify: [{email: boss@example.com}]
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from yamchi.errors import YamchiError
from yamchi.queues.cron import CronLine
from yamchi.reports.kinds import Format
from yamchi.reports.service import Notify
from yamchi.yamlfiles import load_file


class ScheduledReport(BaseModel):
    """One line of the schedule."""

    model_config = ConfigDict(extra="forbid")

    kind: str = Field(min_length=1, max_length=64)
    cron: str = Field(max_length=120)
    zone: str = Field(default="UTC", max_length=64)
    params: dict[str, Any] = Field(default_factory=dict)
    format: Format = "pdf"
    notify: list[Notify] = Field(min_length=1, max_length=100)


def read_schedules(file: Path) -> list[ScheduledReport]:
    """What the file says; nothing if there is none. A slip is a sentence that names the file and the line."""
    if not file.exists():
        return []
    document = load_file(file)
    found = document.validate(TypeAdapter(list[ScheduledReport]))
    for place, one in enumerate(found):
        try:
            CronLine(one.cron, one.zone)
        except YamchiError as error:
            raise document.error((place, "cron"), str(error)) from error
    return found
