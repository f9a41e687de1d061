"""Copies of finished pictures in a bucket: up, down, and away again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import structlog

from yamchi.clock import Clock
from yamchi.errors import (
    ConfigurationError,
    EngineError,
    EngineUnavailable,
    MissingExtra,
    Snooze,
    Unrecoverable,
)
from yamchi.faultpoints import fault_point
from yamchi.media.files import Files, as_outage, remove
from yamchi.media.model import KeptVariant, MediaSyncJobData, Operation, Picture
from yamchi.media.store import MediaStore, UnknownMedia
from yamchi.media.tables import media
from yamchi.queues.job import Job
from yamchi.queues.newjobs import New
from yamchi.queues.queue import Queue
from yamchi.storage.bucket import Bucket, NotInBucket
from yamchi.storage.database import Database
from yamchi.storage.keys import Keys
from yamchi.storage.outbox import Outbox

log = structlog.get_logger("yamchi.media")

PAGE = 500
NORMAL = 5
LONGEST = "15m"
"""How long a sync may take."""
HOLD = "30s"
"""How long a sync that deletes something keeps others from it unless it goes on; so long they wait for one that was killed."""
RENEW_SECONDS = 10.0
TURN_WAIT = "2s"
TYPES = {".webp": "image/webp", ".avif": "image/avif"}


class MediaSyncService:
    """Queues syncs, for one picture or for all, and does them."""

    def __init__(
        self,
        store: MediaStore,
        files: Files,
        bucket: Bucket | None,
        queue: Queue,
        database: Database,
        keys: Callable[[], Keys],
        clock: Clock,
    ) -> None:
        self._keys = keys
        self._store = store
        self._files = files
        self._bucket = bucket
        self._queue = queue
        self._clock = clock
        self.outbox = Outbox(
            database,
            clock,
            key=media.c.id,
            state=media.c.sync_state,
            since=media.c.updated_at,
            finish=self._finish,
            give_up=self._give_up,
            what="pictures to be synced",
        )

    # ── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def follow(self, found: Picture) -> None:
        """After a picture was made or changed: its copy in the bucket follows."""
        if found.sync_state == "accepted":
            await self._finish(found.id)

    async def sync(
        self,
        media_ids: Sequence[str],
        operation: Operation,
        *,
        delete_source: bool = False,
        priority: int | None = None,
    ) -> list[str]:
        """Queue a sync of these; the jobs' ids. If one is unknown, nothing is queued."""
        self._needed()
        await self._store.check_ids(media_ids)
        return await self._add(media_ids, operation, delete_source, priority)

    async def sync_all(
        self, operation: Operation, *, delete_source: bool = False, priority: int | None = None
    ) -> AsyncIterator[int]:
        """Queue a sync of every picture, page by page; how many so far, after each."""
        self._needed()
        done, after = 0, ""
        while ids := await self._store.ids(after, PAGE):
            await self._add(ids, operation, delete_source, priority)
            done, after = done + len(ids), ids[-1]
            yield done

    async def _add(
        self, media_ids: Sequence[str], operation: Operation, delete_source: bool, priority: int | None
    ) -> list[str]:
        wanted = [
            MediaSyncJobData(
                media_id=one, operation=operation, delete_source=delete_source, priority=priority
            )
            for one in media_ids
        ]
        jobs = await self._queue.add_many(
            [New(data, name=operation, priority=priority or NORMAL) for data in wanted]
        )
        return [job.id for job in jobs]

    async def _finish(self, media_id: str) -> None:
        found = await self._store.get(media_id)
        files = "".join(one.file for one in found.variants)
        what = f"{found.updated_at}-{sha256(files.encode()).hexdigest()[:12]}"
        data = MediaSyncJobData(media_id=media_id, operation="upload")
        await self._queue.add(data, name="upload", id=f"sync-{media_id}-{what}", priority=NORMAL)
        fault_point("media.synced")
        await self._store.sync_queued(media_id)

    async def _give_up(self, media_id: str, why: str) -> None:
        await self._store.sync_queued(media_id)

    # ── Doing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def handle(self, job: Job[MediaSyncJobData]) -> dict[str, Any]:
        """`upload`, `download` or `delete`, as the job says."""
        data = job.data
        deletes = data.delete_source or data.operation == "delete"
        try:
            async with self._alone(data.media_id) if deletes else nullcontext():
                found = await self._store.get(data.media_id)
                count = await self._do(job, self._needed(), found)
        except (UnknownMedia, MissingExtra) as error:
            raise Unrecoverable(str(error)) from error
        except (OSError, EngineUnavailable) as error:
            raise as_outage(error) from error
        return {"mediaId": found.id, "operation": data.operation, "files": count}

    @asynccontextmanager
    async def _alone(self, media_id: str) -> AsyncIterator[None]:
        """One at a time of those that delete files of a picture: two would each delete the copy that the other leaves."""
        name = f"media-moves:{media_id}"
        if await self._keys().incr(name, HOLD) > 1:
            raise Snooze(TURN_WAIT, f"Another sync of media {media_id} is on its way.")
        renewing = asyncio.create_task(self._renew(name))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await self._keys().delete(name)

    async def _renew(self, name: str) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._keys().set(name, "1", HOLD)
            except EngineError as error:
                log.warning(f"{name} could not be renewed; trying again", error=str(error))

    async def _do(self, job: Job[MediaSyncJobData], bucket: Bucket, found: Picture) -> int:
        match job.data.operation:
            case "upload":
                return await self._upload(job, bucket, found, job.data.delete_source)
            case "download":
                return await self._download(bucket, found, job.data.delete_source)
            case "delete":
                return await self._delete(bucket, found)

    async def _upload(self, job: Job[Any], bucket: Bucket, found: Picture, delete_source: bool) -> int:
        """Send what is not there; what was sent before something went wrong is noted, so that it is not sent again."""
        # With a source to delete also what an attempt that broke off has left.
        here = [
            one
            for one in found.variants
            if one.is_local or (delete_source and self._path(found, one).exists())
        ]
        may_be_there = job.attempts_made > 1
        sent = await asyncio.gather(
            *(
                _put(bucket, found.key_of(one.file), self._path(found, one), may_be_there or one.is_synced)
                for one in here
            ),
            return_exceptions=True,
        )
        fault_point("media.uploaded")
        files = [one.file for one, result in zip(here, sent, strict=True) if isinstance(result, bool)]
        await self._store.synced(found.id, files, is_synced=True)
        for result in sent:
            if isinstance(result, BaseException):
                raise result
        if delete_source:
            await self._store.synced(found.id, files, is_local=False)
            for one in here:
                remove(self._path(found, one))
        return sent.count(True)

    async def _download(self, bucket: Bucket, found: Picture, delete_source: bool) -> int:
        away = [one for one in found.variants if one.is_synced and not self._path(found, one).exists()]
        self._files.folder_of(found.entity_type)
        try:
            await asyncio.gather(
                *(bucket.get(found.key_of(one.file), self._path(found, one), sha256=one.hash) for one in away)
            )
        except NotInBucket as error:
            raise Unrecoverable(str(error)) from error
        files = [one.file for one in found.variants if one.is_synced]
        await self._store.synced(found.id, files, is_local=True)
        if delete_source:
            await self._delete(bucket, found)
        return len(away)

    async def _delete(self, bucket: Bucket, found: Picture) -> int:
        """Away from the bucket; what is nowhere else is kept."""
        safe = [one for one in found.variants if one.is_synced and self._path(found, one).exists()]
        lost = [one.name for one in found.variants if one.is_synced and one not in safe]
        if lost:
            raise Unrecoverable(
                f"Media {found.id} is only in the bucket ({', '.join(lost)}): download it first."
            )
        await bucket.delete([found.key_of(one.file) for one in safe])
        await self._store.synced(found.id, [one.file for one in safe], is_synced=False)
        return len(safe)

    def _needed(self) -> Bucket:
        if self._bucket is None:
            raise ConfigurationError(
                "S3 is not set up: set S3_BUCKET, and S3_ENDPOINT if it is not Amazon's."
            )
        return self._bucket

    def _path(self, found: Picture, variant: KeptVariant) -> Any:
        return self._files.public_file(found.entity_type, variant.file)


async def _put(bucket: Bucket, key: str, file: Path, look_first: bool) -> bool:
    content_type = TYPES.get(file.suffix, "application/octet-stream")
    return await bucket.put_once(key, file, content_type, look_first=look_first)
