"""The two parts of a letter, made from its body once per version and not once per letter.

CSS is inlined and HTML turned into plain text *before* rendering: Jinja's own marks are hidden behind characters that
HTML leaves alone, and put back afterwards. Where a template is written so that this would change it, the letter is
rendered first and inlined, or turned into text, after: slower, but right.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import css_inline
from inscriptis import get_text
from inscriptis.css_profiles import CSS_PROFILES
from inscriptis.model.config import ParserConfig

from yamchi.notifications.templates.markup import check_markup, check_styles, unescape, without_wide_tables
from yamchi.notifications.templates.sandbox import Sandbox

HTML = Sandbox(autoescape=True)
TEXT = Sandbox(autoescape=False)

CONTENT = "{{ content }}"

_INLINER = css_inline.CSSInliner(load_remote_stylesheets=False, keep_at_rules=True)
_TEXT_STYLE = ParserConfig(css=CSS_PROFILES["strict"], display_links=True)

_OPEN, _CLOSE = "\ue000", "\ue001"  # private characters: no text means anything by them
_HIDDEN = re.compile(f"(?:<!--)?{_OPEN}(\\d+){_CLOSE}(?:-->)?")
_SHAPE = re.compile(f"<(/?(?!/|html|head|body|tbody|style)[a-z][\\w-]*)|{_OPEN}(\\d+){_CLOSE}", re.IGNORECASE)
_DOCUMENT = re.compile(r"<!doctype|<html|<head|<body", re.IGNORECASE)
_LINK = re.compile(r"\[([^\[\]]*)\]\((?:mailto:|tel:)?([^()\s]*)\)")
_UNSAFE_TEXT = re.compile(r"\|\s*safe\b")


@dataclass(frozen=True, slots=True)
class Part:
    """A source ready to compile; `is_done` if nothing is left to do to what it renders."""

    source: str
    is_done: bool


def inlined(source: str) -> Part:
    """The same HTML source with its CSS in `style` attributes."""
    hidden, marks = _hide(source, _as_comment)
    if not _DOCUMENT.search(hidden):  # or a loop that comes first would write <html> in each round
        hidden = f"<html><head></head><body>{hidden}</body></html>"
    check_styles(hidden)
    try:
        done = _INLINER.inline(hidden)
    except css_inline.InlineError:
        return Part(source, is_done=False)
    if _SHAPE.findall(done) != _SHAPE.findall(hidden):
        return Part(source, is_done=False)
    return Part(_show(_charset_first(done), marks), is_done=True)


def inline(html: str) -> str:
    """Rendered HTML with its CSS in `style` attributes."""
    check_styles(html)
    return _charset_first(_INLINER.inline(html))


def _charset_first(html: str) -> str:
    """The inliner puts what it could not inline at the head's start; a charset must be in the first 1024 bytes."""
    head = html.find("<head>")
    end = html.find("</head>", head)
    start = html.find("<meta charset=", head, end)
    if head < 0 or end < 0 or start < 0:
        return html
    first, after = head + len("<head>"), html.find(">", start) + 1
    return html[:first] + html[start:after] + html[first:start] + html[after:]


def plain(source: str) -> Part:
    """The source of the plain text that goes with this HTML source."""
    hidden, marks = _hide(source, _as_line)
    text = as_plain_text(hidden)
    shown = [int(found[1]) for found in _HIDDEN.finditer(text)]
    is_whole = shown == sorted(set(shown)) and not any(
        marks[number].startswith("{%") for number in _gaps(shown, marks)
    )
    if not is_whole or any(_UNSAFE_TEXT.search(mark) for mark in marks):
        return Part(source, is_done=False)
    return Part(_show(text, marks), is_done=True)


def _gaps(shown: list[int], marks: list[str]) -> set[int]:
    """The marks that plain text has no place for, such as the address of a picture."""
    return set(range(len(marks))) - set(shown)


def as_plain_text(html: str) -> str:
    """HTML as people read it: links as `text (address)`, one empty line between paragraphs."""
    if not html.strip():
        return ""
    check_markup(html)
    return tidy(_LINK.sub(_link, get_text(without_wide_tables(html), _TEXT_STYLE)))


def tidy(text: str) -> str:
    """No spaces at the ends of lines, no more than one empty line in a row."""
    kept: list[str] = []
    for line in text.split("\n"):
        words = "" if line.isspace() else line.rstrip(" \t")
        if words or (kept and kept[-1]):
            kept.append(words)
    return "\n".join(kept).strip("\n \t")


def strip_tags(html: str) -> str:
    """The words of a message whose line breaks are its own, as Telegram's are."""
    return unescape(re.sub(r"<[^<>]*>", "", html))


def _link(found: re.Match[str]) -> str:
    text, address = found[1].strip(), found[2]
    return text if not address or address in text else f"{text} ({address})" if text else address


@dataclass(slots=True)
class _Before:
    """What stands before a mark, as far as it matters: kept while going through, and not looked for again at each."""

    is_between_tags: bool = True
    last: str = ""  # the last character
    last_visible: str = ""

    def add(self, html: str) -> None:
        if not html:
            return
        self.last = html[-1]
        self.last_visible = html.rstrip()[-1:] or self.last_visible
        opened, closed = html.rfind("<"), html.rfind(">")
        if max(opened, closed) >= 0:
            self.is_between_tags = opened < closed


Hide = Callable[[str, str, _Before, str], str]


def _hide(source: str, hide: Hide) -> tuple[str, list[str]]:
    """HTML with a private sign in place of each of Jinja's marks, and the marks."""
    html, before, marks = list[str](), _Before(), list[str]()
    for (is_mark, text), (_, after) in pairwise([*_pieces(source), (False, "")]):
        if is_mark:
            html.append(hide(f"{_OPEN}{len(marks)}{_CLOSE}", text, before, after))
            marks.append(text)
        else:
            html.append(text.replace(_OPEN, "").replace(_CLOSE, ""))
        before.add(html[-1])
    return "".join(html), marks


def _as_comment(sign: str, mark: str, before: _Before, after: str) -> str:
    """Between tags a statement becomes a comment, which may stand anywhere, even between the rows of a table."""
    return f"<!--{sign}-->" if mark.startswith("{%") and before.is_between_tags else sign


def _as_line(sign: str, mark: str, before: _Before, after: str) -> str:
    """A mark on a line of its own between two tags stays on a line of its own."""
    begins = not before.last_visible or (before.last == "\n" and before.last_visible == ">")
    ends = not after or after.lstrip(" \t").startswith("\n")
    is_between_tags = not after.strip() or after.lstrip().startswith("<")
    return f"<div>{sign}</div>" if begins and ends and is_between_tags else sign


def _show(text: str, marks: list[str]) -> str:
    return _HIDDEN.sub(lambda found: marks[int(found[1])], text)


def size_of_code(source: str) -> int:
    """How many characters of a source are Jinja's; each takes time to compile."""
    return sum(len(text) for is_mark, text in _pieces(source) if is_mark)


def _pieces(source: str) -> Iterator[tuple[bool, str]]:
    """The source cut into Jinja's marks and what is between them, as Jinja's own lexer sees it."""
    mark = ""
    for _, kind, text in HTML.lex(source):
        if kind == "raw_begin":
            mark = "{% raw %}"
        elif kind == "raw_end":
            yield True, mark + "{% endraw %}"
            mark = ""
        elif kind in {"comment_begin", "comment", "comment_end"}:
            continue
        elif kind in {"variable_begin", "block_begin"} or mark:
            mark += text
            if kind in {"variable_end", "block_end"}:
                yield True, mark
                mark = ""
        else:
            yield False, text
