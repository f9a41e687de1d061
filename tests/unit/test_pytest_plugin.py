"""The plugin for pytest, in suites of users: each is a pytest of its own, in a folder of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 250.0
"""Seconds that a suite may take on a busy machine."""

pytestmark = pytest.mark.timeout(300)

PAGE = ROOT / "docs/recipes/testing-time.md"

SHOP = """
from yamchi import Job, Yamchi

app = Yamchi()
handled = []


@app.job("orders")
async def handle(job: Job[dict[str, str]]) -> None:
    handled.append(job.data["to"])
    message = {"channel": job.data["channel"], "options": {"to": job.data["to"], "text": "Thank you."}}
    await app.queue("notifications").add(message, name="send")
"""


def run_suite(folder: Path, *arguments: str, **files: str) -> str:
    """What pytest said of these files; all of their tests passed."""
    ended = start_suite(folder, *arguments, **files)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def start_suite(folder: Path, *arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    ours = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    settings = [
        "-W",
        "error::ResourceWarning",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *settings, *arguments],
        cwd=folder,
        env=ours,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    blocks = re.findall(r"```(?:python|ini)\n(.+?)```", PAGE.read_text(), re.DOTALL)
    files = {found[1]: block for block in blocks if (found := re.match(r"# (\w+)\.py\n", block))}
    (configuration,) = (block for block in blocks if block.startswith("[pytest]"))
    (tmp_path / "pytest.ini").write_text(f"{configuration}asyncio_mode = auto\n")
    assert "2 passed" in run_suite(tmp_path, **files)


def test_no_other_plugin_is_needed_and_each_test_is_alone(tmp_path: Path) -> None:
    suite = """
import sys
from pathlib import Path
import pytest, shop

@pytest.mark.parametrize("channel", ["email", "telegram", "sms"])
def test_what_is_sent_is_known_and_stays_here(yamchi_run, yamchi_app, yamchi_sent, channel):
    assert yamchi_sent == []
    shop.app.sync.queue("orders").add({"channel": channel, "to": "77"})
    yamchi_run(yamchi_app.drain())
    assert [(one.channel, one.to, one.text) for one in yamchi_sent] == [(channel, "77", "Thank you.")]
    assert yamchi_sent[0].sent_at == yamchi_app.clock.time
    assert yamchi_run(yamchi_app.queue("orders").stats())["completed"] == 1

def test_the_inbox_is_there(yamchi_run, yamchi_app, yamchi_sent):
    shop.app.sync.queue("orders").add({"channel": "database", "to": "0b5e2f6c-5a0d-4b8e-9c44-3d1c7f1f3a10"})
    yamchi_run(yamchi_app.drain())
    assert [one.channel for one in yamchi_sent] == ["database"]
    inbox = yamchi_app.notifications.inbox
    assert list(yamchi_run(inbox.unread([yamchi_sent[0].to])).values()) == [1]

def test_without_its_fixtures_the_application_is_itself():
    assert type(shop.app.clock).__name__ == "SystemClock"

def test_nothing_is_left_behind():
    folder = str(Path(__file__).parent)
    assert sys.path.count(folder) <= 2
    assert not (Path(folder) / "var").exists()
"""
    (tmp_path / ".env").write_text("SMTP_HOST=192.0.2.1\nTELEGRAM_BOT_TOKEN=1:x\n")
    without = ("-p", "no:asyncio", "-p", "no:anyio", "-p", "no:timeout")
    said = run_suite(tmp_path, *without, "--yamchi-app", "shop:app", shop=SHOP, test_shop=suite)
    assert "6 passed" in said


def test_anyio_and_an_application_of_ones_own(tmp_path: Path) -> None:
    suite = """
import pytest
from yamchi import Job, Yamchi

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
def yamchi_application():
    app = Yamchi()
    app.said = []

    @app.job("orders")
    async def handle(job: Job[str]) -> None:
        app.said.append(job.data)

    return app

@pytest.fixture
def yamchi_settings():
    return {"default_timezone": "Asia/Almaty"}

@pytest.mark.anyio
@pytest.mark.parametrize("number", [1, 2])
async def test_it(yamchi_application, yamchi_app, yamchi_clock, yamchi_sent, number):
    await yamchi_application.queue("orders").add("a", delay="2h")
    await yamchi_clock.advance("1h")
    assert yamchi_application.said == []
    await yamchi_clock.advance("1h")
    assert (yamchi_application.said, yamchi_sent) == (["a"], [])
    assert yamchi_application.settings.default_timezone == "Asia/Almaty"
"""
    assert "2 passed" in run_suite(tmp_path, "-p", "no:asyncio", test_it=suite)


def test_who_does_not_use_it_pays_nothing(tmp_path: Path) -> None:
    suite = """
import sys

def test_nothing_is_imported(request):
    assert request.config.pluginmanager.has_plugin("yamchi")
    assert [name for name in sys.modules if name.split(".")[0] in ("yamchi", "asyncio", "pydantic")] == []
"""
    without = [
        part
        for name in ("asyncio", "anyio", "timeout", "schemathesis", "hypothesispytest")
        for part in ("-p", f"no:{name}")
    ]
    assert "1 passed" in run_suite(tmp_path, *without, test_it=suite)
    assert (
        "error: unrecognized arguments" in start_suite(tmp_path, "-p", "no:yamchi", "--yamchi-app=x").stderr
    )


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("nowhere:app", "there is no module 'nowhere'"),
        ("shop:handled", "handled is a list, not a Yamchi application"),
    ],
)
def test_an_application_that_is_none_is_a_sentence(tmp_path: Path, named: str, said: str) -> None:
    suite = "def test_it(yamchi_app): ..."
    ended = start_suite(tmp_path, "--yamchi-app", named, shop=SHOP, test_it=suite)
    assert ended.returncode == 1
    assert f"There is no application {named!r} to test: " in ended.stdout
    assert said in ended.stdout
