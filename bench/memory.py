"""What a process of Yamchi needs, for sizing a machine: memory and disk, idle, after work, and with a picture or a report.

    .venv/bin/python -m bench.memory
    .venv/bin/python -m bench.memory --jobs 20000 --letters 5000

Each command runs alone in an empty home on the embedded default. Memory is the resident set of the process and its
children, read when the work is done; the letters go into the mailbox of the board.
"""

import argparse
import asyncio
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from yamchi import New, Yamchi
from yamchi.settings import Settings

DEADLINE = 300.0
SETTLE = 2.0
"""Seconds after a start until nothing more is loaded."""


class Running:
    """A command, and what it needs."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.output = home / "output.txt"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "yamchi", *arguments],
                cwd=home,
                env={**os.environ, "YAMCHI_HOME": str(home), "PYTHONUNBUFFERED": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_to_say(self, pattern: str) -> None:
        until(lambda: re.search(pattern, self.output.read_text()), pattern)
        time.sleep(SETTLE)

    @property
    def megabytes(self) -> float:
        return sum(resident(pid) for pid in family(self.process.pid)) / 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE)


def family(pid: int) -> Iterator[int]:
    yield pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for child in children.read_text().split() if children.exists() else ():
        yield from family(int(child))


def resident(pid: int) -> int:
    """Kilobytes; 0 for one that has just ended."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except FileNotFoundError:
        return 0
    return int(found[1]) if found else 0


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what} did not happen within {DEADLINE:g} s")
        time.sleep(0.2)


@contextmanager
def running(*arguments: str, says: str) -> Iterator[tuple[Path, Running]]:
    with tempfile.TemporaryDirectory() as folder:
        process = Running(Path(folder), *arguments)
        try:
            process.wait_to_say(says)
            yield Path(folder), process
        finally:
            process.stop()


def work(home: Path, queue: str, name: str, data: list[object]) -> None:
    """Add jobs, and wait until they are done."""

    async def add_and_wait() -> None:
        async with Yamchi(Settings(home=home)) as app:
            app.define(queue)
            target = app.queue(queue)
            for begin in range(0, len(data), 1_000):
                await target.add_many([New(one, name=name) for one in data[begin : begin + 1_000]])
            while (stats := await target.stats())["waiting"] + stats["active"]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    asyncio.run(add_and_wait())


def disk(home: Path) -> tuple[float, float]:
    """Megabytes of the tables, and of the letters in them."""
    with closing(sqlite3.connect(home / "var/data.db")) as database:
        ((pages, size),) = database.execute("SELECT * FROM pragma_page_count, pragma_page_size")
        ((letters,),) = database.execute("SELECT coalesce(sum(length(message)), 0) FROM mailbox")
    return pages * size / 1e6, letters / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--letters", type=int, default=2_000)
    parser.add_argument("--reports", type=int, default=50)
    given = parser.parse_args()

    rows: list[tuple[str, float]] = []
    up = ("up", "--port", "0")
    with running("api", "--port", "0", says="Listening on") as (_, process):
        rows.append(("`yamchi api`, idle", process.megabytes))
    with running("worker", says="Starting queue") as (_, process):
        rows.append(("`yamchi worker`, idle", process.megabytes))
    with running(*up, says="Listening on") as (home, process):
        rows.append(("`yamchi up`, idle", process.megabytes))
        work(home, "hello", "greet", [{"name": "you"}] * given.jobs)
        rows.append((f"… after {given.jobs:,} small jobs", process.megabytes))
        letter = {"subject": "Hello", "template": "welcome_email", "data": {"first_name": "A"}}
        work(
            home,
            "email_queue",
            "email",
            [{**letter, "to": f"u{n}@example.com"} for n in range(given.letters)],
        )
        rows.append((f"… and {given.letters:,} letters", process.megabytes))
        whole, letters = disk(home)
        params = {"name": "A", "results": [{"name": "B", "value": 1, "low": 0, "high": 2}]}
        work(home, "report_queue", "generate", [{"kind": "checkup", "params": params}] * given.reports)
        rows.append((f"… and {given.reports} reports as PDF", process.megabytes))
    print("| process | MB |\n|---|---:|")
    for what, megabytes in rows:
        print(f"| {what} | {megabytes:.0f} |")
    print(f"\nThe tables had {whole:.1f} MB after the letters, {letters:.1f} MB of them in the mailbox.")


if __name__ == "__main__":
    main()
