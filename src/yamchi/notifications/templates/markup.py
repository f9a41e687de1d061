"""How much HTML the inliner and the text maker are given: both are C, can't be interrupted, and hold up everybody else.

css-inline ends the process on tags nested some ten thousand deep, and takes elements × declarations × properties; a table
as plain text is as wide as its widest cell on every line. So both are counted first, in one pass.
"""

import re
from html import unescape as _unescape

from yamchi.notifications.templates.meter import Refused

MAX_TAGS = 20_000
MAX_NESTING = 200
MAX_FORMATTING = 20  # <b>, <font> and the like: HTML opens those left open again in every paragraph
MAX_STYLED = 20_000_000  # tags × characters of CSS: some 80 ms
MAX_MATCHED = 60_000_000  # tags × declarations × different properties: some 80 ms
MAX_TABLE = 30_000_000  # lines × characters of text

_TAG = re.compile(r"<(/?)([a-z][^\s/>]*)", re.IGNORECASE)
_DECLARED = re.compile(r"[{;]\s*([\w-]{1,60})\s*:")
_VOID = frozenset(
    [
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "param",
        "source",
        "track",
        "wbr",
    ]
)
_ENDS_BY_ITSELF = frozenset(["dd", "dt", "li", "option", "p", "tbody", "td", "tfoot", "th", "thead", "tr"])
_CELLS = frozenset(["td", "th"])
_FORMATTING = frozenset(
    ["a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"]
)
_TABLE_TAGS = re.compile(r"<(/?)(?:table|thead|tbody|tfoot|tr|td|th)\b", re.IGNORECASE)
_LINE_TAGS = re.compile(r"<(?:br|div|h[1-6]|li|p|table|td|th|tr)\b|\n", re.IGNORECASE)
_ANY_TAG = re.compile(r"<[^<>]*>")
_LONG_NUMBER = re.compile(r"&#\d{8,}")


def check_markup(html: str) -> int:
    """Refuse what is nested too deep or has too many tags; the number of tags.

    A closing tag counts only where it closes the last one opened: what a parser ignores must not look closed here.
    """
    opened: list[str] = []
    tags = formatting = 0
    for found in _TAG.finditer(html):
        name = found[2].lower()
        if found[1]:
            formatting -= _close(opened, name)
            continue
        tags += 1
        if name in _VOID:
            continue
        _end_implied(opened, name)
        opened.append(name)
        formatting += name in _FORMATTING
        if len(opened) > MAX_NESTING or formatting > MAX_FORMATTING:
            raise Refused(
                f"nests HTML more than {MAX_NESTING} tags deep, or {MAX_FORMATTING} of <b>, <i>, <a> and the like: "
                "close each tag before the one around it"
            )
    if tags > MAX_TAGS:
        raise Refused(f"has more than {MAX_TAGS:,} HTML tags")
    return tags


def check_styles(html: str) -> None:
    """Refuse what would keep the inliner busy."""
    tags = check_markup(html)
    css = "".join(_styles(html))
    declared = _DECLARED.findall(css)
    if tags * len(css) > MAX_STYLED or tags * len(declared) * (len(set(declared)) + 10) > MAX_MATCHED:
        raise Refused(
            f"has too much CSS for so many tags ({len(css):,} characters, {len(declared):,} declarations, "
            f"{tags:,} tags): shorten its <style>"
        )


def without_wide_tables(html: str) -> str:
    """The same HTML; with cells below each other and not side by side where the columns would be too wide."""
    if not _TABLE_TAGS.search(html):
        return html
    lines = sum(1 for _ in _LINE_TAGS.finditer(html))
    if lines * len(_ANY_TAG.sub("", html)) <= MAX_TABLE:
        return html
    return _TABLE_TAGS.sub(r"<\1div", html)


def unescape(text: str) -> str:
    """`&amp;` and the like as characters; a number beyond every character is none, however long it is."""
    return _unescape(_LONG_NUMBER.sub("\ufffd", text)) if "&" in text else text


def _close(opened: list[str], name: str) -> int:
    """Close the last tag if it has this name, and before it what ends by itself; how many were formatting."""
    place = len(opened) - 1
    while place >= 0 and opened[place] != name and opened[place] in _ENDS_BY_ITSELF:
        place -= 1
    if place < 0 or opened[place] != name:
        return 0
    del opened[place:]
    return int(name in _FORMATTING)


def _end_implied(opened: list[str], name: str) -> None:
    """`<li>` ends the `<li>` before it, `<tr>` a cell and its row."""
    if opened and name == "tr" and opened[-1] in _CELLS:
        opened.pop()
    if opened and name in _ENDS_BY_ITSELF and (opened[-1] == name or {name, opened[-1]} <= _CELLS):
        opened.pop()


def _styles(html: str) -> list[str]:
    """What is between `<style>` and the next `</style>`."""
    styles, start = [], html.lower().find("<style")
    lower = html.lower() if start >= 0 else ""
    while start >= 0:
        end = lower.find("</style", start)
        styles.append(html[start : end if end >= 0 else None])
        start = lower.find("<style", end) if end >= 0 else -1
    return styles
