"""Copies from a bucket: whole, safe on the disk, and not in each other's way. S3 itself is in tests/media."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.services.webserver import Response, WebService

from yamchi.errors import Outage
from yamchi.storage.bucket import Bucket, BucketSettings

PARTS = [b"one ", b"two ", b"three"]


class Slow(Bucket):
    """A bucket whose objects come part by part, as slowly as others let it."""

    async def open(self, key: str) -> AsyncIterator[bytes]:
        return self._slowly()

    async def _slowly(self) -> AsyncIterator[bytes]:
        for part in PARTS:
            await asyncio.sleep(0)
            yield part


async def test_two_copies_of_one_object_at_once(tmp_path: Path) -> None:
    bucket, file = Slow("pictures", BucketSettings(None, {})), tmp_path / "a.webp"
    await asyncio.gather(*(bucket.get("a.webp", file) for _ in range(5)))
    assert file.read_bytes() == b"".join(PARTS)
    assert os.listdir(tmp_path) == ["a.webp"]


async def test_a_copy_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, synced = tmp_path / "a.webp", list[tuple[str, bool]]()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").resolve().name, file.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    await Slow("pictures", BucketSettings(None, {})).get("a.webp", file)
    (first, was_there), (second, is_there) = synced
    assert (first.startswith("a.webp.") and first.endswith(".part"), was_there) == (True, False)
    assert (second, is_there) == (tmp_path.name, True)


class WithoutBuckets(WebService):
    """S3 in the name of somebody who misspelled the bucket, or has not made it yet."""

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Response:
        said = (
            b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"
        )
        return Response(404, b"" if method == "HEAD" else said, {"content-type": "application/xml"})


@pytest.fixture
def misspelled() -> Iterator[Bucket]:
    with WithoutBuckets() as server:
        settings = {"s3_endpoint": server.origin, "s3_access_key_id": "a", "s3_secret_access_key": "b"}
        yield Bucket("picturse", BucketSettings(None, settings))


@pytest.mark.parametrize("asked", ["put", "put_once", "get", "delete", "ping"])
async def test_a_bucket_that_is_not_there_is_said(misspelled: Bucket, tmp_path: Path, asked: str) -> None:
    """And waited for, as wrong credentials are: nothing is lost meanwhile, and nothing counts as deleted."""
    file = tmp_path / "a.webp"
    file.write_bytes(b"picture")
    calls = {
        "put": lambda: misspelled.put("a.webp", file, "image/webp"),
        "put_once": lambda: misspelled.put_once("a.webp", file, "image/webp"),
        "get": lambda: misspelled.get("a.webp", tmp_path / "copy"),
        "delete": lambda: misspelled.delete(["a.webp"]),
        "ping": misspelled.ping,
    }
    with pytest.raises(Outage, match=r"The bucket picturse can't be used: .*NoSuchBucket"):
        await calls[asked]()
