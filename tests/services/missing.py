"""What a test can't run without: it is skipped and says why; with CI=true it fails."""

import os
from pathlib import Path
from typing import NoReturn

import pytest

from tests.services.server import ServerMissing, program


def unavailable(why: object) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(str(why), pytrace=False)
    pytest.skip(str(why))


def required(name: str, *folders: Path) -> str:
    """Where a program is, looking in these folders before the path."""
    try:
        return program(name, *folders)
    except ServerMissing as missing:
        unavailable(missing)
