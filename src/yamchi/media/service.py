"""From an upload to variants: accepted with a row and a file, worked on in a child process, taken over in one transaction.

The order decides what a crash leaves: row and file are there before anybody is told that they are; variants appear under their
last names before the row names them; the upload is deleted when nothing needs it any more. Each step may be repeated.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

import structlog
from pydantic import BaseModel, Field

from yamchi.clock import Clock, Millis
from yamchi.errors import Unrecoverable, WrongState
from yamchi.faultpoints import fault_point
from yamchi.media.child import work
from yamchi.media.files import Files, remove, size_of
from yamchi.media.formats import BadFile, sniff_file
from yamchi.media.model import Media, MediaProcessingJobData
from yamchi.media.overlay import Mark
from yamchi.media.presets import Preset, Presets, UnknownPreset
from yamchi.media.processing import Made, Task, Variant, process
from yamchi.media.store import MediaStore, UnknownMedia
from yamchi.queues.job import Job
from yamchi.queues.processes.limits import ProcessLimits
from yamchi.queues.processes.pool import ProcessPool
from yamchi.queues.queue import Queue

log = structlog.get_logger("yamchi.media")

PROCESS = "process"
STUCK: Millis = 120_000
"""An upload that has not been looked at for so long may have lost its job."""

ACCEPTED = 5
"""Percent of the work, when a child has been asked for it."""

Told = Callable[[Media], Awaitable[None]]


class News(BaseModel):
    """What a child says while it works. It may have been taken over by the file it decodes: only this much is passed on."""

    percent: int = Field(ge=0, le=100)
    placeholder: str | None = Field(default=None, pattern="^[0-9a-f]{1,100}$")
    width: int | None = Field(default=None, ge=1)
    height: int | None = Field(default=None, ge=1)


OnNews = Callable[[Media, News], Awaitable[None]]


class ReportingJob:
    """A job whose progress goes to the queue as a percentage and to the uploader's page with what is known of the picture."""

    def __init__(self, job: Job[Any], picture: Media, on_news: OnNews) -> None:
        self.record, self.name, self.log = job.record, job.name, job.log
        self._job = job
        self._picture = picture
        self._on_news = on_news

    async def progress(self, value: Any) -> None:
        news = News.model_validate(value)
        await self._job.progress(news.percent)
        await self._on_news(self._picture, news)


class MediaService:
    """Takes uploads in and makes variants of them."""

    def __init__(
        self,
        store: MediaStore,
        files: Files,
        presets: Presets,
        queue: Queue,
        limits: ProcessLimits,
        max_pixels: int,
        clock: Clock,
        *,
        after: Told,
        on_news: OnNews,
    ) -> None:
        self.store = store
        self.files = files
        self.presets = presets
        self._queue = queue
        self._pool = ProcessPool(queue.name, "picture", work, limits)
        self._max_pixels = max_pixels
        self._clock = clock
        self._after = after
        self._on_news = on_news

    async def close(self) -> None:
        await self._pool.close()

    # ── In ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def accept(
        self,
        temp: Path,
        entity_type: str,
        filename: str,
        *,
        user_id: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> tuple[Media, str]:
        """Keep an upload and queue its processing; the picture and its job's id. What is no picture is refused here."""
        try:
            preset = self.presets.get(entity_type)
            self._check_upload(temp, preset)
        except (BadFile, UnknownPreset):
            remove(temp)
            raise
        found = await self._keep(temp, entity_type, filename, user_id, metadata)
        fault_point("media.stored")
        return found, await self._enqueue(found)

    async def process_upload(
        self,
        file: Path | str,
        entity_type: str,
        *,
        user_id: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Media:
        """The same without the queue, for callers that wait. The file given stays where it is."""
        preset = self.presets.get(entity_type)
        temp = self.files.new_temp()
        await asyncio.to_thread(_copy, Path(file), temp)
        try:
            self._check_upload(temp, preset)
        except BadFile:
            remove(temp)
            raise
        found = await self._keep(temp, entity_type, Path(file).name, user_id, metadata)
        try:
            made = await asyncio.to_thread(process, self._task(found, preset, temp, None))
        except BadFile as error:
            await self._give_up(found, str(error))
            raise
        return await self._finish(found, made, temp)

    async def _keep(
        self,
        temp: Path,
        entity_type: str,
        filename: str,
        user_id: str | None,
        metadata: dict[str, Any] | None,
        media_id: str | None = None,
    ) -> Media:
        chosen = media_id or str(uuid4())
        await self.store.add(
            {
                "id": chosen,
                "entity_type": entity_type[:32],
                "original_filename": clean_name(filename),
                "user_id": user_id,
                "metadata": metadata or {},
                "temp_path": str(temp),
                "size": size_of(temp),
            }
        )
        return await self.store.get(chosen)

    def _check_upload(self, temp: Path, preset: Preset) -> None:
        sniff_file(temp)
        size = size_of(temp)
        if preset.max_bytes is not None and size > preset.max_bytes:
            raise BadFile(
                f"The file has {size:,} bytes; {preset.max_bytes:,} are the most for this kind of picture."
            )

    async def _enqueue(self, found: Media, *, again: str = "") -> str:
        data = MediaProcessingJobData(
            media_id=found.id,
            entity_type=found.entity_type,
            temp_path=found.temp_path or "",
            original_filename=found.original_filename,
            user_id=found.user_id,
            metadata=dict(found.metadata),
        )
        job = await self._queue.add(data, name=PROCESS, id=f"media-{found.id}{again}")
        return job.id

    async def reprocess(self, media_id: str) -> str:
        """Make all variants anew from the original, for example after a change of the preset; the job's id."""
        found = await self.store.get(media_id)
        if found.status == "soft_deleted":
            raise WrongState(f"Media {media_id} is deleted: restore it first.")
        if found.original_path is None:
            raise WrongState(f"Media {media_id} has no original to begin from.")
        return await self._enqueue(found, again=f"-reprocess-{self._clock.now()}")

    # ── The job ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def handle(self, job: Job[MediaProcessingJobData]) -> dict[str, Any]:
        """`process`: make the variants of one upload."""
        found = await self._row_of(job)
        if found.status == "ready" and found.temp_path is None and "-reprocess-" not in job.id:
            return await self._tidy_up(job, found)
        try:
            source = self._source_of(found)
            preset = self.presets.get(found.entity_type)
            made = await self.run(job, found, self._task(found, preset, source, await self._mark_of(found)))
            found = await self._finish(found, made, source)
        except Exception as error:
            await self._note_error(job, found, error)
            raise
        await job.progress(100)
        await self._after(found)
        return {"mediaId": found.id, "status": found.status, "variants": len(found.variants)}

    async def run(self, job: Job[Any], found: Media, task: Task) -> Made:
        """Let a child work on a file, within the job's own timeout; the uploader's page hears how far it is."""
        reporting: Any = ReportingJob(job, found, self._on_news)
        await reporting.progress({"percent": ACCEPTED})
        answer = await self._pool.run(reporting, task.model_dump_json().encode())
        return Made(**{**answer, "variants": [Variant(**one) for one in answer["variants"]]})

    async def note_failure(self, job: Job[Any], error: str) -> None:
        """A job that ended without its handler's last word, such as one that killed its workers."""
        data = MediaProcessingJobData.model_validate(job.data)
        if data.media_id:
            found = await self.store.get(data.media_id)
            if found.status == "processing":
                await self._give_up(found, error)

    async def sweep(self) -> int:
        """Queue again what lost its job; how many there were."""
        stuck = await self.store.stuck(self._clock.now() - STUCK, 200)
        for found in stuck:
            await self.store.restart(found.id)
            await self._enqueue(found)
        return len(stuck)

    async def _row_of(self, job: Job[MediaProcessingJobData]) -> Media:
        """The picture that a job is about; another program's upload gets its row here."""
        data = job.data
        if data.media_id is not None:
            try:
                return await self.store.get(data.media_id)
            except UnknownMedia as error:
                raise Unrecoverable(str(error)) from error
        temp = self.files.temp_file(data.temp_path)
        return await self._keep(
            temp, data.entity_type, data.original_filename, data.user_id, data.metadata, _derived(job.id)
        )

    def _source_of(self, found: Media) -> Path:
        if found.temp_path is not None:
            return self.files.temp_file(found.temp_path)
        if found.original_path is None:
            raise Unrecoverable(f"Media {found.id} has no original to begin from.")
        return self.files.original_of(found.id)

    async def _tidy_up(self, job: Job[MediaProcessingJobData], found: Media) -> dict[str, Any]:
        """The picture was made by somebody who got no further: do what comes after."""
        if job.data.temp_path:
            remove(self.files.temp_file(job.data.temp_path))
        await self._after(found)
        return {"mediaId": found.id, "status": found.status, "variants": len(found.variants)}

    def _task(self, found: Media, preset: Preset, source: Path, mark: Mark | None) -> Task:
        focus = found.metadata.get("focus")
        is_point = (
            isinstance(focus, list) and len(focus) == 2 and all(isinstance(one, int | float) for one in focus)
        )
        return Task(
            source=source,
            folder=self.files.folder_of(found.entity_type),
            stem=found.id,
            preset=preset,
            max_pixels=self._max_pixels,
            mark=mark,
            focus=(float(focus[0]), float(focus[1])) if is_point and focus else None,
        )

    async def task_for(self, found: Media, mark: Mark | None) -> Task:
        """What a child is asked for to make this picture anew, from its original."""
        if found.original_path is None:
            raise Unrecoverable(f"Media {found.id} has no original to begin from.")
        return self._task(found, self.presets.get(found.entity_type), self.files.original_of(found.id), mark)

    async def _mark_of(self, found: Media) -> Mark | None:
        return None if found.watermark is None else await self.mark_of(dict(found.watermark))

    async def mark_of(self, wanted: dict[str, Any]) -> Mark:
        row = await self.store.watermark(str(wanted["watermarkId"]))
        names = wanted.get("variants")
        return Mark(
            file=self.files.watermark(row.file),
            position=wanted["position"],
            opacity=wanted["opacity"],
            scale=wanted["scale"],
            variants=None if names is None else tuple(names),
        )

    async def _finish(self, found: Media, made: Made, source: Path) -> Media:
        fault_point("media.written")
        original = self.files.original_of(found.id)
        if source != original and not original.exists():
            await asyncio.to_thread(_link, source, original)
        news = await self.take_over(found, made, original)
        fault_point("media.saved")
        if source != original:
            remove(source)
        return news

    async def take_over(self, found: Media, made: Made, original: Path, **more: Any) -> Media:
        return await self.store.finish(found, made, original=original.name, syncs=self.syncs, **more)

    syncs: bool = False
    """Whether finished pictures are copied to a bucket."""

    async def _note_error(self, job: Job[Any], found: Media, error: Exception) -> None:
        if isinstance(error, Unrecoverable | UnknownPreset) or job.is_last_attempt:
            await self._give_up(found, str(error) or type(error).__name__)

    async def _give_up(self, found: Media, error: str) -> None:
        await self.store.fail(found.id, error)
        if found.temp_path is not None:
            remove(self.files.temp_file(found.temp_path))
        await self._after(await self.store.get(found.id))


def clean_name(filename: str) -> str:
    """What a stranger called a file, as one harmless line of text."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in name if letter.isprintable())[:255] or "file"


def _derived(job_id: str) -> str:
    return str(uuid5(NAMESPACE_URL, f"yamchi:media:{job_id}"))


def _link(source: Path, target: Path) -> None:
    """The same file under another name; where that can't be, a copy that appears whole."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:
        unfinished = target.with_name(f"{target.name}.part")
        _copy(source, unfinished)
        os.replace(unfinished, target)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as origin, target.open("wb") as copy:
        while part := origin.read(1024 * 1024):
            copy.write(part)
        copy.flush()
        os.fsync(copy.fileno())
