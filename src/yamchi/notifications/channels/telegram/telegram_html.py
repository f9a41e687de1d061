"""Texts for Telegram: its few tags and no others, everything else escaped, and no part longer than it takes.

A text is a list of runs: words, and the tags around them. Cut anywhere, it is still that, so a long text falls into
parts whose tags are closed at the end of one and opened again at the beginning of the next.

Every step goes through its text once, whatever the text is. A tag within one of the same name adds nothing and is left
out, so no text is nested deeper than Telegram has tags.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count

from yamchi.notifications.templates.markup import unescape

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
# A comment without an end lasts to the end; a tag without one is text, and ends before the next `<`.
_TOKEN = re.compile(
    r"""<!--.*?(?:-->|\Z)|<[!?][^<>]*>|<(?P<closing>/?)(?P<name>[a-z][^\s/<>]*+)(?P<rest>(?:[^<>"']|"[^"<]*"|'[^'<]*')*+)>""",
    re.DOTALL | re.IGNORECASE,
)
_ATTRIBUTE = re.compile(r"""([^\s=>"'/]++)(?:\s*+=\s*+("[^"]*"|'[^']*'|[^\s>"']*))?""")
LONGEST_ATTRIBUTES = 4096
_RAW = frozenset({"script", "style"})
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
    reader, place = _Reader(), 0
    for found in _TOKEN.finditer(html):
        reader.read_text(html[place : found.start()])
        place = found.end()
        if name := found["name"]:
            reader.read_tag(name.lower(), found["rest"], is_closing=bool(found["closing"]))
    reader.read_text(html[place:])
    return reader.runs


def length(runs: Sequence[Run]) -> int:
    """How long Telegram finds it."""
    return _units("".join(run.text for run in runs).strip())


def split(runs: Sequence[Run], longest: int = LONGEST_TEXT) -> list[str]:
    """The text as HTML in as few parts as it takes, cut between paragraphs, lines or words if possible."""
    text = "".join(run.text for run in runs)
    parts = [_write(part) for part in _cut(runs, _pieces(text, longest))]
    return [part for part in parts if part]


class _Reader:
    """Collects runs."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._open: list[Tag] = []
        self._again: dict[str, int] = {}  # how often a tag that is open was opened again
        self._hidden = 0
        self._raw = ""  # the tag whose content is no HTML
        self._numbers = count()

    def read_tag(self, name: str, rest: str, *, is_closing: bool) -> None:
        if self._raw and not (is_closing and name == self._raw):
            return
        self._raw = name if name in _RAW and not is_closing else ""
        if not is_closing:
            self._start(name, _attributes(rest))
        if is_closing or rest.endswith("/"):
            self._end(name)

    def read_text(self, text: str) -> None:
        self._add(unescape(text))

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in _UNSEEN:
            self._hidden += 1
        elif tag == "br":
            self._add("\n")
        elif tag in _BLOCKS:
            self._new_line()
            self._add("• " if tag == "li" else "")
        elif known := self._known(tag, attributes):
            if known[0] in self._names():
                self._again[known[0]] = self._again.get(known[0], 0) + 1
            else:
                self._open.append(Tag(*known, next(self._numbers)))

    def _end(self, tag: str) -> None:
        name = "tg-spoiler" if tag == "span" else tag
        if tag in _UNSEEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag in _BLOCKS:
            self._new_line()
        elif self._again.get(name):
            self._again[name] -= 1
        elif name in self._names():
            while (last := self._open.pop().name) != name:
                self._again.pop(last, None)  # what was left open inside ends with it

    def _names(self) -> list[str]:
        return [one.name for one in self._open]

    def _add(self, text: str) -> None:
        if text and not self._hidden:
            self.runs.append(Run(text, tuple(self._open)))

    def _new_line(self) -> None:
        if self.runs and not self.runs[-1].text.endswith("\n"):
            self._add("\n")

    def _known(self, tag: str, given: dict[str, str]) -> tuple[str, str] | None:
        """The tag as Telegram takes it; None for one that it would refuse."""
        within = set(self._names())
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


def _attributes(text: str) -> dict[str, str]:
    """By name; of a tag that has more of them than any link needs, none."""
    if len(text) > LONGEST_ATTRIBUTES:
        return {}
    return {found[1].lower(): unescape(_unquoted(found[2] or "")) for found in _ATTRIBUTE.finditer(text)}


def _unquoted(value: str) -> str:
    return value[1:-1] if value[:1] in ('"', "'") else value


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
    """As much of the text as fits; never nothing, even of half characters, or the cutting would have no end."""
    encoded = text.encode("utf-16-le", "surrogatepass")
    if len(encoded) <= longest * 2:
        return text
    piece = encoded[: longest * 2].decode("utf-16-le", "surrogatepass")
    is_half = "\ud800" <= piece[-1] <= "\udbff"
    return piece[:-1] if is_half and len(piece) > 1 else piece


def _place_to_break(piece: str, following: str) -> int:
    """Behind the last paragraph, line or word, but not so early that the part would be less than half full."""
    if following.isspace():
        return len(piece)
    for mark in _BREAKS:
        if (place := piece.rfind(mark, len(piece) // 2)) != -1:
            return place
    return len(piece)


def _cut(runs: Sequence[Run], pieces: Iterable[tuple[int, int]]) -> Iterator[list[Run]]:
    """The runs of each piece. One pass over both: a run that goes on behind a piece is looked at again for the next."""
    index = place = 0  # the next run, and where it begins
    for start, end in pieces:
        part = []
        while index < len(runs) and place < end:
            text = runs[index].text
            if words := text[max(start - place, 0) : end - place]:
                part.append(Run(words, runs[index].tags))
            if place + len(text) > end:
                break
            place += len(text)
            index += 1
        yield part


def _write(runs: Iterable[Run]) -> str:
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
