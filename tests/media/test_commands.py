"""`yamchi media`: a folder is imported once, however often it is asked for; mistakes get one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.media import pictures
from yamchi.cli import cli


def media(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["media", *arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def imported(folder: Path) -> Any:
    return json.loads(media("import", str(folder), "--entity-type", "user_avatar", "--json"))


@pytest.mark.usefixtures("own_home")
def test_a_folder_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDIA_PROCESSES", "1")
    folder = tmp_path / "photos"
    (folder / "deeper").mkdir(parents=True)
    pictures.write(folder, "a.jpg", pictures.jpeg())
    pictures.write(folder / "deeper", "b.PNG", pictures.png(300, 200))
    pictures.write(folder, "c.jpg", b"just text")
    first = imported(folder)
    assert sorted(one["originalFilename"] for one in first["imported"]) == ["a.jpg", "b.PNG"]
    assert [line.partition(": ")[2][:30] for line in first["refused"]] == ["The file is not a picture that"]
    again = imported(folder)
    assert (again["imported"], len(again["known"])) == ([], 2)
    shown = json.loads(media("show", first["imported"][0]["id"]))
    assert shown == first["imported"][0]
    assert len(json.loads(media("list", "--entity-type", "user_avatar", "--json"))) == 2


@pytest.mark.usefixtures("own_home")
def test_mistakes_get_one_sentence() -> None:
    assert "position: Input should be" in media("watermark", "x", "wm", "--position", "middle", code=1)
    assert "There is no watermark 'wm'" in media("watermark", "x", "wm", code=1)
    assert "S3 is not set up" in media("sync", "upload", code=1)
    assert "choose upload, download or delete" in media("sync", "sideways", code=1)
