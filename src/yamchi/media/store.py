"""The tables of media. What processing made is taken over in one transaction, with the files that nobody needs any more."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    null,
    or_,
    select,
    update,
)

from yamchi.clock import Clock, Millis
from yamchi.errors import Retryable, UnknownJob, WrongState
from yamchi.media.model import KeptVariant, Picture, Status
from yamchi.media.processing import Made
from yamchi.media.tables import media, media_retired, media_variants, watermarks
from yamchi.storage.database import Database
from yamchi.storage.upsert import insert_new

GRACE: Millis = 86_400_000
"""How long a file whose picture has changed stays: pages and caches still name it."""


REMOVING = "removing"
"""The `sync_state` of a picture whose files are being removed for good."""


_BY_ID = select(media).where(media.c.id == bindparam("media_id"))
_VARIANTS = select(media_variants).where(
    media_variants.c.media_id.in_(bindparam("media_ids", expanding=True))
)


MOST_NAMED = 10
"""Ids that a refusal names."""


class UnknownMedia(UnknownJob):
    """There is no such picture."""


class Changed(Retryable):
    """Somebody else changed the picture meanwhile."""


class MediaStore:
    """Pictures, variants, watermarks."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, media_id: str) -> Picture:
        return await self._database.read(lambda c: _picture(c, media_id))

    async def page(
        self,
        *,
        status: str | None = None,
        entity_type: str | None = None,
        user_id: str | None = None,
        offset: int = 0,
        limit: int = 50,
    ) -> tuple[list[Picture], int]:
        """The newest first, and how many there are."""
        wanted = {"status": status, "entity_type": entity_type, "user_id": user_id}
        matching = and_(True, *(media.c[name] == value for name, value in wanted.items() if value))
        query = select(media).where(matching).order_by(media.c.created_at.desc(), media.c.id)
        total = select(func.count()).select_from(media).where(matching)
        count: int = await self._database.value(total)
        return await self._pictures(query.offset(offset).limit(limit)), count

    async def ids(self, after: str, limit: int) -> list[str]:
        """Ids of what is ready, in their own order, for those who go over all of them."""
        query = select(media.c.id).where(media.c.id > after, media.c.status == "ready")
        return await self._database.column(query.order_by(media.c.id).limit(limit))

    async def stuck(self, before: Millis, limit: int) -> list[Picture]:
        """Uploads that have been waiting for so long that their job may be lost."""
        query = select(media).where(media.c.status == "processing", media.c.updated_at < before)
        return await self._pictures(query.order_by(media.c.updated_at).limit(limit))

    async def deleted(self, before: Millis, limit: int) -> list[Picture]:
        """Those that were deleted by then, and whose files are to be removed for good."""
        query = select(media).where(media.c.status == "soft_deleted", media.c.deleted_at <= before)
        return await self._pictures(query.order_by(media.c.deleted_at).limit(limit))

    async def same_as(self, found: Picture) -> str | None:
        """The oldest picture with the same content, kind and owner, unless that is this one."""
        oldest = await self.with_hash(found.hash, found.entity_type, found.user_id) if found.hash else None
        return None if oldest == found.id else oldest

    async def named(self, keys: Sequence[str]) -> set[str]:
        """Those of these keys that a picture has, or had until a moment ago."""
        current = _files_of({media_id for key in keys for media_id in _ids_in(key)})
        retired = select(media_retired.c.path).where(media_retired.c.path.in_(keys))

        def look(connection: Connection) -> set[str]:
            found = {f"{row.entity_type}/{row.file}" for row in connection.execute(current)}
            return (found & set(keys)) | set(connection.execute(retired).scalars())

        return await self._database.read(look)

    async def known_ids(self, ids: Sequence[str]) -> set[str]:
        """Those of these ids that a picture has."""
        return set(await self._database.get_all(_known, dict.fromkeys(ids)))

    async def check_ids(self, ids: Sequence[str]) -> None:
        """Refuse ids that no picture has, in one sentence."""
        known = await self.known_ids(ids)
        unknown = [one for one in dict.fromkeys(ids) if one not in known]
        if unknown:
            named = ", ".join(repr(one[:64]) for one in unknown[:MOST_NAMED])
            others = len(unknown) - MOST_NAMED
            raise UnknownMedia(f"There is no media {named}{f' and {others:,} others' if others > 0 else ''}.")

    async def is_retired(self, key: str) -> bool:
        """Whether a picture had this file until it changed, and pages may still name it."""
        query = select(media_retired.c.path).where(media_retired.c.path == key)
        return await self._database.first(query) is not None

    async def with_hash(self, digest: str, entity_type: str, user_id: str | None) -> str | None:
        """The oldest picture of this content, kind and owner."""
        query = (
            select(media.c.id)
            .where(media.c.hash == digest, media.c.entity_type == entity_type)
            .where(media.c.status == "ready", media.c.user_id == user_id)
            .order_by(media.c.created_at)
            .limit(1)
        )
        found: str | None = await self._database.value(query)
        return found

    async def temp_names(self) -> set[str]:
        """The names of uploads that are still to be worked on."""
        query = select(media.c.temp_path).where(media.c.temp_path.is_not(None))
        found = await self._database.column(query)
        return {str(path).rpartition("/")[2] for path in found}

    # ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def add(self, row: dict[str, Any]) -> Picture:
        """An upload that has come in; one that is there is left alone."""
        now = self._clock.now()
        whole = {"metadata": {}, **row, "status": "processing", "created_at": now, "updated_at": now}

        def add(connection: Connection) -> Picture:
            insert_new(connection, media, [whole])
            return _picture(connection, row["id"])

        return await self._database.write(add)

    async def finish(
        self,
        found: Picture,
        made: Made,
        *,
        original: str,
        syncs: bool,
        is_there: Callable[[str], bool],
        **more: Any,
    ) -> Picture:
        """Take over what processing made, and retire the files it replaces.

        One that was deleted meanwhile stays deleted. `Changed` if it got another watermark or another file meanwhile, or if a
        file that was made once before was removed by then; `UnknownMedia` if it is gone.
        """
        now = self._clock.now()
        fields = {
            "status": _unless_deleted("ready"),
            "error": None,
            "temp_path": None,
            "original_path": original,
            "type": made.type,
            "hash": made.hash,
            "width": made.width,
            "height": made.height,
            "placeholder": made.placeholder,
            "sync_state": "accepted" if syncs else None,
            "updated_at": now,
            **more,
        }
        mine = and_(media.c.id == found.id, media.c.sync_state.is_distinct_from(REMOVING))
        is_same_file = or_(
            and_(
                media.c.temp_path.is_not_distinct_from(found.temp_path),
                media.c.hash.is_not_distinct_from(found.hash),
            ),
            and_(media.c.temp_path.is_(None), media.c.hash == made.hash),
        )

        def take_over(connection: Connection) -> Picture:
            # The row first: who else takes over waits here, and then sees what this one wrote.
            if connection.execute(update(media).where(mine, is_same_file).values(**fields)).rowcount == 0:
                if connection.execute(select(media.c.id).where(mine)).first():
                    raise Changed(f"Media {found.id} got another file meanwhile: it is made again.")
                raise UnknownMedia(f"There is no media {found.id!r} any more.")
            query = select(media.c.watermark).where(media.c.id == found.id)
            if "watermark" not in more and connection.execute(query).scalar() != found.watermark:
                raise Changed(f"Media {found.id} got another watermark meanwhile: it is made again.")
            self._replace_variants(connection, found, made, now)
            if not all(is_there(variant.file) for variant in made.variants):
                raise Changed(f"Files of media {found.id} were removed meanwhile: it is made again.")
            return _picture(connection, found.id)

        return await self._database.write(take_over)

    def _replace_variants(self, connection: Connection, found: Picture, made: Made, now: Millis) -> None:
        mine = media_variants.c.media_id == found.id
        before = {row.file: row for row in connection.execute(select(media_variants).where(mine))}
        after = {variant.file for variant in made.variants}
        connection.execute(delete(media_variants).where(mine))
        rows = [
            {
                "media_id": found.id,
                **{name: getattr(variant, name) for name in variant.__slots__},
                "is_local": True,
                "is_synced": variant.file in before and before[variant.file].is_synced,
            }
            for variant in made.variants
        ]
        insert_new(connection, media_variants, rows)
        # A picture may come back to what it was: those files are needed again.
        again = [found.key_of(file) for file in after]
        connection.execute(delete(media_retired).where(media_retired.c.path.in_(again)))
        gone = [found.key_of(file) for file in before if file not in after]
        insert_new(connection, media_retired, [{"path": key, "delete_after": now + GRACE} for key in gone])

    async def take_upload(self, media_id: str, name: str) -> None:
        """From now on this file is what the picture is to be made of."""
        await self._change(media_id, temp_path=name)

    async def fail(self, found: Picture, status: Status, error: str) -> bool:
        """False if its upload was taken by somebody else meanwhile: then it is theirs to say what became of it."""
        is_same = media.c.temp_path.is_not_distinct_from(found.temp_path)
        values = {"status": _unless_deleted(status), "error": error, "temp_path": None}
        return await self._change(found.id, is_same, **values)

    async def touch(self, media_id: str) -> None:
        """Note that it was looked at now."""
        await self._change(media_id)

    async def soft_delete(self, media_id: str) -> Picture:
        found = await self.get(media_id)
        if found.status != "soft_deleted":
            await self._change(media_id, status="soft_deleted", deleted_at=self._clock.now())
        return await self.get(media_id)

    async def restore(self, media_id: str) -> Picture:
        found = await self.get(media_id)
        if found.status != "soft_deleted":
            raise WrongState(f"Media {media_id} is {found.status}, not deleted.")
        unmade = "failed" if found.temp_path is None else "processing"
        is_whole = media.c.sync_state.is_distinct_from(REMOVING)
        status = "ready" if found.variants else unmade
        if not await self._change(media_id, is_whole, status=status, deleted_at=None):
            raise WrongState(f"Media {media_id} is being removed for good.")
        return await self.get(media_id)

    async def begin_removal(self, media_id: str, before: Millis) -> bool:
        """Whether it is still deleted. From now on it can't be restored: its files go."""
        is_deleted = and_(media.c.status == "soft_deleted", media.c.deleted_at <= before)
        return await self._change(media_id, is_deleted, sync_state=REMOVING)

    async def sync_queued(self, media_id: str) -> None:
        """Note that its copy in the bucket is on its way."""
        await self._change(media_id, media.c.sync_state == "accepted", sync_state="enqueued")

    async def synced(self, media_id: str, files: Sequence[str], **state: bool) -> None:
        """Note where these files are now; a variant that has another file meanwhile is left alone."""
        which = and_(media_variants.c.media_id == media_id, media_variants.c.file.in_(files))
        change = update(media_variants).where(which).values(**state)
        await self._database.execute(change)

    async def erase(self, media_id: str) -> bool:
        """Whether it was still there: of several who remove it, one erases it."""

        def forget(connection: Connection) -> bool:
            connection.execute(delete(media_variants).where(media_variants.c.media_id == media_id))
            return connection.execute(delete(media).where(media.c.id == media_id)).rowcount == 1

        return await self._database.write(forget)

    async def retired(self, before: Millis, limit: int) -> list[str]:
        query = select(media_retired.c.path).where(media_retired.c.delete_after <= before).limit(limit)
        return await self._database.column(query)

    async def remove_retired(self, paths: Sequence[str], remove: Callable[[Sequence[str]], int]) -> int:
        """Have these removed, but for those that a picture has again; how many bytes that freed.

        Who takes over one of them meanwhile waits here, and then sees that it is gone.
        """
        query = select(media_retired.c.path).where(media_retired.c.path.in_(paths)).with_for_update()

        def forget(connection: Connection) -> int:
            gone = list(connection.execute(query).scalars())
            freed = remove(gone)
            connection.execute(delete(media_retired).where(media_retired.c.path.in_(gone)))
            return freed

        return await self._database.write(forget)

    async def delete_of_user(self, user_id: str) -> int:
        now = self._clock.now()
        mine = and_(media.c.user_id == user_id, media.c.status != "soft_deleted")
        change = update(media).where(mine).values(status="soft_deleted", deleted_at=now, updated_at=now)
        return await self._database.execute(change)

    # ── Watermarks ────────────────────────────────────────────────────────────────────────────────────────────────

    async def add_watermark(self, row: dict[str, Any]) -> None:
        await self._database.write(
            lambda c: insert_new(c, watermarks, [{**row, "created_at": self._clock.now()}])
        )

    async def watermark(self, watermark_id: str) -> Row[Any]:
        query = select(watermarks).where(watermarks.c.id == watermark_id)
        row: Row[Any] | None = await self._database.first(query)
        if row is None:
            raise UnknownMedia(f"There is no watermark {watermark_id[:64]!r}: upload it first.")
        return row

    async def take_watermark_off(self, media_id: str) -> None:
        """From the row: whoever makes the picture anew leaves it away."""
        if not await self._change(media_id, watermark=null()):
            raise UnknownMedia(f"There is no media {media_id[:64]!r}.")

    async def watermarks(self) -> Sequence[Row[Any]]:
        query = select(watermarks).order_by(watermarks.c.created_at.desc()).limit(500)
        return await self._database.rows(query)

    # ── Rows ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _pictures(self, query: Select[Any]) -> list[Picture]:
        return await self._database.read(lambda c: _with_variants(c, c.execute(query).all()))

    async def _change(self, media_id: str, *conditions: ColumnElement[bool], **values: Any) -> bool:
        """Whether there was such a row."""
        which = and_(media.c.id == media_id, *conditions)
        change = update(media).where(which).values(updated_at=self._clock.now(), **values)
        return await self._database.execute(change) > 0


def _picture(connection: Connection, media_id: str) -> Picture:
    row = connection.execute(_BY_ID, {"media_id": media_id}).first()
    if row is None:
        raise UnknownMedia(f"There is no media {media_id[:64]!r}.")
    return _with_variants(connection, [row])[0]


def _with_variants(connection: Connection, rows: Sequence[Row[Any]]) -> list[Picture]:
    """One query, however many pictures."""
    parts: dict[str, list[KeptVariant]] = defaultdict(list)
    for row in connection.execute(_VARIANTS, {"media_ids": [row.id for row in rows]}):
        parts[row.media_id].append(KeptVariant(**row._mapping))
    return [
        Picture.of(row, tuple(sorted(parts[row.id], key=lambda one: (-one.width, one.name)))) for row in rows
    ]


def _known(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    found = connection.execute(select(media.c.id).where(media.c.id.in_(ids))).scalars()
    return {media_id: media_id for media_id in found}


def _files_of(media_ids: Collection[str]) -> Select[Any]:
    """By the primary key: there is no index of files."""
    return (
        select(media.c.entity_type, media_variants.c.file)
        .join(media, media.c.id == media_variants.c.media_id)
        .where(media_variants.c.media_id.in_(media_ids))
    )


def _ids_in(key: str) -> Iterator[str]:
    """Whose file this may be: its name begins with the picture's id, and both may have a - in them."""
    *parts, _ = key.rpartition("/")[2].split("-")
    yield from accumulate(parts, "{}-{}".format)


def _unless_deleted(status: Status) -> Any:
    """Deleting wins over whatever was on its way."""
    return case((media.c.status == "soft_deleted", "soft_deleted"), else_=status)
