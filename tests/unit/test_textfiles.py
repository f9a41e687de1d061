"""What lies where a person's text should lie is named in a sentence: nothing waits for it, and no more than a text is read of it."""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.processes import Process

from yamchi.errors import ConfigurationError
from yamchi.leads.sheets.spreadsheet import read_account
from yamchi.media.presets import Presets
from yamchi.notifications.policy.rules import read_rules
from yamchi.notifications.templates import FileTemplates, TemplateError
from yamchi.reports.schedules import read_schedules
from yamchi.scenarios.reading import named_in, read_file
from yamchi.settings import Settings
from yamchi.textfiles import UnreadableFile, paths_in, read_text

Make = Callable[[Path], object]

ODD: dict[str, tuple[Make, str]] = {
    "pipe": (os.mkfifo, "it is a named pipe and not a file"),
    "folder": (Path.mkdir, "it is a folder and not a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device and not a file"),
    "loop": (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    "huge": (
        lambda path: path.touch() or os.truncate(path, 3 << 30),
        "it has more than 1,048,576 characters",
    ),
    "latin": (lambda path: path.write_bytes(b"caf\xe9"), "it is not UTF-8 text"),
}


@pytest.fixture(params=ODD)
def odd(request: pytest.FixtureRequest) -> tuple[Make, str]:
    return ODD[request.param]


def test_what_is_no_text_is_refused_with_its_name(tmp_path: Path, odd: tuple[Make, str]) -> None:
    make, reason = odd
    make(tmp_path / "it")
    with pytest.raises(UnreadableFile) as caught:
        read_text(tmp_path / "it")
    assert str(caught.value) == f"{tmp_path / 'it'} can't be read: {reason}."


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket may have 108 bytes
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("it")
        with pytest.raises(UnreadableFile, match="it is a socket and not a file"):
            read_text(Path("it"))


def test_what_is_covered_with_nothing_is_empty(tmp_path: Path) -> None:
    (tmp_path / "it").symlink_to("/dev/null")
    assert read_text(tmp_path / "it") == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0)
    (tmp_path / "folder").mkdir(0)
    with pytest.raises(UnreadableFile, match="file can't be read: Permission denied"):
        read_text(tmp_path / "file")
    with pytest.raises(UnreadableFile, match="folder can't be read: Permission denied"):
        paths_in(tmp_path / "folder")


def _template(path: Path) -> object:
    templates = FileTemplates([path.parent.parent])
    return asyncio.run(templates.find(path.parent.name, "email", ["en"]))


def _layout(path: Path) -> object:
    return FileTemplates([path.parent]).layout()


@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
@pytest.mark.parametrize(
    ("place", "read"),
    [
        ("rules.yaml", read_rules),
        ("media.yaml", lambda path: Presets(path.parent).all()),
        ("reports.yaml", read_schedules),
        ("scenarios/mine.yaml", read_file),
        ("key.json", lambda path: read_account(str(path))),
        (".env", lambda path: Settings(home=path.parent)),
        ("templates/welcome_email/email.en.html", _template),
        ("templates/layout.html", _layout),
        ("templates/brand.yaml", _layout),
    ],
)
@pytest.mark.timeout(20)
def test_every_file_of_a_person_is_read_so(
    tmp_path: Path, place: str, read: Callable[[Path], object], kind: str
) -> None:
    make, reason = ODD[kind]
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    with pytest.raises((ConfigurationError, TemplateError)) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


def test_a_scenario_that_is_no_file_has_the_name_of_its_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.yaml")
    assert named_in(tmp_path / "mine.yaml") == "mine"


def test_a_folder_named_env_is_no_settings(own_home: Path) -> None:
    (own_home / ".env").mkdir()
    assert Settings().home == own_home


def test_the_command_line_says_what_it_is(own_home: Path) -> None:
    (own_home / "scenarios").mkdir()
    (own_home / "templates").mkdir()
    places = ("rules.yaml", "media.yaml", "scenarios/mine.yaml", "templates/layout.html")
    for place in places:
        os.mkfifo(own_home / place)
    doctor = Process(own_home, "doctor")
    assert doctor.process.wait(60) == 1
    said = " ".join(doctor.said.split())
    assert [place for place in places if f"{place}" not in said] == []
    assert "Traceback" not in said


def test_a_pipe_named_as_a_picture_is_none(own_home: Path) -> None:
    (own_home / "photos").mkdir()
    os.mkfifo(own_home / "photos" / "cat.jpg")
    importing = Process(own_home, "media", "import", "photos", "--json")
    assert importing.process.wait(60) == 0
    assert json.loads(importing.said) == {"imported": [], "known": [], "refused": [], "stopped": None}
