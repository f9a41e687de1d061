"""A watermark over a picture, or over every frame of an animation."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from yamchi.media.decoding import vips
from yamchi.media.formats import sniff_file

if TYPE_CHECKING:
    import pyvips

Position = Literal["top-left", "top-right", "bottom-left", "bottom-right", "center", "tile"]
MARGIN = 0.03
"""Between the watermark and the edge, of the shorter side."""
GAP = 0.5
"""Between two tiles, of the watermark's width."""


class Mark(BaseModel):
    """A watermark, and where it goes. `scale` is relative to the picture's width."""

    model_config = ConfigDict(frozen=True)

    file: Path
    position: Position = "bottom-right"
    opacity: float = Field(default=0.5, ge=0.1, le=1.0)
    scale: float = Field(default=0.2, ge=0.1, le=1.0)
    variants: tuple[str, ...] | None = None

    def is_for(self, variant: str) -> bool:
        return self.variants is None or variant in self.variants


def put_over(picture: "pyvips.Image", mark: Mark, frames: int) -> "pyvips.Image":
    """The picture with the watermark over it. Frames of an animation lie below each other, and each gets its own."""
    layer = _layer(mark, picture.width, picture.height // frames)
    if frames > 1:
        layer = layer.replicate(1, frames)
    marked = picture.composite2(layer, "over")
    return marked if picture.hasalpha() else marked.flatten()


def _layer(mark: Mark, width: int, height: int) -> "pyvips.Image":
    """The watermark where it belongs, on nothing, as large as a frame."""
    logo = _logo(mark, width, height)
    if mark.position == "tile":
        gap = max(round(logo.width * GAP), 1)
        tile = logo.embed(0, 0, logo.width + gap, logo.height + gap)
        return tile.replicate(width // tile.width + 1, height // tile.height + 1).crop(0, 0, width, height)
    margin = round(min(width, height) * MARGIN)
    right, bottom = width - logo.width - margin, height - logo.height - margin
    left, top = {
        "top-left": (margin, margin),
        "top-right": (right, margin),
        "bottom-left": (margin, bottom),
        "bottom-right": (right, bottom),
        "center": ((width - logo.width) // 2, (height - logo.height) // 2),
    }[mark.position]
    return logo.embed(max(left, 0), max(top, 0), width, height)


def _logo(mark: Mark, width: int, height: int) -> "pyvips.Image":
    """The watermark itself, scaled to its share of the picture, as opaque as it was asked for."""
    sniff_file(mark.file)
    logo = vips().Image.thumbnail(
        str(mark.file), max(round(width * mark.scale), 1), height=height, output_profile="srgb"
    )
    logo = logo if logo.hasalpha() else logo.addalpha()
    return (logo * [1.0, 1.0, 1.0, mark.opacity]).cast("uchar").copy(interpretation="srgb").copy_memory()
