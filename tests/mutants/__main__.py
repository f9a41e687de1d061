"""`python -m tests.mutants --number 200 --seed 1`: plants faults at random and lets the tests judge them.

At first all tests run once, to learn which of them come to which places; then each fault is judged by those that come to it,
the quickest first. Both are kept in `.mutants/`, so a run that was stopped goes on where it was; `--again` begins anew,
`--survivors` judges again what survived. The table is printed and kept as `.mutants/report.md`.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.planting import Mutant, choose
from tests.mutants.reaching import Reach, record
from tests.mutants.testing import MutantTester, Result
from tests.mutants.tree import Tree
from tests.services.server import ServerMissing
from tests.services.shared import KINDS, VARIABLES, OwnedServers

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".mutants"
RECORDED = ("tests", "-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder")


def main() -> None:
    options = _options()
    if options.again:
        shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(exist_ok=True)
    (KEPT / ".gitignore").write_text("*\n")
    mutants = choose(ROOT, options.number, options.seed, options.only)
    with _servers() as environment:
        reach = _reach(environment)
        tested = _test(mutants, reach, options, environment)
    report = _report(mutants, tested, options.seed)
    (KEPT / "report.md").write_text(report)
    _say(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--number", type=int, default=30, help="how many faults; 30 by default")
    parser.add_argument("--seed", type=int, default=1, help="which of them; 1 by default")
    parser.add_argument("--at-once", type=int, default=2, help="how many are judged at the same time; 2")
    parser.add_argument("--seconds", type=float, default=300, help="how long the tests of one may take; 300")
    parser.add_argument("--only", default="", metavar="PART", help="only files whose path has this in it")
    parser.add_argument("--survivors", action="store_true", help="judge those again that survived before")
    parser.add_argument("--again", action="store_true", help="forget what was recorded and judged before")
    return parser.parse_args()


@contextmanager
def _servers() -> Iterator[dict[str, str]]:
    """One set of servers for all runs: to start them takes longer than most tests."""
    servers = OwnedServers()
    environment = {}
    try:
        for name in KINDS:
            try:
                environment[VARIABLES[name]] = os.environ.get(VARIABLES[name]) or servers.url(name)
            except ServerMissing as missing:
                _say(str(missing))
        yield environment
    finally:
        servers.discard()


def _reach(environment: dict[str, str]) -> Reach:
    kept = KEPT / "reach.json"
    if not kept.exists():
        _say("Which tests come to which places? All of them run once.")
        record(Tree(ROOT, KEPT / "tree", environment), KEPT, RECORDED).save(kept)
    return Reach.load(kept)


def _test(
    mutants: list[Mutant], reach: Reach, options: argparse.Namespace, environment: dict[str, str]
) -> dict[str, Result]:
    kept = KEPT / "results.jsonl"
    tested = _read(kept)
    again = ("slow", "survived") if options.survivors else ("slow",)
    left = [one for one in mutants if one.id not in tested or tested[one.id].outcome in again]
    testers = SimpleQueue[MutantTester]()
    for number in range(options.at_once):
        testers.put(_tester(number, reach, options.seconds, environment))

    def test(mutant: Mutant) -> tuple[Mutant, Result]:
        tester = testers.get()
        try:
            return mutant, tester.test(mutant, reach.tests_of(mutant, ROOT))
        finally:
            testers.put(tester)

    with ThreadPoolExecutor(options.at_once) as pool:
        judged = as_completed([pool.submit(test, mutant) for mutant in left])
        for place, (mutant, result) in enumerate((one.result() for one in judged), 1):
            tested[mutant.id] = result
            with kept.open("a") as file:
                file.write(json.dumps({"id": mutant.id, "outcome": result.outcome, "by": result.by}) + "\n")
            _say(f"{place:4} of {len(left)}  {result.outcome:8}  {mutant.path}:{mutant.line}  {result.by}")
    return tested


def _tester(number: int, reach: Reach, seconds: float, environment: dict[str, str]) -> MutantTester:
    own = dict(environment)
    if "TEST_REDIS_URL" in own:  # what one run empties is no database of another one
        own["TEST_REDIS_URL"] = own["TEST_REDIS_URL"].rpartition("/")[0] + f"/{number}"
    tree = Tree(ROOT, KEPT / f"tree-{number}", own)
    tree.prepare()
    return MutantTester(tree, reach.seconds, seconds)


def _read(kept: Path) -> dict[str, Result]:
    lines: Iterable[str] = kept.read_text().splitlines() if kept.exists() else []
    return {entry["id"]: Result(entry["outcome"], entry["by"]) for entry in map(json.loads, lines)}


def _report(mutants: list[Mutant], tested: dict[str, Result], seed: int) -> str:
    outcomes = [tested[mutant.id].outcome for mutant in mutants]
    slow = outcomes.count("slow")
    noticed = len(outcomes) - outcomes.count("survived") - slow
    head = f"{noticed} of {len(outcomes) - slow} faults were noticed (seed {seed}).\n\n"
    if slow:
        head += f"Of {slow} nothing is known: their tests did not end in time without a fault either.\n\n"
    rows = ["| place | fault | line | outcome | by |", "|---|---|---|---|---|"]
    for mutant in sorted(mutants, key=lambda one: (tested[one.id].outcome != "survived", one.path, one.line)):
        result = tested[mutant.id]
        fault = mutant.describe((ROOT / mutant.path).read_bytes())
        line = mutant.text.replace("|", "\\|")[:90]
        rows.append(f"| {mutant.path}:{mutant.line} | {fault} | `{line}` | {result.outcome} | {result.by} |")
    return head + "\n".join(rows) + "\n"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
