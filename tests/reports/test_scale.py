"""Many reports cost no more each than few do, and a long one no more memory than a short one. Ratios within one run."""

import subprocess
import sys
from pathlib import Path
from time import process_time

from tests.reports.test_reports import RESULTS
from yamchi.clock import as_datetime
from yamchi.reports.kinds import TEMPLATES, Content
from yamchi.reports.rendering import write
from yamchi.testing import TestApp

SHEET = """
import asyncio, re, sys
from pathlib import Path
from yamchi.clock import as_datetime
from yamchi.reports.kinds import Content, Rows
from yamchi.reports.rendering import write

async def batches():
    for begin in range(0, int(sys.argv[1]), 1000):
        yield [[f"cell {row} {column}" for column in range(10)] for row in range(begin, begin + 1000)]

async def say(share): pass

rows = Rows([f"column {n}" for n in range(10)], batches)
asyncio.run(write(Path(sys.argv[2]), Content("Rows", {}, rows), "xlsx", None, as_datetime(0), say))
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])  # ru_maxrss would be the parent's
"""


PAGES = """
import asyncio, re, sys
from pathlib import Path
from yamchi.clock import as_datetime
from yamchi.reports.kinds import TEMPLATES, Content
from yamchi.reports.rendering import write

async def say(share): pass

async def make(count):
    content = Content("Results", {"columns": ["name", "value"], "rows": [["a", str(n)] for n in range(40)]})
    for _ in range(count):
        await write(Path(sys.argv[1]), content, "pdf", None, as_datetime(0), say)
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

async def main():
    print(await make(20), await make(180))

asyncio.run(main())
"""


def test_two_hundred_reports_need_the_memory_of_twenty(tmp_path: Path) -> None:
    program = [sys.executable, "-c", PAGES, str(tmp_path / "pages.pdf")]
    said = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    few, many = map(int, said.split())
    assert many / few < 1.3


async def test_the_last_of_two_hundred_reports_cost_what_the_first_do(tmp_path: Path) -> None:
    async with TestApp(home=tmp_path) as app:
        content = await app.reports.preview("checkup", RESULTS)
        costs = [await _cost(content, tmp_path / f"{number}.pdf") for number in range(200)]
    assert min(costs[-20:]) / min(costs[:20]) < 1.5  # the least: a busy machine adds to any of them


def test_a_hundred_thousand_rows_need_the_memory_of_ten_thousand(tmp_path: Path) -> None:
    few, many = (_memory(rows, tmp_path / "rows.xlsx") for rows in (10_000, 100_000))
    assert many / few < 1.3


async def _cost(content: Content, file: Path) -> float:
    began = process_time()
    await write(file, content, "pdf", TEMPLATES / "checkup.typ", as_datetime(0), _silent)
    return process_time() - began


def _memory(rows: int, file: Path) -> int:
    program = [sys.executable, "-c", SHEET, str(rows), str(file)]
    return int(subprocess.run(program, capture_output=True, text=True, check=True).stdout)


async def _silent(_: float) -> None:
    pass
