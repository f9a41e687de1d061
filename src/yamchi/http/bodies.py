"""Bodies that routes of several features have in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from yamchi.fields import Key


class Many(BaseModel):
    """Which jobs or letters."""

    model_config = ConfigDict(extra="forbid")

    ids: list[Key] = Field(min_length=1, max_length=1_000)


class Done(BaseModel):
    """How many it was done to."""

    count: int


class Replay(BaseModel):
    """Replay with other data, if given."""

    model_config = ConfigDict(extra="forbid")

    data: Any = None

    @property
    def given(self) -> Any:
        """The other data; `...` if there is none, which null would be."""
        return self.data if "data" in self.model_fields_set else ...
