"""From a stranger's file to clean variants: decoded once, without anything but its pixels.

Runs in child processes. All metadata is dropped. A variant gets its name, which has its content's hash in it, when all of it is
written, so that a crash leaves no half file and a changed picture is a new address.
"""

import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

from pydantic import BaseModel, Field

from yamchi.media.decoding import (
    LONGEST_SIDE,
    count_frames,
    damaged,
    decode,
    open_header,
    scaled,
    upright_size,
    vips,
)
from yamchi.media.formats import sniff_file
from yamchi.media.overlay import Mark, put_over
from yamchi.media.presets import Output, Preset, Size
from yamchi.media.thumbhash import thumbhash
from yamchi.storage.folders import flush_folder

if TYPE_CHECKING:
    import pyvips

THUMB_SIDE = 32
ENOUGH = 2
"""A picture so many times as large as wanted has all the detail that is wanted: a larger one only takes longer to shrink."""
UNFINISHED = ".part"
DECODED, WRITTEN = 30, 95
"""Percent of the work: when the picture is decoded, and when its last variant is written."""
LIGHT = 16_000_000
"""Pixels of all variants: of more, or in AVIF, two at once may take more memory than a child has."""
TELLING = 10
"""Percent that have been done since the last word about it: less is not worth one."""

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
    threads: int = 1
    """How many variants may be made at once: the cores that no other picture is on."""


class SizeTask(BaseModel):
    """The same, only to know how large a picture is."""

    size_of: Path
    max_pixels: int


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
        pictures = _pictures(base, task, frames)
        with Disk() as disk:
            made.variants = _variants(pictures, task, disk, tell)
    except vips().Error as error:
        raise damaged(error) from error
    return made


Sized = tuple[Size, "pyvips.Image"]
Item = TypeVar("Item")
Result = TypeVar("Result")


def _pictures(base: "pyvips.Image", task: Task, frames: int) -> list[Sized]:
    """The picture in each size, largest first. One that shows the whole picture becomes a source of smaller ones."""
    sources, pictures = [base], list[Sized]()
    for size in sorted(task.preset.sizes, key=lambda one: -one.width):
        picture = _resized(sources, size, task, frames)
        if frames == 1 and size.fit == "inside" and picture.width < base.width:
            picture = picture.copy_memory()
            sources.append(picture)
        if task.mark and task.mark.is_for(size.name):
            picture = put_over(picture, task.mark, frames)
        if len(task.preset.formats) > 1:
            picture = picture.copy_memory()
        pictures.append((size, picture))
    return pictures


def _variants(pictures: Sequence[Sized], task: Task, disk: "Disk", tell: Progress) -> list[Variant]:
    """All files of all sizes; how far the work is goes with the pixels."""
    told, ready, whole = DECODED, 0, sum(_pixels(one) for one in pictures)
    telling = threading.Lock()

    def write(one: Sized) -> list[Variant]:
        nonlocal told, ready
        size, picture = one
        made = [_written(picture, size, output, task, disk) for output in task.preset.formats]
        with telling:
            ready += _pixels(one)
            percent = DECODED + (WRITTEN - DECODED) * ready // whole
            if percent >= told + TELLING:
                told = percent
                tell({"percent": percent})
        return made

    is_light = whole <= LIGHT and "avif" not in task.preset.formats
    made = _in_threads(task.threads if is_light else 1, write, pictures)
    return [variant for variants in made for variant in variants]


def _in_threads(number: int, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """What `work` makes of each. After a failure nothing more is begun."""
    if number == 1:
        return [work(item) for item in items]
    threads = ThreadPoolExecutor(number, thread_name_prefix="variants")
    try:
        return list(threads.map(work, items))
    finally:
        threads.shutdown(cancel_futures=True)


def _pixels(one: Sized) -> int:
    return int(one[1].width * one[1].height)


# ── Resizing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _resized(sources: Sequence["pyvips.Image"], size: Size, task: Task, frames: int) -> "pyvips.Image":
    if frames > 1:
        return _resized_frames(sources[0], size, size.height or LONGEST_SIDE)
    if size.fit == "inside":
        width, height = _fitting(sources[0], size)
        return scaled(_source_for(width, height, sources), width, height)
    assert size.height is not None
    return _covering(_source_for(size.width, size.height, sources), size.width, size.height, task)


def _covering(source: "pyvips.Image", width: int, height: int, task: Task) -> "pyvips.Image":
    """Exactly so large, and cut to what matters. What must be enlarged is cut first: a thin strip would get millions of rows."""
    share = max(width / source.width, height / source.height)
    if share > 1:
        part = max(round(width / share), 1), max(round(height / share), 1)
        if task.focus:
            cut = _cropped(source, *part, task.focus)
        else:
            cut = source.smartcrop(*part, interesting=task.preset.focus)
        return cut.thumbnail_image(width, height=height, size="force")
    if task.focus:
        return _cropped(_by_share(source, share), width, height, task.focus)
    return source.thumbnail_image(width, height=height, crop=task.preset.focus)


def _fitting(whole: "pyvips.Image", size: Size) -> tuple[int, int]:
    """Width and height in the shape of the whole picture; what a variant is made of has been rounded already."""
    share = min(size.width / whole.width, (size.height or LONGEST_SIDE) / whole.height, 1.0)
    return max(round(whole.width * share), 1), max(round(whole.height * share), 1)


def _source_for(width: int, height: int, sources: Sequence["pyvips.Image"]) -> "pyvips.Image":
    """The smallest that is large enough; they come largest first."""
    enough = [one for one in sources if one.width >= ENOUGH * width and one.height >= ENOUGH * height]
    return enough[-1] if enough else sources[0]


def _resized_frames(base: "pyvips.Image", size: Size, height: int) -> "pyvips.Image":
    """Frames of an animation lie below each other: all are scaled by the same factor, and cut in their middle."""
    page = base.get("page-height")
    if size.fit == "inside":
        return base.thumbnail_image(size.width, height=min(height, LONGEST_SIDE), size="down")
    share = max(size.width / base.width, height / page)
    frames = [base.crop(0, top, base.width, page) for top in range(0, base.height, page)]
    cut = [_cropped(_by_share(frame, share), size.width, height, (0.5, 0.5)) for frame in frames]
    joined = vips().Image.arrayjoin(cut, across=1).copy()
    joined.set_type(_gint(), "page-height", height)
    if "delay" in base.get_fields():
        joined.set_type(_array_int(), "delay", base.get("delay"))
    return joined


def _by_share(image: "pyvips.Image", share: float) -> "pyvips.Image":
    return scaled(image, max(round(image.width * share), 1), max(round(image.height * share), 1))


def _cropped(image: "pyvips.Image", width: int, height: int, focus: tuple[float, float]) -> "pyvips.Image":
    """As much of the picture as fits, with the point that matters as near to the middle as can be."""
    width, height = min(width, image.width), min(height, image.height)
    left = round(min(max(focus[0] * image.width - width / 2, 0), image.width - width))
    top = round(min(max(focus[1] * image.height - height / 2, 0), image.height - height))
    return image.crop(left, top, width, height)


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Disk:
    """Writes files while the next ones are made: a core that waits for a disk makes no picture.

    When it ends, all of them are safe from a power cut, with their names.
    """

    def __enter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._writes: list[Future[None]] = []
        self._folders: set[Path] = set()
        return self

    def write(self, final: Path, content: bytes) -> None:
        self._folders.add(final.parent)
        self._writes.append(self._thread.submit(_write, final, content))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._thread.shutdown()
        if kind is None:
            for write in self._writes:
                write.result()
            for folder in self._folders:
                flush_folder(folder)


def _written(picture: "pyvips.Image", size: Size, output: Output, task: Task, disk: Disk) -> Variant:
    options = {"Q": task.preset.quality, "effort": task.preset.effort_of(size, output), "keep": "none"}
    if output == "webp":
        content = picture.webpsave_buffer(**options)
    else:
        content = picture.heifsave_buffer(compression="av1", **options)
    digest = hashlib.sha256(content).hexdigest()
    final = task.folder / f"{task.stem}-{size.name}-{digest[:12]}.{output}"
    disk.write(final, content)
    frames = picture.get("n-pages") if "n-pages" in picture.get_fields() else 1
    height = (
        picture.get("page-height") if frames > 1 and "page-height" in picture.get_fields() else picture.height
    )
    name = f"{size.name}_avif" if output == "avif" and "webp" in task.preset.formats else size.name
    return Variant(name, final.name, f"image/{output}", picture.width, height, len(content), digest)


def _write(final: Path, content: bytes) -> None:
    if not _write_nameless(final, content):
        _write_named(final, content)


def _write_nameless(final: Path, content: bytes) -> bool:
    """Write a file that has no name until all of it is on the disk: of one who is killed meanwhile nothing is left.

    False where the system can't do that.
    """
    folder = os.open(final.parent, os.O_RDONLY)
    try:
        with os.fdopen(os.open(final.parent, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb") as file:
            _flush(file, content)
            # With a folder's descriptor it is linkat(2), which follows the link to what is open.
            os.link(f"/proc/self/fd/{file.fileno()}", final.name, dst_dir_fd=folder, follow_symlinks=True)
    except FileExistsError:
        return True  # its name has its content's hash in it: that is the same file
    except (AttributeError, OSError):
        return False
    finally:
        os.close(folder)
    return True


def _write_named(final: Path, content: bytes) -> None:
    unfinished = unfinished_beside(final)
    try:
        with unfinished.open("wb") as file:
            _flush(file, content)
        os.replace(unfinished, final)
    finally:
        unfinished.unlink(missing_ok=True)


def _flush(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def unfinished_beside(target: Path) -> Path:
    """Where a file is until all of it is written: nobody else's, though two may write the same one."""
    return target.with_name(f"{target.name}.{secrets.token_hex(4)}{UNFINISHED}")


def _placeholder(base: "pyvips.Image", frames: int) -> str:
    """A ThumbHash as hexadecimal digits."""
    first = base.crop(0, 0, base.width, base.height // frames) if frames > 1 else base
    step = max(min(first.width, first.height) // (THUMB_SIDE * ENOUGH), 1)
    small = first.subsample(step, step).thumbnail_image(THUMB_SIDE, height=THUMB_SIDE, size="down")
    pixels = bytes(small.cast("uchar").write_to_memory())
    return thumbhash(small.width, small.height, pixels if small.hasalpha() else _opaque(pixels)).hex()


def _opaque(rgb: bytes) -> bytes:
    """The same pixels with an alpha of 1."""
    rgba = bytearray(b"\xff" * (len(rgb) // 3 * 4))
    for part in range(3):
        rgba[part::4] = rgb[part::3]
    return bytes(rgba)


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _gint() -> int:
    from pyvips import GValue

    return int(GValue.gint_type)


def _array_int() -> int:
    from pyvips import GValue

    return int(GValue.array_int_type)
