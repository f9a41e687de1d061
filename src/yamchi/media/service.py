"""From an upload to variants: accepted with a row and a file, worked on in a child process, taken over in one transaction.

The order decides what a crash leaves: row and file are there before anybody is told that they are; variants appear under their
last names before the row names them; the upload is deleted when nothing needs it any more. Each step may be repeated.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from yamchi.clock import Clock, Millis
from yamchi.errors import (
    EngineUnavailable,
    InvalidJob,
    Outage,
    Retryable,
    UnknownJob,
    Unrecoverable,
    WrongState,
)
from yamchi.faultpoints import fault_point
from yamchi.media.children import PROCESS, PictureProcesses
from yamchi.media.files import Files, as_outage, copy, copy_whole, link, remove, size_of
from yamchi.media.formats import BadFile, TooLarge, sniff_file
from yamchi.media.model import MediaProcessingJobData, Picture
from yamchi.media.presets import Preset, Presets, UnknownPreset
from yamchi.media.processing import Made
from yamchi.media.store import MediaStore, UnknownMedia
from yamchi.media.tasks import Tasks
from yamchi.queues.handlers import describe, faults_in
from yamchi.queues.job import Job
from yamchi.queues.newjobs import New
from yamchi.queues.queue import Queue
from yamchi.storage.folders import flush_folder

JOB_ID = "media-"
STUCK: Millis = 30_000
"""An upload that has not been looked at for so long may have lost its job; queueing it again is no second job."""

TOUCH_EVERY: Millis = 10_000

OVER = ("failed", "cancelled", "expired")
"""States of a job that nobody runs again."""

Told = Callable[[Picture], Awaitable[None]]


class MediaService:
    """Takes uploads in and makes variants of them."""

    def __init__(
        self,
        store: MediaStore,
        files: Files,
        presets: Presets,
        queue: Queue,
        children: PictureProcesses,
        clock: Clock,
        after: Told,
        *,
        syncs: bool,
    ) -> None:
        self.store = store
        self.files = files
        self.presets = presets
        self.tasks = Tasks(store, files, presets, children.max_pixels)
        self._queue = queue
        self._children = children
        self._clock = clock
        self._after = after
        self._syncs = syncs
        """Whether finished pictures are copied to a bucket."""

    # ── In ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def accept(
        self,
        temp: Path,
        entity_type: str,
        filename: str,
        *,
        user_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        media_id: str | None = None,
    ) -> tuple[Picture, str]:
        """Keep an upload and queue its processing; the picture and its job's id. What is no picture is refused here.

        The same `media_id` again is the same picture.
        """
        chosen = media_id or str(uuid4())
        try:
            self._check_upload(temp, self.presets.get(entity_type))
            data = _job_data(
                media_id=chosen,
                entity_type=entity_type,
                temp_path=str(temp),
                original_filename=clean_name(filename),
                user_id=user_id,
                metadata=metadata or {},
            )
            self._queue.prepare([New(data, PROCESS, f"{JOB_ID}{chosen}")])  # refused before anything is kept
        except (BadFile, UnknownPreset, InvalidJob):
            remove(temp)
            raise
        found = await self._keep(temp, data, chosen)
        fault_point("media.stored")
        return found, await self._enqueue(found)

    async def process_upload(
        self,
        file: Path | str,
        entity_type: str,
        *,
        user_id: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Picture:
        """The same without the queue, for callers that wait. The file given stays where it is."""
        preset = self.presets.get(entity_type)
        temp = self.files.new_temp()
        try:
            await asyncio.to_thread(copy, Path(file), temp)
            self._check_upload(temp, preset)
            data = _job_data(
                entity_type=entity_type,
                temp_path=str(temp),
                original_filename=clean_name(Path(file).name),
                user_id=user_id,
                metadata=metadata or {},
            )
        except (OSError, BadFile, InvalidJob):
            remove(temp)
            raise
        found = await self._keep(temp, data, str(uuid4()))
        try:
            task = self.tasks.begin(found, temp, None)
            async with self._touching(found):
                made = await self._children.make(found, task)
            found = await self._finish(found, made, temp)
        except Exception as error:
            await self._give_up(found, str(error) or type(error).__name__)
            raise
        await self._after(found)
        return found

    @asynccontextmanager
    async def _touching(self, found: Picture) -> AsyncIterator[None]:
        """Meanwhile the sweeper sees that somebody works on it, though it has no job."""

        async def touch() -> None:
            while True:
                await self._clock.sleep(TOUCH_EVERY)
                with suppress(EngineUnavailable):  # the next one may get through
                    await self.store.touch(found.id)

        touching = asyncio.create_task(touch())
        try:
            yield
        finally:
            touching.cancel()

    async def _keep(self, temp: Path, data: MediaProcessingJobData, media_id: str) -> Picture:
        await asyncio.to_thread(flush_folder, temp.parent)
        return await self.store.add(
            {
                "id": media_id,
                "entity_type": data.entity_type[:32],
                "original_filename": clean_name(data.original_filename),
                "user_id": data.user_id,
                "metadata": data.metadata,
                "temp_path": temp.name,
                "size": size_of(temp),
            }
        )

    def check_announced(self, size: int, entity_type: str) -> None:
        """Refuse an upload before it is sent, as far as it is known what it will be."""
        self._check_size(size, self.presets.get(entity_type))

    def _check_upload(self, temp: Path, preset: Preset) -> None:
        sniff_file(temp)
        self._check_size(size_of(temp), preset)

    def _check_size(self, size: int, preset: Preset) -> None:
        if preset.max_bytes is not None and size > preset.max_bytes:
            raise TooLarge(
                f"The file has {size:,} bytes; {preset.max_bytes:,} are the most for this kind of picture."
            )

    async def _enqueue(self, found: Picture, *, again: str = "") -> str:
        data = _job_data(
            media_id=found.id,
            entity_type=found.entity_type,
            temp_path=str(self.files.temp_named(found.temp_path)) if found.temp_path else "",
            original_filename=found.original_filename,
            user_id=found.user_id,
            metadata=dict(found.metadata),
        )
        job = await self._queue.add(data, name=PROCESS, id=f"{JOB_ID}{found.id}{again}")
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
        """`process`: make the variants of one upload, or those of a picture anew."""
        found = await self._row_of(job)
        is_first = job.data.media_id is None or job.id == f"{JOB_ID}{found.id}"
        if is_first and found.variants and found.temp_path is None:
            return await self._tidy_up(job, found)
        try:
            found = await self._with_file_of(job, found, is_first=is_first)
            source = self._source_of(found)
            task = self.tasks.begin(found, source, await self.tasks.mark_on(found))
            made = await self._children.make(found, task, job)
            found = await self._finish(found, made, source, is_first=is_first)
        except Exception as error:
            failure = as_outage(error)
            await self._note_error(job, found, failure)
            raise failure from error
        await job.progress(100)
        return await self._result(found)

    async def note_failure(self, job: Job[Any], error: str) -> None:
        """A job that ended without its handler's last word, such as one that killed its workers."""
        try:
            data = MediaProcessingJobData.model_validate_json(job.record.payload)
            found = await self.store.get(data.media_id or _derived(job.id))
        except (ValidationError, UnknownMedia):  # it is about no picture that is here
            return
        if found.status == "processing" or found.temp_path == Path(data.temp_path).name:
            await self._give_up(found, error)

    async def sweep(self) -> int:
        """Queue again what lost its job, and give up what has one that is over; how many there were."""
        stuck = await self.store.stuck(self._clock.now() - STUCK, 200)
        for found in stuck:
            await self.store.touch(found.id)
            job = await self._find_job(f"{JOB_ID}{found.id}")
            if job is not None and job.state in OVER:
                await self._give_up(found, job.failed_reason or f"Its job is {job.state}.")
                continue
            try:
                await self._enqueue(found)
            except InvalidJob as error:  # kept by a version that did not look: it never can be
                await self._give_up(found, str(error))
        return len(stuck)

    async def _find_job(self, job_id: str) -> Job[Any] | None:
        try:
            return await self._queue.job(job_id)
        except UnknownJob:
            return None

    async def _row_of(self, job: Job[MediaProcessingJobData]) -> Picture:
        """The picture that a job is about; another program's upload gets its row here."""
        data = job.data
        if data.media_id is not None:
            try:
                return await self.store.get(data.media_id)
            except UnknownMedia as error:
                raise Unrecoverable(str(error)) from error
        return await self._keep(await self._brought(job), data, _derived(job.id))

    async def _brought(self, job: Job[MediaProcessingJobData]) -> Path:
        """The file that a job brings."""
        try:
            return await asyncio.to_thread(self.files.brought, job.data.temp_path, _derived(job.id))
        except (OSError, EngineUnavailable) as error:
            raise as_outage(error) from error

    async def _with_file_of(
        self, job: Job[MediaProcessingJobData], found: Picture, *, is_first: bool
    ) -> Picture:
        """A job about a picture that is there may bring it another file; so may one about a picture that has none.

        A file that is gone was taken by this job already, or by the one before whose data it repeats: then the original is it.
        """
        if not job.data.temp_path or (is_first and found.temp_path is not None):
            return found
        file = await self._brought(job)
        if not file.exists():
            return found
        await self.store.take_upload(found.id, file.name)
        fault_point("media.taken")
        return replace(found, temp_path=file.name)

    def _source_of(self, found: Picture) -> Path:
        source = (
            self.tasks.original_of(found)
            if found.temp_path is None
            else self.files.temp_named(found.temp_path)
        )
        if not source.exists():
            raise Retryable(
                f"The file of media {found.id} is not on this machine. If uploads come in on another one, both need the "
                f"same var/media and UPLOADS_DIR, or only that one works on {self._queue.name}."
            )
        return source

    async def _tidy_up(self, job: Job[MediaProcessingJobData], found: Picture) -> dict[str, Any]:
        """The picture was made by somebody who got no further: do what comes after."""
        if job.data.temp_path:
            with suppress(BadFile):  # queued before the folder was moved: the cleanup removes it
                remove(self.files.temp_file(job.data.temp_path))
        return await self._result(found)

    async def _result(self, found: Picture) -> dict[str, Any]:
        """What the job returns, once those who follow the picture have been told."""
        await self._after(found)
        return {"mediaId": found.id, "status": found.status, "variants": len(found.variants)}

    async def _finish(self, found: Picture, made: Made, source: Path, *, is_first: bool = True) -> Picture:
        fault_point("media.written")
        original = self.files.original_of(found.id)
        if source != original:
            await asyncio.to_thread(link if is_first else copy_whole, source, original)
        news = await self.take_over(found, made, original)
        fault_point("media.saved")
        if source != original:
            remove(source)
        return news

    async def take_over(self, found: Picture, made: Made, original: Path, **more: Any) -> Picture:
        """Let the picture be what was made; the files of one that is gone meanwhile go too."""

        def is_there(file: str) -> bool:
            return self.files.public_file(found.entity_type, file).exists()

        try:
            return await self.store.finish(
                found, made, original=original.name, syncs=self._syncs, is_there=is_there, **more
            )
        except UnknownMedia as error:
            for one in made.variants:
                remove(self.files.public_file(found.entity_type, one.file))
            remove(original)
            raise Unrecoverable(str(error)) from error

    async def _note_error(self, job: Job[Any], found: Picture, error: Exception) -> None:
        if isinstance(error, Outage):
            return
        if isinstance(error, Unrecoverable | UnknownPreset) or job.is_last_attempt:
            await self._give_up(found, str(error) or type(error).__name__)

    async def _give_up(self, found: Picture, error: str) -> None:
        """A picture that could not be made anew is still the one it was; so is one that somebody else made meanwhile."""
        if not await self.store.fail(found, "ready" if found.variants else "failed", error):
            return
        if found.temp_path is not None:
            remove(self.files.temp_named(found.temp_path))
        await self._after(await self.store.get(found.id))


def _job_data(**fields: Any) -> MediaProcessingJobData:
    """The data of a job, or a sentence that names what is wrong with it."""
    try:
        return MediaProcessingJobData.model_validate({to_camel(name): one for name, one in fields.items()})
    except ValidationError as error:
        raise InvalidJob(describe(error), faults_in(error)) from error


def clean_name(filename: str) -> str:
    """What a stranger called a file, as one harmless line of text."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in name if letter.isprintable())[:255] or "file"


def _derived(job_id: str) -> str:
    return str(uuid5(NAMESPACE_URL, f"yamchi:media:{job_id}"))
