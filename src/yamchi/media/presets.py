"""Presets: which sizes a kind of picture comes in, how it is cut, and what is allowed: those of your `media.yaml`, and those that ship."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from yamchi.errors import UnknownJob
from yamchi.yamlfiles import Document, load_file

SHIPPED = Path(__file__).parent / "defaults" / "media.yaml"
FAST, THOROUGH = 2, 4
LARGE_WIDTH = 1280

Fit = Literal["inside", "cover"]
Focus = Literal["attention", "centre", "entropy"]
Output = Literal["webp", "avif"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]{0,31}$")]


class Size(BaseModel):
    """One variant: at most so wide and high (`inside`), or exactly so, cut to fit (`cover`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    width: int = Field(ge=1, le=8192)
    height: int | None = Field(default=None, ge=1, le=8192)
    fit: Fit = "inside"

    @model_validator(mode="after")
    def _whole(self) -> "Size":
        if self.fit == "cover" and self.height is None:
            raise ValueError("fit: cover needs a height too")
        return self


class Preset(BaseModel):
    """How pictures of one kind are made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sizes: tuple[Size, ...] = Field(min_length=1, max_length=20)
    formats: tuple[Output, ...] = Field(default=("webp",), min_length=1)
    quality: int = Field(default=85, ge=1, le=100)
    effort: int | None = Field(
        default=None,
        ge=0,
        le=6,
        description="0 is fast and large, 6 is slow and small; by default 4, and 2 for large sizes and AVIF.",
    )
    focus: Focus = "attention"
    animated: bool = Field(default=True, description="Whether GIF and WebP stay animated.")
    max_bytes: int | None = Field(default=None, ge=1)
    max_pixels: int | None = Field(default=None, ge=1)
    min_width: int = Field(default=1, ge=1)
    min_height: int = Field(default=1, ge=1)

    def effort_of(self, size: Size, output: Output) -> int:
        """What is fetched most is small and gets more time; a large size costs the most of it for the fewest views."""
        if self.effort is not None:
            return self.effort
        return FAST if output == "avif" or size.width > LARGE_WIDTH else THOROUGH

    @model_validator(mode="after")
    def _distinct(self) -> "Preset":
        names = [size.name for size in self.sizes]
        if len(names) != len(set(names)):
            raise ValueError("two sizes have the same name")
        return self


class UnknownPreset(UnknownJob):
    """There is no preset for this kind of entity."""


class Presets:
    """By entity type. Read once; a slip in the file is a sentence with its line."""

    def __init__(self, home: Path) -> None:
        self._own = home / "media.yaml"
        self._found: dict[str, Preset] | None = None

    def get(self, entity_type: str) -> Preset:
        known = self.all()
        if entity_type not in known:
            names = ", ".join(sorted(known))
            raise UnknownPreset(
                f"There is no preset for entityType {entity_type[:64]!r}; there are: {names}."
            )
        return known[entity_type]

    def all(self) -> dict[str, Preset]:
        if self._found is None:
            files = [SHIPPED, self._own] if self._own.exists() else [SHIPPED]
            self._found = {name: one for file in files for name, one in read_presets(load_file(file)).items()}
        return self._found


def read_presets(document: Document) -> dict[str, Preset]:
    return document.validate(TypeAdapter(dict[Name, Preset]))
