"""Which language to try after which: Kazakh, then Russian, then English; a region falls back to its language.

locale_chain("kk")     ("kk", "ru", "en")
locale_chain("kz")     ("kk", "ru", "en")       the country's code is often taken for the language's
locale_chain("pt-BR")  ("pt-BR", "pt", "en")
"""

import re
from collections.abc import Sequence
from functools import lru_cache

DEFAULT_LOCALE = "en"

LONGEST_LOCALE = 35
"""Characters: what BCP 47 says that a program must be able to keep."""

LONGEST_HEADER = 200
"""Characters of Accept-Language that are read: more languages than anybody knows."""

_MISTAKEN = {"kz": "kk"}
_NEXT = {"kk": "ru"}
_LOCALE = re.compile(r"[a-z]{2,3}([-_][a-z0-9]{2,8})*", re.IGNORECASE)


def locale_chain(locale: str) -> tuple[str, ...]:
    """The languages to look for, best first; text that is no locale counts as English."""
    return _chain(locale if len(locale) <= LONGEST_LOCALE else DEFAULT_LOCALE)


@lru_cache(maxsize=1024)
def _chain(locale: str) -> tuple[str, ...]:
    named = normalize_locale(locale) or DEFAULT_LOCALE
    parts = named.split("-")
    chain = ["-".join(parts[:length]) for length in range(len(parts), 0, -1)]
    while chain[-1] != DEFAULT_LOCALE:
        chain.append(_NEXT.get(chain[-1], DEFAULT_LOCALE))
    return tuple(chain)


def language_of_page(accept_language: str, spoken: Sequence[str]) -> str:
    """The first language that a browser asks for and a page speaks; else the page's first."""
    asked = (tag.partition(";")[0].strip() for tag in accept_language[:LONGEST_HEADER].split(","))
    languages = ((normalize_locale(tag) or "")[:2] for tag in asked)
    return next((language for language in languages if language in spoken), spoken[0])


def normalize_locale(locale: str) -> str | None:
    """`RU_kz` as `ru-KZ`, `kz` as `kk`; nothing if it is no locale."""
    if len(locale) > LONGEST_LOCALE or not _LOCALE.fullmatch(locale.strip()):
        return None
    language, *rest = re.split("[-_]", locale.strip().lower())
    return "-".join([_MISTAKEN.get(language, language), *(_subtag(part) for part in rest)])


def _subtag(part: str) -> str:
    return {2: part.upper(), 4: part.title()}.get(len(part), part)
