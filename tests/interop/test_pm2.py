"""PM2 runs the worker from the project's own file: it starts, restarts and stops it, and no letter is lost or sent twice."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.mail import MailServer
from tests.services.missing import required
from yamchi import New, Yamchi
from yamchi.settings import Settings
from yamchi.testing import eventually

ROOT = Path(__file__).parents[2]
NODE_PROGRAMS = Path(__file__).parent / "node_modules/.bin"
WORKER = "queue-worker"
LETTERS = 1_500
SECONDS = 0.25
"""What a letter takes at first, so that some are under way at every command and not all are sent before the last."""

DEADLINE = 100.0

pytestmark = pytest.mark.timeout(600)


class Pm2:
    """PM2 with a home of its own, in a folder that has the project's file and nothing else."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self._program = required("node") and required("pm2", NODE_PROGRAMS)
        shutil.copy(ROOT / "ecosystem.config.js", folder)
        self._environment = {
            **os.environ,
            "PM2_HOME": str(folder / ".pm2"),
            "PM2_DISABLE_VERSION_CHECK": "true",
            "YAMCHI_BIN": str(Path(sys.executable).with_name("yamchi")),
            **environment,
        }

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            [self._program, *arguments],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE,
        )
        assert done.returncode == 0, f"pm2 {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def worker(self) -> dict[str, Any]:
        """What PM2 knows of the worker."""
        listed = self("jlist", "--silent")
        (found,) = json.loads(listed[listed.index("[") :])
        return dict(found)

    @property
    def said(self) -> str:
        return (self.folder / "logs/out.log").read_text()


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        yield server


@pytest.fixture
def pm2(mail_server: MailServer, tmp_path: Path) -> Iterator[Pm2]:
    pm2 = Pm2(
        tmp_path,
        SMTP_HOST=mail_server.host,
        SMTP_PORT=str(mail_server.port),
        SMTP_SECURITY="none",
        CONCURRENCY_EMAIL_QUEUE="4",
    )
    yield pm2
    pm2("kill")


async def test_letters(pm2: Pm2, mail_server: MailServer) -> None:
    mail_server.seconds = SECONDS
    async with Yamchi(Settings(home=pm2.folder)) as app:
        queue = app.queue("email_queue")
        tasks = [{"to": f"user{n}@example.com", "subject": "Ваш чекап завершен"} for n in range(LETTERS)]
        await queue.add_many([New({**task, "text": "Готово"}, name="email") for task in tasks])

        async def letters(at_least: int) -> None:
            await eventually(lambda: len(mail_server.letters) >= at_least, DEADLINE)

        pm2("start", "ecosystem.config.js", "--only", WORKER)
        first = pm2.worker["pid"]
        await letters(5)
        pm2("restart", WORKER)
        second = pm2.worker["pid"]
        await letters(len(mail_server.letters) + 5)
        pm2("reload", WORKER)
        third = pm2.worker["pid"]
        assert len({first, second, third}) == 3
        await letters(len(mail_server.letters) + 5)
        pm2("stop", WORKER)

        assert pm2.worker["pm2_env"]["status"] == "stopped"
        stats = await queue.stats()
        sent = len(mail_server.letters)
        assert sent < LETTERS, "all was over before the worker was stopped: this shows nothing"
        assert stats["active"] == 0, "PM2 let the running jobs finish"
        assert stats["waiting"] + stats["delayed"] == LETTERS - sent, (
            "letters that found all slots taken are delayed"
        )

        mail_server.seconds = 0
        pm2("start", WORKER)
        await letters(LETTERS)

        async def is_idle() -> bool:
            stats = await queue.stats()
            return stats["waiting"] + stats["delayed"] + stats["active"] == 0

        await eventually(is_idle, DEADLINE)
        os.kill(pm2.worker["pid"], 9)
        await eventually(lambda: pm2.said.count("Queue Worker started") == 5, DEADLINE)
    assert set(mail_server.by_recipient().values()) == {1}
    assert len(mail_server.by_recipient()) == LETTERS
    assert pm2.said.count("Email sent successfully to") == LETTERS
    assert "[INFO] Starting queue processing cycle..." in pm2.said
    assert (pm2.folder / "logs/err.log").read_text() == ""
