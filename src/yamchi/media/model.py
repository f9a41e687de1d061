"""A picture as it is kept, as jobs carry it, and as pages get it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from sqlalchemy import Row

from yamchi.clock import Millis, isoformat, isoformat_or_none
from yamchi.fields import WITHOUT_NUL, JsonObject
from yamchi.media.overlay import Position

Status = Literal["processing", "ready", "failed", "soft_deleted"]
Operation = Literal["upload", "download", "delete"]
UserId = Annotated[str, Field(max_length=64, pattern=WITHOUT_NUL)]


class _JobData(BaseModel):
    """camelCase on the queue, as the other programs that use it have it."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, serialize_by_alias=True, extra="ignore"
    )


def _object(value: Any) -> Any:
    """Others write null for what they leave out, as they do for the ids."""
    return {} if value is None else value


def _named(value: Any) -> Any:
    """`all` of them, in a list or alone, are those that are not named."""
    return None if value in ("all", ["all"]) else value


Variants = Annotated[
    Annotated[list[Annotated[str, Field(max_length=64)]], Field(min_length=1, max_length=50)] | None,
    BeforeValidator(_named),
]
"""The names of some; None for all."""


class MediaProcessingJobData(_JobData):
    """`{mediaId?, entityType, tempPath, originalFilename, userId?, metadata?}`."""

    media_id: str | None = Field(default=None, max_length=36)
    entity_type: str = Field(max_length=64)
    temp_path: str = Field(max_length=4096)
    original_filename: str = Field(max_length=255)
    user_id: UserId | None = None
    metadata: Annotated[JsonObject, BeforeValidator(_object)] = Field(default_factory=dict)


class MediaSyncJobData(_JobData):
    """`{mediaId, operation, deleteSource, priority?}`."""

    media_id: str = Field(max_length=36)
    operation: Operation
    delete_source: bool = False
    priority: int | None = Field(default=None, ge=1, le=10)


class WatermarkJobData(_JobData):
    """`{mediaId, watermarkId, position, opacity, scale, variants?}`."""

    media_id: str = Field(max_length=36)
    watermark_id: str = Field(max_length=64)
    position: Position = "bottom-right"
    opacity: float = Field(default=0.5, ge=0.1, le=1.0)
    scale: float = Field(default=0.2, ge=0.1, le=1.0)
    variants: Variants = None


@dataclass(frozen=True, slots=True)
class KeptVariant:
    """A row of `media_variants`."""

    media_id: str
    name: str
    file: str
    type: str
    width: int
    height: int
    size: int
    hash: str
    is_local: bool
    is_synced: bool

    @property
    def address(self) -> str:
        """The end of its URL: its size, and the content's hash, so that caches may keep it for ever."""
        return self.file.removeprefix(f"{self.media_id}-")


@dataclass(frozen=True, slots=True)
class Picture:
    """A row of `media`, with its variants."""

    id: str
    entity_type: str
    original_filename: str
    user_id: str | None
    metadata: Mapping[str, Any]
    status: Status
    error: str | None
    temp_path: str | None
    original_path: str | None
    type: str | None
    size: int | None
    hash: str | None
    width: int | None
    height: int | None
    placeholder: str | None
    watermark: Mapping[str, Any] | None
    sync_state: str | None
    created_at: Millis
    updated_at: Millis
    deleted_at: Millis | None
    variants: tuple[KeptVariant, ...] = ()

    @classmethod
    def of(cls, row: Row[Any], variants: tuple[KeptVariant, ...] = ()) -> "Picture":
        return cls(**{name: getattr(row, name) for name in _COLUMNS}, variants=variants)

    @property
    def srcset(self) -> str:
        """For `<img srcset>`: the variants that keep the picture's shape, by width; of those as wide as each other the smallest."""
        types = {one.type for one in self.variants}
        type = "image/webp" if "image/webp" in types else "image/avif"
        shaped = [one for one in self.variants if one.type == type and self._is_whole(one)]
        smallest = {one.width: one for one in sorted(shaped, key=lambda one: (one.width, -one.size))}
        return ", ".join(f"{self.url_of(one)} {width}w" for width, one in smallest.items())

    def url_of(self, variant: KeptVariant) -> str:
        return f"/media/{self.id}/{variant.address}"

    def key_of(self, file: str) -> str:
        """The name of one of its files in the bucket, and below the folder of uploads."""
        return f"{self.entity_type}/{file}"

    def _is_whole(self, variant: KeptVariant) -> bool:
        if not self.width or not self.height:
            return False
        return (
            abs(variant.width * self.height - variant.height * self.width) <= max(self.width, self.height) * 2
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "entityType": self.entity_type,
            "originalFilename": self.original_filename,
            "userId": self.user_id,
            "metadata": dict(self.metadata),
            "status": self.status,
            "error": self.error,
            "type": self.type,
            "size": self.size,
            "hash": self.hash,
            "width": self.width,
            "height": self.height,
            "placeholder": self.placeholder,
            "watermark": dict(self.watermark) if self.watermark else None,
            "srcset": self.srcset,
            "variants": {
                one.name: {
                    "url": self.url_of(one),
                    "type": one.type,
                    "width": one.width,
                    "height": one.height,
                    "size": one.size,
                    "isSynced": one.is_synced,
                }
                for one in self.variants
            },
            "createdAt": isoformat(self.created_at),
            "updatedAt": isoformat(self.updated_at),
            "deletedAt": isoformat_or_none(self.deleted_at),
        }


_COLUMNS = [field.name for field in fields(Picture) if field.name != "variants"]
