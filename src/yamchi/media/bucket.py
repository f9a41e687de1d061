"""The bucket: objects by key, over S3's protocol. A bucket that can't be reached is an outage, not a failure of the job."""

import hashlib
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from yamchi.errors import MissingExtra, Outage, YamchiError
from yamchi.media.files import size_of
from yamchi.media.settings import MediaSettings
from yamchi.observe.logging import mask

TYPES = {"webp": "image/webp", "avif": "image/avif"}
MULTIPART_ABOVE = 8 * 1024 * 1024
LINK_LIFETIME = timedelta(hours=1)


class Bucket:
    """One bucket. Keys have their content's hash in them, so an object that is there is the right one."""

    def __init__(self, settings: MediaSettings) -> None:
        self._settings = settings

    @cached_property
    def _store(self) -> Any:
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise MissingExtra("media", "S3") from error
        settings = self._settings
        options: dict[str, Any] = {
            "access_key_id": _secret(settings.s3_access_key_id),
            "secret_access_key": _secret(settings.s3_secret_access_key),
            "endpoint": settings.s3_endpoint,
        }
        return S3Store(
            settings.s3_bucket,
            region=settings.s3_region,
            **{name: value for name, value in options.items() if value},
            client_options={"timeout": "60s", "connect_timeout": "5s", "allow_http": True},
            retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=5)},
        )

    async def put(self, key: str, file: Path) -> bool:
        """Copy a file there; False if it is there already."""
        import obstore

        size = size_of(file)
        if await self.size_of(key) == size:
            return False
        kind = TYPES.get(key.rpartition(".")[2], "application/octet-stream")
        attributes = {"Content-Type": kind, "Cache-Control": "public, max-age=31536000, immutable"}
        try:
            done = await obstore.put_async(
                self._store, key, file, attributes=attributes, use_multipart=size > MULTIPART_ABOVE
            )
        except Exception as error:
            raise self._explain(error) from error
        _check(key, file, done.get("e_tag"))
        return True

    async def get(self, key: str, file: Path) -> None:
        """Copy an object here; the file appears whole."""
        import obstore

        unfinished = file.with_name(f"{file.name}.part")
        try:
            answer = await obstore.get_async(self._store, key)
            with unfinished.open("wb") as copy:
                async for part in answer:
                    copy.write(part)
            unfinished.replace(file)
        except FileNotFoundError as error:
            raise NotInBucket(f"{key} is not in the bucket {self._settings.s3_bucket}.") from error
        except OSError:
            raise
        except Exception as error:
            raise self._explain(error) from error
        finally:
            unfinished.unlink(missing_ok=True)

    async def delete(self, keys: list[str]) -> None:
        """Whether they were there or not."""
        import obstore

        try:
            for key in keys:
                await obstore.delete_async(self._store, key)
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._explain(error) from error

    async def size_of(self, key: str) -> int | None:
        """How large an object is; None if there is none."""
        import obstore

        try:
            return int((await obstore.head_async(self._store, key))["size"])
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._explain(error) from error

    async def url_of(self, key: str) -> str:
        """Where a page gets it."""
        if self._settings.s3_public_url:
            return f"{self._settings.s3_public_url.rstrip('/')}/{key}"
        import obstore

        return str(await obstore.sign_async(self._store, "GET", key, LINK_LIFETIME))

    async def ping(self) -> str:
        await self.size_of("_yamchi")
        return f"bucket {self._settings.s3_bucket} answers"

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, YamchiError):
            return error
        said = " ".join(str(mask(str(error))).partition("Debug source")[0].split())[:300]
        return Outage(f"The bucket {self._settings.s3_bucket} can't be used: {said}")


class NotInBucket(YamchiError):
    """There is no such object."""


def _secret(value: Any) -> str | None:
    return None if value is None else value.get_secret_value()


def _check(key: str, file: Path, tag: str | None) -> None:
    """An object that went in one part is known by the MD5 of its bytes; a part of many is checked by the protocol."""
    given = (tag or "").strip('"')
    if len(given) == 32 and "-" not in given:
        with file.open("rb") as content:
            own = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if own != given:
            raise Outage(f"{key} arrived damaged in the bucket; it is sent again.")
