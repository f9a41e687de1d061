"""The part of media in `yamchi demo`: a picture comes in and leaves in every size of its preset."""

import struct
import zlib

from yamchi.media.metrics import PROCESSING
from yamchi.media.plugin import Media
from yamchi.plugins import Stage

WIDTH, HEIGHT = 800, 600


async def play(media: Media, stage: Stage) -> None:
    file = media.files.new_temp()
    file.write_bytes(_picture())
    data = {"entityType": "company_photo", "tempPath": str(file), "originalFilename": "steppe.png"}
    job = await media.app.queue(PROCESSING).add(data, name="process")
    await stage.wait("1m")
    done = await job.refresh()
    if done.state != "completed":
        stage.say(f"the picture was not made: {done.failed_reason}")
        return
    found = await media.get(done.returned["mediaId"])
    sizes = ", ".join(f"{one.name} {one.width}×{one.height}" for one in found.variants)
    stage.say(f"a PNG of {WIDTH}×{HEIGHT} became WebP without its EXIF: {sizes}")
    stage.look(found.url_of(found.variants[0]), "the picture")


def _picture() -> bytes:
    """A sunset over the steppe, as PNG."""
    rows = b"".join(b"\0" + _row(y) for y in range(HEIGHT))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(rows))
        + _chunk(b"IEND", b"")
    )


def _row(y: int) -> bytes:
    share = y / HEIGHT
    if share > 0.66:
        return bytes((60 + y % 7, 90, 40)) * WIDTH
    return bytes((int(90 + 165 * share), int(110 + 60 * share), int(200 - 120 * share))) * WIDTH


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
