"""Yamchi sending letters, with everything on: `… add N` puts people and letters in, `… work` sends them."""

import asyncio
import sys
from pathlib import Path

import uvloop

from bench.notifications.letters import TEMPLATE, address_of, job_of, user_of
from yamchi import Yamchi
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.notification_job import NotificationJob

BATCH = 500

app = Yamchi()
app.notifications.serve()


def keep_template() -> None:
    folder = app.settings.home / "templates" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    Path(folder, "email.en.html").write_text(TEMPLATE)


async def add(letters: int) -> None:
    async with app:
        for start in range(0, letters, BATCH):
            await _add(range(start, min(start + BATCH, letters)))


async def _add(numbers: range) -> None:
    people = app.notifications.recipients
    await asyncio.gather(*(people.put(str(user_of(n)), User(email=address_of(n))) for n in numbers))
    await app.notifications.service.send([NotificationJob.model_validate(job_of(n)) for n in numbers])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["add", letters]:
            keep_template()
            uvloop.run(add(int(letters)))
        case ["work"]:
            uvloop.run(app.work())
