"""Pictures for tests: good ones, strange ones, and files that only pretend."""

import struct
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=8)
def jpeg(width: int = 640, height: int = 480, orientation: int | None = None, quality: int = 85) -> bytes:
    """A photo with a red left upper corner, GPS in its EXIF, and the orientation a camera would write."""
    vips = _vips()
    picture = _gradient(width, height)
    corner = vips.Image.black(width // 4, height // 4, bands=3).linear(1, [220, 20, 20])
    picture = picture.insert(corner, 0, 0).cast("uchar").copy(interpretation="srgb")
    picture.set_type(vips.GValue.gstr_type, "exif-ifd3-GPSLatitude", "43/1 14/1 0/1")
    picture.set_type(vips.GValue.gstr_type, "exif-ifd0-Model", "Spy camera")
    picture.set_type(vips.GValue.blob_type, "xmp-data", b"<x:xmpmeta>secret</x:xmpmeta>")
    if orientation:
        picture.set_type(vips.GValue.gint_type, "orientation", orientation)
    return bytes(picture.jpegsave_buffer(Q=quality))


@lru_cache(maxsize=4)
def scene(width: int = 1600, height: int = 1200, orientation: int | None = None) -> bytes:
    """Hills behind one another below an evening sky: something to look at in screenshots."""
    vips = _vips()
    place = vips.Image.xyz(width, height)
    x, y = place[0] / width, place[1] / height
    picture = (y * 60 + 40).bandjoin([y * 110 + 70, 170 - y * 60])
    picture = (((x - 0.7) ** 2 + ((y - 0.32) * height / width) ** 2) < 0.006).ifthenelse(
        [255, 214, 140], picture
    )
    for level, waves, phase, color in (
        (0.5, 2.1, 20, [120, 96, 120]),
        (0.62, 3.3, 140, [84, 78, 104]),
        (0.76, 1.7, 250, [52, 58, 78]),
    ):
        ridge = (x * 360 * waves + phase).sin() * 0.07 + (x * 360 * waves * 3.7).sin() * 0.012 + level
        picture = (y > ridge).ifthenelse(color, picture)
    picture = picture.cast("uchar").copy(interpretation="srgb")
    if orientation:
        picture.set_type(vips.GValue.gint_type, "orientation", orientation)
    return bytes(picture.jpegsave_buffer(Q=88))


def logo(width: int = 240, height: int = 120) -> bytes:
    """A white ring and a bar, on nothing."""
    vips = _vips()
    place = vips.Image.xyz(width, height)
    x, y = place[0], place[1]
    far = ((x - height / 2) ** 2 + (y - height / 2) ** 2) ** 0.5
    ring = (far < height * 0.46) & (far > height * 0.3)
    bar = (x > height * 1.1) & (x < width - 8) & (y > height * 0.38) & (y < height * 0.62)
    white = vips.Image.black(width, height, bands=3).linear(1, [255] * 3)
    return bytes(white.bandjoin(ring | bar).cast("uchar").copy(interpretation="srgb").pngsave_buffer())


def png(width: int, height: int, *, alpha: bool = False) -> bytes:
    picture = _gradient(width, height).cast("uchar")
    return bytes((picture.addalpha() if alpha else picture).pngsave_buffer())


def plain(width: int, height: int) -> bytes:
    """One color, so that a watermark is seen anywhere."""
    return bytes(
        _vips().Image.black(width, height, bands=3).linear(1, [90, 110, 130]).cast("uchar").pngsave_buffer()
    )


def white(width: int, height: int) -> bytes:
    return bytes(
        _vips().Image.black(width, height, bands=3).linear(1, [255] * 3).cast("uchar").pngsave_buffer()
    )


def wide_gamut() -> bytes:
    """(200, 100, 50) in the colors of a phone's screen, which the file names."""
    picture = _vips().Image.black(200, 200, bands=3).linear(1, [200, 100, 50]).cast("uchar")
    return bytes(picture.copy(interpretation="srgb").jpegsave_buffer(Q=95, profile="p3"))


def cmyk(width: int = 300, height: int = 200) -> bytes:
    return bytes(
        _gradient(width, height)
        .cast("uchar")
        .copy(interpretation="srgb")
        .colourspace("cmyk")
        .jpegsave_buffer()
    )


def red_ink(width: int = 300, height: int = 200) -> bytes:
    """Red in CMYK, without a profile."""
    red = _vips().Image.black(width, height).new_from_image([220, 30, 30])
    ink = red.copy(interpretation="srgb").icc_transform("cmyk", input_profile="srgb")
    return bytes(ink.jpegsave_buffer(keep="none"))


def half_transparent(width: int, height: int) -> bytes:
    """Solid red, and beside it green that is transparent."""
    image = _vips().Image.black(width // 2, height, bands=4)
    halves = [
        (image + color).cast("uchar").copy(interpretation="srgb")
        for color in ([255, 0, 0, 255], [0, 255, 0, 0])
    ]
    return bytes(halves[0].join(halves[1], "horizontal").pngsave_buffer())


def deep(width: int = 300, height: int = 200) -> bytes:
    """Sixteen bits a color."""
    return bytes(
        (_gradient(width, height) * 257).cast("ushort").copy(interpretation="rgb16").pngsave_buffer()
    )


def animation(frames: int = 4, width: int = 60, height: int = 40) -> bytes:
    vips = _vips()
    colors = [[40 * number % 255, 90, 200] for number in range(frames)]
    shots = [vips.Image.black(width, height, bands=3).linear(1, color).cast("uchar") for color in colors]
    joined = vips.Image.arrayjoin(shots, across=1).copy(interpretation="srgb")
    joined.set_type(vips.GValue.gint_type, "page-height", height)
    joined.set_type(vips.GValue.array_int_type, "delay", [100] * frames)
    return bytes(joined.gifsave_buffer())


def half_transparent_animation(width: int, height: int, frames: int = 2) -> bytes:
    """Frames of what is half solid red, half nothing."""
    vips = _vips()
    shots = [open_png(half_transparent(width, height))] * frames
    joined = vips.Image.arrayjoin(shots, across=1).copy(interpretation="srgb")
    joined.set_type(vips.GValue.gint_type, "page-height", height)
    return bytes(joined.webpsave_buffer(lossless=True))


def turned_animation(orientation: int = 6) -> bytes:
    """An animated WebP that says how a camera was held."""
    vips = _vips()
    picture = vips.Image.gifload_buffer(animation(), n=-1)
    picture = picture.extract_band(0, n=3).copy()
    picture.set_type(vips.GValue.gint_type, "orientation", orientation)
    return bytes(picture.webpsave_buffer(keep="exif"))


def bomb(width: int = 50_000, height: int = 50_000) -> bytes:
    """A PNG of a few hundred bytes that says it has billions of pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 10_000)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def endless_gif(frames: int = 100_000) -> bytes:
    """So many frames of one pixel."""
    head = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    frame = b"\x2c\0\0\0\0\1\0\1\0\0\2\2\x44\1\0"
    return head + frame * frames + b"\x3b"


SVG = b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]><svg xmlns="http://www.w3.org/2000/svg">&x;</svg>'
HTML = b"<html><script>alert(1)</script></html>"


def polyglot() -> bytes:
    """A picture with a page behind it."""
    return jpeg() + HTML


def fields_of(content: bytes) -> dict[str, Any]:
    picture = open_any(content)
    return {name: picture.get(name) for name in picture.get_fields()}


def open_any(content: bytes) -> Any:
    return _vips().Image.webpload_buffer(content, n=-1)


def open_jpeg(content: bytes) -> Any:
    return _vips().Image.jpegload_buffer(content)


def open_png(content: bytes) -> Any:
    return _vips().Image.pngload_buffer(content)


def corner_of(content: bytes) -> list[float]:
    """The color of the left upper corner."""
    return list(open_any(content).getpoint(3, 3)[:3])


def _gradient(width: int, height: int) -> Any:
    vips = _vips()
    across = vips.Image.xyz(width, height)
    x, y = across[0] * (255 / max(width - 1, 1)), across[1] * (255 / max(height - 1, 1))
    return x.bandjoin([y, (x + y) / 2])


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _vips() -> Any:
    import pyvips

    return pyvips


def write(folder: Path, name: str, content: bytes) -> Path:
    file = folder / name
    file.write_bytes(content)
    return file
