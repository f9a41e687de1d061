"""What is acknowledged survives a power cut: files are flushed, and so are the folders that have their names."""

import os
from pathlib import Path

import pytest

from tests.media import pictures
from tests.media.conftest import Studio
from yamchi.media.presets import Presets
from yamchi.media.processing import Task, process


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The inodes that were flushed in this process."""
    inodes: set[int] = set()
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        inodes.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noting)
    return inodes


def test_variants(tmp_path: Path, flushed: set[int]) -> None:
    source, folder = pictures.write(tmp_path, "source", pictures.jpeg(640, 480)), tmp_path / "out"
    folder.mkdir()
    preset = Presets(Path("/nowhere")).get("company_photo")
    made = process(Task(source=source, folder=folder, stem="picture", preset=preset, max_pixels=50_000_000))
    needed = [folder, *(folder / one.file for one in made.variants)]
    assert {path.stat().st_ino for path in needed} == flushed


async def test_an_upload(studio: Studio, flushed: set[int]) -> None:
    await studio.upload(pictures.jpeg(640, 480))
    (temp,) = studio.temp_files
    assert {temp.stat().st_ino, temp.parent.stat().st_ino} <= flushed


async def test_an_original(studio: Studio, flushed: set[int]) -> None:
    found = await studio.made(pictures.jpeg(640, 480))
    original = studio.app.media.files.original_of(found["id"])
    assert {original.stat().st_ino, original.parent.stat().st_ino} <= flushed


async def test_a_watermark(studio: Studio, flushed: set[int]) -> None:
    sent = {"file": ("logo.png", pictures.png(64, 64), "image/png")}
    assert (await studio.client.post("/api/admin/watermarks", files=sent)).status_code == 201
    (mark,) = studio.app.media.files.watermarks.iterdir()
    assert {mark.stat().st_ino, mark.parent.stat().st_ino} <= flushed
