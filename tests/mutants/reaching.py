"""Which tests come to which places: in a copy of the tree every place says that it was reached, and the tests run once.

Processes that tests start say it too, for they inherit the name of the test from pytest's environment variable. What is
kept is also how long each test took, and only tests that passed: those that fail anyway can't judge.
"""

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.planting import Mutant, find, sources
from tests.mutants.tree import Tree

IMPORT = b"\nfrom yamchi.reached import reached as _reached\n"
RECORDER = '''"""Writes down which test has come to which place."""

import os

_test, _seen = b"", set()


def reached(place):
    global _test
    if (test := os.environ._data.get(b"PYTEST_CURRENT_TEST", b"")) != _test:
        _test = test
        _seen.clear()
    if place not in _seen:
        _seen.add(place)
        with open({file!r}, "ab", buffering=0) as file:
            file.write(b"%012x %b\\n" % (place, test.rpartition(b" (")[0]))
'''


@dataclass(frozen=True, slots=True)
class Reach:
    """What was recorded: the tests that come to a place, and the seconds that each test took."""

    by_place: dict[str, list[str]]
    seconds: dict[str, float]

    def tests_of(self, mutant: Mutant, root: Path) -> list[str]:
        """The tests that come to it, quickest first; for what runs on import, those that come to any place of its file."""
        found = set(self.by_place.get(mutant.id, ()))
        if "" in found:
            found.update(*(self.by_place.get(other.id, ()) for other in find(root, root / mutant.path)))
        return sorted(found & self.seconds.keys(), key=lambda test: (self.seconds[test], test))

    def save(self, file: Path) -> None:
        numbers = {test: number for number, test in enumerate(["", *self.seconds])}
        places = {place: sorted(numbers[test] for test in tests) for place, tests in self.by_place.items()}
        file.write_text(json.dumps({"seconds": self.seconds, "places": places}))

    @classmethod
    def load(cls, file: Path) -> "Reach":
        kept = json.loads(file.read_text())
        tests = ["", *kept["seconds"]]
        places = {place: [tests[number] for number in numbers] for place, numbers in kept["places"].items()}
        return cls(places, kept["seconds"])


def record(tree: Tree, folder: Path, arguments: Sequence[str]) -> Reach:
    """Run these tests once in a copy whose places say that they were reached."""
    reached, durations = folder / "reached.txt", folder / "durations.txt"
    for file in (reached, durations):
        file.write_text("")
    tree.copy()
    (tree.place / "src/yamchi/reached.py").write_text(RECORDER.format(file=str(reached)))
    for path in sources(tree.place):
        path.write_bytes(instrumented(path.read_bytes(), find(tree.place, path)))
    tree.compile()
    options = ["-p", "tests.mutants.durations", f"--durations-file={durations}"]
    (folder / "recording.txt").write_text(tree.pytest([*options, *arguments])[1])
    return read(reached, durations)


def instrumented(source: bytes, places: Iterable[Mutant]) -> bytes:
    """The same program, in which every place says that it was reached before it is evaluated."""
    inserted: dict[int, bytes] = defaultdict(bytes)
    for place in places:
        begin, end = place.whole
        inserted[begin] += b"(_reached(0x%b), " % place.id.encode()
        inserted[end] += b")[1]"
    if not inserted:
        return source
    inserted[_after_head(source)] += IMPORT
    pieces, since = [], 0
    for position in sorted(inserted):
        pieces += [source[since:position], inserted[position]]
        since = position
    return b"".join([*pieces, source[since:]])


def _after_head(source: bytes) -> int:
    """Where the first import may stand: after the docstring and what is imported from the future."""
    end = 0
    for node in ast.parse(source).body:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.ImportFrom(module="__future__"):
                end = node.end_lineno or 0
            case _:
                break
    return sum(len(line) for line in source.splitlines(keepends=True)[:end])


def read(reached: Path, durations: Path) -> Reach:
    """What a recording has written so far."""
    seconds: dict[str, float] = {}
    for line in durations.read_text().splitlines():
        took, _, test = line.partition(" ")
        seconds[test] = float(took)
    by_place: dict[str, set[str]] = defaultdict(set)
    with reached.open() as lines:
        for line in lines:
            place, _, test = line.rstrip("\n").partition(" ")
            if not test or test in seconds:
                by_place[place].add(test)
    return Reach({place: sorted(tests) for place, tests in by_place.items()}, seconds)
