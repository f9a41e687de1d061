"""From a stranger's file to clean variants: decoded once, without anything but its pixels.

Runs in child processes. All metadata is dropped. A variant is written under a temporary name and renamed to one with its content's
hash, so that a crash leaves no half file and a changed picture is a new address.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from yamchi.media.decoding import (
    LONGEST_SIDE,
    count_frames,
    damaged,
    decode,
    open_header,
    upright_size,
    vips,
)
from yamchi.media.formats import sniff_file
from yamchi.media.overlay import Mark, put_over
from yamchi.media.presets import Output, Preset, Size
from yamchi.media.thumbhash import thumbhash

if TYPE_CHECKING:
    import pyvips

THUMB_SIDE = 32
UNFINISHED = ".part"
DECODED, WRITTEN = 30, 95
"""Percent of the work: when the picture is decoded, and when its last variant is written."""

Progress = Callable[[dict[str, Any]], object]
"""Hears how far the work is: `percent`, and what is known of the picture by then."""


class Task(BaseModel):
    """What a child is asked for."""

    source: Path
    folder: Path
    """Where variants go; nothing is written anywhere else."""
    stem: str = Field(max_length=128, pattern=r"^[\w-]+$")
    preset: Preset
    max_pixels: int
    mark: Mark | None = None
    focus: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """A file that was made."""

    name: str
    file: str
    type: str
    width: int
    height: int
    size: int
    hash: str


@dataclass(slots=True)
class Made:
    """What became of a file."""

    type: str
    width: int
    height: int
    frames: int
    hash: str
    placeholder: str
    variants: list[Variant] = field(default_factory=list)


def process(task: Task, tell: Progress = lambda news: None) -> Made:
    """All variants of a file. `BadFile` says what is wrong with it, in one sentence."""
    found = sniff_file(task.source)
    try:
        header = open_header(task.source, found)
        frames = count_frames(header, task.preset, task.max_pixels, found)
        base = decode(task.source, found, header, frames, task.preset)
        width, height = upright_size(header, frames)
        made = Made(
            type=found.type,
            width=width,
            height=height,
            frames=frames,
            hash=hash_of(task.source),
            placeholder=_placeholder(base, frames),
        )
        tell({"percent": DECODED, "placeholder": made.placeholder, "width": width, "height": height})
        for done, size in enumerate(sorted(task.preset.sizes, key=lambda one: -one.width), start=1):
            made.variants += _variants(base, size, task, frames)
            tell({"percent": DECODED + (WRITTEN - DECODED) * done // len(task.preset.sizes)})
    except vips().Error as error:
        raise damaged(error) from error
    return made


def _variants(base: "pyvips.Image", size: Size, task: Task, frames: int) -> list[Variant]:
    """One size, in each format."""
    picture = _resized(base, size, task, frames)
    if task.mark and task.mark.is_for(size.name):
        picture = put_over(picture, task.mark, frames)
    if len(task.preset.formats) > 1:
        picture = picture.copy_memory()
    return [_written(picture, size, output, task) for output in task.preset.formats]


# ── Resizing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _resized(base: "pyvips.Image", size: Size, task: Task, frames: int) -> "pyvips.Image":
    height = size.height or LONGEST_SIDE
    if frames > 1:
        return _resized_frames(base, size, height)
    if size.fit == "inside":
        return base.thumbnail_image(size.width, height=height, size="down")
    if task.focus:
        return _cut_around(base, size.width, height, task.focus)
    return base.thumbnail_image(size.width, height=height, crop=task.preset.focus, size="both")


def _resized_frames(base: "pyvips.Image", size: Size, height: int) -> "pyvips.Image":
    """Frames of an animation lie below each other: all are scaled by the same factor, and cut in their middle."""
    page = base.get("page-height")
    if size.fit == "inside":
        return base.thumbnail_image(size.width, height=min(height, LONGEST_SIDE), size="down")
    share = max(size.width / base.width, height / page)
    frames = [base.crop(0, top, base.width, page) for top in range(0, base.height, page)]
    cut = [_cropped(frame.resize(share), size.width, height, (0.5, 0.5)) for frame in frames]
    joined = vips().Image.arrayjoin(cut, across=1).copy()
    joined.set_type(_gint(), "page-height", height)
    if "delay" in base.get_fields():
        joined.set_type(_array_int(), "delay", base.get("delay"))
    return joined


def _cut_around(base: "pyvips.Image", width: int, height: int, focus: tuple[float, float]) -> "pyvips.Image":
    """As much of the picture as fits, with the point that matters as near to the middle as can be."""
    share = max(width / base.width, height / base.height)
    return _cropped(base.resize(share), width, height, focus)


def _cropped(image: "pyvips.Image", width: int, height: int, focus: tuple[float, float]) -> "pyvips.Image":
    width, height = min(width, image.width), min(height, image.height)
    left = round(min(max(focus[0] * image.width - width / 2, 0), image.width - width))
    top = round(min(max(focus[1] * image.height - height / 2, 0), image.height - height))
    return image.crop(left, top, width, height)


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _written(picture: "pyvips.Image", size: Size, output: Output, task: Task) -> Variant:
    unfinished = task.folder / f"{task.stem}-{size.name}.{output}{UNFINISHED}"
    options = {"Q": task.preset.quality, "effort": task.preset.effort_of(size, output), "keep": "none"}
    if output == "webp":
        content = picture.webpsave_buffer(**options)
    else:
        content = picture.heifsave_buffer(compression="av1", **options)
    digest = hashlib.sha256(content).hexdigest()
    final = task.folder / f"{task.stem}-{size.name}-{digest[:12]}.{output}"
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, final)
    finally:
        unfinished.unlink(missing_ok=True)
    frames = picture.get("n-pages") if "n-pages" in picture.get_fields() else 1
    height = (
        picture.get("page-height") if frames > 1 and "page-height" in picture.get_fields() else picture.height
    )
    name = size.name if output == "webp" else f"{size.name}_{output}"
    return Variant(name, final.name, f"image/{output}", picture.width, height, len(content), digest)


def _placeholder(base: "pyvips.Image", frames: int) -> str:
    """A ThumbHash as hexadecimal digits."""
    first = base.crop(0, 0, base.width, base.height // frames) if frames > 1 else base
    small = first.thumbnail_image(THUMB_SIDE, height=THUMB_SIDE, size="down")
    small = small if small.hasalpha() else small.addalpha()
    pixels = bytes(small.cast("uchar").write_to_memory())
    return thumbhash(small.width, small.height, pixels).hex()


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _gint() -> int:
    from pyvips import GValue

    return int(GValue.gint_type)


def _array_int() -> int:
    from pyvips import GValue

    return int(GValue.array_int_type)
