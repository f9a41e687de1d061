"""What happens twice, at once, or in an order nobody planned: the picture is what was last asked for, and no file is lost or left."""

import asyncio
import errno
import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.media import pictures
from tests.media.conftest import Studio, a_studio
from tests.services.s3 import S3
from yamchi.errors import Retryable, Snooze, Unrecoverable, WrongState
from yamchi.media.files import is_unfinished, remove
from yamchi.media.model import MediaProcessingJobData, MediaSyncJobData, Picture
from yamchi.media.processing import Made, process, unfinished_beside
from yamchi.media.reporting import News
from yamchi.media.service import TOUCH_EVERY
from yamchi.media.store import GRACE, Changed
from yamchi.queues.handlers import Handler
from yamchi.queues.job import Job
from yamchi.queues.records import JobRecord
from yamchi.testing.waiting import eventually

LOGO = pictures.white(80, 40)
MARK = {"watermarkId": "wm", "position": "center", "opacity": 1.0, "scale": 0.5}


async def marked(studio: Studio, media_id: str, **how: Any) -> dict[str, Any]:
    answer = await studio.client.post(f"/api/admin/media/{media_id}/watermark", json={**MARK, **how})
    assert answer.status_code == 202, answer.text
    await studio.app.drain()
    return await studio.show(media_id)


@pytest.fixture
async def logo(studio: Studio) -> None:
    files, fields = {"file": ("logo.png", LOGO)}, {"id": "wm"}
    assert (await studio.client.post("/api/admin/watermarks", files=files, data=fields)).status_code == 201


async def made_of(studio: Studio, found: Picture) -> Made:
    """What a child would give for this picture now."""
    return process(studio.app.media.service.tasks.anew(found, None))


@pytest.mark.usefixtures("logo")
async def test_a_picture_that_comes_back_to_what_it_was_keeps_its_files(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg(1200, 900))
    first = await marked(studio, found["id"])
    await marked(studio, found["id"], position="tile")
    again = await marked(studio, found["id"])
    assert again["variants"] == first["variants"]
    await studio.app.clock.advance(timedelta(days=2))
    assert len(studio.public_files) == 5
    for one in again["variants"].values():
        assert (await studio.client.get(one["url"])).status_code == 200


@pytest.mark.usefixtures("logo")
@pytest.mark.parametrize("step", ["retired", "take_over"])
async def test_a_picture_comes_back_to_what_it_was_while_its_old_files_are_removed(
    studio: Studio, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before they are removed, and after: the picture is made of files that are there."""
    media, found = studio.app.media, await studio.made(pictures.jpeg(1200, 900))
    await marked(studio, found["id"])
    retired, take_over = media.store.retired, media.service.take_over

    async def come_back() -> None:
        await studio.client.delete(f"/api/admin/media/{found['id']}/watermark")
        await studio.app.drain()

    async def look(before: int, limit: int) -> list[str]:
        paths = await retired(before + GRACE, limit)
        if step == "retired" and paths:
            monkeypatch.undo()
            await come_back()
        return paths

    async def take_over_later(*given: Any, **how: Any) -> Picture:
        if step == "take_over":
            await media.cleanup.run(30)
            monkeypatch.undo()
        return await take_over(*given, **how)

    monkeypatch.setattr(media.store, "retired", look)
    monkeypatch.setattr(media.service, "take_over", take_over_later)
    await (media.cleanup.run(30) if step == "retired" else come_back())
    await studio.app.clock.advance(timedelta(seconds=10))
    again = await studio.show(found["id"])
    assert again["variants"] == found["variants"]
    for one in again["variants"].values():
        assert (await studio.client.get(one["url"])).status_code == 200


@pytest.mark.usefixtures("logo")
async def test_an_old_address_shows_the_old_picture_for_a_day(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg(1200, 900))
    url = found["variants"]["w640"]["url"]
    before = (await studio.client.get(url)).content
    await marked(studio, found["id"])
    old = await studio.client.get(url)
    assert (old.status_code, old.content) == (200, before)
    young = await studio.app.media.cleanup.orphans(delete=True)
    assert young.orphans == []
    await studio.app.clock.advance(timedelta(days=2))
    assert (await studio.client.get(url)).status_code == 404


@pytest.mark.usefixtures("logo")
async def test_a_watermark_waits_for_a_picture_that_is_still_being_made(studio: Studio) -> None:
    sent = (await studio.upload(pictures.jpeg())).json()
    asked = await studio.client.post(f"/api/admin/media/{sent['mediaId']}/watermark", json=MARK)
    queue = studio.app.queue("media-processing")
    await queue.pause()
    await studio.app.drain()
    job = await studio.app.queue("watermark").job(asked.json()["jobId"])
    assert (job.state, job.attempts_made) == ("delayed", 0)
    await queue.resume()
    await studio.app.clock.advance(timedelta(seconds=5))
    assert (await studio.show(sent["mediaId"]))["watermark"]["watermarkId"] == "wm"


@pytest.mark.usefixtures("logo")
async def test_made_anew_while_it_gets_a_watermark(studio: Studio) -> None:
    media = studio.app.media
    before = await media.get((await studio.made(pictures.jpeg()))["id"])
    plain = await made_of(studio, before)
    news = await marked(studio, before.id)
    with pytest.raises(Changed):
        await media.service.take_over(before, plain, media.files.original_of(before.id))
    assert (await studio.show(before.id))["variants"] == news["variants"]
    assert issubclass(Changed, Retryable)


async def test_deleted_while_it_is_made(studio: Studio) -> None:
    sent = (await studio.upload(pictures.jpeg())).json()
    await studio.client.delete(f"/api/admin/media/{sent['mediaId']}")
    await studio.app.drain()
    assert (await studio.show(sent["mediaId"]))["status"] == "soft_deleted"
    restored = await studio.client.post(f"/api/admin/media/{sent['mediaId']}/restore")
    assert (restored.json()["status"], len(restored.json()["variants"])) == ("ready", 5)


async def test_restored_while_it_waits_to_be_made(studio: Studio) -> None:
    sent = (await studio.upload(pictures.jpeg())).json()
    url = f"/api/admin/media/{sent['mediaId']}"
    await studio.client.delete(url)
    assert (await studio.client.post(f"{url}/restore")).json()["status"] == "processing"
    await studio.app.drain()
    assert (await studio.show(sent["mediaId"]))["status"] == "ready"


async def test_removed_for_good_while_it_is_made(studio: Studio) -> None:
    media = studio.app.media
    sent = (await studio.upload(pictures.jpeg())).json()
    found = await media.get(sent["mediaId"])
    task = media.service.tasks.begin(found, media.files.temp_file(found.temp_path or ""), None)
    made = process(task)
    await studio.client.delete(f"/api/admin/media/{found.id}")
    cleaned = await studio.client.post("/api/admin/media/cleanup", json={"olderThanDays": 0})
    assert cleaned.json()["deleted"] == 1
    assert studio.temp_files == []
    with pytest.raises(Unrecoverable, match="any more"):
        await media.service.take_over(found, made, media.files.original_of(found.id))
    assert studio.public_files == []


async def test_restored_when_its_removal_has_begun(studio: Studio) -> None:
    media = studio.app.media
    found = await studio.made(pictures.jpeg())
    await studio.client.delete(f"/api/admin/media/{found['id']}")
    assert await media.store.begin_removal(found["id"], studio.app.clock.now())
    with pytest.raises(WrongState, match="being removed for good"):
        await media.store.restore(found["id"])
    assert (await media.cleanup.run(0)).deleted == 1  # as the next run does after a crash
    kept = await studio.made(pictures.jpeg())
    assert not await media.store.begin_removal(kept["id"], studio.app.clock.now())


async def test_a_cancelled_job_does_not_leave_its_picture_waiting(studio: Studio) -> None:
    sent = (await studio.upload(pictures.jpeg())).json()
    await studio.app.queue("media-processing").cancel(sent["jobId"])
    await studio.app.clock.advance(timedelta(minutes=3))
    await studio.app.media.service.sweep()
    found = await studio.show(sent["mediaId"])
    assert (found["status"], found["error"]) == ("failed", "Its job is cancelled.")
    assert studio.temp_files == []


async def test_a_picture_that_can_not_be_made_anew_stays_what_it_was(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg())
    studio.app.media.files.original_of(found["id"]).write_bytes(b"rotten")
    await studio.client.post(f"/api/admin/media/{found['id']}/reprocess")
    await studio.app.drain()
    news = await studio.show(found["id"])
    assert (news["status"], news["variants"]) == ("ready", found["variants"])
    assert "is not a picture" in news["error"]


async def test_ids_that_are_too_long(studio: Studio) -> None:
    answer = await studio.upload(pictures.jpeg(), userId="u" * 65)
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        "userId: String should have at most 64 characters",
    )
    assert [fault["field"] for fault in answer.json()["errors"]] == ["userId"]
    assert studio.temp_files == []


@pytest.mark.services
async def test_a_watermark_during_a_sync(tmp_path: Path, s3: S3) -> None:
    async with a_studio(tmp_path, **s3.settings) as studio:
        media = studio.app.media
        found = await media.get((await studio.made(pictures.jpeg()))["id"])
        files = [one.file for one in found.variants]
        temp = media.files.new_temp()
        temp.write_bytes(LOGO)
        await media.watermarks.add(temp, "logo.png", "wm")
        await marked(studio, found.id)
        await media.store.synced(
            found.id, files, is_synced=True, is_local=False
        )  # as the sync does that began before
        news = await media.get(found.id)
        assert all(one.is_local and one.is_synced for one in news.variants)
        assert {one.file for one in news.variants}.isdisjoint(files)


@pytest.mark.services
async def test_away_from_the_bucket_made_anew_and_there_again(tmp_path: Path, s3: S3) -> None:
    async with a_studio(tmp_path, **s3.settings) as studio:
        found = await studio.made(pictures.jpeg())
        bucket, keys = studio.app.media.bucket, studio.public_files
        away = {"mediaIds": [found["id"]], "operation": "delete"}
        await studio.client.post("/api/admin/media/sync", json=away)
        await studio.app.drain()
        assert [await bucket.size_of(key) for key in keys] == [None] * 5
        await studio.app.clock.advance(timedelta(seconds=1))
        await studio.client.post(f"/api/admin/media/{found['id']}/reprocess")
        await studio.app.drain()
        assert None not in [await bucket.size_of(key) for key in keys]
        move = {"mediaIds": [found["id"]], "operation": "upload", "deleteSource": True}
        await studio.client.post("/api/admin/media/sync", json=move)
        await studio.app.drain()
        assert studio.public_files == []
        await studio.app.clock.advance(timedelta(seconds=1))
        await studio.client.post(f"/api/admin/media/{found['id']}/reprocess")
        await studio.app.drain()
        assert studio.public_files == keys  # made of the original, which stayed


@pytest.mark.services
async def test_moved_to_the_bucket_while_it_is_deleted_there(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_studio(tmp_path, **s3.settings) as studio:
        media, found = studio.app.media, await studio.made(pictures.jpeg())
        files, queue, delete = studio.public_files, studio.app.queue("media-sync"), media.bucket.delete
        move = MediaSyncJobData(media_id=found["id"], operation="upload", delete_source=True)
        record = JobRecord("move", queue.name, "upload", b"", "active", 0, 0)
        held = [Job[MediaSyncJobData](queue, record, data=move)]

        async def delete_later(keys: list[str]) -> None:
            if held:
                with suppress(Snooze):
                    await media.sync.handle(held.pop())
            await delete(keys)

        monkeypatch.setattr(media.bucket, "delete", delete_later)
        await media.sync.sync([found["id"]], "delete")
        await studio.app.drain()
        assert held == []
        there = [key for key in files if await media.bucket.size_of(key) is not None]
        assert {*there, *studio.public_files} == set(files)
        for one in found["variants"].values():
            assert (await studio.client.get(one["url"])).status_code in (200, 302)


@pytest.mark.services
@pytest.mark.parametrize("is_alive", [True, False])
async def test_a_sync_that_deletes_is_waited_for_as_long_as_it_runs(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch, is_alive: bool
) -> None:
    """Longer than a hold lasts that is not renewed, as that of a process which was killed."""
    async with a_studio(tmp_path, **s3.settings) as studio:
        media, found = studio.app.media, await studio.made(pictures.jpeg())
        queue, is_held, may_end = studio.app.queue("media-sync"), asyncio.Event(), asyncio.Event()
        wanted = MediaSyncJobData(media_id=found["id"], operation="delete")
        record = JobRecord("sync", queue.name, "delete", b"", "active", 0, 0)
        renewals: list[str] = []

        async def take_long(keys: list[str]) -> None:
            is_held.set()
            await may_end.wait()

        async def renew(name: str, value: str, ttl: str) -> None:
            await keep(name, value, ttl)
            renewals.append(name)

        keep = studio.app.keys.set
        monkeypatch.setattr(studio.app.keys, "set", renew)
        monkeypatch.setattr(media.bucket, "delete", take_long)
        monkeypatch.setattr("yamchi.media.sync.RENEW_SECONDS", 0.01 if is_alive else 60)
        first = asyncio.create_task(media.sync.handle(Job(queue, record, data=wanted)))
        await is_held.wait()
        for _ in range(3):
            await studio.app.clock.advance(timedelta(seconds=20))
            renewals.clear()
            await eventually(lambda: renewals or not is_alive)
        may_end.set()
        if is_alive:
            with pytest.raises(Snooze, match="Another sync"):
                await media.sync.handle(Job(queue, record, data=wanted))
        else:
            assert (await media.sync.handle(Job(queue, record, data=wanted)))["operation"] == "delete"
        await first


@pytest.mark.services
async def test_files_that_were_moved_go_though_their_job_broke_off(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_studio(tmp_path, **s3.settings) as studio:
        found, broken = await studio.made(pictures.jpeg()), [OSError(errno.EIO, "Input/output error")]

        def remove_at_last(path: Path) -> int:
            if broken:
                raise broken.pop()
            return remove(path)

        monkeypatch.setattr("yamchi.media.sync.remove", remove_at_last)
        await studio.app.media.sync.sync([found["id"]], "upload", delete_source=True)
        await studio.app.drain()
        await studio.app.clock.advance(timedelta(seconds=5))
        assert (broken, studio.public_files) == ([], [])


@pytest.mark.services
async def test_a_file_that_is_gone_is_no_outage(tmp_path: Path, s3: S3) -> None:
    async with a_studio(tmp_path, **s3.settings) as studio:
        found = await studio.made(pictures.jpeg())
        away = {"all": True, "operation": "delete"}
        await studio.client.post("/api/admin/media/sync", json=away)
        await studio.app.drain()
        (tmp_path / "public" / "uploads" / studio.public_files[0]).unlink()
        (job_id,) = await studio.app.media.sync.sync([found["id"]], "upload")
        await studio.app.drain()
        job = await studio.app.queue("media-sync").job(job_id)
        assert job.state == "failed"
        assert "is no longer here" in str(job.failed_reason)


@pytest.mark.services
async def test_what_comes_back_damaged_is_not_taken(tmp_path: Path, s3: S3) -> None:
    async with a_studio(tmp_path, **s3.settings) as studio:
        await studio.made(pictures.jpeg())
        key = studio.public_files[0]
        with pytest.raises(Retryable, match="arrived damaged"):
            await studio.app.media.bucket.get(key, tmp_path / "copy", sha256="0" * 64)
        assert not (tmp_path / "copy").exists()


@pytest.mark.services
async def test_large_objects_go_in_parts(tmp_path: Path, s3: S3) -> None:
    async with a_studio(tmp_path, **s3.settings) as studio:
        bucket, large = studio.app.media.bucket, pictures.write(tmp_path, "large", bytes(range(256)) * 80_000)
        assert await bucket.put_once("large", large, "image/webp")
        assert not await bucket.put_once("large", large, "image/webp")
        await bucket.get("large", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == large.read_bytes()


async def test_two_uploads_of_one_file_at_once(studio: Studio) -> None:
    answers = await asyncio.gather(*(studio.upload(pictures.jpeg()) for _ in range(3)))
    await studio.app.drain()
    ids = {answer.json()["mediaId"] for answer in answers}
    assert len(ids) == 3
    assert len(studio.public_files) == 15


async def test_a_picture_that_comes_alone_gets_the_cores_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_studio(tmp_path, media_processes=4) as studio:
        children, given = studio.app.media.children, list[int]()
        ask = children._ask

        async def note(job: Any, task: Any) -> dict[str, Any]:
            given.append(task.threads)
            await eventually(lambda: len(given) >= wanted)
            return await ask(job, task)

        monkeypatch.setattr(children, "_ask", note)
        for wanted, threads in ((1, [4]), (3, [4, 2, 1]), (1, [4])):
            given.clear()
            for number in range(wanted):
                await studio.upload(pictures.jpeg(), entityId=f"{wanted}-{number}")
            await studio.app.drain()
            assert given == threads


async def test_made_by_somebody_else_while_a_job_fails(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a worker that lost its lease, but not its child: the upload is gone for the other, the picture is there."""
    service, queue = studio.app.media.service, studio.app.queue("media-processing")
    studio.app.define(queue.name, attempts=1)
    sent = (await studio.upload(pictures.jpeg())).json()
    held: list[Job[MediaProcessingJobData]] = []

    async def handle(job: Job[MediaProcessingJobData]) -> dict[str, Any]:
        held.append(job)
        return await service.handle(job)

    async def meanwhile(_found: Picture, _news: News) -> None:
        if held:
            await service.handle(held.pop())

    queue.definition.handlers["process"] = Handler("process", handle)
    monkeypatch.setattr(studio.app.media.children, "_on_news", meanwhile)
    await studio.app.drain()
    assert (await queue.job(sent["jobId"])).state == "failed"
    found = await studio.show(sent["mediaId"])
    assert (found["status"], found["error"], len(found["variants"])) == ("ready", None, 5)


async def test_the_sweeper_leaves_what_somebody_waits_for(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, now = studio.app.media.service, studio.app.clock.now
    swept: list[int] = []
    touches: list[int] = []
    written = service.store.touch

    async def touch(media_id: str) -> None:
        await written(media_id)
        touches.append(now())

    async def meanwhile(found: Picture, _news: News) -> None:
        await asyncio.sleep(0)  # whoever touches it has begun to wait
        for _ in range(6):
            # The clock moves only when the last touch is written: one who begins to wait later would come too late.
            await studio.app.clock.advance(timedelta(milliseconds=TOUCH_EVERY))
            await eventually(lambda: touches[-1:] == [now()])
            assert (await service.store.get(found.id)).updated_at == now()
        swept.append(await service.sweep())

    monkeypatch.setattr(service.store, "touch", touch)
    monkeypatch.setattr(studio.app.media.children, "_on_news", meanwhile)
    file = pictures.write(studio.home, "mine.jpg", pictures.jpeg())
    assert (await studio.app.media.process_upload(file, "user_avatar")).status == "ready"
    assert set(swept) == {0}
    assert (await studio.app.queue("media-processing").stats())["waiting"] == 0


async def test_two_at_once_do_not_write_each_others_unfinished_files(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    media = studio.app.media
    found = await media.get((await studio.made(pictures.jpeg(1200, 900)))["id"])
    task = media.service.tasks.anew(found, None)
    fsync, others = os.fsync, [task]

    def meanwhile(file: int) -> None:
        fsync(file)
        if others:
            process(others.pop())

    monkeypatch.setattr(os, "fsync", meanwhile)
    made = process(task)
    assert others == []
    assert [(task.folder / one.file).stat().st_size for one in made.variants] == [
        one.size for one in made.variants
    ]
    assert [path.name for path in task.folder.iterdir() if is_unfinished(path)] == []


async def test_a_worker_on_another_machine_says_that_the_upload_is_not_there(studio: Studio) -> None:
    sent = (await studio.upload(pictures.jpeg())).json()
    for file in studio.temp_files:
        file.unlink()
    await studio.app.drain()
    await studio.app.clock.advance(timedelta(minutes=1))
    assert "not on this machine" in (await studio.show(sent["mediaId"]))["error"]


async def test_halves_that_a_crash_left_are_removed(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg())
    files = studio.app.media.files
    halves = [unfinished_beside(files.original_of(found["id"])), unfinished_beside(files.uploads / "a.webp")]
    for half in halves:
        half.write_bytes(b"half")
        os.utime(half, (0, 0))
    assert (await studio.app.media.cleanup.run(30)).freed_bytes == 8
    assert not any(half.exists() for half in halves)
