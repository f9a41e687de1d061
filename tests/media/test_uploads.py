"""What one person may send in a day, what stays free on the disk, and where uploads are found again."""

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.exceptions import HTTPException

from tests.media import pictures
from tests.media.conftest import USER, Studio, a_studio
from tests.smalldisk import Disk
from yamchi.media.uploads import UnknownUpload, WrongOffset

OWN = f"/api/v1/users/{USER}/media"
LIMIT = 3 * 1024 * 1024
PART = {"Content-Type": "application/offset+octet-stream"}


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[Studio]:
    async with a_studio(tmp_path, media_person_bytes=LIMIT) as studio:
        token = (await studio.client.post(f"/api/v1/users/{USER}/token")).json()["token"]
        studio.client.headers["authorization"] = f"Bearer {token}"
        yield studio


async def send(studio: Studio, content: bytes) -> httpx2.Response:
    return await studio.client.post(OWN, files={"file": ("me.jpg", content, "image/jpeg")})


async def begin(studio: Studio, length: int) -> httpx2.Response:
    return await studio.client.post(f"{OWN}/tus", headers={"Upload-Length": str(length)})


async def test_a_person_may_upload_so_much_a_day(limited: Studio) -> None:
    small = pictures.jpeg(40, 30)
    answers = [await send(limited, small) for _ in range(13)]
    assert [answer.status_code for answer in answers] == [202] * 12 + [429], "each counts as 256 KB at least"
    refused = answers[-1]
    assert "more than the 3,145,728 bytes that one person may upload in a day" in refused.json()["detail"]
    wait = int(refused.headers["retry-after"])
    assert 0 < wait <= 86_400
    assert (await begin(limited, 1)).status_code == 429, "in parts it is no more"
    del limited.client.headers["authorization"]
    assert (await send(limited, small)).status_code == 202, "a backend is not counted"
    await limited.app.clock.advance(timedelta(seconds=wait))
    token = (await limited.client.post(f"/api/v1/users/{USER}/token")).json()["token"]
    limited.client.headers["authorization"] = f"Bearer {token}"
    assert (await send(limited, small)).status_code == 202, "the next day it is"


async def test_many_uploads_at_once_are_no_way_around_it(limited: Studio) -> None:
    answers = await asyncio.gather(*(begin(limited, 1024 * 1024) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] * 3 + [429] * 5


async def test_what_is_not_kept_is_not_counted(limited: Studio) -> None:
    for _ in range(5):
        assert (await send(limited, b"no picture" * 100_000)).status_code == 422
        begun = await begin(limited, LIMIT)
        assert begun.status_code == 201
        assert (await limited.client.delete(begun.headers["location"])).status_code == 204
    assert (await begin(limited, LIMIT)).status_code == 201


async def test_an_upload_whose_part_is_on_its_way_is_not_given_up(limited: Studio) -> None:
    resumable = limited.app.media.resumable
    upload = await resumable.find(await resumable.create(LIMIT, "", USER, is_counted=True), USER)

    async def parts() -> AsyncIterator[bytes]:
        yield b"first"
        with pytest.raises(WrongOffset, match="is on its way"):
            await resumable.drop(upload)
        yield b"second"

    assert await resumable.append(upload, 0, parts()) == 11
    with pytest.raises(HTTPException):
        await resumable.create(1, "", USER, is_counted=True)


async def test_a_whole_upload_is_not_given_up_while_it_is_handed_over(limited: Studio) -> None:
    """Its file would be gone under the picture, and the picture would count for nothing."""
    resumable = limited.app.media.resumable
    upload = await resumable.find(await resumable.create(LIMIT, "", USER, is_counted=True), USER)

    async def accept(file: Path) -> tuple[str, str]:
        with pytest.raises(WrongOffset, match="is on its way"):
            await resumable.drop(upload)
        assert file in limited.temp_files
        return upload.id, "job"

    done = await resumable.finish(upload, accept)
    await resumable.drop(upload)  # read before it was whole
    assert await resumable.find(upload.id, USER) == done
    with pytest.raises(HTTPException):
        await resumable.create(1, "", USER, is_counted=True)


async def test_a_whole_upload_is_handed_over_once(studio: Studio) -> None:
    resumable, taken = studio.app.media.resumable, []
    upload = await resumable.find(await resumable.create(10, "", None), None)

    async def accept(file: Path) -> tuple[str, str]:
        taken.append(file)
        await asyncio.sleep(0.1)
        return upload.id, "job"

    done = await asyncio.gather(*(resumable.finish(upload, accept) for _ in range(5)))
    assert (len(set(map(str, done))), len(taken)) == (1, 1)


async def test_no_part_is_written_of_what_was_given_up(limited: Studio) -> None:
    resumable = limited.app.media.resumable
    upload = await resumable.find(await resumable.create(LIMIT, "", USER, is_counted=True), USER)
    await resumable.drop(upload)

    async def parts() -> AsyncIterator[bytes]:
        yield b"uncounted"

    with pytest.raises(UnknownUpload):
        await resumable.append(upload, 0, parts())
    assert limited.temp_files == []


async def test_a_part_is_never_written_where_another_ended_meanwhile(
    studio: Studio, monkeypatch: Any
) -> None:
    """The other part is whole between the moment when this one opens the file and the moment when it may write."""
    resumable = studio.app.media.resumable
    upload = await resumable.find(await resumable.create(10, "", None), None)
    path = studio.app.media.files.temp_file(f"tus-{upload.id}")
    whole = Path.open

    def open_late(self: Path, *given: Any) -> Any:
        file = whole(self, *given)
        if self == path:
            with whole(path, "ab") as other:
                other.write(b"other")
        return file

    async def parts() -> AsyncIterator[bytes]:
        yield b"mine"

    monkeypatch.setattr(Path, "open", open_late)
    with pytest.raises(WrongOffset, match="The upload is at 5, not at 0"):
        await resumable.append(upload, 0, parts())


async def test_room_is_left_on_the_disk(tmp_path: Path, disk: Disk) -> None:
    tables, least = f"sqlite:///{tmp_path}/data.db", 8 * 1024 * 1024
    async with a_studio(disk.folder, database_url=tables, media_free_bytes=least) as studio:
        sent = (await studio.upload(pictures.jpeg(400, 300))).json()
        begun = await studio.client.post("/api/admin/media/tus", headers={"Upload-Length": "10"})
        disk.fill(leave=least - 4096)
        refused = await studio.upload(pictures.jpeg(400, 300))
        assert (refused.status_code, "The disk is nearly full" in refused.json()["detail"]) == (503, True)
        part = await studio.client.patch(
            begun.headers["location"], content=b"x", headers={**PART, "Upload-Offset": "0"}
        )
        assert part.status_code == 503
        await studio.app.drain()
        job = await studio.app.queue("media-processing").job(sent["jobId"])
        assert (job.state, job.attempts_made) == ("delayed", 0), "the work waits, too"
        disk.make_room()
        await studio.app.clock.advance(timedelta(seconds=15))
        assert (await studio.show(sent["mediaId"]))["status"] == "ready"


async def test_uploads_are_found_where_the_folder_is_now(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    tables = f"sqlite:///{tmp_path}/data.db"
    async with a_studio(before, database_url=tables) as studio:
        sent = (await studio.upload(pictures.jpeg())).json()
        spoiled = (await studio.upload(pictures.jpeg(2000, 1500)[:9000])).json()
    shutil.move(before, after)
    async with a_studio(after, database_url=tables) as studio:
        await studio.app.clock.advance(timedelta(minutes=3))
        assert await studio.app.media.service.sweep() == 2
        await studio.app.drain()
        assert (await studio.show(sent["mediaId"]))["status"] == "ready"
        failed = await studio.show(spoiled["mediaId"])
        assert (failed["status"], "damaged" in failed["error"]) == ("failed", True)
        assert studio.temp_files == []


async def test_an_upload_in_parts_that_will_be_refused_is_not_begun(studio: Studio) -> None:
    (studio.home / "media.yaml").write_text("tiny: {sizes: [{name: a, width: 9}], max_bytes: 1000}\n")

    async def begin(length: int = 1001, **said: str) -> tuple[int, str]:
        pairs = [f"{name} {base64.b64encode(value.encode()).decode()}" for name, value in said.items()]
        headers = {"Upload-Length": str(length), "Upload-Metadata": ",".join(pairs)}
        answer = await studio.client.post("/api/admin/media/tus", headers=headers)
        return answer.status_code, answer.json()["detail"] if answer.content else ""

    assert (await begin(entityType="../../etc")) == (
        404,
        "There is no preset for entityType '../../etc'; there are: company_photo, default, tiny, user_avatar.",
    )
    assert (await begin(entityType="tiny"))[0] == 413
    assert (await begin(entityType="tiny", metadata="[1]"))[0] == 422
    assert studio.temp_files == []
    assert (await begin(1000, entityType="tiny"))[0] == 201
