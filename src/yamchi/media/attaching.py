"""A finished picture as a file that goes with a message: `"attachments": ["media:<id>"]`."""

import asyncio
from dataclasses import dataclass
from pathlib import PurePath

from yamchi.errors import Unrecoverable
from yamchi.media.files import Files
from yamchi.media.model import KeptVariant, Picture
from yamchi.media.store import MediaStore, UnknownMedia
from yamchi.storage.bucket import Bucket, NotInBucket


@dataclass(frozen=True, slots=True)
class AttachedPicture:
    """What notifications want of a file: its name, its bytes, its type."""

    filename: str
    content: bytes
    type: str


class PictureAttacher:
    """Opens the largest variant of a picture that a message may carry."""

    def __init__(self, store: MediaStore, files: Files, bucket: Bucket | None) -> None:
        self._store = store
        self._files = files
        self._bucket = bucket

    async def open(self, media_id: str, most: int) -> AttachedPicture:
        try:
            found = await self._store.get(media_id)
        except UnknownMedia as error:
            raise Unrecoverable(str(error)) from error
        if found.status != "ready":
            raise Unrecoverable(f"The picture {media_id} is {found.status}, so it can't be attached.")
        small = [one for one in found.variants if one.size <= most]
        if not small:
            raise Unrecoverable(
                f"No variant of the picture {media_id} has {most} bytes or less: send its link instead."
            )
        chosen = max(small, key=lambda one: one.width * one.height)
        name = PurePath(found.original_filename).stem or "picture"
        return AttachedPicture(
            f"{name}{PurePath(chosen.file).suffix}", await self._read(found, chosen), chosen.type
        )

    async def _read(self, found: Picture, variant: KeptVariant) -> bytes:
        file = self._files.public_file(found.entity_type, variant.file)
        if await asyncio.to_thread(file.is_file):
            return await asyncio.to_thread(file.read_bytes)
        if self._bucket is None or not variant.is_synced:
            raise Unrecoverable(f"The file of the picture {found.id} is gone.")
        try:
            return b"".join([part async for part in await self._bucket.open(found.key_of(variant.file))])
        except NotInBucket as error:
            raise Unrecoverable(str(error)) from error
