"""The revisions of a feature, read from its files: a plugin can name its tables without importing a database library."""

import re
from dataclasses import dataclass
from pathlib import Path

from yamchi.errors import EngineError

ENVIRONMENT = Path(__file__).parent / "migrations"
_REVISION = re.compile(r'^(revision|down_revision)\b[^=]*=\s*["\'](.+?)["\']', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migrations:
    """The revisions of one feature: where they are, and the table that says which of them the database has seen."""

    folder: Path
    version_table: str

    @property
    def revisions(self) -> set[str]:
        return {value for kind, value in self._lines() if kind == "revision"}

    @property
    def head(self) -> str:
        """The newest revision: the one that no other builds on."""
        heads = self.revisions - {value for kind, value in self._lines() if kind == "down_revision"}
        if len(heads) != 1:
            raise EngineError(
                f"The migrations in {self.folder} have {len(heads)} newest revisions: one must follow the other."
            )
        return heads.pop()

    def _lines(self) -> list[tuple[str, str]]:
        texts = (path.read_text("utf-8") for path in self.folder.glob("*.py"))
        return [line for text in texts for line in _REVISION.findall(text)]


CORE = Migrations(ENVIRONMENT / "versions", "alembic_version_core")
"""The tables of the core itself."""
