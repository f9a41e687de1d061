"""Uploads that may break off: tus 1.0, so that a phone on a bad line goes on where it stopped.

What has arrived is the file's own length; what was said of it lies in the key store for a day. Parts are written at the end of the
file, by one request at a time.
"""

import asyncio
import base64
import binascii
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO
from uuid import uuid4

import orjson

from yamchi.errors import EngineError, StorageFull, UnknownJob, WrongState, YamchiError
from yamchi.media.allowance import DailyAllowance
from yamchi.media.files import Files, is_full, remove, size_of
from yamchi.media.formats import BadFile, TooLarge
from yamchi.storage.keys import Keys

LIFETIME = "24h"
LONGEST_METADATA = 8_192

FINISHED_WITHIN = 5.0
"""Seconds that who asks after a whole upload waits for somebody else who is handing it over."""

Accept = Callable[[Path], Awaitable[tuple[str, str]]]
"""Takes a whole file over; the ids of its picture and of its job."""


class UnknownUpload(UnknownJob):
    """There is no such upload, or its day is over."""


class WrongOffset(WrongState):
    """The part does not begin where the last one ended."""


async def save(parts: AsyncIterator[bytes], files: Files, target: Path, most: int) -> int:
    """Write what comes to a file, safe from a power cut; more than `most` bytes are refused as soon as they are there."""
    size = 0
    try:
        with _room_needed(), target.open("wb") as file:
            async for part in parts:
                size += len(part)
                if size > most:
                    raise TooLarge(f"The file has more than {most:,} bytes.")
                await asyncio.to_thread(_write, file, part, files)
            await asyncio.to_thread(_flush, file)
    except BaseException:
        remove(target)
        raise
    return size


@contextmanager
def _room_needed() -> Iterator[None]:
    """A full disk is one sentence for whoever sent the file."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise StorageFull("The disk is full: the upload was not taken. Send it again later.") from error
        raise


@dataclass(frozen=True, slots=True)
class Upload:
    """What whoever began an upload said of it, and the picture it became once it was whole."""

    id: str
    length: int
    metadata: dict[str, str]
    owner: str | None
    media_id: str | None = None
    job_id: str | None = None
    counted: str | None = None
    """Where it was counted as a person's; given back if it becomes no picture."""


class Resumable:
    """Uploads by tus."""

    def __init__(self, files: Files, keys: Keys, allowance: DailyAllowance, most: int) -> None:
        self._files = files
        self._allowance = allowance
        self._keys = keys
        self._most = most

    async def create(self, length: int, metadata: str, owner: str | None, *, is_counted: bool = False) -> str:
        """Begin an upload; its id. An upload of a person is counted."""
        if not 0 < length <= self._most:
            raise TooLarge(f"An upload has 1 to {self._most:,} bytes, and this one {length:,}.")
        about = read_metadata(metadata)
        counted = await self._allowance.take(owner, length) if owner and is_counted else None
        upload = Upload(str(uuid4()), length, about, owner, counted=counted)
        await self._keep(upload)
        self._files.prepare()
        self._path(upload.id).touch()
        return upload.id

    async def find(self, upload_id: str, owner: str | None) -> Upload:
        """For whoever began it."""
        kept = await self._keys.get(_key(upload_id))
        found = Upload(**orjson.loads(kept)) if kept else None
        if found is None or found.owner != owner:
            raise UnknownUpload(f"There is no upload {upload_id[:64]!r}, or it is older than a day.")
        return found

    def offset(self, upload: Upload) -> int:
        return size_of(self._path(upload.id)) if upload.media_id is None else upload.length

    async def append(self, upload: Upload, offset: int, parts: AsyncIterator[bytes]) -> int:
        """Write a part where the last one ended; how far the upload is now. What came before a break is kept."""
        if upload.media_id is not None:
            raise WrongOffset(f"The upload is whole: it became media {upload.media_id}.")
        with _room_needed():
            async with self._locked(upload) as (file, _):
                if file.tell() != offset:
                    raise WrongOffset(f"The upload is at {file.tell()}, not at {offset}.")
                async for part in parts:
                    if file.tell() + len(part) > upload.length:
                        raise TooLarge(f"The upload was to have {upload.length:,} bytes, and more came.")
                    await asyncio.to_thread(_write, file, part, self._files)
                await asyncio.to_thread(_flush, file)
                return file.tell()

    async def finish(self, upload: Upload, accept: Accept) -> Upload:
        """Hand a whole upload over, as often as it is asked for: the picture has the upload's id.

        Whoever lost the answer to the last part asks for the offset, and so comes here too.
        """
        if upload.media_id is not None:
            return upload
        async with self._locked(upload, within=FINISHED_WITHIN) as (_, now):
            if now.media_id is not None:
                return now
            try:
                media_id, job_id = await accept(self._path(now.id))
            except YamchiError as error:
                if not isinstance(error, EngineError):
                    await self._forget(now)
                raise
            done = replace(now, media_id=media_id, job_id=job_id)
            await self._keep(done)
            return done

    async def drop(self, upload: Upload) -> None:
        """Give an upload up. While a part of it is on its way, it can't be: its bytes are on the disk until that ends.

        Nor once it is whole, whatever `upload` says of it: the picture was counted, and its file is being worked on.
        """
        async with self._locked(upload) as (_, now):
            if now.media_id is None:
                await self._forget(now)

    async def _forget(self, upload: Upload) -> None:
        remove(self._path(upload.id))
        is_first = await self._keys.delete(_key(upload.id))
        if is_first and upload.counted:
            await self._allowance.give_back(upload.counted, upload.length)

    @asynccontextmanager
    async def _locked(self, upload: Upload, *, within: float = 0) -> AsyncIterator[tuple[BinaryIO, Upload]]:
        """Its file, at its end, and what is known of it now, for one request at a time."""
        path = self._path(upload.id)
        with path.open("ab") as file:
            await _lock(file, within)
            file.seek(0, os.SEEK_END)  # who held the lock a moment ago has written meanwhile
            try:
                now = await self.find(upload.id, upload.owner)
            except UnknownUpload:
                remove(path)  # given up meanwhile: to open it made it again
                raise
            yield file, now

    async def _keep(self, upload: Upload) -> None:
        await self._keys.set(_key(upload.id), orjson.dumps(upload).decode(), LIFETIME)

    def _path(self, upload_id: str) -> Path:
        return self._files.temp_file(f"tus-{upload_id}")


async def _lock(file: BinaryIO, within: float) -> None:
    until = monotonic() + within
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() >= until:
                raise WrongOffset(
                    "Another part of this upload is on its way: ask for the offset again."
                ) from None
        await asyncio.sleep(0.02)


def read_metadata(header: str) -> dict[str, str]:
    """`filename d29ybGQ=,entityType …`: names, and values as base64."""
    if len(header) > LONGEST_METADATA:
        raise BadFile("Upload-Metadata is too long.")
    found: dict[str, str] = {}
    for pair in filter(None, header.split(",")):
        name, _, value = pair.strip().partition(" ")
        try:
            found[name] = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise BadFile(f"Upload-Metadata: {name[:64]} is not base64 of UTF-8.") from None
    return found


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write(file: Any, part: bytes, files: Files) -> None:
    files.check_room()
    file.write(part)
    file.flush()


def _key(upload_id: str) -> str:
    return f"tus:{upload_id[:64]}"
