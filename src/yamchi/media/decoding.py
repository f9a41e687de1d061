"""Reading a stranger's file: by the one loader that fits, after its size was looked at, and only as large as it is needed.

Every loader of libvips is blocked but four; size, frames and pixels are checked before anything is decoded; orientation is applied
and colors become sRGB.
"""

import logging
import math
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yamchi.errors import MissingExtra
from yamchi.media.formats import JPEG, READABLE, WEBP, BadFile, ImageFormat, sniff_file
from yamchi.media.presets import Preset, Size

if TYPE_CHECKING:
    import pyvips

MOST_FRAMES = 500
LONGEST_SIDE = 16_383
"""WebP has no longer one, and AVIF hardly: what is longer, such as a screenshot of a whole page, is made smaller."""
JPEG_SHRINKS = (1, 2, 4, 8)
"""How many times smaller a JPEG can be made while it is decoded."""
LOADERS = ("VipsForeignLoadJpeg", "VipsForeignLoadPng", "VipsForeignLoadWebp", "VipsForeignLoadNsgif")


@cache
def vips() -> Any:
    """libvips with everything blocked that reads a format nobody asked for."""
    os.environ.setdefault("VIPS_CONCURRENCY", "1")  # a process for each core; more threads add nothing
    os.environ.setdefault("VIPS_WARNING", "0")
    logging.getLogger("pyvips").setLevel(logging.WARNING)  # else a hundred lines a picture
    try:
        import pyvips
    except ImportError as error:
        raise MissingExtra("media", "Working on pictures") from error
    pyvips.operation_block_set("VipsForeignLoad", True)
    for name in LOADERS:
        pyvips.operation_block_set(name, False)
    pyvips.cache_set_max(0)
    return pyvips


def open_header(source: Path, found: ImageFormat) -> "pyvips.Image":
    """What the file says of itself; no pixel is decoded yet."""
    assert found in READABLE
    load = getattr(vips().Image, found.loader)
    return load(
        str(source), **({"n": -1} if found.may_be_animated else {}), access="sequential", fail_on="error"
    )


def read_size(source: Path, max_pixels: int) -> tuple[int, int]:
    """How large a picture is, without decoding it."""
    found = sniff_file(source)
    try:
        header = open_header(source, found)
    except vips().Error as error:
        raise damaged(error) from error
    _frames_in(header)
    width, height = frame_size(header)
    if width * height > max_pixels:
        raise _too_many_pixels(width, height, max_pixels)
    return width, height


def count_frames(header: "pyvips.Image", preset: Preset, max_pixels: int, found: ImageFormat) -> int:
    """How many frames to keep; refuses what is too large before it is decoded."""
    frames = _frames_in(header)
    width, height = frame_size(header)
    limit = min(max_pixels, preset.max_pixels or max_pixels)
    if width * height > limit:
        raise _too_many_pixels(width, height, limit)
    if width < preset.min_width or height < preset.min_height:
        raise BadFile(
            f"The picture has {width} × {height} pixels; at least {preset.min_width} × {preset.min_height} are needed."
        )
    if frames > 1 and (not preset.animated or not found.may_be_animated):
        return 1
    if frames > 1 and width * height * frames > limit:
        raise BadFile(
            f"The animation has {frames} frames of {width} × {height} pixels; {limit:,} pixels are the most in all."
        )
    return frames


def _frames_in(header: "pyvips.Image") -> int:
    frames: int = header.get("n-pages") if "n-pages" in header.get_fields() else 1
    if frames > MOST_FRAMES:
        raise BadFile(f"The picture has {frames} frames; {MOST_FRAMES} are the most.")
    return frames


def frame_size(header: "pyvips.Image") -> tuple[int, int]:
    """Width and height of one frame as they are stored; the frames of an animation lie below each other."""
    return header.width, header.get_page_height()


def upright_size(header: "pyvips.Image", frames: int) -> tuple[int, int]:
    """Width and height once the picture is turned as its camera meant it."""
    width, height = frame_size(header)
    return (height, width) if frames == 1 and _orientation(header) >= 5 else (width, height)


def _orientation(header: "pyvips.Image") -> int:
    """1 is upright, and so is what no camera writes; from 5 to 8 the picture lies on its side."""
    found = header.get("orientation") if "orientation" in header.get_fields() else 1
    return int(found) if found in range(1, 9) else 1


def decode(
    source: Path, found: ImageFormat, header: "pyvips.Image", frames: int, preset: Preset
) -> "pyvips.Image":
    """As large as the largest variant needs, upright and in sRGB, decoded once into memory."""
    width, height = upright_size(header, frames)
    share = max(_share(size, width, height) for size in preset.sizes)
    if frames > 1:
        return _decode_frames(source, frames, math.ceil(width * share), math.ceil(height * share))
    image = _open_still(source, found, share)
    across, down = frame_size(header)
    small = scaled(image, max(round(across * share), 1), max(round(down * share), 1))
    image = _as_srgb(small).copy_memory()
    return image if _orientation(header) == 1 else image.autorot().copy_memory()


def _open_still(source: Path, found: ImageFormat, share: float) -> "pyvips.Image":
    """The first frame, as small as its decoder can make it by itself while it is large enough."""
    options: dict[str, Any] = {}
    if found is JPEG:
        options = {"shrink": max(shrink for shrink in JPEG_SHRINKS if shrink * share <= 1)}
    elif found is WEBP:
        options = {"scale": share}
    load = getattr(vips().Image, found.loader)
    return load(str(source), access="sequential", fail_on="error", **options)


def _decode_frames(source: Path, frames: int, width: int, height: int) -> "pyvips.Image":
    """An animation's frames below each other; orientation means nothing there."""
    image = vips().Image.thumbnail(
        f"{source}[n={frames}]", width, height=height, size="down", no_rotate=True, fail_on="error"
    )
    image = _as_srgb(image).copy_memory()
    image.remove("orientation")
    return image


def scaled(image: "pyvips.Image", width: int, height: int) -> "pyvips.Image":
    """With the cubic kernel: Lanczos takes a tenth longer and makes files 3 % larger, for half a decibel at most.

    What is transparent must not bleed into what is not: there colors count as much as they are solid.
    """
    if (image.width, image.height) == (width, height):
        return image
    solid = image.premultiply() if image.hasalpha() else image
    small = solid.resize(width / image.width, vscale=height / image.height, kernel="cubic")
    return small.unpremultiply().cast(image.format) if image.hasalpha() else small


def _share(size: Size, width: int, height: int) -> float:
    """How much of the original's size a variant needs; nothing is made larger than it is."""
    across, down = size.width / width, (size.height or LONGEST_SIDE) / height
    return min(max(across, down) if size.fit == "cover" else min(across, down), 1.0)


def _as_srgb(image: "pyvips.Image") -> "pyvips.Image":
    """Eight bits a color, in sRGB. After the resize: of all pixels it takes longer than all the rest."""
    if image.interpretation in ("rgb16", "grey16"):
        image = image.colourspace("srgb" if image.interpretation == "rgb16" else "b-w")
    is_cmyk = image.interpretation == "cmyk"
    if is_cmyk or "icc-profile-data" in image.get_fields():
        without = {"input_profile": "cmyk"} if is_cmyk else {}
        image = image.icc_transform("srgb", embedded=True, intent="relative", **without)
    return image if image.interpretation == "srgb" else image.colourspace("srgb")


def damaged(error: Exception) -> BadFile:
    """What libvips said, as one sentence: the line in which the decoder speaks, if there is one."""
    lines = [line for line in str(error).strip().splitlines() if line]
    named = [line for line in lines if ": " in line]
    reason = next(iter(named or lines), "no reason given").strip()[:200].rstrip(".")
    return BadFile(f"The file is damaged and can't be read: {reason}")


def _too_many_pixels(width: int, height: int, limit: int) -> BadFile:
    return BadFile(f"The picture has {width} × {height} pixels; {limit:,} are the most.")
