"""MediaCleanupJob: what was deleted long enough ago goes for good, here and in the bucket; then its row.

Files first, the row last: a crash between leaves a row, and the next run finishes. Files that no row names are only reported,
unless somebody says to delete them. Folders of many files are walked in a thread.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import structlog

from yamchi.clock import Clock, Millis
from yamchi.faultpoints import fault_point
from yamchi.media.files import Files, is_older, is_unfinished, remove, size_of
from yamchi.media.model import Picture
from yamchi.media.store import MediaStore
from yamchi.storage.bucket import Bucket

log = structlog.get_logger("yamchi.media")

DAY: Millis = 86_400_000
PAGE = 200
YOUNG: Millis = DAY
"""A file may be younger than the row that is going to name it; after a day it is not."""

Known = Callable[[Sequence[str]], Awaitable[set[str]]]
"""Which of these belong to a picture."""


@dataclass(slots=True)
class Cleaned:
    """What a run removed, and which files belong to nobody."""

    deleted: int = 0
    freed_bytes: int = 0
    orphans: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"deleted": self.deleted, "freedBytes": self.freed_bytes}


class MediaCleanupJob:
    """Runs daily, and when asked."""

    def __init__(
        self, store: MediaStore, files: Files, bucket: Bucket | None, clock: Clock, days: int
    ) -> None:
        self._store = store
        self._files = files
        self._bucket = bucket
        self._clock = clock
        self._days = days

    async def run(self, older_than_days: int | None = None) -> Cleaned:
        """Remove what was deleted this long ago (by default MEDIA_CLEANUP_DAYS), and what changed pictures left."""
        cleaned = Cleaned()
        days = self._days if older_than_days is None else older_than_days
        before = self._clock.now() - days * DAY
        while page := await self._store.deleted(before, PAGE):
            for found in page:
                if await self._store.begin_removal(found.id, before):
                    cleaned.freed_bytes += await self._remove(found)
                    cleaned.deleted += await self._store.erase(found.id)
        cleaned.freed_bytes += await self._remove_retired()
        cleaned.freed_bytes += await self._remove_temp()
        if cleaned.deleted or cleaned.freed_bytes:
            log.info(
                f"removed {cleaned.deleted} deleted pictures; {cleaned.freed_bytes} bytes are free again"
            )
        return cleaned

    async def orphans(self, *, delete: bool) -> Cleaned:
        """Finished pictures and originals that no row names, older than a day."""
        cleaned = Cleaned()
        young = (self._clock.now() - YOUNG) / 1000
        public = ((key, path) for key, path in self._files.all_public() if is_older(path, young))
        originals = ((path.name, path) for path in self._files.all_originals() if is_older(path, young))
        await self._look_for_orphans(public, self._store.named, "", cleaned, delete)
        await self._look_for_orphans(originals, self._store.known_ids, "originals/", cleaned, delete)
        cleaned.deleted = len(cleaned.orphans) if delete else 0
        return cleaned

    async def _look_for_orphans(
        self, files: Iterator[tuple[str, Path]], known: Known, prefix: str, cleaned: Cleaned, delete: bool
    ) -> None:
        while batch := await asyncio.to_thread(lambda: list(islice(files, PAGE))):
            wanted = await known([key for key, _ in batch])
            orphans = {key: path for key, path in batch if key not in wanted}
            cleaned.orphans += [prefix + key for key in orphans]
            count = _remove_all if delete else _size_of_all
            cleaned.freed_bytes += await asyncio.to_thread(count, list(orphans.values()))

    async def _remove(self, found: Picture) -> int:
        """Here and in the bucket, where a sync that was interrupted may have left what no row knows. Each file counts once."""
        if self._bucket and found.variants:
            await self._bucket.delete([found.key_of(one.file) for one in found.variants])
        freed = await asyncio.to_thread(self._remove_files, found)
        fault_point("media.files_removed")
        return freed

    def _remove_files(self, found: Picture) -> int:
        freed = 0
        for one in found.variants:
            here = remove(self._files.by_key(found.key_of(one.file)))
            freed += here or (one.size if one.is_synced and self._bucket else 0)
        freed += remove(self._files.original_of(found.id))
        if found.temp_path is not None:
            freed += remove(self._files.temp_named(found.temp_path))
        return freed

    async def _remove_retired(self) -> int:
        freed = 0
        while paths := await self._store.retired(self._clock.now(), PAGE):
            if self._bucket:
                await self._bucket.delete(paths)
            freed += await self._store.remove_retired(paths, self._remove_keys)
        return freed

    def _remove_keys(self, keys: Sequence[str]) -> int:
        return _remove_all([self._files.by_key(key) for key in keys])

    async def _remove_temp(self) -> int:
        """Uploads that nobody finished, and halves that a crash left."""
        return await asyncio.to_thread(self._remove_old_temp, await self._store.temp_names())

    def _remove_old_temp(self, needed: set[str]) -> int:
        young = (self._clock.now() - YOUNG) / 1000
        old = [path for path in self._files.all_temp() if is_older(path, young) and path.name not in needed]
        kept = chain((path for _, path in self._files.all_public()), self._files.all_originals())
        halves = [path for path in kept if is_unfinished(path) and is_older(path, young)]
        return _remove_all([*old, *halves])


def _remove_all(paths: Sequence[Path]) -> int:
    """How many bytes that freed."""
    return sum(map(remove, paths))


def _size_of_all(paths: Sequence[Path]) -> int:
    return sum(map(size_of, paths))
