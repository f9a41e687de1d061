"""Watermarks: uploaded once, put over pictures as often as wanted, always from the original."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from yamchi.errors import InvalidJob, Snooze, Unrecoverable, WrongState
from yamchi.media.children import PictureProcesses
from yamchi.media.files import Files, as_outage, move, remove
from yamchi.media.formats import sniff_file
from yamchi.media.model import Picture, WatermarkJobData
from yamchi.media.presets import UnknownPreset
from yamchi.media.service import MediaService, Told, clean_name
from yamchi.media.store import MediaStore, UnknownMedia
from yamchi.queues.job import Job
from yamchi.queues.newjobs import New
from yamchi.queues.queue import Queue

APPLY = "apply"
UNMADE_WAIT = "2s"
"""How long a watermark waits for a picture that is still being made, before it looks again."""


class WatermarkService:
    """Keeps watermarks and applies them."""

    def __init__(
        self,
        store: MediaStore,
        files: Files,
        service: MediaService,
        children: PictureProcesses,
        queue: Queue,
        after: Told,
    ) -> None:
        self._store = store
        self._files = files
        self._service = service
        self._children = children
        self._queue = queue
        self._after = after

    async def add(self, temp: Path, filename: str, watermark_id: str | None = None) -> dict[str, Any]:
        """Keep a picture to be used as a watermark."""
        chosen = watermark_id or f"wm-{uuid4()}"
        try:
            file = f"{uuid4()}.{sniff_file(temp).name}"
            width, height = await self._children.size_of(temp)
            await asyncio.to_thread(move, temp, self._files.watermark(file))
        except BaseException:
            remove(temp)
            raise
        row = {"id": chosen, "name": clean_name(filename), "file": file, "width": width, "height": height}
        await self._store.add_watermark(row)
        kept = await self._store.watermark(chosen)
        if kept.file != file:
            remove(self._files.watermark(file))
            raise WrongState(f"There is a watermark {chosen!r} already: choose another id.")
        return {"id": chosen, "name": kept.name, "width": width, "height": height}

    async def apply(self, data: WatermarkJobData) -> str:
        """Queue it for one picture; the job's id."""
        await self._store.watermark(data.watermark_id)
        self._check(await self._store.get(data.media_id), data)
        job = await self._queue.add(data, name=APPLY)
        return job.id

    async def apply_batch(self, media_ids: Sequence[str], watermark_id: str, **how: Any) -> list[str]:
        """Queue it for many pictures in one call; the jobs' ids. If one is unknown, nothing is queued."""
        await self._store.watermark(watermark_id)
        await self._store.check_ids(media_ids)
        wanted = [WatermarkJobData(media_id=one, watermark_id=watermark_id, **how) for one in media_ids]
        jobs = await self._queue.add_many([New(data, name=APPLY) for data in wanted])
        return [job.id for job in jobs]

    def _check(self, found: Picture, data: WatermarkJobData) -> None:
        """Refuses what can never be done; a picture that is still being made is waited for."""
        if found.status in ("failed", "soft_deleted"):
            raise WrongState(f"Media {found.id} is {found.status}, so it can't get a watermark.")
        known = [size.name for size in self._service.presets.get(found.entity_type).sizes]
        for name in data.variants or ():
            if name not in known:
                raise InvalidJob(
                    f"variants: {found.entity_type} has no {name[:64]!r}; there are: {', '.join(known)}."
                )

    async def take_off(self, media_id: str) -> str:
        """Queue the picture to be made anew from its original, without a watermark; the job's id."""
        await self._store.take_watermark_off(media_id)
        return await self._service.reprocess(media_id)

    async def handle(self, job: Job[WatermarkJobData]) -> dict[str, Any] | Snooze:
        """`apply`: make the picture anew with the watermark over it. One that is still being made is waited for."""
        data = job.data
        try:
            found = await self._store.get(data.media_id)
            if found.status == "processing":
                return Snooze(UNMADE_WAIT, f"Media {found.id} is still being made.")
            self._check(found, data)
            how = data.model_dump(by_alias=True, exclude={"media_id"})
            task = self._service.tasks.anew(found, await self._service.tasks.mark_of(how))
        except (UnknownMedia, UnknownPreset, InvalidJob, WrongState) as error:
            raise Unrecoverable(str(error)) from error
        try:
            made = await self._children.make(found, task, job)
            original = self._files.original_of(found.id)
            news = await self._service.take_over(found, made, original, watermark=how)
        except Exception as error:
            raise as_outage(error) from error
        await job.progress(100)
        await self._after(news)
        return {"mediaId": found.id, "variants": len(made.variants)}
