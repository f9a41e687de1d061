"""`yamchi media`: a folder is imported once, however often it is asked for; mistakes get one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.media import pictures
from yamchi.cli import cli
from yamchi.console.loading import with_plugin
from yamchi.media.cleanup import DAY
from yamchi.media.plugin import Media

pytestmark = pytest.mark.timeout(300)  # longer than a child may take to start, which is then said


def media(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["media", *arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.stdout if "--json" in arguments else result.output  # as who pipes it gets it


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
    one = first["imported"][0]
    assert json.loads(media("show", one["id"], "--json")) == one
    said = media("show", one["id"])
    words = {one["id"], *one["variants"], *(variant["url"] for variant in one["variants"].values())}
    assert {word for word in words if word not in said} == set()
    assert len(json.loads(media("list", "--entity-type", "user_avatar", "--json"))) == 2
    assert "in the bucket" in media("list")


@pytest.mark.usefixtures("own_home")
def test_an_import_that_finds_the_disk_full_says_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures.write(tmp_path, "a.jpg", pictures.jpeg())
    monkeypatch.setenv("MEDIA_PROCESSES", "1")
    imported(tmp_path)
    pictures.write(tmp_path, "b.jpg", pictures.jpeg(300, 200))
    monkeypatch.setenv("MEDIA_FREE_BYTES", str(10**18))
    said = media("import", str(tmp_path), "--entity-type", "user_avatar", code=1)
    assert "0 imported, 1 were there already" in said
    assert "The disk is nearly full" in said
    told = json.loads(media("import", str(tmp_path), "--entity-type", "user_avatar", "--json", code=1))
    assert (len(told["known"]), told["refused"]) == (1, [])
    assert "nearly full" in told["stopped"]
    audit = json.loads(CliRunner().invoke(cli, ["audit", "--json"]).output)
    assert {entry["outcome"] for entry in audit} == {"done"}, audit


@pytest.mark.usefixtures("own_home")
def test_a_cleanup_keeps_to_the_days_that_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDIA_PROCESSES", "1")
    pictures.write(tmp_path, "a.jpg", pictures.jpeg())
    (one,) = imported(tmp_path)["imported"]

    async def delete_long_ago(media: Media) -> None:
        await media.store.soft_delete(one["id"])
        await media.store._change(one["id"], deleted_at=media.app.clock.now() - 40 * DAY)

    with_plugin(Media, None, delete_long_ago)
    monkeypatch.setenv("MEDIA_CLEANUP_DAYS", "90")
    assert json.loads(media("cleanup", "--json"))["deleted"] == 0
    assert json.loads(media("cleanup", "--days", "30", "--json"))["deleted"] == 1


@pytest.mark.usefixtures("own_home")
def test_mistakes_get_one_sentence() -> None:
    assert "position: Input should be" in media("watermark", "x", "wm", "--position", "middle", code=1)
    assert "There is no watermark 'wm'" in media("watermark", "x", "wm", code=1)
    assert "Name a watermark, or say --off" in media("watermark", "x", code=1)
    assert "There is no media 'x'" in media("watermark", "x", "--off", code=1)
    assert "S3 is not set up" in media("sync", "upload", code=1)
    assert "choose from upload, download, delete" in media("sync", "sideways", code=1)
