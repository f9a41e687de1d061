"""Jobs about pictures that are there: made anew from another file or from the original, whatever happens on the way."""

from pathlib import Path
from typing import Any

import pytest

from tests.media import pictures
from tests.media.conftest import Studio
from yamchi.media import service as module
from yamchi.queues.job import Job


class Handled(Job[Any]):
    """A job in the hands of a worker that is gone by now: nobody looks at how far it is."""

    async def _report(self, value: Any) -> None:
        assert value


class Crash(BaseException):
    """Nothing that a handler could catch."""


async def ask(studio: Studio, media_id: str, temp_path: Path | str = "", **options: Any) -> Job[Any]:
    """As another program does."""
    data = {"mediaId": media_id, "entityType": "company_photo", "tempPath": str(temp_path)}
    return await studio.app.queue("media-processing").add({**data, "originalFilename": "new.jpg"}, **options)


def another_file(studio: Studio, width: int = 500) -> Path:
    return pictures.write(studio.app.media.files.temp, "upload-new.jpg", pictures.jpeg(width, 400))


async def test_a_job_with_another_file_makes_the_picture_of_that(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg(1200, 900))
    file = another_file(studio)
    content = file.read_bytes()
    job = await ask(studio, found["id"], file)
    await studio.app.drain()
    assert (await job.refresh()).state == "completed"
    news = await studio.show(found["id"])
    assert (news["status"], news["width"], news["height"]) == ("ready", 500, 400)
    assert studio.app.media.files.original_of(found["id"]).read_bytes() == content
    assert studio.temp_files == []


async def test_a_job_without_a_file_makes_it_anew_from_the_original(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg(1200, 900))
    (studio.home / "media.yaml").write_text("company_photo: {sizes: [{name: w50, width: 50}]}\n")
    service = studio.app.media.service
    service.presets = service.tasks.presets = module.Presets(studio.home)  # as after a restart
    await ask(studio, found["id"])
    await studio.app.drain()
    news = await studio.show(found["id"])
    assert (list(news["variants"]), news["width"]) == (["w50"], 1200)


async def test_a_picture_that_failed_takes_the_file_of_the_next_job(studio: Studio) -> None:
    failed = await studio.made(pictures.jpeg()[:3000])
    assert failed["status"] == "failed"
    await ask(studio, failed["id"], another_file(studio))
    await studio.app.drain()
    news = await studio.show(failed["id"])
    assert (news["status"], news["error"], news["width"]) == ("ready", None, 500)


async def test_a_file_that_is_no_picture_leaves_it_what_it_was(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg(1200, 900))
    before = studio.app.media.files.original_of(found["id"]).read_bytes()
    await ask(studio, found["id"], pictures.write(studio.app.media.files.temp, "upload-x", b"rotten"))
    await studio.app.drain()
    news = await studio.show(found["id"])
    assert (news["status"], news["variants"]) == ("ready", found["variants"])
    assert "is not a picture" in news["error"]
    assert studio.app.media.files.original_of(found["id"]).read_bytes() == before
    assert studio.temp_files == []


@pytest.mark.parametrize("point", ["media.taken", "media.written", "media.saved"])
async def test_a_crash_on_the_way_and_the_same_job_again(
    studio: Studio, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    found = await studio.made(pictures.jpeg(1200, 900))
    file = another_file(studio)
    content = file.read_bytes()
    job = await ask(studio, found["id"], file, delay=3600)

    def crash(here: str) -> None:
        if here == point:
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(module, "fault_point", crash)
        with pytest.raises(Crash):
            await studio.app.media.service.handle(typed(job))
    await studio.app.media.service.handle(typed(job))
    news = await studio.show(found["id"])
    assert (news["status"], news["error"], news["width"]) == ("ready", None, 500)
    assert studio.app.media.files.original_of(found["id"]).read_bytes() == content


async def test_what_was_begun_from_the_file_before_does_not_come_back(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await studio.made(pictures.jpeg(1200, 900))
    service, others = studio.app.media.service, [await ask(studio, found["id"], another_file(studio))]
    make = studio.app.media.children.make

    async def slowly(*work: Any) -> Any:
        made = await make(*work)
        if others:
            await service.handle(typed(others.pop()))
        return made

    monkeypatch.setattr(studio.app.media.children, "make", slowly)
    slow = await ask(studio, found["id"], delay=3600)
    with pytest.raises(module.Retryable, match="got another file meanwhile"):
        await service.handle(typed(slow))
    assert (await studio.show(found["id"]))["width"] == 500


def typed(job: Job[Any]) -> Job[Any]:
    """As a handler gets it."""
    data = module.MediaProcessingJobData.model_validate(job.data)
    return Handled(job.queue, job.record, data=data)
