"""`python -m tests.media.contact_sheet docs/images/watermarks.png`: one picture with a watermark at each of its six places."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from tests.media import pictures
from yamchi.media.overlay import Mark, Position
from yamchi.media.presets import Preset, Size
from yamchi.media.processing import Task, process

PRESET = Preset(sizes=(Size(name="w400", width=400),))
SHIM = 12


def make_sheet(target: Path) -> None:
    """From what processing really wrote."""
    import pyvips

    with TemporaryDirectory() as name:
        folder = Path(name)
        photo = pictures.write(folder, "photo", pictures.scene())
        logo = pictures.write(folder, "logo", pictures.logo())
        shots = []
        for position in get_args(Position):
            mark = Mark(file=logo, position=position, opacity=0.8, scale=0.25)
            task = Task(
                source=photo, folder=folder, stem=position, preset=PRESET, max_pixels=10**7, mark=mark
            )
            (variant,) = process(task).variants
            shots.append(pictures.open_any((folder / variant.file).read_bytes()))
        sheet = pyvips.Image.arrayjoin(shots, across=3, shim=SHIM, background=[255, 255, 255])
        sheet.pngsave(str(target), palette=True, Q=90)


if __name__ == "__main__":
    make_sheet(Path(sys.argv[1]))
