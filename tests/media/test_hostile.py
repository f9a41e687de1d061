"""Hostile files and broken decoders: one sentence, little memory, and nobody else pays. A full disk: nothing half-written, and on it goes."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.media import pictures
from tests.media.conftest import Studio, a_studio
from tests.smalldisk import Disk

HOSTILE = {
    "bomb": (pictures.bomb(), "50000 × 50000 pixels"),
    "entity in an SVG": (pictures.SVG, "SVG is not taken"),
    "reference in an SVG": (b'<svg><image href="http://127.0.0.1/x"/></svg>', "SVG is not taken"),
    "endless gif": (pictures.endless_gif(), "frames; 500 are the most"),
    "truncated": (pictures.jpeg(2000, 1500)[:9000], "The file is damaged"),
    "text": (b"hello, I am a photo", "is not a picture"),
    "empty": (b"", "The file is empty"),
    "half a png": (pictures.png(800, 600)[:4000], "The file is damaged"),
}
CHILD = """
import json, resource, sys, time
from pathlib import Path
from yamchi.media.decoding import vips
from yamchi.media.formats import BadFile
from yamchi.media.presets import Presets
from yamchi.media.processing import Task, process

vips()
preset, said = Presets(Path("/nowhere")).get("company_photo"), {}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in sys.argv[2:]:
    folder = Path(sys.argv[1])
    began = time.process_time()
    try:
        process(Task(source=folder / name, folder=folder / "out", stem="a", preset=preset, max_pixels=50_000_000))
    except BadFile as error:
        said[name] = [str(error), time.process_time() - began]
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"said": said, "grown": grown}))
"""
MOST_KILOBYTES, MOST_CPU_SECONDS = 100_000, 5.0

BROKEN_DECODER = """
import ctypes, os, signal, sys
sys.path.remove(os.path.dirname(__file__))
del sys.modules["pyvips"]
import pyvips
load = pyvips.Image.jpegload

def jpegload(path, **options):
    end = open(path, "rb").read()[-5:]
    if end == b"CRASH":
        os.kill(os.getpid(), signal.SIGSEGV)
    if end == b"HANGS":
        ctypes.PyDLL(None).sleep(600)  # in C, and no other thread of the child gets a turn
    return load(path, **options)

pyvips.Image.jpegload = staticmethod(jpegload)
"""


def test_hostile_files_cost_little(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name, (content, _) in HOSTILE.items():
        pictures.write(tmp_path, name, content)
    run = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path, *HOSTILE], capture_output=True, text=True, check=True
    )
    found = orjson.loads(run.stdout)
    for name, (_, sentence) in HOSTILE.items():
        said, seconds = found["said"][name]
        assert sentence in said
        assert "\n" not in said
        assert "  " not in said
        assert seconds < MOST_CPU_SECONDS, name
    assert found["grown"] < MOST_KILOBYTES
    assert list((tmp_path / "out").iterdir()) == []


async def test_names_that_are_paths(studio: Studio) -> None:
    for name in ("../../etc/passwd", "..\\..\\boot.ini", "a\0b.jpg", "/etc/shadow", "\u202egpj.exe"):
        found = await studio.made(pictures.jpeg(), filename=name)
        assert found["status"] == "ready"
        assert not set(found["originalFilename"]) & set("/\\\0\u202e")
    for kind in ("../../etc/passwd", "company_photo\0", "/tmp", "company_photo/.."):
        refused = await studio.upload(pictures.jpeg(), entityType=kind)
        assert (refused.status_code, "There is no preset" in refused.json()["detail"]) == (404, True)
    outside = {path.name for path in studio.home.iterdir()}
    assert outside == {"var", "public"}
    assert studio.temp_files == []


async def jobs(studio: Studio, state: str) -> dict[str, dict[str, Any]]:
    answer = await studio.client.get("/api/queues/media-processing/jobs", params={"state": state})
    return {job["id"]: job for job in answer.json()["jobs"]}


async def test_a_decoder_that_crashes_or_hangs_costs_one_child_and_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, decoder = pictures.jpeg(), tmp_path / "decoder"
    decoder.mkdir()
    pictures.write(decoder, "pyvips.py", BROKEN_DECODER.encode())
    monkeypatch.syspath_prepend(str(decoder))  # children look there first
    async with a_studio(tmp_path / "home", media_timeout=timedelta(seconds=10)) as studio:
        uploads = {"hang": good + b"HANGS", "crash": good + b"CRASH", "one": good, "two": good, "three": good}
        sent = {name: (await studio.upload(content)).json() for name, content in uploads.items()}
        await studio.app.drain()
        for name in ("one", "two", "three"):  # they waited for the only child while it hung
            assert (await studio.show(sent[name]["mediaId"]))["status"] == "ready"
        done, waiting = await jobs(studio, "completed"), await jobs(studio, "delayed")
        assert {job["attempts_made"] for job in done.values()} == {1}
        why = {name: waiting[sent[name]["jobId"]]["failed_reason"] for name in ("hang", "crash")}
        assert why == {
            "hang": "process took longer than its timeout of 10 s",
            "crash": "The process that ran process was killed by SIGSEGV",
        }


async def test_a_decoder_that_crashes_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures.write(tmp_path, "pyvips.py", BROKEN_DECODER.encode())
    content = pictures.jpeg() + b"CRASH"
    monkeypatch.syspath_prepend(str(tmp_path))
    async with a_studio(tmp_path / "home") as studio:
        sent = (await studio.upload(content)).json()
        await studio.app.drain()
        await studio.app.clock.advance(timedelta(minutes=1))
        found = await studio.show(sent["mediaId"])
        assert (found["status"], found["error"]) == (
            "failed",
            "The process that ran process was killed by SIGSEGV",
        )
        assert studio.temp_files == []
        waits = pictures.write(tmp_path, "waits.jpg", content)
        with pytest.raises(Exception, match="was killed by SIGSEGV"):  # the caller's own process goes on
            await studio.app.media.process_upload(waits, "user_avatar")


async def test_a_full_disk_while_variants_are_written(tmp_path: Path, disk: Disk) -> None:
    async with a_studio(tmp_path, uploads_dir=disk.folder / "uploads", media_free_bytes=0) as studio:
        sent = (await studio.upload(pictures.jpeg(1600, 1200))).json()
        studio.app.media.files.folder_of("company_photo")
        disk.fill()
        await studio.app.drain()
        job = (await jobs(studio, "delayed"))[sent["jobId"]]
        assert job["attempts_made"] == 0
        assert "The disk is full" in job["failed_reason"]
        assert [path for path in (disk.folder / "uploads").rglob("*") if path.is_file()] == []
        for _ in range(4):  # longer than the attempts would have lasted
            await studio.app.clock.advance(timedelta(seconds=15))
        assert (await studio.show(sent["mediaId"]))["status"] == "processing"
        disk.make_room()
        await studio.app.clock.advance(timedelta(seconds=15))
        found = await studio.show(sent["mediaId"])
        assert (found["status"], len(found["variants"])) == ("ready", 5)


async def test_a_full_disk_while_an_upload_comes_in(tmp_path: Path, disk: Disk) -> None:
    tables = f"sqlite:///{tmp_path}/data.db"
    async with a_studio(disk.folder, database_url=tables, media_free_bytes=0) as studio:
        studio.app.media.files.prepare()
        disk.fill()
        refused = await studio.upload(pictures.jpeg(1600, 1200))
        assert (refused.status_code, refused.json()["detail"]) == (
            503,
            "The disk is full: the upload was not taken. Send it again later.",
        )
        assert studio.temp_files == []
        disk.make_room()
        assert (await studio.made(pictures.jpeg(1600, 1200)))["status"] == "ready"
