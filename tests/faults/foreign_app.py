"""The application whose queue others write to: its handler notes each job that it ran."""

import asyncio
import os
from pathlib import Path
from typing import Any

from yamchi import Job, Yamchi
from yamchi.settings import Settings

QUEUE = os.environ["FAULTS_QUEUE"]
JOURNAL = Path(os.environ["FAULTS_JOURNAL"])
PAUSE = 0.02

app = Yamchi(Settings(plugins=()))


@app.job(QUEUE, concurrency=10, keep_completed=10_000, keep_failed=10_000)
async def work(job: Job[dict[str, Any]]) -> None:
    """An ordinary job, which takes a moment."""
    await asyncio.sleep(PAUSE)
    note(job.id)


def note(job_id: str) -> None:
    with JOURNAL.open("a") as journal:
        journal.write(f"{job_id!r}\n")
