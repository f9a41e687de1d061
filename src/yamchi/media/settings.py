"""The settings of media: where files are, what is allowed, and the bucket."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from yamchi.settingtypes import Span, check_positive
from yamchi.storage.bucket import BucketSettings


class MediaSettings(BucketSettings):
    """Folders, limits, S3."""

    uploads_dir: Path = Field(
        default=Path("public/uploads"),
        description="The folder of finished pictures, below YAMCHI_HOME unless it is absolute.",
    )
    media_temp_dir: Path | None = Field(
        default=None,
        description="A folder, such as /tmp, in which another program may leave the file of `tempPath` when it adds a job to "
        "`media-processing`; it is moved from there. By default only `var/media/temp` is one.",
    )
    media_max_bytes: int = Field(
        default=50 * 1024 * 1024, ge=1, description="The most bytes that an upload may have."
    )
    media_person_bytes: int = Field(
        default=1024**3,
        ge=1,
        description="The most bytes that one person may upload in a day with the token of a page; each upload counts as at "
        "least 256 KB.",
    )
    media_free_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=0,
        description="Bytes that pictures leave free on a disk: with less, uploads are refused and the work on pictures "
        "waits, so that the queue can still write.",
    )
    media_max_pixels: int = Field(
        default=50_000_000, ge=1, description="The most pixels that a picture may have, over all its frames."
    )
    media_processes: int = Field(
        default=max(1, min(os.cpu_count() or 1, 5)),
        ge=1,
        le=64,
        description="Child processes that work on pictures; as many as there are cores, and 5 at most, by default.",
    )
    media_memory: str = Field(default="512MB", description="The most memory that each of them may use.")
    media_timeout: Annotated[Span, AfterValidator(check_positive)] = Field(
        default=timedelta(minutes=2),
        description="How long the work on one picture may take, from when a child process is free for it.",
    )
    media_cleanup_days: int = Field(
        default=30, ge=0, description="Days after which a deleted picture's files are removed."
    )
    s3_bucket: str | None = Field(
        default=None, description="The bucket that finished pictures are copied to."
    )
    s3_public_url: str | None = Field(
        default=None,
        pattern="^https?://",
        description="Where pages reach the bucket; by default a signed link of the bucket itself.",
    )
