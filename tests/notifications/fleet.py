"""The setup of tests with real worker processes: one engine, a mail server that counts, and the table of deliveries.

fleet = Fleet(tmp_path, url, mail_server)
await fleet.send(400)
worker = fleet.start_worker()
await fleet.kill(worker)
await fleet.all_sent(400)
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from tests.processes import Process
from tests.services.mail import MailServer
from yamchi import Yamchi
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.notification_job import NotificationJob, derived_id
from yamchi.notifications.tables import delivery_attempts, notification_delivery
from yamchi.settings import Settings
from yamchi.testing import eventually

APPLICATION = Path(__file__).with_name("app.py")
LEASE = timedelta(seconds=3)
SLOTS = 10
TIMEOUT_SECONDS = 100.0
"""How long a test waits for what must happen, in seconds: generous, since only a failure takes that long."""


@dataclass
class UnhurriedMailServer(MailServer):
    """Takes its time over each letter, so that there are always some in flight."""

    pause: float = 0.02

    async def handle_DATA(self, *arguments: Any) -> str:  # noqa: N802
        await asyncio.sleep(random.uniform(0, 2 * self.pause))
        return await super().handle_DATA(*arguments)


def number_of(user: int) -> UUID:
    return derived_id("user", str(user))


def address_of(user: int) -> str:
    return f"user-{user}@example.com"


@dataclass
class Fleet:
    """One engine, the worker processes on it, and what they sent."""

    home: Path
    url: str
    mail: MailServer
    workers: list[Process] = field(default_factory=list)
    kills: int = 0
    in_flight: int = 0
    database_url: str | None = None

    def __post_init__(self) -> None:
        settings = Settings(home=self.home, default_queue_url=self.url, database_url=self.database_url)
        self.app = Yamchi(settings)
        self.app.define("notifications", attempts=20)  # enough for every kill, as in the workers
        self.notifications = self.app.notifications

    async def close(self) -> None:
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()
        await self.app.close()

    # ── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────

    def start_worker(self) -> Process:
        worker = Process(self.home, "worker", "--app", str(APPLICATION), **self.environment())
        self.workers.append(worker)
        return worker

    def environment(self) -> dict[str, str]:
        return {
            "QUEUE_URL": self.url,
            "QUEUE_FALLBACK": "off",
            "SMTP_HOST": self.mail.host,
            "SMTP_PORT": str(self.mail.port),
            "SMTP_SECURITY": "none",
            "LEASE": f"{LEASE.total_seconds():g}s",
            "LOG_LEVEL": "warning",
            **({"DATABASE_URL": self.database_url} if self.database_url else {}),
        }

    async def kill(self, worker: Process) -> None:
        """SIGKILL, and count what it held at that moment."""
        worker.process.kill()
        worker.process.wait()
        self.workers.remove(worker)
        self.kills += 1
        page = await self.notifications.queue.engine.page("notifications", "active", "", 0, 1_000)
        self.in_flight += sum(f"-{worker.process.pid}-" in (job.worker or "") for job in page.jobs)

    async def busy_worker(self) -> Process:
        """One that holds jobs: killing one that is still starting proves nothing."""

        async def holding() -> list[Process]:
            page = await self.notifications.queue.engine.page("notifications", "active", "", 0, 1_000)
            holders = " ".join(job.worker or "" for job in page.jobs)
            return [worker for worker in self.workers if f"-{worker.process.pid}-" in holders]

        return random.choice(await eventually(holding, TIMEOUT_SECONDS))

    # ── Letters ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def send(self, letters: int, *, first: int = 0, **fields: Any) -> list[NotificationJob]:
        """Queue a letter to each of so many people."""
        people, users = self.notifications.recipients, range(first, first + letters)
        await asyncio.gather(
            *(people.put(str(number_of(user)), User(email=address_of(user))) for user in users)
        )
        jobs = [letter(user, **fields) for user in users]
        await self.notifications.service.send(jobs)
        return jobs

    async def statuses(self) -> Counter[str]:
        """How many deliveries are in which state, by the table."""
        table = notification_delivery
        query = select(table.c.status, func.count()).group_by(table.c.status)
        rows = await self.app.database.read(lambda connection: connection.execute(query).all())
        return Counter({row[0]: row[1] for row in rows})

    async def attempts_paid(self) -> Counter[int]:
        """How many deliveries took so many attempts."""
        table = notification_delivery
        query = select(table.c.attempts, func.count()).group_by(table.c.attempts)
        rows = await self.app.database.read(lambda connection: connection.execute(query).all())
        return Counter({row[0]: row[1] for row in rows})

    async def outcomes(self) -> Counter[str]:
        """How often the mail server was tried, by what came of it."""
        table = delivery_attempts
        query = select(table.c.outcome, func.count()).group_by(table.c.outcome)
        rows = await self.app.database.read(lambda connection: connection.execute(query).all())
        return Counter({row[0]: row[1] for row in rows})

    async def all_sent(self, letters: int) -> None:
        """Wait until the table says that so many are sent and the queue has nothing left."""

        async def sent() -> bool:
            stats = await self.notifications.queue.stats()
            is_quiet = stats["waiting"] == stats["active"] == stats["delayed"] == 0
            return is_quiet and (await self.statuses())["SENT"] == letters

        try:
            await eventually(sent, TIMEOUT_SECONDS)
        except AssertionError as error:
            said = "\n".join(worker.said[-2_000:] for worker in self.workers)
            raise AssertionError(f"{await self.statuses()}\n{said}") from error


def letter(user: int, **fields: Any) -> NotificationJob:
    given = {
        "job_id": derived_id("letter", str(user), *map(str, fields)),
        "user_id": number_of(user),
        "channel": "email",
        "template_code": "welcome_email",
        "locale": "en",
        "data": {"first_name": f"Person {user}"},
        "meta": {"event_type": "test", "event_id": f"event-{user}"},
        "created_at": datetime.now(UTC),
    }
    return NotificationJob.model_validate({**given, **fields})
