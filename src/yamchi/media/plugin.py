"""The feature of media: what an application gets as `app.media`."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from yamchi.clock import to_millis
from yamchi.errors import ConfigurationError, YamchiError
from yamchi.media.allowance import DailyAllowance
from yamchi.media.attaching import PictureAttacher
from yamchi.media.children import PROCESS, PictureProcesses
from yamchi.media.cleanup import MediaCleanupJob
from yamchi.media.files import Files
from yamchi.media.metrics import OPERATIONS, PROCESSING, SYNC, SyncCounter, collect
from yamchi.media.model import Picture
from yamchi.media.presets import Presets
from yamchi.media.reporting import News
from yamchi.media.service import MediaService
from yamchi.media.settings import MediaSettings
from yamchi.media.store import MediaStore
from yamchi.media.sync import LONGEST, MediaSyncService
from yamchi.media.uploads import Resumable
from yamchi.media.watermarks import APPLY, WatermarkService
from yamchi.plugins import Application, BoardPage, Check, Plugin, ask
from yamchi.queues.handlers import Handler
from yamchi.queues.processes.limits import ProcessLimits
from yamchi.storage.bucket import Bucket

if TYPE_CHECKING:
    from prometheus_client import Metric

WATERMARK = "watermark"
RETRY: Mapping[str, Any] = {"attempts": 3, "backoff": {"type": "exponential", "delay": 1}}
SWEEP_EVERY = 10_000
STATIC = Path(__file__).parent / "static"


class Media(Plugin):
    """Pictures come in from strangers, and leave in the sizes that pages want."""

    name = "media"
    summary = "Uploads become variants: resized, clean WebP; watermarks, S3, cleanup."
    settings_class = MediaSettings
    migrations = Path(__file__).parent / "migrations"
    demo = "yamchi.media.demo:play"
    routes = "yamchi.media.tusroutes:ROUTES"
    commands: ClassVar = {"media": "yamchi.media.commands:group"}
    extras: ClassVar = {"media": "pyvips", "s3": "obstore"}

    def __init__(self, app: Application) -> None:
        super().__init__(app)
        self.declare()
        self.settings: MediaSettings
        settings, home = self.settings, app.settings.home
        self.files = Files(
            home / settings.uploads_dir,
            app.settings.var / "media",
            settings.media_free_bytes,
            settings.media_temp_dir,
        )
        self.store = MediaStore(app.database, app.clock)
        self.presets = Presets(home)
        self.bucket = (
            Bucket(settings.s3_bucket, settings, settings.s3_public_url) if settings.s3_bucket else None
        )
        self.children = PictureProcesses(
            app.queue(PROCESSING),
            self.files,
            ProcessLimits.parse(settings.media_processes, settings.media_memory),
            to_millis(settings.media_timeout),
            settings.media_max_pixels,
            app.clock,
            self._tell_progress,
        )
        self.service = MediaService(
            self.store,
            self.files,
            self.presets,
            app.queue(PROCESSING),
            self.children,
            app.clock,
            self._changed,
            syncs=self.bucket is not None,
        )
        self.watermarks = WatermarkService(
            self.store,
            self.files,
            self.service,
            self.children,
            app.queue(WATERMARK),
            self._changed,
        )
        self.sync = MediaSyncService(
            self.store, self.files, self.bucket, app.queue(SYNC), app.database, lambda: app.keys, app.clock
        )
        self.cleanup = MediaCleanupJob(
            self.store, self.files, self.bucket, app.clock, settings.media_cleanup_days
        )
        self._sync_counter = SyncCounter()
        app.observers.append(self._sync_counter.observe)

    @property
    def resumable(self) -> Resumable:
        return Resumable(self.files, self.app.keys, self.allowance, self.settings.media_max_bytes)

    @property
    def allowance(self) -> DailyAllowance:
        return DailyAllowance(self.app.keys, self.app.clock, self.settings.media_person_bytes)

    # ── For your code ─────────────────────────────────────────────────────────────────────────────────────────────

    async def process_upload(self, file: Path | str, entity_type: str, **fields: Any) -> Picture:
        """Make the variants of a file now, and wait for them."""
        return await self.service.process_upload(file, entity_type, **fields)

    async def get(self, media_id: str) -> Picture:
        return await self.store.get(media_id)

    async def queue_counts(self) -> dict[str, dict[str, Any]]:
        """`processing`, `sync` and `watermark`, each with its counts."""
        names = {"processing": PROCESSING, "sync": SYNC, "watermark": WATERMARK}
        wanted = ("waiting", "active", "completed", "failed", "type")
        stats = {shown: await self.app.queue(name).stats() for shown, name in names.items()}
        return {shown: {key: found[key] for key in wanted} for shown, found in stats.items()}

    # ── For the rest of Yamchi ────────────────────────────────────────────────────────────────────────────────────

    def declare(self) -> None:
        self.app.define(PROCESSING, concurrency=5, **RETRY)
        self.app.define(SYNC, concurrency=5, timeout=LONGEST, **RETRY)
        self.app.define(WATERMARK, concurrency=3, **RETRY)

    def serve(self) -> None:
        processing = self.app.queue(PROCESSING)
        if PROCESS in processing.definition.handlers:
            return
        processing.definition.handlers[PROCESS] = Handler(PROCESS, self.service.handle)
        processing.listeners.on("failed", self.service.note_failure)
        self.app.queue(WATERMARK).definition.handlers[APPLY] = Handler(APPLY, self.watermarks.handle)
        for operation in OPERATIONS:
            self.app.queue(SYNC).definition.handlers[operation] = Handler(operation, self.sync.handle)
        self.app.service("media sweeper", self._sweep)
        if self.bucket:
            self.app.service("media sync", self.sync.outbox.watch)
        self.app.cron("30 3 * * *", name="media-cleanup")(self._clean_daily)
        if (attachments := getattr(self._notifications, "attachments", None)) is not None:
            attachments.register("media", PictureAttacher(self.store, self.files, self.bucket).open)

    async def _sweep(self) -> None:
        while True:
            await self.app.clock.sleep(SWEEP_EVERY)
            await self.service.sweep()

    async def _clean_daily(self) -> dict[str, Any]:
        return (await self.cleanup.run()).to_dict()

    async def _changed(self, found: Picture) -> None:
        """The bucket follows, and the uploader's page hears of it."""
        await self.sync.follow(found)
        if found.user_id and self._feed is not None:
            body = {"type": "media", "media": found.to_dict()}
            await self._feed.publish(found.user_id, body, once=f"media-{found.id}-{found.updated_at}")

    async def _tell_progress(self, found: Picture, news: News) -> None:
        """The uploader's page hears how far the work is, and gets the placeholder as soon as there is one."""
        if found.user_id and self._feed is not None:
            known = news.model_dump(exclude={"percent"}, exclude_none=True)
            about = {"id": found.id, "status": found.status, "progress": news.percent, **known}
            await self._feed.publish(found.user_id, {"type": "media", "media": about})

    @cached_property
    def _notifications(self) -> Plugin | None:
        try:
            return self.app.plugin("notifications")
        except ConfigurationError:
            return None

    @property
    def _feed(self) -> Any:
        """What open pages hear of, where notifications are on."""
        return getattr(self._notifications, "feed", None)

    def static(self) -> dict[str, Path]:
        return {"/media-page": STATIC / "page", "/media-board": STATIC / "board"}

    def pages(self) -> Iterable[BoardPage]:
        yield BoardPage("Media", "/media")

    def body_limits(self) -> dict[str, int]:
        most = self.settings.media_max_bytes + 1_048_576
        return {
            "/api/admin/media/upload-async": most,
            "/api/admin/media/tus/[^/]+": most,
            "/api/admin/watermarks": most,
            "/api/v1/users/[^/]+/media": most,
            "/api/v1/users/[^/]+/media/tus/[^/]+": most,
        }

    def metrics(self) -> "Iterable[Metric]":
        return collect(self.app.metrics, self._sync_counter)

    async def checks(self) -> Iterable[Check]:
        try:
            count = len(self.presets.all())
        except YamchiError as error:
            return [Check("media", False, str(error))]
        where = f"copied to {self.settings.s3_bucket}" if self.bucket else "kept here only"
        return [Check("media", True, f"{count} presets; pictures are {where}")]

    async def probes(self) -> Iterable[Check]:
        return await ask("s3", self.bucket.ping) if self.bucket else []

    async def erase(self, user_id: str) -> Mapping[str, int]:
        """Their pictures are gone for pages at once, and for good MEDIA_CLEANUP_DAYS later."""
        return {"media": await self.store.delete_of_user(user_id)}

    async def close(self) -> None:
        await self.children.close()
