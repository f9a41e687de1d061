"""Where a fault can be planted, and the source with it: a flipped comparison, `and`/`or`, `+`/`-`, a dropped `not`."""

import ast
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("queues", "storage", "notifications")

FLIPPED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: (r"<", ">="),
    ast.LtE: (r"<=", ">"),
    ast.Gt: (r">", "<="),
    ast.GtE: (r">=", "<"),
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.And: (r"\band\b", "or"),
    ast.Or: (r"\bor\b", "and"),
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
}
"""How an operator looks in the source, and what takes its place."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: bytes of a file that are replaced."""

    path: str
    line: int
    start: int
    end: int
    replacement: str
    text: str
    """The line as it was, for people."""
    column: int
    """Where in the line."""
    whole: tuple[int, int]
    """The bytes of the expression that has the fault in it."""

    @property
    def id(self) -> str:
        """The same as long as the line is the same, so that a run can be taken up after other lines have changed."""
        said = "\0".join((self.path, self.text, str(self.column), self.replacement))
        return hashlib.sha1(said.encode()).hexdigest()[:12]

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement.encode() + source[self.end :]

    def describe(self, source: bytes) -> str:
        gone = source[self.start : self.end].decode().strip() or "not"
        return f"`{gone}` → `{self.replacement.strip() or 'nothing'}`"


def choose(root: Path, number: int, seed: int, only: str = "") -> list[Mutant]:
    """So many places, at random: the same ones for the same seed, as far as their lines are still there."""
    places = {mutant.id: mutant for path in sources(root, only) for mutant in find(root, path)}
    drawn = sorted(places, key=lambda id: hashlib.sha1(f"{seed} {id}".encode()).digest())
    return [places[id] for id in drawn[:number]]


def sources(root: Path, only: str = "") -> list[Path]:
    package = root / "src" / "yamchi"
    found = [path for folder in FOLDERS for path in sorted((package / folder).rglob("*.py"))]
    return [path for path in found if only in path.as_posix() and "migrations" not in path.parts]


def find(root: Path, path: Path) -> Iterator[Mutant]:
    """Every place of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.decode().splitlines()
    name = path.relative_to(root).as_posix()

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    def mutant(node: ast.expr, start: int, end: int, replacement: str) -> Mutant:
        line = source.count(b"\n", 0, start) + 1
        whole = at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)
        text, column = lines[line - 1].strip(), start - starts[line - 1]
        return Mutant(name, line, start, end, replacement, text, column, whole)

    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.expr):
            continue
        for left, operator, right in _pairs(node):
            begin, end = (
                at(left.end_lineno or 0, left.end_col_offset or 0),
                at(right.lineno, right.col_offset),
            )
            pattern, replacement = FLIPPED[type(operator)]
            if found := re.search(pattern.encode(), source[begin:end]):
                yield mutant(node, begin + found.start(), begin + found.end(), replacement)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            begin = at(node.lineno, node.col_offset)
            yield mutant(node, begin, begin + len("not"), "")


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.AST, ast.expr]]:
    """Operands that have an operator between them."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            yield from _between([left, *comparators], ops)
        case ast.BoolOp(op=op, values=values):
            yield from _between(values, [op] * (len(values) - 1))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            yield left, op, right


def _between(
    operands: Sequence[ast.expr], operators: Sequence[ast.AST]
) -> Iterator[tuple[ast.expr, ast.AST, ast.expr]]:
    return zip(operands, operators, operands[1:], strict=False)
