"""Every example runs as it stands, in its own home, and says what it should."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "cron.py": "Mon 05 Jan 09:30 UTC  weekly digest",
    "failures.py": "mended  delivered to boris at attempt 1",
    "quickstart.py": "thumb-42 made poster.jpg.320.webp",
    "rate_limit.py": "chat 2: line 3",
    "testing_time.py": "03 00:30 call anna",
}


def test_every_example_is_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(name: str, own_home: Path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=own_home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
