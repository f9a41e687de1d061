"""The script that plants faults: each one is a small change of valid source, and the same seed plants the same ones."""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mutants.planting import Mutant, choose, find
from tests.mutants.reaching import Reach, instrumented, record
from tests.mutants.testing import MutantTester, Result
from tests.mutants.tree import Tree

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
    (tree / "src/yamchi/queues/one.py").write_text("ONE = 2 - 1\n" + SOURCE)
    assert {one.id for one in first} <= {one.id for one in choose(tree, 4, seed=1)}, "whatever else is new"


def test_what_says_that_it_was_reached_is_the_same_program(tree: Path) -> None:
    source = (tree / "src/yamchi/queues/one.py").read_bytes()
    places = list(find(tree, tree / "src/yamchi/queues/one.py"))
    changed = instrumented(source, places).replace(b"from yamchi.reached import reached as _reached", b"")
    reached: list[int] = []
    ours, theirs = {}, {"_reached": reached.append}
    exec(source, ours)
    exec(changed, theirs)
    for a in (-1, 0, 1, 5, None):
        assert ours["f"](a, 3) == theirs["f"](a, 3)
    assert {f"{place:012x}" for place in reached} == {place.id for place in places}


CONTENT, STRICT, IN_A_PROCESS = (
    f"tests/test_one.py::test_{name}" for name in ("content", "strict", "in_a_process")
)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Tree]:
    """A function, a constant, a test that is content with anything, one that is not, and one that fails anyway."""
    tree = tmp_path / "tree"
    (tree / "src/yamchi/queues").mkdir(parents=True)
    for name in ("", "queues/"):
        (tree / f"src/yamchi/{name}__init__.py").write_text("")
    shutil.copytree(ROOT / "tests/mutants", tree / "tests/mutants")
    (tree / "tests/__init__.py").write_text("")
    (tree / "src/yamchi/queues/one.py").write_text("ONE = 2 - 1\n\ndef f(a, b):\n    return b - a\n")
    (tree / "src/yamchi/queues/other.py").write_text("def g(a, b):\n    return b + a\n")
    (tree / "tests/test_one.py").write_text(
        """import subprocess, sys
from yamchi.queues.one import ONE, f
from yamchi.queues.other import g

def test_content():
    f(1, 2)

def test_strict():
    assert f(1, 2) == ONE

def test_failing():
    assert f(1, 2) == 5

def test_in_a_process():
    subprocess.run([sys.executable, "-c", "from yamchi.queues.other import g; g(1, 2)"], check=True)
"""
    )
    quickly = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_timeout"}
    program = Tree(tree, tmp_path / "copy", quickly)
    yield program
    program.close()


def places(program: Tree, name: str) -> list[Mutant]:
    return sorted(find(program.root, program.root / f"src/yamchi/queues/{name}.py"), key=lambda one: one.line)


def test_which_tests_come_to_a_place(program: Tree, tmp_path: Path) -> None:
    record(program, tmp_path, ["tests"]).save(tmp_path / "reach.json")
    reach = Reach.load(tmp_path / "reach.json")
    on_import, within = places(program, "one")
    (elsewhere,) = places(program, "other")
    assert set(reach.tests_of(within, program.root)) == {CONTENT, STRICT}, "not the one that fails anyway"
    assert set(reach.tests_of(on_import, program.root)) == {CONTENT, STRICT}, "whatever comes to its file"
    assert reach.tests_of(elsewhere, program.root) == [IN_A_PROCESS]
    assert set(reach.seconds) == {CONTENT, STRICT, IN_A_PROCESS}


def test_a_fault_is_judged_in_a_copy(program: Tree) -> None:
    program.prepare()
    tester = MutantTester(program, {CONTENT: 1, STRICT: 2}, most=60)
    _, within = places(program, "one")
    assert tester.test(within, [CONTENT, STRICT]) == Result("killed", STRICT)
    assert (program.place / "src/yamchi/queues/one.py").read_text().endswith("b - a\n"), "as it was"


def test_a_test_that_fails_without_a_fault_too_kills_nothing(program: Tree) -> None:
    program.prepare()
    failing = "tests/test_one.py::test_failing"
    tester = MutantTester(program, {failing: 1, CONTENT: 1}, most=60)
    assert tester.test(places(program, "other")[0], [failing, CONTENT]) == Result("survived", "2 of 2 tests")


@pytest.mark.parametrize(("hangs_anyway", "outcome"), [(False, "timeout"), (True, "slow")])
def test_tests_that_hang_anyway_say_nothing(
    program: Tree, hangs_anyway: bool, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place,) = places(program, "other")
    program.prepare()

    def run(self: MutantTester, tests: list[str]) -> Result:
        is_sound = "b + a" in (self.tree.place / place.path).read_text()
        return Result("timeout" if hangs_anyway or not is_sound else "survived")

    monkeypatch.setattr(MutantTester, "_run", run)
    assert MutantTester(program, {CONTENT: 1}, most=60).test(place, [CONTENT]).outcome == outcome
