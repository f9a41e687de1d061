"""From a stranger's file to clean variants: decoded once by the one loader that fits, without anything but its pixels.

Runs in child processes. Every loader of libvips is blocked but four; size, frames and pixels are looked at before anything is
decoded; orientation is applied and colors become sRGB before all metadata is dropped. A variant is written under a temporary name
and renamed to one with its content's hash, so that a crash leaves no half file and a changed picture is a new address.
"""

import hashlib
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from yamchi.errors import MissingExtra
from yamchi.media.formats import READABLE, BadFile, ImageFormat, sniff_file
from yamchi.media.presets import Output, Preset, Size
from yamchi.media.thumbhash import thumbhash

if TYPE_CHECKING:
    import pyvips

MOST_FRAMES = 500
THUMB_SIDE = 32
UNFINISHED = ".part"
_LONGEST_SIDE = 65_500

Position = Literal["top-left", "top-right", "bottom-left", "bottom-right", "center", "tile"]


class Mark(BaseModel):
    """A watermark, and where it goes. `scale` is relative to the picture's width."""

    model_config = ConfigDict(frozen=True)

    file: Path
    position: Position = "bottom-right"
    opacity: float = Field(default=0.5, ge=0.1, le=1.0)
    scale: float = Field(default=0.2, ge=0.1, le=1.0)
    variants: tuple[str, ...] | None = None


class Task(BaseModel):
    """What a child is asked for."""

    source: Path
    folder: Path
    """Where variants go; nothing is written anywhere else."""
    stem: str = Field(pattern=r"^[\w-]{1,128}$")
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


def process(task: Task) -> Made:
    """All variants of a file. `BadFile` says what is wrong with it, in one sentence."""
    vips = _vips()
    found = sniff_file(task.source)
    try:
        header = _open(vips, task.source, found)
        frames = _check(header, task, found)
        base = _decode(vips, task, found, frames, header)
        width, height = _upright(header, frames)
        made = Made(
            type=found.type,
            width=width,
            height=height,
            frames=frames,
            hash=_hash_of(task.source),
            placeholder=_placeholder(base, frames),
        )
        for size in sorted(task.preset.sizes, key=lambda one: -one.width):
            picture = _resized(base, size, task, frames)
            if task.mark and (task.mark.variants is None or size.name in task.mark.variants):
                picture = _marked(vips, picture, task.mark, frames)
            for output in task.preset.formats:
                made.variants.append(_written(picture, size, output, task))
    except vips.Error as error:
        raise BadFile(f"The file is damaged and can't be read: {_first_line(error)}") from error
    return made


def read_header(source: Path, max_pixels: int) -> tuple[ImageFormat, int, int]:
    """What a file is and how large, without decoding it."""
    vips = _vips()
    found = sniff_file(source)
    try:
        header = _open(vips, source, found)
    except vips.Error as error:
        raise BadFile(f"The file is damaged and can't be read: {_first_line(error)}") from error
    height = header.get("page-height") if "page-height" in header.get_fields() else header.height
    if header.width * height > max_pixels:
        raise _too_many_pixels(header.width, height, max_pixels)
    return found, header.width, height


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _vips() -> Any:
    """libvips with everything blocked that reads a format nobody asked for."""
    os.environ.setdefault("VIPS_CONCURRENCY", "1")  # a process for each core; more threads add nothing
    os.environ.setdefault("VIPS_WARNING", "0")
    try:
        import pyvips
    except ImportError as error:
        raise MissingExtra("media", "Working on pictures") from error
    if not getattr(pyvips, "_yamchi_is_safe", False):
        pyvips.operation_block_set("VipsForeignLoad", True)
        for name in (
            "VipsForeignLoadJpeg",
            "VipsForeignLoadPng",
            "VipsForeignLoadWebp",
            "VipsForeignLoadNsgif",
        ):
            pyvips.operation_block_set(name, False)
        pyvips.cache_set_max(0)
        pyvips._yamchi_is_safe = True
    return pyvips


def _open(vips: Any, source: Path, found: ImageFormat) -> "pyvips.Image":
    assert found in READABLE
    load = getattr(vips.Image, found.loader)
    return load(
        str(source), **({"n": -1} if found.may_be_animated else {}), access="sequential", fail_on="error"
    )


def _check(header: "pyvips.Image", task: Task, found: ImageFormat) -> int:
    """How many frames to keep; refuses what is too large before it is decoded."""
    frames = header.get("n-pages") if "n-pages" in header.get_fields() else 1
    height = header.get("page-height") if frames > 1 else header.height
    preset = task.preset
    limit = min(task.max_pixels, preset.max_pixels or task.max_pixels)
    if header.width * height > limit:
        raise _too_many_pixels(header.width, height, limit)
    if header.width < preset.min_width or height < preset.min_height:
        raise BadFile(
            f"The picture has {header.width} × {height} pixels; at least {preset.min_width} × {preset.min_height} are needed."
        )
    if frames > MOST_FRAMES:
        raise BadFile(f"The picture has {frames} frames; {MOST_FRAMES} are the most.")
    if frames > 1 and (not preset.animated or not found.may_be_animated):
        return 1
    if frames > 1 and header.width * height * frames > limit:
        raise BadFile(
            f"The animation has {frames} frames of {header.width} × {height} pixels; {limit:,} pixels are the most in all."
        )
    return frames


def _too_many_pixels(width: int, height: int, limit: int) -> BadFile:
    return BadFile(f"The picture has {width} × {height} pixels; {limit:,} are the most.")


def _decode(vips: Any, task: Task, found: ImageFormat, frames: int, header: "pyvips.Image") -> "pyvips.Image":
    """As large as the largest variant needs, upright and in sRGB, decoded once into memory."""
    width, height = header.width, header.get("page-height") if frames > 1 else header.height
    is_turned = (
        frames == 1 and "orientation" in header.get_fields() and header.get("orientation") in range(5, 9)
    )
    if is_turned:
        width, height = height, width
    share = max(_share(size, width, height) for size in task.preset.sizes)
    options: dict[str, Any] = {"fail_on": "error"}
    options |= {"no_rotate": True} if frames > 1 else {}
    options |= {"output_profile": "srgb"} if header.interpretation == "cmyk" else {}
    image = vips.Image.thumbnail(
        f"{task.source}[n={frames}]" if found.may_be_animated else str(task.source),
        math.ceil(width * share),
        height=math.ceil(height * share),
        size="down",
        **options,
    )
    return _as_srgb(image).copy_memory()


def _as_srgb(image: "pyvips.Image") -> "pyvips.Image":
    """Eight bits a color, in sRGB. After the resize, not by `thumbnail`'s own `output_profile`, which takes longer than all the rest."""
    if image.interpretation in ("rgb16", "grey16"):
        image = image.colourspace("srgb" if image.interpretation == "rgb16" else "b-w")
    if "icc-profile-data" in image.get_fields() and image.interpretation != "cmyk":
        image = image.icc_transform("srgb", embedded=True, intent="relative")
    return image if image.interpretation == "srgb" else image.colourspace("srgb")


def _upright(header: "pyvips.Image", frames: int) -> tuple[int, int]:
    """How wide and high the picture is once it is turned as its camera meant it."""
    width, height = header.width, header.get("page-height") if frames > 1 else header.height
    is_turned = (
        frames == 1 and "orientation" in header.get_fields() and header.get("orientation") in range(5, 9)
    )
    return (height, width) if is_turned else (width, height)


def _share(size: Size, width: int, height: int) -> float:
    """How much of the original's size a variant needs; nothing is made larger than it is."""
    across, down = size.width / width, (size.height or _LONGEST_SIDE) / height
    return min(max(across, down) if size.fit == "cover" else min(across, down), 1.0)


# ── Making ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _resized(base: "pyvips.Image", size: Size, task: Task, frames: int) -> "pyvips.Image":
    height = size.height or _LONGEST_SIDE
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
        return base.thumbnail_image(size.width, height=min(height, _LONGEST_SIDE), size="down")
    share = max(size.width / base.width, height / page)
    frames = [base.crop(0, top, base.width, page) for top in range(0, base.height, page)]
    cut = [_cropped(frame.resize(share), size.width, height, (0.5, 0.5)) for frame in frames]
    joined = _vips().Image.arrayjoin(cut, across=1).copy()
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


def _marked(vips: Any, picture: "pyvips.Image", mark: Mark, frames: int) -> "pyvips.Image":
    """The watermark over the picture, as wide as its share of it."""
    if frames > 1:
        return picture  # an animation keeps its frames as they are
    found = sniff_file(mark.file)
    logo = vips.Image.thumbnail(
        str(mark.file),
        max(round(picture.width * mark.scale), 1),
        height=picture.height,
        output_profile="srgb",
    )
    assert found in READABLE
    if not logo.hasalpha():
        logo = logo.addalpha()
    logo = (logo * [1.0, 1.0, 1.0, mark.opacity]).cast("uchar").copy(interpretation="srgb")
    if mark.position == "tile":
        gap = max(round(logo.width * 0.5), 1)
        tile = logo.embed(0, 0, logo.width + gap, logo.height + gap)
        across, down = picture.width // tile.width + 1, picture.height // tile.height + 1
        layer = tile.replicate(across, down).crop(0, 0, picture.width, picture.height)
        return _over(picture, layer, 0, 0)
    margin = round(min(picture.width, picture.height) * 0.03)
    right, bottom = picture.width - logo.width - margin, picture.height - logo.height - margin
    left, top = {
        "top-left": (margin, margin),
        "top-right": (right, margin),
        "bottom-left": (margin, bottom),
        "bottom-right": (right, bottom),
        "center": ((picture.width - logo.width) // 2, (picture.height - logo.height) // 2),
    }[mark.position]
    return _over(picture, logo, max(left, 0), max(top, 0))


def _over(picture: "pyvips.Image", layer: "pyvips.Image", left: int, top: int) -> "pyvips.Image":
    had_alpha = picture.hasalpha()
    joined = picture.composite2(layer, "over", x=left, y=top)
    return joined if had_alpha else joined.flatten()


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


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line]
    return (lines[0] if lines else "no reason given")[:200].rstrip(".")


def _gint() -> int:
    from pyvips import GValue

    return int(GValue.gint_type)


def _array_int() -> int:
    from pyvips import GValue

    return int(GValue.array_int_type)
