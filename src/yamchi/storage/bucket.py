"""A bucket: objects by key, over S3's protocol. A bucket that can't be reached is an outage, not a failure of the job."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from yamchi.errors import MissingExtra, Outage, Retryable, Unrecoverable, YamchiError
from yamchi.observe.logging import mask
from yamchi.settings import FeatureSettings
from yamchi.settingtypes import reveal
from yamchi.storage.folders import replace_safely

MULTIPART_ABOVE = 8 * 1024 * 1024
LINK_LIFETIME = timedelta(hours=1)
FOR_EVER = "public, max-age=31536000, immutable"


class BucketSettings(FeatureSettings):
    """How to reach S3, for every feature that keeps files there; each names its own bucket."""

    s3_endpoint: str | None = Field(
        default=None, pattern="^https?://", description="Where S3 is, if it is not Amazon's."
    )
    s3_region: str = Field(default="us-east-1", description="The region of the bucket.")
    s3_access_key_id: SecretStr | None = Field(default=None, description="The key of the bucket.")
    s3_secret_access_key: SecretStr | None = Field(default=None, description="The secret of that key.")


class Bucket:
    """One bucket."""

    def __init__(self, name: str, settings: BucketSettings, public_url: str | None = None) -> None:
        self._name = name
        self._settings = settings
        self._public_url = public_url

    @cached_property
    def _store(self) -> Any:
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise MissingExtra("s3", "S3") from error
        settings = self._settings
        options: dict[str, Any] = {
            "access_key_id": reveal(settings.s3_access_key_id),
            "secret_access_key": reveal(settings.s3_secret_access_key),
            "endpoint": settings.s3_endpoint,
        }
        return S3Store(
            self._name,
            region=settings.s3_region,
            **{name: value for name, value in options.items() if value},
            client_options={"timeout": "60s", "connect_timeout": "5s", "allow_http": True},
            retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=5)},
        )

    async def put_once(self, key: str, file: Path, content_type: str, *, look_first: bool = True) -> bool:
        """Copy a file there, for pages to keep; False if it is there: its key has its content's hash in it.

        Looking costs a request; who knows that it was never sent need not `look_first`.
        """
        if look_first and await self.size_of(key) == _size_of(file):
            return False
        await self.put(key, file, content_type, cached=FOR_EVER)
        return True

    async def put(
        self, key: str, file: Path, content_type: str, *, cached: str = "private, no-store"
    ) -> None:
        """Copy a file there, over what is there.

        The SHA-256 of what is sent, or of each part of what is large, is in the request's signature: a server takes nothing
        that arrived damaged.
        """
        store, size = self._store, _size_of(file)
        import obstore

        attributes = {"Content-Type": content_type, "Cache-Control": cached}
        try:
            await obstore.put_async(
                store, key, file, attributes=attributes, use_multipart=size > MULTIPART_ABOVE
            )
        except Exception as error:
            if isinstance(error, FileNotFoundError) and not _size_of(file):
                raise Unrecoverable(
                    f"The file {file.name} is no longer here, so it can't be copied."
                ) from error
            raise self._explain(error) from error

    async def get(self, key: str, file: Path, *, sha256: str | None = None) -> None:
        """Copy an object here; the file appears whole, and only if it is what it should be.

        It is safe from a power cut by then: the object may be the only other copy, and be deleted next.
        """
        unfinished, digest = file.with_name(f"{file.name}.{token_hex(8)}.part"), hashlib.sha256()
        parts = await self.open(key)
        try:
            with unfinished.open("wb") as copy:
                async for part in parts:
                    await asyncio.to_thread(copy.write, part)
                    digest.update(part)
                copy.flush()
                await asyncio.to_thread(os.fsync, copy.fileno())
            if sha256 is not None and digest.hexdigest() != sha256:
                raise Retryable(f"{key} arrived damaged from the bucket {self._name}.")
            await asyncio.to_thread(replace_safely, unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)

    async def open(self, key: str) -> AsyncIterator[bytes]:
        """An object, part by part. That it is there is known before the first part."""
        store = self._store
        import obstore

        try:
            answer = await obstore.get_async(store, key)
        except Exception as error:
            if _names_an_object(error):
                raise NotInBucket(f"{key} is not in the bucket {self._name}.") from error
            raise self._explain(error) from error
        return self._parts(answer)

    async def _parts(self, answer: Any) -> AsyncIterator[bytes]:
        try:
            async for part in answer:
                yield bytes(part)
        except OSError:
            raise
        except Exception as error:
            raise self._explain(error) from error

    async def delete(self, keys: list[str]) -> None:
        """Delete these objects; a missing one is no error."""
        await asyncio.gather(*map(self._delete, keys))

    async def _delete(self, key: str) -> None:
        store = self._store
        import obstore

        try:
            await obstore.delete_async(store, key)
        except Exception as error:
            if not _names_an_object(error):
                raise self._explain(error) from error

    async def size_of(self, key: str) -> int | None:
        """How large an object is; None if there is none."""
        store = self._store
        import obstore

        try:
            return int((await obstore.head_async(store, key))["size"])
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._explain(error) from error

    async def url_of(self, key: str) -> str:
        """The address from which a page loads an object."""
        if self._public_url:
            return f"{self._public_url.rstrip('/')}/{key}"
        import obstore

        return str(await obstore.sign_async(self._store, "GET", key, LINK_LIFETIME))

    @property
    def origin(self) -> str:
        """The origin of the addresses that `url_of` returns."""
        at_amazon = f"https://s3.{self._settings.s3_region}.amazonaws.com"
        url = urlsplit(self._public_url or self._settings.s3_endpoint or at_amazon)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"

    async def ping(self) -> str:
        """Ask for an object: asked for a size only, a server answers the same with and without the bucket."""
        with suppress(NotInBucket):
            await self.open("_yamchi")
        return f"bucket {self._name} answers"

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, YamchiError):
            return error
        said = " ".join(str(mask(str(error))).partition("Debug source")[0].split())[:300]
        return Outage(f"The bucket {self._name} can't be used: {said}")


class NotInBucket(YamchiError):
    """There is no such object."""


def _names_an_object(error: Exception) -> bool:
    """Whether it is one object that is not there. Without the bucket there is none, and that is for people to mend."""
    return isinstance(error, FileNotFoundError) and "<Code>NoSuchBucket<" not in str(error)


def _size_of(file: Path) -> int:
    """The size in bytes; 0 if the file is missing."""
    return file.stat().st_size if file.exists() else 0
