"""Watermarks come from strangers, too: a child process reads them. And they can be taken off again."""

from pathlib import Path

import pytest

from tests.media import pictures
from tests.media.conftest import Studio, a_studio
from tests.media.test_hostile import BROKEN_DECODER
from yamchi.media.store import UnknownMedia


async def add(studio: Studio, content: bytes) -> tuple[int, str]:
    answer = await studio.client.post("/api/admin/watermarks", files={"file": ("logo.png", content)})
    return answer.status_code, answer.json().get("detail", "")


async def test_hostile_watermarks_are_refused(studio: Studio) -> None:
    hostile = {
        pictures.endless_gif(): "frames; 500 are the most",
        pictures.bomb(): "50000 × 50000 pixels",
        b"hello, I am a logo": "is not a picture",
        pictures.png(40, 40)[:30]: "damaged",
    }
    for content, sentence in hostile.items():
        status, said = await add(studio, content)
        assert (status, sentence in said) == (422, True), said
    assert studio.temp_files == []
    assert not list((studio.home / "var" / "media" / "watermarks").iterdir())


async def test_a_watermark_is_taken_off_again(studio: Studio) -> None:
    plain = await studio.made(pictures.jpeg(1200, 900))
    logo = {"file": ("logo.png", pictures.white(80, 40))}
    await studio.client.post("/api/admin/watermarks", files=logo, data={"id": "wm"})
    url = f"/api/admin/media/{plain['id']}/watermark"
    await studio.client.post(url, json={"watermarkId": "wm"})
    await studio.app.drain()
    marked = await studio.show(plain["id"])
    assert marked["variants"] != plain["variants"]
    assert (await studio.client.delete(url)).status_code == 202
    await studio.app.drain()
    again = await studio.show(plain["id"])
    assert (again["watermark"], again["variants"]) == (None, plain["variants"])
    assert (await studio.client.delete("/api/admin/media/none/watermark")).status_code == 404


@pytest.mark.parametrize("variants", [None, "all", ["all"]])
async def test_all_variants_get_it_also_by_name(studio: Studio, variants: object) -> None:
    """`all` is what other programs write where they leave nothing out; on the queue, too."""
    plain = await studio.made(pictures.jpeg(1200, 900))
    logo = {"file": ("logo.png", pictures.white(80, 40))}
    await studio.client.post("/api/admin/watermarks", files=logo, data={"id": "wm"})
    wanted = {"watermarkId": "wm", "variants": variants}
    answer = await studio.client.post(f"/api/admin/media/{plain['id']}/watermark", json=wanted)
    assert answer.status_code == 202, answer.text
    await studio.app.drain()
    marked = await studio.show(plain["id"])
    assert all(marked["variants"][name]["url"] != one["url"] for name, one in plain["variants"].items())
    job = await studio.app.queue("watermark").add({**wanted, "mediaId": plain["id"]}, name="apply")
    await studio.app.drain()
    assert (await studio.app.queue("watermark").job(job.id)).state == "completed"


async def test_a_catalogue_with_unknown_pictures_is_not_marked(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg(1200, 900))
    logo = {"file": ("logo.png", pictures.white(80, 40))}
    await studio.client.post("/api/admin/watermarks", files=logo, data={"id": "wm"})
    with pytest.raises(UnknownMedia, match="There is no media 'nobody'"):
        await studio.app.media.watermarks.apply_batch([found["id"], "nobody"], "wm")
    assert await studio.app.queue("watermark").jobs() == []


async def test_a_watermark_that_crashes_the_decoder_crashes_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures.write(tmp_path, "pyvips.py", BROKEN_DECODER.encode())
    monkeypatch.syspath_prepend(str(tmp_path))
    async with a_studio(tmp_path / "home") as studio:
        status, said = await add(studio, pictures.jpeg() + b"CRASH")
        assert (status, "was killed by SIGSEGV" in said) == (422, True), said
        assert (await add(studio, pictures.jpeg()))[0] == 201
        assert studio.temp_files == []


async def test_what_can_never_be_marked_is_said_at_once(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg(1200, 900))
    logo = {"file": ("logo.png", pictures.white(80, 40))}
    await studio.client.post("/api/admin/watermarks", files=logo, data={"id": "wm"})
    url = f"/api/admin/media/{found['id']}/watermark"

    async def asked(**how: object) -> tuple[int, str]:
        answer = await studio.client.post(url, json={"watermarkId": "wm", **how})
        return answer.status_code, answer.json().get("detail", "")

    status, said = await asked(variants=["w640", "huge"])
    assert (status, "company_photo has no 'huge'; there are: w1920, w1280" in said) == (422, True), said
    assert (await asked(variants=[]))[0] == 422
    assert (await asked(mediaId="another"))[0] == 422
    assert (await asked(mediaId=found["id"], variants=["w640"]))[0] == 202
    await studio.app.drain()
    marked = (await studio.show(found["id"]))["watermark"]
    foreign = {"mediaId": found["id"], "watermarkId": "wm", "variants": ["huge"]}
    job = await studio.app.queue("watermark").add(foreign)
    await studio.app.drain()
    assert "has no 'huge'" in ((await job.refresh()).failed_reason or "")
    assert (await studio.show(found["id"]))["watermark"] == marked
    await studio.client.delete(f"/api/admin/media/{found['id']}")
    status, said = await asked()
    assert (status, "is soft_deleted" in said) == (409, True), said
