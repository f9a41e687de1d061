"""Templates in folders: `<code>/<channel>.<locale>.<extension>`, the user's folder before the one that ships.

Beside them a folder may hold `layout.html`, `layout.txt` (what stands around every e-mail) and `brand.yaml`.
A file is read again when it has changed, which is looked at once a second; in between, finding is one look-up.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TypeVar

from yamchi.notifications.templates.locales import normalize_locale
from yamchi.notifications.templates.model import Format, Layout, Template, TemplateError
from yamchi.notifications.templates.reading import brand_of, read_template
from yamchi.textfiles import UnreadableFile, paths_in, read_text

SHIPPED = Path(__file__).parents[1] / "defaults" / "templates"

_CODE = re.compile(r"\w[\w.-]*")
_NAME = re.compile(r"(?P<channel>[a-z]+)\.(?P<locale>[A-Za-z]{2,3}(?:[-_]\w+)*)\.(?P<extension>\w+)")
_HTML = frozenset({"html", "htm"})
_SAME_CHANNEL = {
    "browser": "push",
    "push": "browser",
    "ws": "database",
}  # what the second has, the first can say too

Stamp = tuple[int, int, int]
Listing = dict[tuple[str, str], Path]
Item = TypeVar("Item")


@dataclass(slots=True)
class FileTemplates:
    """The templates of several folders; the first folder that has one wins. What ships comes last by itself."""

    folders: Sequence[Path] = ()
    look_every: float = 1.0  # seconds
    _listings: dict[Path, tuple[Stamp, Listing]] = field(default_factory=dict)
    _templates: dict[Path, tuple[Stamp, Layout, Template]] = field(default_factory=dict)
    _stamps: dict[Path, Stamp | None] = field(default_factory=dict)
    _found: dict[tuple[str, str, tuple[str, ...]], Template | None] = field(default_factory=dict)
    _looked_at: float = 0.0
    _layout: tuple[tuple[tuple[Path, Stamp] | None, ...], Layout] | None = None

    async def find(self, code: str, channel: str, locales: Sequence[str]) -> Template | None:
        """The template in the best language; a file that can't be read is a `TemplateError`, not a miss."""
        key = (code, channel, tuple(locales))
        self._forget_after_a_while()
        if key not in self._found:
            self._found[key] = self._find(code, channel, locales)
        return self._found[key]

    def _find(self, code: str, channel: str, locales: Sequence[str]) -> Template | None:
        if not _CODE.fullmatch(code):
            return None
        listings = [self._listing(folder / code) for folder in self._all_folders()]
        for name in filter(None, (channel, _SAME_CHANNEL.get(channel))):
            for locale in locales:
                for listing in listings:
                    if path := listing.get((name, locale)):
                        return self._read(path, code, name, locale)
        return None

    async def list(self) -> Sequence[Template]:
        """Every template that can be read."""
        return self.readable()

    def readable(self) -> Sequence[Template]:
        """The same, at once."""
        self._forget_after_a_while()
        return [
            found for found in (self._try(*place) for place in self._places()) if isinstance(found, Template)
        ]

    def broken(self) -> Sequence[tuple[Path, TemplateError]]:
        """The files that can't be read, each with its reason."""
        self._forget_after_a_while()
        found = [(place[0], self._try(*place)) for place in self._places()]
        return [(path, error) for path, error in found if isinstance(error, TemplateError)]

    def layout(self) -> Layout:
        """What stands around every e-mail: each part from the first folder that has it."""
        self._forget_after_a_while()
        files = [self._first("layout.html"), self._first("layout.txt"), self._first("brand.yaml")]
        if self._layout is None or self._layout[0] != tuple(files):
            html, text, brand = ("" if found is None else _text(found[0]) for found in files)
            place = str(files[2][0]) if files[2] else "brand.yaml"
            self._layout = (tuple(files), Layout(html, text, brand_of(brand, place)))
        return self._layout[1]

    def _all_folders(self) -> Sequence[Path]:
        return [*self.folders, SHIPPED]

    def _first(self, name: str) -> tuple[Path, Stamp] | None:
        for folder in self._all_folders():
            if stamp := self._stamp(folder / name):
                return folder / name, stamp
        return None

    def _places(self) -> Iterator[tuple[Path, str, str, str]]:
        seen: set[tuple[str, str, str]] = set()
        for folder in self._all_folders():
            for code in _codes(folder):
                for (channel, locale), path in sorted(self._listing(folder / code).items()):
                    if (code, channel, locale) not in seen:
                        seen.add((code, channel, locale))
                        yield path, code, channel, locale

    def _try(self, path: Path, code: str, channel: str, locale: str) -> Template | TemplateError:
        try:
            return self._read(path, code, channel, locale)
        except TemplateError as error:
            return error

    def _forget_after_a_while(self) -> None:
        if monotonic() - self._looked_at >= self.look_every:
            self._stamps.clear()
            self._found.clear()
            self._looked_at = monotonic()

    def _stamp(self, path: Path) -> Stamp | None:
        """What changes when a file or folder does, as it was at the last look."""
        if path not in self._stamps:
            self._stamps[path] = _stamp(path)
        return self._stamps[path]

    def _listing(self, folder: Path) -> Listing:
        stamp = self._stamp(folder)
        if stamp is None:
            return {}
        known = self._listings.get(folder)
        if known is None or known[0] != stamp:
            known = self._listings[folder] = (stamp, _list(folder))
        return known[1]

    def _read(self, path: Path, code: str, channel: str, locale: str) -> Template:
        stamp, layout, known = self._stamp(path) or (0, 0, 0), self.layout(), self._templates.get(path)
        if known is None or known[0] != stamp:
            template = _read(path, code, channel, locale, layout)
        elif known[1] is not layout:
            template = replace(known[2], layout=known[2].layout and layout, brand=layout.brand)
        else:
            return known[2]
        self._templates[path] = (stamp, layout, template)
        return template


def _read(path: Path, code: str, channel: str, locale: str, layout: Layout) -> Template:
    format: Format = "html" if path.suffix[1:] in _HTML else "text"
    text = _text(path)
    return read_template(
        text, code=code, channel=channel, locale=locale, layout=layout, source=str(path), format=format
    )


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except UnreadableFile as error:
        raise TemplateError(f"The template file {path} can't be read: {error.reason}.") from None


def _list(folder: Path) -> Listing:
    listing: Listing = {}
    for path in _paths_in(folder):  # .htm, .html, .txt: of two files for one message, HTML comes first
        found = _NAME.fullmatch(path.name)
        locale = found and normalize_locale(found["locale"])
        if found and locale:
            listing.setdefault((found["channel"], locale), path)
    return listing


def _codes(folder: Path) -> list[str]:
    return [path.name for path in _paths_in(folder) if path.is_dir() and _CODE.fullmatch(path.name)]


def _paths_in(folder: Path) -> list[Path]:
    try:
        return paths_in(folder)
    except UnreadableFile as error:
        raise TemplateError(f"The folder of templates {error}") from None


def _stamp(path: Path) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
