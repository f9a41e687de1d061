"""The script that plants faults: each one is a small change of valid source, and the same seed plants the same ones."""

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.mutants.mapping import find_tests
from tests.mutants.planting import choose, find
from tests.mutants.testing import MutantTester, Outcome, Result

ROOT = Path(__file__).parents[2]

SOURCE = """
def f(a, b):
    return (
        a < b
        and a not in (1, 2)  # "<" in a comment is none
        or not a
    ) + (b - 1) if a is not None else "a < b"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "src" / "yamchi" / "queues"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text(SOURCE)
    (tmp_path / "tests").mkdir()
    return tmp_path


def test_every_fault_that_can_be_planted(tree: Path) -> None:
    source = (tree / "src/yamchi/queues/one.py").read_bytes()
    mutants = list(find(tree, tree / "src/yamchi/queues/one.py"))
    said = sorted(mutant.describe(source) for mutant in mutants)
    assert said == sorted(
        [
            "`<` → `>=`", "`and` → `or`", "`not in` → `in`", "`or` → `and`", "`not` → `nothing`",
            "`+` → `-`", "`-` → `+`", "`is not` → `is`",
        ]
    )  # fmt: skip
    for mutant in mutants:
        changed = mutant.apply(source)
        ast.parse(changed)
        assert changed != source
    assert len({mutant.id for mutant in mutants}) == len(mutants)


def test_the_same_seed_chooses_the_same(tree: Path) -> None:
    first = choose(tree, 3, seed=1)
    assert first == choose(tree, 3, seed=1)
    assert {tuple(choose(tree, 3, seed=seed)) for seed in range(5)} != {tuple(first)}
    assert len(choose(tree, 100, seed=1)) == 8, "no more than there are"


def test_an_engines_files_are_judged_by_its_suite_and_others_by_no_broker() -> None:
    assert find_tests(ROOT, "src/yamchi/queues/engines/bull/codec.py")[0] == "tests/conformance/test_bull.py"
    runner = find_tests(ROOT, "src/yamchi/queues/runner.py")
    assert "tests/conformance/test_memory.py" in runner
    assert not any("kafka" in test or "bull" in test for test in runner)
    assert "tests/notifications/test_circuits.py" in find_tests(
        ROOT, "src/yamchi/notifications/channels/circuits.py"
    )


@pytest.mark.parametrize(("test", "outcome"), [("f(1, 2)", "survived"), ("f(1, 2) == 1", "killed")])
def test_a_fault_is_judged_in_a_copy(tree: Path, test: str, outcome: str, tmp_path: Path) -> None:
    (tree / "src/yamchi/__init__.py").write_text("")
    (tree / "src/yamchi/queues/__init__.py").write_text("")
    (tree / "src/yamchi/queues/one.py").write_text("def f(a, b):\n    return b - a\n")
    (tree / "tests/test_one.py").write_text(
        f"from yamchi.queues.one import f\n\n\ndef test_one():\n    assert {test}\n"
    )
    (mutant,) = choose(tree, 1, seed=1)
    tester = MutantTester(tree, tmp_path / "copy", seconds=60)
    tester.prepare()
    result = tester.test(mutant)
    assert result.outcome == outcome
    assert result.by == ("tests/test_one.py::test_one" if outcome == "killed" else "")
    assert (tmp_path / "copy/src/yamchi/queues/one.py").read_text().endswith("b - a\n"), "as it was"


def test_tests_that_fail_anyway_judge_nothing(tree: Path, tmp_path: Path) -> None:
    (tree / "tests/test_one.py").write_text(
        "import yamchi.queues.one\n\n\ndef test_one():\n    assert False\n"
    )
    for name in ("", "queues/"):
        (tree / f"src/yamchi/{name}__init__.py").write_text("")
    tester = MutantTester(tree, tmp_path / "copy", seconds=60)
    tester.prepare()
    assert tester.test(choose(tree, 1, seed=1)[0]).outcome == "survived"


@pytest.mark.parametrize(("without_fault", "outcome"), [("survived", "timeout"), ("timeout", "slow")])
def test_tests_that_take_too_long_anyway_say_nothing(
    tree: Path, without_fault: Outcome, outcome: Outcome, tmp_path: Path
) -> None:
    class Scripted(MutantTester):
        def _run(self, arguments: Sequence[str], seconds: float) -> Result:
            is_sound = (self.place / mutant.path).read_text() == SOURCE
            return Result(without_fault if is_sound else "timeout")

    (tree / "tests/test_one.py").write_text("from yamchi.queues.one import f\n")
    (mutant,) = choose(tree, 1, seed=1)
    tester = Scripted(tree, tmp_path / "copy", seconds=1)
    tester.prepare()
    assert tester.test(mutant).outcome == outcome
