"""Texts for Telegram: its few tags and no others, everything else escaped, and no part longer than it takes.

A text is a list of runs: words, and the tags around them. Cut anywhere, it is still that, so a long text falls into
parts whose tags are closed at the end of one and opened again at the beginning of the next.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser
from itertools import count

LONGEST_TEXT = 4096
LONGEST_CAPTION = 1024
"""Characters as Telegram counts them: without tags, in units of UTF-16."""

_PLAIN = frozenset(
    {"b", "strong", "i", "em", "u", "ins", "s", "strike", "del", "code", "pre", "blockquote", "tg-spoiler"}
)
_LINKS = re.compile(r"(https?|tg|mailto|tel):", re.IGNORECASE)
_LANGUAGE = re.compile(r"language-[\w+#.-]+")
_BLOCKS = frozenset(
    {
        "p",
        "div",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "ul",
        "ol",
        "li",
        "table",
        "tr",
        "section",
        "article",
        "header",
        "footer",
    }
)
_UNSEEN = frozenset({"script", "style", "head", "title", "template"})
_LITERAL = frozenset({"code", "pre"})
_BREAKS = ("\n\n", "\n", " ")


@dataclass(frozen=True, slots=True)
class Tag:
    """An open tag. The number tells two neighbors apart."""

    name: str
    attributes: str
    number: int


BOLD = Tag("b", "", 0)


@dataclass(frozen=True, slots=True)
class Run:
    text: str
    tags: tuple[Tag, ...] = ()


def read(html: str) -> list[Run]:
    """HTML as runs; tags that Telegram does not know are left out, their words stay."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.runs


def length(runs: Sequence[Run]) -> int:
    """How long Telegram finds it."""
    return _units("".join(run.text for run in runs).strip())


def split(runs: Sequence[Run], longest: int = LONGEST_TEXT) -> list[str]:
    """The text as HTML in as few parts as it takes, cut between paragraphs, lines or words if possible."""
    text = "".join(run.text for run in runs)
    parts = [_write(_cut(runs, start, end)) for start, end in _pieces(text, longest)]
    return [part for part in parts if part]


class _Reader(HTMLParser):
    """Collects runs."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.runs: list[Run] = []
        self._open: list[Tag] = []
        self._hidden = 0
        self._numbers = count()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self._hidden += 1
        elif tag == "br":
            self.handle_data("\n")
        elif tag in _BLOCKS:
            self._new_line()
            self.handle_data("• " if tag == "li" else "")
        elif known := self._known(tag, dict(attrs)):
            self._open.append(Tag(*known, next(self._numbers)))

    def handle_endtag(self, tag: str) -> None:
        name = "tg-spoiler" if tag == "span" else tag
        if tag in _UNSEEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag in _BLOCKS:
            self._new_line()
        elif any(one.name == name for one in self._open):
            while self._open.pop().name != name:
                continue  # what was left open inside ends with it

    def handle_data(self, data: str) -> None:
        if data and not self._hidden:
            self.runs.append(Run(data, tuple(self._open)))

    def _new_line(self) -> None:
        if self.runs and not self.runs[-1].text.endswith("\n"):
            self.handle_data("\n")

    def _known(self, tag: str, attributes: dict[str, str | None]) -> tuple[str, str] | None:
        """The tag as Telegram takes it; None for one that it would refuse."""
        given = {name: value or "" for name, value in attributes.items()}
        within = {one.name for one in self._open}
        if within & _LITERAL and not (tag == "code" and within & _LITERAL == {"pre"}):
            return None  # inside code everything is code
        match tag:
            case "a" if _LINKS.match(given.get("href", "").strip()) and "a" not in within:
                return "a", _attribute("href", given["href"].strip())
            case "span" if given.get("class") == "tg-spoiler":
                return "tg-spoiler", ""
            case "tg-emoji" if given.get("emoji-id", "").isdecimal():
                return "tg-emoji", _attribute("emoji-id", given["emoji-id"])
            case "code" if _LANGUAGE.fullmatch(given.get("class", "")):
                return "code", _attribute("class", given["class"])
            case "blockquote" if "blockquote" in within:
                return None
            case "blockquote" if "expandable" in given:
                return "blockquote", " expandable"
        return (tag, "") if tag in _PLAIN else None


def _attribute(name: str, value: str) -> str:
    return f' {name}="{escape(value)}"'


# ── Cutting ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _pieces(text: str, longest: int) -> Iterator[tuple[int, int]]:
    """Where each part begins and ends; the white space between two parts belongs to neither."""
    start = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    while start < end:
        piece = _fitting(text[start : min(end, start + longest)], longest)
        if start + len(piece) < end:
            piece = piece[: _place_to_break(piece, text[start + len(piece)])]
        yield start, start + len(piece.rstrip())
        start += len(piece)
        while start < end and text[start].isspace():
            start += 1


def _fitting(text: str, longest: int) -> str:
    encoded = text.encode("utf-16-le", "surrogatepass")
    return encoded[: longest * 2].decode("utf-16-le", "ignore")


def _place_to_break(piece: str, following: str) -> int:
    """Behind the last paragraph, line or word, but not so early that the part would be less than half full."""
    if following.isspace():
        return len(piece)
    for mark in _BREAKS:
        if (place := piece.rfind(mark, len(piece) // 2)) != -1:
            return place
    return len(piece)


def _cut(runs: Sequence[Run], start: int, end: int) -> Iterator[Run]:
    place = 0
    for run in runs:
        first, last = max(start - place, 0), min(end - place, len(run.text))
        if first < last:
            yield Run(run.text[first:last], run.tags)
        place += len(run.text)


def _write(runs: Iterator[Run]) -> str:
    html, opened = [], tuple[Tag, ...]()
    for run in runs:
        html.append(_change(opened, run.tags) + escape(run.text, quote=False))
        opened = run.tags
    return "".join(html) + _change(opened, ())


def _change(before: tuple[Tag, ...], after: tuple[Tag, ...]) -> str:
    """Close what ends here and open what begins."""
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    closing = "".join(f"</{tag.name}>" for tag in reversed(before[same:]))
    return closing + "".join(f"<{tag.name}{tag.attributes}>" for tag in after[same:])
