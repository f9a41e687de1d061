"""The command that installs an extra, for every way in which Yamchi may have been installed."""

import json
import shlex
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from yamchi.cli import cli
from yamchi.errors import MissingExtra
from yamchi.installation import _install, _requirement, install_command

COMMIT = "4f1a6c0f2b6a4a4f9d0f6f8b7c1d2e3f4a5b6c7d"
GIT: dict[str, Any] = {"vcs_info": {"vcs": "git", "commit_id": COMMIT, "requested_revision": "main"}}


@pytest.mark.parametrize(
    ("origin", "asked"),
    [
        (None, "'yamchi[redis]'"),
        ({"url": "file:///srv/yamchi", "dir_info": {"editable": True}}, "-e '/srv/yamchi[redis]'"),
        ({"url": "file:///srv/yamchi", "dir_info": {}}, "'/srv/yamchi[redis]'"),
        ({"url": "file:///srv/it%27s%20mine", "dir_info": {}}, "'/srv/it'\"'\"'s mine[redis]'"),
        (
            {"url": "https://git.example.com/yamchi.git", **GIT},
            f"'yamchi[redis] @ git+https://git.example.com/yamchi.git@{COMMIT}'",
        ),
        (
            {"url": "ssh://git@git.example.com/yamchi.git", **GIT, "subdirectory": "python"},
            f"'yamchi[redis] @ git+ssh://git@git.example.com/yamchi.git@{COMMIT}#subdirectory=python'",
        ),
        (
            {"url": "https://example.com/yamchi-0.1.0.whl", "archive_info": {"hashes": {"sha256": "00"}}},
            "'yamchi[redis] @ https://example.com/yamchi-0.1.0.whl'",
        ),
    ],
)
def test_an_extra_comes_from_where_the_package_came(origin: dict[str, Any] | None, asked: str) -> None:
    assert shlex.join(_requirement("yamchi[redis]", origin)) == asked


@pytest.mark.parametrize(
    "url",
    [
        "https://ann:s3cret@example.com:8443/yamchi.git",
        "https://s3cret@example.com:8443/yamchi.git",
        "https://example.com:8443/yamchi.git?signature=s3cret",
        "https://example.com:8443/yamchi.git#s3cret",
    ],
)
def test_a_credential_in_the_address_is_not_said(url: str) -> None:
    (asked,) = _requirement("yamchi[redis]", {"url": url, **GIT})
    assert asked == f"yamchi[redis] @ git+https://example.com:8443/yamchi.git@{COMMIT}"
    (asked,) = _requirement("yamchi[redis]", {"url": "ssh://git:s3cret@example.com/y.git", **GIT})
    assert asked == f"yamchi[redis] @ git+ssh://example.com/y.git@{COMMIT}"


def test_the_command_is_of_this_installation() -> None:
    written = distribution("yamchi").read_text("direct_url.json")
    origin = json.loads(written) if written else None
    assert shlex.split(install_command("redis", "push"))[-1] == _requirement("yamchi[redis,push]", origin)[-1]
    assert str(MissingExtra("redis", "Redis")).endswith(f" package: {install_command('redis')}")


def test_pip_is_that_of_the_interpreter_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a project" / ".venv" / "bin"
    folder.mkdir(parents=True)
    program, other = folder / "python", tmp_path / "python"
    for place in (program, other):
        place.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("PATH", str(tmp_path))  # a python that is not the one in use
    assert install_command("redis").startswith(f"'{program}' -m pip install ")
    monkeypatch.chdir(tmp_path / "a project")
    assert install_command("redis").startswith(".venv/bin/python -m pip install ")
    monkeypatch.setenv("PATH", f"{folder}:{tmp_path}")
    assert install_command("redis").startswith("python -m pip install ")
    monkeypatch.setattr(sys, "executable", "/usr/bin/uwsgi")
    assert install_command("redis").startswith("pip install ")


def test_what_uv_installed_uv_adds_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/srv/shop/.venv/bin/python3")
    assert shlex.join(_install("uv\n")) == "uv pip install --python /srv/shop/.venv/bin/python3"
    assert shlex.join(_install("pip\n")) == shlex.join(_install(None)) == f"{sys.executable} -m pip install"


def test_where_the_current_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert f"{sys.executable} -m pip install " in install_command("redis")


def test_the_doctor_says_it_on_one_line_of_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YAMCHI_HOME", str(tmp_path))
    monkeypatch.setattr(
        "yamchi.cli.doctor.find_spec", lambda name: None if name == "apprise" else find_spec(name)
    )
    monkeypatch.setattr("yamchi.console.output.console.width", 40)
    said = CliRunner().invoke(cli, ["doctor", "--port", "0"]).output
    (line,) = [line for line in said.splitlines() if "extra sms" in line]
    assert line.endswith(f"not installed; if you want it: {install_command('sms')}")
