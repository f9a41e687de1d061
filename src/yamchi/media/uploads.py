"""Uploads that may break off: tus 1.0, so that a phone on a bad line goes on where it stopped.

What has arrived is the file's own length; what was promised lies in the key store for a day. Parts are written at the end of the
file, by one request at a time.
"""

import asyncio
import base64
import binascii
import fcntl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from yamchi.errors import UnknownJob, WrongState
from yamchi.media.files import Files, remove, size_of
from yamchi.media.formats import BadFile
from yamchi.storage.keys import Keys

LIFETIME = "24h"
LONGEST_METADATA = 8_192


class TooLarge(BadFile):
    """More bytes than an upload may have."""

    http_status = 413


class UnknownUpload(UnknownJob):
    """There is no such upload, or its day is over."""


class WrongOffset(WrongState):
    """The part does not begin where the last one ended."""


async def save(parts: AsyncIterator[bytes], target: Path, most: int) -> int:
    """Write what comes to a file; more than `most` bytes are refused as soon as they are there."""
    size = 0
    try:
        with target.open("wb") as file:
            async for part in parts:
                size += len(part)
                if size > most:
                    raise TooLarge(f"The file has more than {most:,} bytes.")
                await asyncio.to_thread(file.write, part)
    except BaseException:
        remove(target)
        raise
    return size


class Resumable:
    """Uploads by tus."""

    def __init__(self, files: Files, keys: Keys, most: int) -> None:
        self._files = files
        self._keys = keys
        self._most = most

    async def create(self, length: int, metadata: str, owner: str | None) -> str:
        """Promise an upload; its id."""
        if not 0 < length <= self._most:
            raise TooLarge(f"An upload has 1 to {self._most:,} bytes, and this one {length:,}.")
        upload_id = str(uuid4())
        promise = {"length": length, "metadata": read_metadata(metadata), "owner": owner}
        await self._keys.set(_key(upload_id), orjson.dumps(promise).decode(), LIFETIME)
        self._files.prepare()
        self._path(upload_id).touch()
        return upload_id

    async def promise(self, upload_id: str, owner: str | None) -> dict[str, Any]:
        """What was promised, to whoever promised it."""
        kept = await self._keys.get(_key(upload_id))
        found = orjson.loads(kept) if kept else None
        if found is None or found["owner"] != owner:
            raise UnknownUpload(f"There is no upload {upload_id[:64]!r}, or it is older than a day.")
        return dict(found)

    def offset(self, upload_id: str) -> int:
        return size_of(self._path(upload_id))

    async def append(self, upload_id: str, offset: int, length: int, parts: AsyncIterator[bytes]) -> int:
        """Write a part where the last one ended; how far the upload is now. What came before a break is kept."""
        with self._path(upload_id).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise WrongOffset(
                    "Another part of this upload is on its way: ask for the offset again."
                ) from None
            if file.tell() != offset:
                raise WrongOffset(f"The upload is at {file.tell()}, not at {offset}.")
            async for part in parts:
                if file.tell() + len(part) > length:
                    raise TooLarge(f"The upload was to have {length:,} bytes, and more came.")
                await asyncio.to_thread(_write, file, part)
            return file.tell()

    async def take(self, upload_id: str) -> Path:
        """The whole file, which is no longer an upload."""
        target = self._files.new_temp()
        self._path(upload_id).rename(target)
        await self._keys.delete(_key(upload_id))
        return target

    async def drop(self, upload_id: str) -> None:
        remove(self._path(upload_id))
        await self._keys.delete(_key(upload_id))

    def _path(self, upload_id: str) -> Path:
        return self._files.temp_file(f"tus-{upload_id}")


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


def _write(file: Any, part: bytes) -> None:
    file.write(part)
    file.flush()


def _key(upload_id: str) -> str:
    return f"tus:{upload_id[:64]}"
