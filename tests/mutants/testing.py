"""Tests a mutant in a copy of the tree: killed by which test, survived, or the tests hung."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.mutants.planting import Mutant
from tests.mutants.tree import Tree

Outcome = Literal["killed", "survived", "timeout", "slow"]
"""A mutant that makes the tests hang is found out too (timeout). Where they do not end without it either, nothing is known (slow)."""

RINGS = (5.0, 30.0)
"""Seconds of tests that are run first: most mutants are found out by the quickest tests that come to them."""

USAGE, NO_TESTS = 4, 5
"""How pytest says that it was asked wrongly, and that it had nothing to run."""


@dataclass(frozen=True, slots=True)
class Result:
    outcome: Outcome
    by: str = ""
    """The test that noticed, how long was waited, or how many tests did not notice."""


@dataclass(frozen=True, slots=True)
class MutantTester:
    """Judges one mutant at a time by the tests that come to it: at first the quickest ones."""

    tree: Tree
    seconds: dict[str, float]
    """How long each test takes."""
    most: float
    """For how many seconds a mutant is tested at most."""

    def test(self, mutant: Mutant, tests: Sequence[str]) -> Result:
        done = 0
        for ring in self._rings(tests):
            result = self._test(mutant, ring)
            if result.outcome != "survived":
                return result
            done += len(ring)
        return Result("survived", f"{done} of {len(tests)} tests")

    def _test(self, mutant: Mutant, tests: Sequence[str]) -> Result:
        """What fails or hangs with the fault has to pass without it: on a busy machine a test may fail by itself."""
        left = list(tests)
        original = (self.tree.place / mutant.path).read_bytes()
        while left:
            with self.tree.changed(mutant.path, mutant.apply(original)):
                result = self._run(left)
            match result.outcome:
                case "killed" if self._run([result.by]).outcome != "survived":
                    left.remove(result.by)
                case "timeout" if self._run(left).outcome == "timeout":
                    return Result("slow", result.by)
                case _:
                    return result
        return Result("survived")

    def _rings(self, tests: Sequence[str]) -> Iterator[list[str]]:
        """The tests in the order given, cut where the seconds up to there are those of a ring."""
        left, total = list(tests), 0.0
        for end in (*(ring for ring in RINGS if ring < self.most), self.most):
            ring: list[str] = []
            while left and (total + self.seconds[left[0]] <= end or not total):
                total += self.seconds[left[0]]
                ring.append(left.pop(0))
            if ring:
                yield ring

    def _run(self, tests: Sequence[str]) -> Result:
        listed = self.tree.place / "tests.txt"
        listed.write_text("".join(f"{test}\n" for test in tests))
        patience = 120 + 10 * sum(self.seconds[test] for test in tests)
        try:
            code, said = self.tree.pytest(["-x", "--timeout=100", f"@{listed}"], patience)
        except TimeoutError as error:
            return Result("timeout", str(error))
        if code in (0, NO_TESTS):
            return Result("survived")
        if code == USAGE:
            raise RuntimeError(f"pytest could not be run: {said.strip()}")
        return Result("killed", _failed(said, tests))


def _failed(said: str, tests: Sequence[str]) -> str:
    """The test that failed; where not even the tests could be read, all of them fail: the first."""
    found = re.search(r"^(?:FAILED|ERROR) (.+)$", said, re.MULTILINE)
    line = found[1] if found else ""
    return max((test for test in tests if line.startswith(test)), key=len, default=tests[0])
