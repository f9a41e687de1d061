"""Runs pytest in forks of a process that has it imported, its plugins and what the source imports: that takes longer than most tests.

Started as a program, it reads a run a line: the folder, the environment, the arguments, where to write what is said and how
many seconds it may take. Its answer is how pytest ended; None if it did not in time.
"""

import ast
import gc
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any


def main(source: Path) -> None:
    sys.path.pop(0)  # this file's own folder
    _import_all(source)
    for line in sys.stdin:
        print(json.dumps(_run(**json.loads(line))), flush=True)


def _import_all(source: Path) -> None:
    names = {"pytest", *_imported(source)}
    if "PYTEST_DISABLE_PLUGIN_AUTOLOAD" not in os.environ:
        names |= {plugin.module for plugin in entry_points(group="pytest11")}
    for name in sorted(names):
        with suppress(ImportError):  # of an extra that is not installed
            import_module(name)
    gc.collect()
    gc.freeze()  # else a fork's first collection copies all of it


def _imported(source: Path) -> Iterator[str]:
    """What the source imports from elsewhere when it is imported itself."""
    for file in source.rglob("*.py"):
        for node in ast.parse(file.read_bytes()).body:
            match node:
                case ast.Import(names=names):
                    yield from (alias.name for alias in names if not alias.name.startswith("yamchi"))
                case ast.ImportFrom(module=str(name)) if not name.startswith("yamchi"):
                    yield name


def _run(
    cwd: str, env: dict[str, str], arguments: list[str], output: str, seconds: float | None
) -> int | None:
    pid = os.fork()
    if not pid:
        _be_pytest(cwd, env, arguments, output)
    ended = os.pidfd_open(pid)
    try:
        in_time = select.select([ended], [], [], seconds)[0]
    finally:
        os.close(ended)
    if not in_time:
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) if in_time else None


def _be_pytest(cwd: str, env: dict[str, str], arguments: list[str], output: str) -> Any:
    code = 1
    try:
        os.setsid()
        said, nothing = (
            os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            os.open(os.devnull, os.O_RDONLY),
        )
        for place, descriptor in enumerate((nothing, said, said)):
            os.dup2(descriptor, place)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        sys.path[:0] = env["PYTHONPATH"].split(os.pathsep)
        sys.dont_write_bytecode = True
        code = int(sys.modules["pytest"].main(arguments))
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
