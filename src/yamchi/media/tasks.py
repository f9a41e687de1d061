"""What a child process is asked to make of a picture: from which file, by which preset, with which watermark."""

from pathlib import Path
from typing import Any

from yamchi.errors import Unrecoverable
from yamchi.media.files import Files
from yamchi.media.model import Picture
from yamchi.media.overlay import Mark
from yamchi.media.presets import Presets
from yamchi.media.processing import Task
from yamchi.media.store import MediaStore


class Tasks:
    """Puts tasks together from a picture's row and its files."""

    def __init__(self, store: MediaStore, files: Files, presets: Presets, max_pixels: int) -> None:
        self._store = store
        self._files = files
        self.presets = presets
        self._max_pixels = max_pixels

    def begin(self, found: Picture, source: Path, mark: Mark | None) -> Task:
        """Its variants, from this file."""
        return Task(
            source=source,
            folder=self._files.folder_of(found.entity_type),
            stem=found.id,
            preset=self.presets.get(found.entity_type),
            max_pixels=self._max_pixels,
            mark=mark,
            focus=_focus_of(found),
        )

    def anew(self, found: Picture, mark: Mark | None) -> Task:
        """Its variants once more, from its original."""
        return self.begin(found, self.original_of(found), mark)

    def original_of(self, found: Picture) -> Path:
        if found.original_path is None:
            raise Unrecoverable(f"Media {found.id} has no original to begin from.")
        return self._files.original_of(found.id)

    async def mark_on(self, found: Picture) -> Mark | None:
        """The watermark that the picture has."""
        return None if found.watermark is None else await self.mark_of(dict(found.watermark))

    async def mark_of(self, wanted: dict[str, Any]) -> Mark:
        """The watermark that is asked for."""
        row = await self._store.watermark(str(wanted["watermarkId"]))
        names = wanted.get("variants")
        return Mark(
            file=self._files.watermark(row.file),
            position=wanted["position"],
            opacity=wanted["opacity"],
            scale=wanted["scale"],
            variants=None if names is None else tuple(names),
        )


def _focus_of(found: Picture) -> tuple[float, float] | None:
    """The point that stays in sight where a variant is cut, if its metadata name one."""
    match found.metadata.get("focus"):
        case [int() | float() as x, int() | float() as y]:
            return float(x), float(y)
    return None
