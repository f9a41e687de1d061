"""Forms as they come in: the file on the disk and never in memory; what is not a form is refused with one sentence."""

import tempfile
import tracemalloc
from collections.abc import AsyncIterator

import httpx2
import pytest

from tests.media import pictures
from tests.media.conftest import Studio

URL = "/api/admin/media/upload-async"
KIND = {"content-type": "multipart/form-data; boundary=b"}
LARGE, CHUNK = 30_000_000, 64_000


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    return b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % (
        name.encode(),
        file.encode(),
        value,
    )


async def send(studio: Studio, body: bytes) -> httpx2.Response:
    return await studio.client.post(URL, content=body, headers=KIND)


async def test_a_large_file_is_never_in_memory(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")  # which may be memory on a user's machine
    written: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        yield part("file", pictures.jpeg(), "large.jpg")[:-2]
        for _ in range(LARGE // CHUNK):
            yield b"x" * CHUNK
            written.append(sum(path.stat().st_size for path in studio.temp_files))
        yield b"\r\n" + part("entityType", b"company_photo") + b"--b--\r\n"

    await studio.client.get("/healthz")
    tracemalloc.start()
    answer = await studio.client.post(URL, content=body(), headers=KIND)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer.status_code == 202, answer.text
    found = await studio.show(answer.json()["mediaId"])
    assert (found["size"], found["entityType"]) == (
        len(pictures.jpeg()) + LARGE // CHUNK * CHUNK,
        "company_photo",
    )
    assert written[-1] > LARGE / 2  # on the disk while it comes
    assert peak < LARGE / 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is not whole"),
        (b"no form at all", "is not multipart/form-data"),
        (part("file", pictures.jpeg(), "a.jpg"), "is not whole"),
        (part("file", b"text") + b"--b--\r\n", "file: send the picture"),
        (part("photo", pictures.jpeg(), "a.jpg") + b"--b--\r\n", "file: send one file"),
        (part("file", pictures.jpeg(), "a") * 2 + b"--b--\r\n", "file: send one file"),
        (part("metadata", b"x" * 70_000) + b"--b--\r\n", "more than 65,536 bytes"),
        (b"".join(part(f"f{n}", b"x") for n in range(11)) + b"--b--\r\n", "at most 10 fields"),
        (part("f", b"x") * 11 + b"--b--\r\n", "at most 10 fields"),
        (part("file", pictures.jpeg(), "a" * 5_000) + b"--b--\r\n", "is not multipart/form-data"),
        (
            part("file", pictures.jpeg(), "a") + part("metadata", b"[1]") + b"--b--\r\n",
            "metadata: it should be",
        ),
    ],
    ids=[
        "nothing",
        "text",
        "cut off",
        "no file",
        "other name",
        "two",
        "long",
        "many",
        "same",
        "header",
        "metadata",
    ],
)
async def test_what_is_no_form(studio: Studio, body: bytes, said: str) -> None:
    answer = await send(studio, body)
    assert answer.status_code == 422, answer.text
    assert said in answer.json()["detail"]
    assert studio.temp_files == []


async def test_fields_may_come_after_the_file(studio: Studio) -> None:
    body = part("file", pictures.jpeg(), "плакат.jpg") + part("entityType", b"user_avatar") + b"--b--\r\n"
    answer = await send(studio, body)
    await studio.app.drain()
    found = await studio.show(answer.json()["mediaId"])
    assert (found["originalFilename"], found["entityType"], found["status"]) == (
        "плакат.jpg",
        "user_avatar",
        "ready",
    )
