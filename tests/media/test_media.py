"""Pictures through the whole of Yamchi: uploaded, worked on in a child, served, marked, copied to S3, deleted, gone."""

import base64
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from sqlalchemy import select

from tests.media import pictures
from tests.media.conftest import USER, Studio, a_studio
from tests.services.s3 import S3
from yamchi.installation import install_command
from yamchi.notifications.tables import live_feed
from yamchi.queues.records import NewJob

LOGO = pictures.png(80, 40, alpha=True)


async def test_the_whole_story(studio: Studio) -> None:
    found = await studio.made(
        pictures.jpeg(1600, 1200, orientation=6),
        userId=USER,
        metadata='{"alt": "A view"}',
        filename="../../etc/passwd",
    )
    assert (found["status"], found["error"]) == ("ready", None)
    assert (found["originalFilename"], found["metadata"]) == ("passwd", {"alt": "A view"})
    assert (found["width"], found["height"]) == (1200, 1600)
    assert set(found["variants"]) == {"w1920", "w1280", "w640", "w320", "thumb"}
    assert studio.temp_files == []
    assert len(studio.public_files) == 5
    assert [part.split()[1] for part in found["srcset"].split(", ")] == ["320w", "640w", "1200w"]
    one = found["variants"]["w640"]
    answer = await studio.client.get(one["url"])
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/webp"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (one["width"], one["height"]) == (640, 853)
    part = await studio.client.get(one["url"], headers={"range": "bytes=0-9"})
    assert (part.status_code, len(part.content)) == (206, 10)
    short = await studio.client.get(f"/media/{found['id']}/w640")
    assert (short.status_code, short.headers["location"]) == (302, one["url"])
    assert (await studio.client.get(f"/media/{found['id']}/original")).status_code == 404


async def test_a_picture_is_sent_once(studio: Studio) -> None:
    url = (await studio.made(pictures.jpeg()))["variants"]["w320"]["url"]
    first = await studio.client.get(url)
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = await studio.client.get(url, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert (await studio.client.get(url, headers={"if-none-match": '"other"'})).content == first.content
    head = await studio.client.head(url)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(first.content)))
    missing = await studio.client.get(url, headers={"range": "bytes=99999999-"})
    assert missing.status_code == 416


async def test_the_uploaders_page_hears_of_it(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg(), userId=USER)
    rows = await studio.app.database.read(lambda c: c.execute(select(live_feed)).all())
    assert {row.user_id for row in rows} == {USER}
    *on_the_way, last = [json.loads(row.body)["media"] for row in rows]
    told = [one["progress"] for one in on_the_way]
    assert (told[:2], len(told)) == ([5, 30], 5)
    assert told == sorted(told)
    assert on_the_way[1]["placeholder"] == found["placeholder"]
    assert (last["id"], last["status"], last["variants"]) == (found["id"], "ready", found["variants"])


async def test_a_missing_package_costs_one_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = pictures.jpeg()
    pictures.write(tmp_path, "pyvips.py", b"raise ImportError('no libvips')")
    monkeypatch.syspath_prepend(str(tmp_path))  # children look there first
    async with a_studio(tmp_path) as studio:
        found = await studio.made(content)
        assert found["error"] == f"Working on pictures needs an extra package: {install_command('media')}"
        failed = {"state": "failed"}
        (job,) = (await studio.client.get("/api/queues/media-processing/jobs", params=failed)).json()["jobs"]
        assert job["attempts_made"] == 1


async def test_what_can_not_be_used(studio: Studio) -> None:
    for content, said in (
        (b"", "The file is empty."),
        (pictures.SVG, "SVG is not taken"),
        (b"just text", "is not a picture"),
    ):
        answer = await studio.upload(content)
        assert answer.status_code == 422
        assert said in answer.json()["detail"]
    wrong = await studio.upload(pictures.jpeg(), entityType="../../etc")
    assert wrong.status_code == 404
    assert "There is no preset" in wrong.json()["detail"]
    nothing = await studio.client.post("/api/admin/media/upload-async", data={"entityType": "company_photo"})
    assert nothing.status_code == 422
    bomb = await studio.made(pictures.bomb())
    assert (bomb["status"], bomb["error"]) == (
        "failed",
        "The picture has 50000 × 50000 pixels; 50,000,000 are the most.",
    )
    broken = await studio.made(pictures.jpeg()[:3000])
    assert "damaged" in broken["error"]
    assert studio.temp_files == []
    assert studio.public_files == []


async def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    async with a_studio(tmp_path, media_max_bytes=1000) as studio:
        answer = await studio.upload(pictures.jpeg())
        assert answer.status_code == 413
        assert studio.temp_files == []


async def test_a_file_that_is_too_large_for_its_preset(studio: Studio) -> None:
    (studio.home / "media.yaml").write_text("tiny: {sizes: [{name: a, width: 9}], max_bytes: 1000}\n")
    answer = await studio.upload(pictures.jpeg(), entityType="tiny")
    assert (answer.status_code, "1,000 are the most" in answer.json()["detail"]) == (413, True)
    assert studio.temp_files == []
    assert (await studio.upload(pictures.jpeg(), entityType="user_avatar")).status_code == 202


async def test_a_body_that_is_far_too_large(tmp_path: Path) -> None:
    async with a_studio(tmp_path, media_max_bytes=1000) as studio:
        answer = await studio.upload(b"\xff\xd8\xff" * 500_000)
        assert (answer.status_code, answer.json()["detail"]) == (
            413,
            "The body is larger than the 1,049,576 bytes allowed.",
        )


async def test_fields_of_a_form_in_snake_case(studio: Studio) -> None:
    files = {"file": ("a.jpg", pictures.jpeg(), "image/jpeg")}
    data = {"entity_type": "user_avatar", "user_id": "user-123"}
    answer = await studio.client.post("/api/admin/media/upload-async", data=data, files=files)
    found = await studio.show(answer.json()["mediaId"])
    assert (found["entityType"], found["userId"]) == ("user_avatar", "user-123")


async def test_a_small_picture_has_each_width_once(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg(300, 200))
    widths = [one.rpartition(" ")[2] for one in found["srcset"].split(", ")]
    assert widths == ["300w"]


async def test_avif_beside_webp_and_alone(studio: Studio) -> None:
    (studio.home / "media.yaml").write_text(
        "both: {sizes: [{name: w64, width: 64}], formats: [avif, webp]}\n"
        "alone: {sizes: [{name: w64, width: 64}], formats: [avif]}\n"
    )
    both = await studio.made(pictures.jpeg(80, 60), entityType="both")
    assert {name: one["type"] for name, one in both["variants"].items()} == {
        "w64": "image/webp",
        "w64_avif": "image/avif",
    }
    assert both["srcset"] == f"{both['variants']['w64']['url']} 64w"
    alone = await studio.made(pictures.jpeg(80, 60), entityType="alone")
    assert {name: one["type"] for name, one in alone["variants"].items()} == {"w64": "image/avif"}
    assert alone["srcset"] == f"{alone['variants']['w64']['url']} 64w"


async def test_a_job_about_no_picture_is_only_a_failed_job(studio: Studio, capfd: Any) -> None:
    queue = studio.app.queue("media-processing")
    handlers = dict(queue.definition.handlers)
    queue.definition.handlers.clear()  # as in a process that only adds, which knows no model
    gone = {"mediaId": "gone", "entityType": "a", "tempPath": "", "originalFilename": ""}
    jobs = [await queue.add(data) for data in ({"entityType": "user_avatar"}, gone)]
    queue.definition.handlers.update(handlers)
    await queue.engine.add(queue.name, [NewJob("not-json", "process", b"{")])
    await studio.app.drain()
    jobs.append(await queue.job("not-json"))
    assert [(await job.refresh()).state for job in jobs] == ["failed"] * 3
    said = "".join(capfd.readouterr())
    assert "a listener failed" not in said, said


async def test_another_programs_job_reads_only_uploads(studio: Studio) -> None:
    queue = studio.app.queue("media-processing")
    studio.app.media.files.prepare()
    deeper = studio.app.media.files.temp / "deeper"
    deeper.mkdir()
    for folder in (studio.home, deeper):
        outside = pictures.write(folder, "secret.jpg", pictures.jpeg())
        job = await queue.add(
            {"entityType": "user_avatar", "tempPath": str(outside), "originalFilename": "a.jpg"}
        )
        await studio.app.drain()
        assert (await job.refresh()).failed_reason == (
            "That file is not among the uploads: put it into var/media/temp."
        )
    inside = pictures.write(studio.app.media.files.temp, "upload-abc.jpg", pictures.jpeg())
    data = {"entityType": "user_avatar", "tempPath": str(inside), "originalFilename": "a.jpg"}
    job = await queue.add({**data, "mediaId": None, "userId": None, "metadata": None})
    await studio.app.drain()
    done = await job.refresh()
    assert (await studio.show(done.returned["mediaId"]))["status"] == "ready"


async def test_another_programs_job_brings_a_file_from_the_shared_folder(tmp_path: Path) -> None:
    """From that folder itself, and from nowhere by a link in it; a job that is repeated finds what was moved."""
    shared = tmp_path / "shared"
    (shared / "deeper").mkdir(parents=True)
    async with a_studio(tmp_path / "home", media_temp_dir=shared) as studio:
        queue = studio.app.queue("media-processing")

        async def put(path: Path) -> Any:
            data = {"entityType": "user_avatar", "tempPath": str(path), "originalFilename": "avatar.jpg"}
            job = await queue.add({**data, "userId": "user-123"})
            await studio.app.drain()
            return await job.refresh()

        outside = pictures.write(tmp_path, "secret.jpg", pictures.jpeg())
        (shared / "link.jpg").symlink_to(outside)
        for path in (
            outside,
            shared / "link.jpg",
            pictures.write(shared / "deeper", "a.jpg", pictures.jpeg()),
        ):
            assert "not among the uploads" in (await put(path)).failed_reason
            assert path.exists()
        upload = pictures.write(shared, "upload-abc.jpg", pictures.jpeg())
        done = await put(upload)
        assert (await studio.show(done.returned["mediaId"]))["status"] == "ready"
        assert (upload.exists(), studio.temp_files) == (False, [])
        files, again = studio.app.media.files, pictures.write(shared, "again.jpg", pictures.jpeg())
        moved = files.brought(str(again), "n")
        assert (files.brought(str(again), "n"), moved.exists(), again.exists()) == (moved, True, False)


async def test_another_programs_job_on_a_machine_that_never_had_an_upload(studio: Studio) -> None:
    elsewhere = str(studio.app.media.files.temp / "upload-abc.jpg")
    data = {"entityType": "user_avatar", "tempPath": elsewhere, "originalFilename": "a.jpg"}
    job = await studio.app.queue("media-processing").add(data)
    await studio.app.drain()
    await studio.app.clock.advance(timedelta(minutes=1))
    assert "not on this machine" in ((await job.refresh()).failed_reason or "")
    (found,) = (await studio.client.get("/api/admin/media")).json()["items"]
    assert (found["status"], "not on this machine" in found["error"]) == ("failed", True)


async def test_watermarks_begin_from_the_original(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg(1200, 900))
    answer = await studio.client.post(
        "/api/admin/watermarks", files={"file": ("logo.png", LOGO)}, data={"id": "wm-logo"}
    )
    assert (answer.status_code, answer.json()["id"]) == (201, "wm-logo")
    how = {
        "watermarkId": "wm-logo",
        "position": "center",
        "opacity": 1.0,
        "scale": 0.5,
        "variants": ["w640", "w320"],
    }
    before = studio.public_files
    for _ in range(2):
        marked = await studio.client.post(f"/api/admin/media/{found['id']}/watermark", json=how)
        assert marked.status_code == 202
        await studio.app.drain()
    news = await studio.show(found["id"])
    assert news["watermark"]["watermarkId"] == "wm-logo"
    changed = {
        name for name in news["variants"] if news["variants"][name]["url"] != found["variants"][name]["url"]
    }
    assert changed == {"w640", "w320"}
    assert set(before) < set(studio.public_files)  # pages still name the old ones
    assert len(studio.public_files) == 7  # the second time made the same files
    await studio.app.clock.advance(timedelta(days=2))
    assert len(studio.public_files) == 5
    wrong = await studio.client.post(f"/api/admin/media/{found['id']}/watermark", json={**how, "opacity": 7})
    assert wrong.status_code == 422
    none = await studio.client.post(
        f"/api/admin/media/{found['id']}/watermark", json={**how, "watermarkId": "no"}
    )
    assert (none.status_code, none.json()["detail"]) == (404, "There is no watermark 'no': upload it first.")


async def test_deleted_restored_and_gone_after_a_month(studio: Studio) -> None:
    found, kept = await studio.made(pictures.jpeg()), await studio.made(pictures.png(300, 200))
    url = f"/api/admin/media/{found['id']}"
    assert (await studio.client.delete(url)).json()["status"] == "soft_deleted"
    assert (await studio.client.get(found["variants"]["w640"]["url"])).status_code == 404
    assert (await studio.client.post(f"{url}/restore")).json()["status"] == "ready"
    assert (await studio.client.post(f"{url}/restore")).status_code == 409
    await studio.client.delete(url)
    early = await studio.client.post(
        "/api/admin/media/cleanup", json={"olderThanDays": 30, "status": "soft_deleted"}
    )
    assert early.json() == {"deleted": 0, "freedBytes": 0}
    size = sum(one["size"] for one in found["variants"].values()) + len(pictures.jpeg())
    await studio.app.clock.advance(timedelta(days=29))
    assert len(studio.public_files) == 10
    answer = await studio.client.post("/api/admin/media/cleanup", json={"olderThanDays": 29})
    assert answer.json() == {"deleted": 1, "freedBytes": size}
    assert (await studio.client.get(url)).status_code == 404
    assert (await studio.show(kept["id"]))["status"] == "ready"


async def test_the_daily_cleanup(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg())
    await studio.client.delete(f"/api/admin/media/{found['id']}")
    await studio.app.clock.advance(timedelta(days=31, hours=4))
    assert studio.public_files == []
    assert list((studio.home / "var" / "media" / "originals").iterdir()) == []


async def test_files_that_belong_to_nobody_are_reported_first(studio: Studio) -> None:
    await studio.made(pictures.jpeg())
    stray = studio.home / "public" / "uploads" / "company_photo" / "stray.webp"
    stray.write_bytes(b"12345")
    os.utime(stray, (0, 0))
    found = await studio.app.media.cleanup.orphans(delete=False)
    assert (found.orphans, found.deleted, stray.exists()) == (["company_photo/stray.webp"], 0, True)
    found = await studio.app.media.cleanup.orphans(delete=True)
    assert (found.deleted, found.freed_bytes, stray.exists()) == (1, 5, False)


async def test_the_counts_have_the_shape_that_dashboards_know(studio: Studio) -> None:
    await studio.made(pictures.jpeg())
    counts = (await studio.client.get("/api/admin/media/queue")).json()
    assert counts == {
        "processing": {"waiting": 0, "active": 0, "completed": 1, "failed": 0, "type": "in-memory"},
        "sync": {"waiting": 0, "active": 0, "completed": 0, "failed": 0, "type": "in-memory"},
        "watermark": {"waiting": 0, "active": 0, "completed": 0, "failed": 0, "type": "in-memory"},
    }
    said = (await studio.client.get("/metrics")).text
    for name in (
        "media_processing_queue_size",
        'media_processing_jobs_total{status="completed"} 1.0',
        "media_sync_queue_size",
    ):
        assert name in said


async def test_syncs_are_counted_by_what_they_ask_for(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg())
    queue = studio.app.queue("media-sync")
    studio.app.define(queue.name, attempts=1)
    before = await _syncs_counted(studio)
    assert set(before.values()) == {"0.0"}
    await queue.add({"mediaId": found["id"], "operation": "delete"})
    await studio.app.drain()
    assert await _syncs_counted(studio) == before | {'{operation="delete",status="failed"}': "1.0"}


async def _syncs_counted(studio: Studio) -> dict[str, str]:
    """Each row begins with a zero, so that the first sync is an increase."""
    name, said = "media_sync_jobs_total", (await studio.client.get("/metrics")).text
    rows = dict(line.removeprefix(name).split() for line in said.splitlines() if line.startswith(name))
    assert len(rows) == 6
    return rows


async def test_lists_and_duplicates(studio: Studio) -> None:
    first, second = await studio.made(pictures.jpeg()), await studio.made(pictures.jpeg())
    await studio.made(pictures.jpeg()[:3000])
    page = (await studio.client.get("/api/admin/media", params={"status": "ready", "size": 1})).json()
    assert (page["total"], page["pages"], len(page["items"])) == (2, 2, 1)
    assert first["duplicateOf"] is None
    assert second["duplicateOf"] == first["id"]


async def test_an_upload_that_breaks_off_goes_on(studio: Studio) -> None:
    content = pictures.jpeg(1200, 900)
    about = ",".join(
        f"{name} {base64.b64encode(value.encode()).decode()}"
        for name, value in (("filename", "плакат.jpg"), ("entityType", "company_photo"))
    )
    made = await studio.client.post(
        "/api/admin/media/tus", headers={"Upload-Length": str(len(content)), "Upload-Metadata": about}
    )
    assert made.status_code == 201
    url, part = made.headers["location"], {"Content-Type": "application/offset+octet-stream"}
    first = await studio.client.patch(url, content=content[:5000], headers={**part, "Upload-Offset": "0"})
    assert (first.status_code, first.headers["upload-offset"]) == (204, "5000")
    wrong = await studio.client.patch(url, content=b"x", headers={**part, "Upload-Offset": "0"})
    assert wrong.status_code == 409
    told = await studio.client.head(url)
    assert (told.headers["upload-offset"], told.headers["upload-length"]) == ("5000", str(len(content)))
    more = await studio.client.patch(
        url, content=content[5000:] + b"extra", headers={**part, "Upload-Offset": "5000"}
    )
    assert more.status_code == 413
    told = await studio.client.head(url)
    offset = int(told.headers["upload-offset"])
    last = await studio.client.patch(
        url, content=content[offset:], headers={**part, "Upload-Offset": str(offset)}
    )
    assert last.status_code == 204
    await studio.app.drain()
    found = await studio.show(last.headers["x-media-id"])
    assert (found["status"], found["originalFilename"]) == ("ready", "плакат.jpg")
    again = await studio.client.head(url)  # as a phone does that lost the last answer
    assert (again.headers["upload-offset"], again.headers["x-media-id"]) == (str(len(content)), found["id"])
    late = await studio.client.patch(url, content=b"x", headers={**part, "Upload-Offset": str(len(content))})
    assert late.status_code == 409
    assert studio.temp_files == []
    large = await studio.client.post("/api/admin/media/tus", headers={"Upload-Length": str(10**12)})
    assert large.status_code == 413


async def test_without_the_queue(studio: Studio) -> None:
    file = pictures.write(studio.home, "mine.jpg", pictures.jpeg())
    found = await studio.app.media.process_upload(file, "user_avatar")
    assert (found.status, len(found.variants), file.exists()) == ("ready", 3, True)


async def test_a_lost_job_is_found(studio: Studio) -> None:
    answer = await studio.upload(pictures.jpeg())
    await (await studio.app.queue("media-processing").job(answer.json()["jobId"])).remove()
    await studio.app.clock.advance(timedelta(minutes=3))
    assert await studio.app.media.service.sweep() == 1
    await studio.app.drain()
    assert (await studio.show(answer.json()["mediaId"]))["status"] == "ready"


async def test_an_upload_that_can_never_be_queued_stops_no_other(studio: Studio) -> None:
    """As a version that did not look at it before has kept it."""
    store, files = studio.app.media.store, studio.app.media.files
    for user_id in ("u" * 5_000, None):
        temp = files.new_temp()
        temp.write_bytes(pictures.jpeg(20, 20))
        row = {"id": f"kept-{bool(user_id)}", "entity_type": "default", "original_filename": "x.jpg"}
        await store.add({**row, "user_id": user_id, "temp_path": str(temp), "size": 1})
    await studio.app.clock.advance(timedelta(minutes=5))
    assert await studio.app.media.service.sweep() == 2
    await studio.app.drain()
    assert (await studio.show("kept-False"))["status"] == "ready"
    broken = await studio.show("kept-True")
    assert broken["status"] == "failed"
    assert "userId" in broken["error"]


@pytest.mark.services
async def test_a_sync_of_unknown_pictures_is_refused_whole(tmp_path: Path, s3: S3) -> None:
    async with a_studio(tmp_path, **s3.settings) as studio:
        found = await studio.made(pictures.jpeg(1200, 900))
        before = await studio.app.queue("media-sync").stats()
        for strangers, named in (
            (["nobody", "none", "nobody"], "There is no media 'nobody', 'none'."),
            ([f"n{i}" for i in range(12)], "'n8', 'n9' and 2 others."),
        ):
            wanted = {"mediaIds": [found["id"], *strangers], "operation": "upload"}
            answer = await studio.client.post("/api/admin/media/sync", json=wanted)
            assert answer.status_code == 404
            assert answer.json()["detail"].endswith(named)
        assert await studio.app.queue("media-sync").stats() == before


@pytest.mark.services
async def test_copies_in_a_bucket(tmp_path: Path, s3: S3) -> None:
    async with a_studio(tmp_path, **s3.settings) as studio:
        found = await studio.made(pictures.jpeg(1200, 900))
        news = await studio.show(found["id"])
        assert all(one["isSynced"] for one in news["variants"].values())
        bucket, files = studio.app.media.bucket, studio.public_files
        for key in files:
            copy = studio.home / "copy"
            await bucket.get(key, copy)
            assert copy.read_bytes() == (studio.home / "public" / "uploads" / key).read_bytes()
        again = {"mediaIds": [found["id"]], "operation": "upload", "deleteSource": True, "priority": 9}
        assert (await studio.client.post("/api/admin/media/sync", json=again)).json()["queued"] == 1
        await studio.app.drain()
        assert studio.public_files == []
        shown = await studio.client.get(found["variants"]["w640"]["url"])
        assert shown.status_code == 302
        async with httpx2.AsyncClient() as outside:
            there = await outside.get(shown.headers["location"])
        assert (there.status_code, there.headers["content-type"]) == (200, "image/webp")
        assert urlsplit(shown.headers["location"]).port == s3.port
        refused = {"all": True, "operation": "delete"}
        await studio.client.post("/api/admin/media/sync", json=refused)
        await studio.app.drain()
        job = (await studio.client.get("/api/queues/media-sync/jobs", params={"state": "failed"})).json()[
            "jobs"
        ][0]
        assert "is only in the bucket" in job["failed_reason"]
        await studio.client.post("/api/admin/media/sync", json={"all": True, "operation": "download"})
        await studio.app.drain()
        assert studio.public_files == files
        await studio.client.delete(f"/api/admin/media/{found['id']}")
        await studio.app.clock.advance(timedelta(days=32))
        assert [await bucket.size_of(key) for key in files] == [None] * 5


async def test_a_bucket_that_is_away_is_an_outage(tmp_path: Path) -> None:
    settings = {
        "s3_bucket": "none",
        "s3_endpoint": "http://127.0.0.1:9",
        "s3_access_key_id": "a",
        "s3_secret_access_key": "b",
    }
    async with a_studio(tmp_path, **settings) as studio:
        found = await studio.made(pictures.jpeg())
        assert found["status"] == "ready"
        (job,) = (await studio.client.get("/api/queues/media-sync/jobs", params={"state": "delayed"})).json()[
            "jobs"
        ]
        assert job["attempts_made"] == 0
        await studio.client.delete(f"/api/admin/media/{found['id']}")
        late = await studio.client.post("/api/admin/media/cleanup", json={"olderThanDays": 0})
        assert (late.status_code, "can't be used" in late.json()["detail"]) == (503, True)
        assert len(studio.public_files) == 5  # the next run begins again
