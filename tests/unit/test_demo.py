"""`yamchi demo`: every feature has its part, nothing leaves the machine, and what it made can be looked at."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from yamchi import Yamchi
from yamchi.cli import cli
from yamchi.cli.serving import listen
from yamchi.settings import Settings

ELSEWHERE = {
    "QUEUE_URL": "kafka://nowhere.example:9092",
    "QUEUE_URL_NOTIFICATIONS": "redis://nowhere.example",
    "SMTP_HOST": "smtp.nowhere.example",
    "TELEGRAM_BOT_TOKEN": "1:secret",
    "S3_BUCKET": "somebody-elses",
}


def demo(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["demo", *arguments])


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, value in ELSEWHERE.items():
        monkeypatch.setenv(name, value)
    done = demo("--home", str(tmp_path / "my demo"), "--json")
    assert done.exit_code == 0, done.output
    for name in ELSEWHERE:
        monkeypatch.delenv(name)
    return dict(json.loads(done.stdout))


@pytest.mark.timeout(300)
async def test_every_flow_is_played_and_kept(
    played: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "\n".join(f"{step['feature']}: {step['text']}" for step in played["steps"])
    for words in (
        "notifications: three people registered",
        "nobody got a second one",
        "3 unread",
        "in email_queue: Ваш чекап завершен",
        "which is a dead letter: There is no report 'lost'",
        "EMAIL_1_SENT, EMAIL_2_SENT, CALL_NEEDED",
        "Марат is CALL_NEEDED; in the managers' group: ",
        "REMINDER_24H_SENT, REMINDER_5H_SENT",
        "media: a PNG of 800×600 became WebP",
        "payments: no webhook came; the checks found out: it is succeeded",
        "500.00 KZT were given back",
        "reports: What was sent: ",
        "Результаты чекапа: ",
    ):
        assert words in said, said
    assert [step["moment"] for step in played["steps"]] == sorted(step["moment"] for step in played["steps"])
    async with Yamchi(Settings(home=tmp_path / "my demo")) as app:
        letters = await app.notifications.mailbox.list(limit=50)
        assert {"marat@example.com", "asel@example.com", "boss@example.com", "aidana@example.com"} <= {
            letter["recipients"][0]
            for letter in letters  # type: ignore[index]
        }
        assert (await app.queue("emailChain").stats())["completed"] >= 3
    with listen("127.0.0.1", 0) as listener:  # as `make up` in another terminal
        taken = listener.getsockname()[1]
        monkeypatch.setattr("yamchi.cli.demo.PORT", taken)
        monkeypatch.setattr("yamchi.console.output.console.width", 80)
        again = await asyncio.to_thread(demo, "--home", str(tmp_path / "my demo"))
    assert again.exit_code == 0, again.output
    assert re.search(
        r"http://localhost:\d+/media/\S+\.webp  the picture\n", again.output
    )  # on one line, to be copied
    hint = "".join(again.output.split("\n"))
    assert f"YAMCHI_HOME='{tmp_path / 'my demo'}' " in hint
    shown = re.search(r"up --port (\d+) *http://localhost:(\d+)/mailbox", hint)
    assert shown, hint
    assert shown[1] == shown[2] != str(taken)
    async with Yamchi(Settings(home=tmp_path / "my demo")) as app:
        ready = await app.queue("notifications").page("completed", search="report_url")
        assert ready.jobs
        assert f"http://localhost:{shown[1]}/reports/" in str(ready.jobs[0])


def test_somebodys_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    done = demo("--home", str(tmp_path))
    assert done.exit_code == 1
    assert "is not empty and holds no demo" in " ".join(done.output.split())
    assert (tmp_path / "thesis.txt").read_text() == "mine"
