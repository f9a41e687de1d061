"""Any feature can be left out: without `notifications/` there is still a whole queue, which passes the conformance suite."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import yamchi
from tests.scale import FULL
from yamchi.plugins import SHIPPED

SOURCE = Path(yamchi.__file__).parent
SUITES = Path(__file__).parents[1] / "conformance"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The folder above a `yamchi` that has no notifications."""
    folder = tmp_path / "source"
    leave_out = shutil.ignore_patterns("notifications", "__pycache__")
    shutil.copytree(SOURCE, folder / "yamchi", ignore=leave_out)
    assert not (folder / "yamchi" / "notifications").exists()
    return folder


def run(copy: Path, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy), "YAMCHI_HOME": str(home)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=1_000
    )


@pytest.mark.timeout(1_200)
def test_the_queue_passes_the_conformance_suite(copy: Path, tmp_path: Path) -> None:
    home = tmp_path / "suites"
    home.mkdir()
    for engine in ("memory", "sqlite") if FULL else ("sqlite",):
        shutil.copy(SUITES / f"test_{engine}.py", home)
    (home / "conftest.py").write_text(
        f"import yamchi\nassert yamchi.__file__.startswith({str(copy)!r}), yamchi.__file__\n"
    )
    ran = run(
        copy,
        "pytest",
        "-q",
        "-o",
        "asyncio_mode=auto",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        ".",
        home=home,
    )
    assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr[-2_000:]
    assert " passed" in ran.stdout
    assert "failed" not in ran.stdout


def test_an_application_starts_and_says_what_it_lacks(copy: Path, tmp_path: Path) -> None:
    added = run(copy, "yamchi", "jobs", "add", "hello", '{"name": "you"}', home=tmp_path)
    assert added.returncode == 0, added.stderr
    listed = run(copy, "yamchi", "plugins", "--json", home=tmp_path)
    (lacking,) = [one for one in json.loads(listed.stdout) if one["name"] == "notifications"]
    assert "No module named 'yamchi.notifications'" in lacking["failed"]
    assert "Traceback" not in listed.stderr


STARTED = """
import json
from yamchi.shipped import shipped_app
from yamchi.web import create_app

app = shipped_app()
create_app(app)
print(json.dumps({"there": list(app.plugins), "failed": app.failed_plugins}))
"""


@pytest.mark.parametrize("feature", sorted(SHIPPED))
def test_without_any_feature_the_others_work_that_do_not_need_it(feature: str, tmp_path: Path) -> None:
    folder = tmp_path / "yamchi"
    folder.mkdir()
    for part in SOURCE.iterdir():
        if part.name != feature:
            (folder / part.name).symlink_to(part)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "YAMCHI_HOME": str(tmp_path)}
    command = [sys.executable, "-c", STARTED]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert f"No module named 'yamchi.{feature}'" in found["failed"].pop(feature)
    assert all(feature in why for why in found["failed"].values()), "others fail only for want of it"
    assert {*found["there"], *found["failed"], feature} == set(SHIPPED)
