"""Workers that are programs of their own, from the same environment as this Python."""

import os
import sys
from pathlib import Path
from typing import NoReturn


def run_program(name: str, *arguments: str) -> NoReturn:
    program = Path(sys.executable).with_name(name)
    os.execv(program, [name, *arguments])
