"""The table of faults at the end of a run."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
INNER_TEST = """
from tests.faults.report import COLUMNS

def test_fault(record_property):
    record_property("fault", dict.fromkeys(COLUMNS, 42))
"""


def test_a_run_that_keeps_nothing_has_its_table_too(tmp_path: Path) -> None:
    """As runs with a planted fault do: one that broke on its table would look as if the fault had been noticed."""
    (tmp_path / "test_inner.py").write_text(INNER_TEST)
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "tests.faults.report", "-p", "no:cacheprovider"]
    environment = outer | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "| 42 " in run.stdout
