"""What a job costs in instructions of the processor, counted by valgrind: the same figure however busy the machine is.

Two runs of a program, with few jobs and with many: the difference is what the jobs cost, without the start.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from bench.measure import CannotRun


def for_each(count: Callable[[int], int], few: int, many: int) -> float:
    """Instructions for a job, of a program that takes so many in all for a number of jobs."""
    without = count(few)
    return (count(many) - without) / (many - few)


def counting(log: Path) -> list[str]:
    """What to put before a command, so that its instructions are in the log when it has ended."""
    if not shutil.which("valgrind"):
        raise CannotRun("valgrind counts the instructions: install it (apt-get install valgrind).")
    return [
        "valgrind",
        "--tool=cachegrind",
        "--cache-sim=no",
        "--cachegrind-out-file=/dev/null",
        f"--log-file={log}",
    ]


def counted(log: Path) -> int:
    found = re.search(r"I\s+refs:\s+([\d,]+)", log.read_text())
    if not found:
        raise CannotRun(f"valgrind counted nothing: {log.read_text()[-500:]}")
    return int(found[1].replace(",", ""))
