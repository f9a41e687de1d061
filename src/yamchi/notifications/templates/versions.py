"""Templates that are edited while Yamchi runs: every change is a new version in the table, in front of the files."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import structlog
from sqlalchemy import Connection, asc, desc, func, insert, select

from yamchi.clock import Clock, Millis, isoformat
from yamchi.notifications.tables import templates
from yamchi.notifications.templates.files import FileTemplates
from yamchi.notifications.templates.model import Format, Layout, Template, TemplateError
from yamchi.notifications.templates.offloop import in_thread
from yamchi.notifications.templates.reading import read_template
from yamchi.notifications.templates.rendering import check
from yamchi.storage.caching import CachedRead
from yamchi.storage.database import Database, as_object

log = structlog.get_logger("yamchi.notifications")

Key = tuple[str, str, str]
"""Code, channel and language."""

MAX_AGE: Millis = 1_000
"""How old the view of the table may be."""

TEMPLATES_OF = {"null": "email"}
"""A channel for rehearsals uses the templates of another where it has none of its own."""

ALSO_CALLED = {"welcome": "welcome_email"}
"""Another name that senders have for a template that ships; one of yours with that name goes before."""


class VersionedTemplates:
    """The table `templates` first, then the files. The newest version counts."""

    def __init__(self, database: Database, files: FileTemplates, clock: Clock) -> None:
        self._database = database
        self.files = files
        self._clock = clock
        self._newest: dict[Key, Template | TemplateError] = {}
        self._read_rows: dict[tuple[Key, int], Template | TemplateError] = {}
        self._layout: Layout | None = None
        self._view = CachedRead(self._read_table, clock, MAX_AGE)

    async def find(self, code: str, channel: str, locales: Sequence[str]) -> Template | None:
        """In the first of these languages that there is, in the table or in a file."""
        await self._view.refresh()
        for locale in locales:
            known = self._newest.get((code, channel, locale))
            if isinstance(known, TemplateError):
                raise TemplateError(str(known), line=known.line)
            if template := known or await self.files.find(code, channel, [locale]):
                return template
        if code in ALSO_CALLED:
            return await self.find(ALSO_CALLED[code], channel, locales)
        stage = TEMPLATES_OF.get(channel)
        return None if stage is None else await self.find(code, stage, locales)

    async def list(self) -> Sequence[Template]:
        await self._view.refresh()
        found = {(one.code, one.channel, one.locale): one for one in await self.files.list()}
        usable = {key: one for key, one in self._newest.items() if isinstance(one, Template)}
        return [template for _, template in sorted((found | usable).items())]

    async def put(
        self, code: str, channel: str, locale: str, text: str, format: Format, subject: str | None = None
    ) -> Template:
        """Keep a new version, if it can be used; the one before it stays. `subject` is for a text without settings."""
        template = await in_thread(self._read, code, channel, locale, text, format, subject)
        await in_thread(check, template)

        def save(connection: Connection) -> int:
            newest = select(func.coalesce(func.max(templates.c.version), 0)).where(_is(code, channel, locale))
            version = int(connection.execute(newest).scalar_one()) + 1
            row = {"code": code, "channel": channel, "locale": locale, "version": version, "body": text}
            row |= {"subject": template.subject, "meta": {"format": format}, "created_at": self._clock.now()}
            connection.execute(insert(templates), row)
            return version

        version = await self._database.write(save)
        self._view.invalidate()
        return replace(template, version=str(version))

    async def versions(self, code: str, channel: str, locale: str) -> Sequence[dict[str, Any]]:
        """Every version of the table, newest first."""
        query = select(templates).where(_is(code, channel, locale)).order_by(desc(templates.c.version))
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [{**row, "created_at": isoformat(row["created_at"])} for row in rows]

    async def _read_table(self) -> None:
        query = select(templates).order_by(asc(templates.c.version))
        rows = await self._database.rows(query)
        newest = {(row.code, row.channel, row.locale): row for row in rows}
        layout = self.files.layout()
        if layout is not self._layout:
            self._layout, self._read_rows = layout, {}
        fresh = {
            (key, row.version): await self._try(key, row)
            for key, row in newest.items()
            if (key, row.version) not in self._read_rows
        }
        known = self._read_rows | fresh
        self._read_rows = {(key, row.version): known[key, row.version] for key, row in newest.items()}
        self._newest = {key: template for (key, _), template in self._read_rows.items()}

    async def _try(self, key: Key, row: Any) -> Template | TemplateError:
        """One that can't be read any more stops nobody but those who want to send it."""
        try:
            template = await in_thread(
                self._read, *key, row.body, as_object(row.meta).get("format"), row.subject
            )
        except TemplateError as error:
            log.error("a template in the table can't be used", error=str(error), version=row.version)
            return error
        return replace(template, version=str(row.version))

    def _read(
        self, code: str, channel: str, locale: str, text: str, format: Format | None, subject: str | None
    ) -> Template:
        return read_template(
            text,
            code=code,
            channel=channel,
            locale=locale,
            layout=self.files.layout(),
            source="the table",
            subject=subject,
            format=format,
        )


def _is(code: str, channel: str, locale: str) -> Any:
    return (templates.c.code == code) & (templates.c.channel == channel) & (templates.c.locale == locale)
