"""Pictures that go with messages: named on the queue, read when the message is sent."""

from pathlib import Path
from typing import Any

import pytest

from tests.media.conftest import Studio, a_studio
from tests.media.pictures import jpeg
from tests.services.s3 import S3

TASK = {"to": "a@example.com", "subject": "Your picture", "text": "Here it is."}


async def failure(studio: Studio, *references: str) -> str:
    job = await studio.app.queue("email_queue").add({**TASK, "attachments": list(references)}, name="email")
    await studio.app.drain()
    failed = await job.refresh()
    return f"{failed.state} after {failed.attempts_made}: {failed.failed_reason}"


async def attached(studio: Studio, media_id: str) -> list[Any]:
    await studio.app.queue("email_queue").add({**TASK, "attachments": [f"media:{media_id}"]}, name="email")
    await studio.app.drain()
    (letter,) = (await studio.client.get("/api/v1/mailbox")).json()
    shown = (await studio.client.get(f"/api/v1/mailbox/{letter['message_id']}")).json()
    return list(shown["attachments"])


async def test_the_largest_variant_goes_with_the_letter(studio: Studio) -> None:
    picture = await studio.made(jpeg())
    assert await attached(studio, picture["id"]) == ["photo.webp"]


async def test_what_can_not_be_attached(tmp_path: Path) -> None:
    async with a_studio(tmp_path, attachments_max_bytes=50) as studio:
        picture = await studio.made(jpeg())
        assert "has 50 bytes or less: send its link instead" in await failure(
            studio, f"media:{picture['id']}"
        )
        assert (await failure(studio, "media:nobody")).startswith("failed after 1: ")
        await studio.client.delete(f"/api/admin/media/{picture['id']}")
        assert "soft_deleted" in await failure(studio, f"media:{picture['id']}")


@pytest.mark.services
async def test_one_that_is_only_in_the_bucket(tmp_path: Path, s3: S3) -> None:
    async with a_studio(tmp_path, **s3.settings) as studio:
        picture = await studio.made(jpeg())
        await studio.app.drain()
        for file in (tmp_path / "public/uploads").rglob("*.webp"):
            file.unlink()
        assert await attached(studio, picture["id"]) == ["photo.webp"]
