"""Variables that look like settings of Yamchi written wrongly: nothing reads them, and the setting that is meant stays at its default.

A `.env` is often shared with other programs, so only a slip of the hand counts: two neighbors swapped, or, in a longer name, one
character too many, too few or wrong.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from yamchi.settings import PER_QUEUE, Environment, read_env_file, variable_of

SHORT = 8
"""Characters up to which another character makes another word: API_KEY is not AI_KEY."""


@dataclass(frozen=True, slots=True)
class Misspelled:
    """A variable, where it is set, and the one that is probably meant."""

    name: str
    place: str
    meant: str

    def __str__(self) -> str:
        return f"{self.name} in {self.place} is no setting: {self.meant} is probably meant"


def misspelled(home: Path, kinds: Iterable[type[Environment]]) -> list[Misspelled]:
    """What is set in the `.env` of a home and in the environment, and is nearly a variable of these settings."""
    fields = [item for kind in kinds for item in kind.model_fields.items()]
    known = {variable_of(name, field) for name, field in fields}
    path = home / ".env"
    found: list[Misspelled] = []
    for place, names in ((str(path), read_env_file(path)), ("the environment", os.environ)):
        given = {name.upper() for name in names}
        for name in sorted(given - known - {one.name for one in found}):
            found += [Misspelled(name, place, meant) for meant in _meant(name, known) if meant not in given]
    return found


def _meant(name: str, known: Iterable[str]) -> Iterator[str]:
    """The setting that this nearly is, if there is one; nothing for a setting of a queue, such as `QUEUE_URL_MAIL`."""
    families = [one.removesuffix(PER_QUEUE) for one in known if one.endswith(PER_QUEUE)]
    if any(name.startswith(family) for family in families):
        return
    close = [one for one in known if _is_slip(name, one)]
    for family in families:
        words = name.split("_", family.count("_"))
        queue = words.pop()
        if queue and _is_slip("_".join(words) + "_", family):
            close.append(family + queue)
    yield from sorted(close)[:1]


def _is_slip(written: str, meant: str) -> bool:
    start = _common(written, meant)
    wrong, right = written[start:], meant[start:]
    end = _common(wrong[::-1], right[::-1])
    wrong, right = wrong[: len(wrong) - end], right[: len(right) - end]
    if len(wrong) == len(right) == 2:
        return wrong == right[::-1]
    return len(meant) > SHORT and len(wrong) <= 1 and len(right) <= 1


def _common(one: str, other: str) -> int:
    """Characters with which both begin."""
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))])
