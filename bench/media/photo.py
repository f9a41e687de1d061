"""The photo that everybody gets: 12 megapixels, EXIF with GPS, lying on its side.

Clouds of all sizes with steps in them, so that there are edges, flat places and fine texture as in a real scene; then the softness
of a lens and the noise of a sensor.
"""

from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 4000, 3000
CLOUDS = ((1500, 110), (400, 70), (100, 40), (25, 16))
"""Clouds of so many pixels, and how strong they are."""
STEPS = 4
SOFTNESS, NOISE = 1.0, 1.5
TURNED_RIGHT = 6


def make_photo(file: Path) -> None:
    """The same pixels each time."""
    import pyvips

    light, *tints = (_plane(pyvips, seed) for seed in (1, 2, 3))
    planes = [light, light + tints[0] * 0.3, light + tints[1] * 0.3]
    picture = (planes[0].bandjoin(planes[1:]) + 128).gaussblur(SOFTNESS)
    picture += pyvips.Image.gaussnoise(WIDTH, HEIGHT, mean=0, sigma=NOISE, seed=1)
    picture = picture.cast("uchar").copy(interpretation="srgb")
    picture.set_type(pyvips.GValue.gstr_type, "exif-ifd3-GPSLatitude", "43/1 14/1 0/1")
    picture.set_type(pyvips.GValue.gint_type, "orientation", TURNED_RIGHT)
    picture.jpegsave(str(file), Q=90)


def _plane(vips: Any, seed: int) -> Any:
    def cloud(size: int, strength: int) -> Any:
        return (vips.Image.perlin(WIDTH, HEIGHT, cell_size=size, seed=seed * 7 + size) * STEPS).round("rint") * (strength / STEPS)  # fmt: skip

    first, *others = (cloud(size, strength) for size, strength in CLOUDS)
    return sum(others, first)
