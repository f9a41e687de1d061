"""Templates that are edited while Yamchi runs: every change is a new version in the table, in front of the files."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, asc, desc, func, insert, select

from yamchi.clock import Clock, Millis, isoformat
from yamchi.notifications.tables import templates
from yamchi.notifications.templates.files import FileTemplates
from yamchi.notifications.templates.model import Format, Template
from yamchi.notifications.templates.reading import read_template
from yamchi.notifications.templates.rendering import check
from yamchi.storage.database import Database
from yamchi.storage.views import View

FRESH: Millis = 1_000
"""How old the view of the table may be."""

REHEARSES = {"null": "email"}
"""A channel for rehearsals uses the templates of another where it has none of its own."""


class VersionedTemplates:
    """The table `templates` first, then the files. The newest version counts."""

    def __init__(self, database: Database, files: FileTemplates, clock: Clock) -> None:
        self._database = database
        self.files = files
        self._clock = clock
        self._newest: dict[tuple[str, str, str], Template] = {}
        self._view = View(self._read_table, clock, FRESH)

    async def find(self, code: str, channel: str, locales: Sequence[str]) -> Template | None:
        """In the first of these languages that there is, in the table or in a file."""
        await self._view.refresh()
        for locale in locales:
            known = self._newest.get((code, channel, locale))
            if template := known or await self.files.find(code, channel, [locale]):
                return template
        stage = REHEARSES.get(channel)
        return None if stage is None else await self.find(code, stage, locales)

    async def list(self) -> Sequence[Template]:
        await self._view.refresh()
        found = {(one.code, one.channel, one.locale): one for one in await self.files.list()}
        return [template for _, template in sorted((found | self._newest).items())]

    async def put(self, code: str, channel: str, locale: str, text: str, format: Format) -> Template:
        """Keep a new version, if it can be used; the one before it stays."""
        template = self._read(code, channel, locale, text, format)
        check(template)

        def save(connection: Connection) -> int:
            newest = select(func.coalesce(func.max(templates.c.version), 0)).where(_is(code, channel, locale))
            version = int(connection.execute(newest).scalar_one()) + 1
            row = {"code": code, "channel": channel, "locale": locale, "version": version, "body": text}
            row |= {"subject": template.subject, "meta": {"format": format}, "created_at": self._clock.now()}
            connection.execute(insert(templates), row)
            return version

        version = await self._database.write(save)
        self._view.outdate()
        return replace(template, version=str(version))

    async def versions(self, code: str, channel: str, locale: str) -> Sequence[dict[str, Any]]:
        """Every version of the table, newest first."""
        query = select(templates).where(_is(code, channel, locale)).order_by(desc(templates.c.version))
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [{**row, "created_at": isoformat(row["created_at"])} for row in rows]

    async def _read_table(self) -> None:
        query = select(templates).order_by(asc(templates.c.version))
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        newest = {(row.code, row.channel, row.locale): row for row in rows}
        self._newest = {
            key: replace(self._read(*key, row.body, row.meta["format"]), version=str(row.version))
            for key, row in newest.items()
        }

    def _read(self, code: str, channel: str, locale: str, text: str, format: Format) -> Template:
        return read_template(
            text,
            code=code,
            channel=channel,
            locale=locale,
            layout=self.files.layout(),
            source="the table",
            format=format,
        )


def _is(code: str, channel: str, locale: str) -> Any:
    return (templates.c.code == code) & (templates.c.channel == channel) & (templates.c.locale == locale)
