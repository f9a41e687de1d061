"""`python -m tests.mutants --number 200 --seed 1`: plants faults at random and lets the tests judge them.

What has been tested is kept in `.mutants/`, so a run that was stopped goes on where it was; `--again` begins anew. The table
is printed and kept as `.mutants/report.md`.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from tests.mutants.planting import Mutant, choose
from tests.mutants.testing import MutantTester, Result

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".mutants"


def main() -> None:
    options = _options()
    if options.again:
        shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(exist_ok=True)
    (KEPT / ".gitignore").write_text("*\n")
    kept = KEPT / "results.jsonl"
    tested = _read(kept)
    mutants = choose(ROOT, options.number, options.seed, options.only)
    tester = MutantTester(ROOT, KEPT / "tree", options.timeout, options.whole)
    tester.prepare()
    for place, mutant in enumerate(mutants, 1):
        known = tested.get(mutant.id)
        if known is None or known.outcome == "slow" or (options.whole and known.outcome == "survived"):
            tested[mutant.id] = known = tester.test(mutant)
            with kept.open("a") as file:
                file.write(json.dumps({"id": mutant.id, "outcome": known.outcome, "by": known.by}) + "\n")
        _say(f"{place:4} of {len(mutants)}  {known.outcome:8}  {mutant.path}:{mutant.line}  {known.by}")
    report = _report(mutants, tested, options.seed)
    (KEPT / "report.md").write_text(report)
    _say(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--number", type=int, default=30, help="how many faults; 30 by default")
    parser.add_argument("--seed", type=int, default=1, help="which of them; 1 by default")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for the tests of one fault; 300")
    parser.add_argument("--only", default="", metavar="PART", help="only files whose path has this in it")
    parser.add_argument(
        "--whole", action="store_true", help="what survives is tested by the whole suite, too"
    )
    parser.add_argument("--again", action="store_true", help="forget what was tested before")
    return parser.parse_args()


def _read(kept: Path) -> dict[str, Result]:
    lines = kept.read_text().splitlines() if kept.exists() else []
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
