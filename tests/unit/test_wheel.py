"""The wheel is whole: installed into an empty environment, it runs in an empty folder without the repository."""

import os
import re
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.metadata import Metadata

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/yamchi"
TIMEOUT_SECONDS = 200.0
"""Seconds that a start may take on a busy machine."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `python -m build` makes it: the archive of the sources, and from that the wheel."""
    place = tmp_path_factory.mktemp("dist")
    said = _run(sys.executable, "-m", "build", "--outdir", str(place), str(ROOT))
    assert "warning" not in said.lower(), said
    assert len(list(place.iterdir())) == 2
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment that has the wheel, what it needs, and nothing else."""
    place = tmp_path_factory.mktemp("venv")
    _run(sys.executable, "-m", "venv", "--without-pip", str(place))
    pip = (sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "--disable-pip-version-check")
    # Few modules are imported here: what is not compiled at once is compiled when it is.
    install = ("install", "--quiet", "--no-compile", "-c", str(ROOT / "constraints.txt"))
    _run(*pip, *install, str(wheel))
    return place / "bin/yamchi"


def test_the_sources_are_whole(wheel: Path) -> None:
    (archive,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        packed = {name.partition("/")[2] for name in sources.getnames()}
    listed = subprocess.run(
        ["git", "ls-files", "src", "tests", "docs"], cwd=ROOT, capture_output=True, text=True
    )
    assert set(listed.stdout.split()) - packed == set()
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Dockerfile", "PKG-INFO"} <= packed
    assert not any("node_modules" in name or "__pycache__" in name for name in packed)


def test_an_index_would_take_its_description(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        described = Metadata.from_email(archive.read(name), validate=True)
    assert described.description_content_type == "text/markdown"
    assert described.license_expression == "Apache-2.0"
    assert described.project_urls
    assert {"Typing :: Typed", "Framework :: AsyncIO"} <= set(described.classifiers or ())
    assert described.requires_python is not None
    assert "3.11" in described.requires_python
    assert {"redis", "postgres", "kafka", "reports", "payments", "all"} <= set(described.provides_extra or ())


def test_everything_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        (metadata,) = [name for name in packed if name.endswith(".dist-info/METADATA")]
        described = archive.read(metadata).decode()
    there = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there - packed == set()
    kinds = {Path(name).suffix for name in packed}
    assert {".lua", ".typ", ".ttf", ".html", ".js", ".css", ".yaml", ".typed"} <= kinds
    assert not any(name.startswith("tests") for name in packed)
    assert "Classifier: Typing :: Typed" in described
    assert "# Yamchi" in described


@pytest.fixture
def running(program: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`yamchi up` in an empty folder, with nothing of the repository within reach."""
    output = tmp_path / "output.txt"
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    with output.open("wb") as said:
        process = subprocess.Popen(
            [program, "up", "--port", "0"],
            cwd=home,
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    yield process, output
    process.terminate()
    assert process.wait(TIMEOUT_SECONDS) == 0, output.read_text()


def test_it_runs_without_the_repository(running: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, output = running
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < end, output.read_text()
        address = re.search(r"http://localhost:\d+", output.read_text())
        if address and _status(f"{address[0]}/readyz") == 200:
            break
        time.sleep(0.1)
    for page in ("/", "/docs", "/mailbox", "/inbox/yamchi-inbox.js"):
        assert _status(address[0] + page) == 200, page


def _status(url: str) -> int | None:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def _run(*command: str) -> str:
    environment = os.environ | {"PIP_NO_COMPILE": "1"}  # most of what is installed is never imported here
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=environment)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
