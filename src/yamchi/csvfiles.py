"""CSV that people open in a spreadsheet: no text in it is taken for a formula.

A spreadsheet runs what begins like a formula, and a quote in front makes it text. Where its language separates cells by
semicolons, as Russian and Kazakh do, a line of ours is cut at other places than we meant: what is behind a semicolon or a line
break begins a cell there too, whatever quotes are around it. A quote that follows is no text then, but the cell's own.
"""

import re

STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")

_INSIDE = re.compile(r'([;\r\n]"*)(?=[=+\-@＝＋－＠])')
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?|[+-]?\.\d+")


def as_csv_text(text: str) -> str:
    """What a cell says, as text; a number, such as that of a phone, stays as it is."""
    if ";" in text or "\n" in text or "\r" in text:
        text = _INSIDE.sub(r"\1'", text)
    return f"'{text}" if text.startswith(STARTS) and not _NUMBER.fullmatch(text) else text
