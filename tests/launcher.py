"""Starts processes of Yamchi for tests: forks of one Python that has it imported, which take milliseconds to begin.

    child = launch("yamchi", ["worker"], cwd=home, env={…}, output=home / "worker.log")
    child.kill()

To import Yamchi and its features takes longer than what most tests of real processes then do. Each is a process of its own
all the same: its environment, folder, signals and end are its own. All of them end when the tests end, however they do.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import chdir
from functools import cache
from importlib import import_module, reload
from pathlib import Path
from typing import Any

from yamchi import faultpoints

ROOT = Path(__file__).parents[1]
IMPORTED = ("alembic.command", "uvicorn.protocols.http.httptools_impl", "uvloop", "websockets.legacy.server")
"""What a server imports when it begins, beside Yamchi and its features."""
POLL_SECONDS = 0.005
PR_SET_PDEATHSIG = 1


class Child:
    """A process that was forked; the same means as `subprocess.Popen` has."""

    def __init__(self, launcher: "Launcher", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._launcher = launcher

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._launcher.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (timeout or float("inf"))
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(POLL_SECONDS)
        return code

    def send_signal(self, which: int) -> None:
        if self.poll() is None:  # nobody else gets its pid before the launcher was asked about it
            os.kill(self.pid, which)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Launcher:
    """The process that forks, and a line to it: one question, one answer."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._lines = ours.makefile("rw")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.launcher", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self.end)

    def ask(self, **question: Any) -> Any:
        with self._lock:
            self._lines.write(json.dumps(question) + "\n")
            self._lines.flush()
            return json.loads(self._lines.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@cache
def _launcher() -> Launcher:
    return Launcher()


def launch(
    module: str, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: Path
) -> Child:
    """`python -m module arguments`, what it says appended to a file."""
    launcher = _launcher()
    words = [module, *arguments]
    return Child(launcher, launcher.ask(words=words, cwd=str(cwd), env=dict(env), output=str(output)))


# ── In the process that forks ─────────────────────────────────────────────────────────────────────────────────────


def serve(line: socket.socket) -> None:
    """Answer questions until nobody is left to ask any."""
    lines = line.makefile("rw")
    for question in map(json.loads, lines):
        answer = _ended(question["poll"]) if "poll" in question else _fork(line, **question)
        lines.write(json.dumps(answer) + "\n")
        lines.flush()


def _fork(line: socket.socket, words: list[str], cwd: str, env: dict[str, str], output: str) -> int:
    parent = os.getpid()
    if pid := os.fork():
        _codes.pop(pid, None)  # of a process before it that had the same number
        return pid
    try:
        os.close(line.fileno())
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        _run(words, cwd, env, output)
    finally:
        os._exit(1)


def _run(words: list[str], cwd: str, env: dict[str, str], output: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for place, descriptor in enumerate((nothing, said, said)):
        os.dup2(descriptor, place)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.chdir(cwd)
    sys.path[0] = cwd
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    reload(faultpoints)  # the only module that reads the environment when it is imported
    code: Any = 1
    try:
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as exit:
        code = exit.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _leave(code)


def _leave(code: Any) -> None:
    """As Python itself does it at the end of a program."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


_codes: dict[int, int] = {}


def _ended(pid: int) -> int | None:
    """How a process ended, as `Popen.returncode` says it; None while it runs."""
    if pid not in _codes:
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return None
        _codes[pid] = os.waitstatus_to_exitcode(status)
    return _codes[pid]


def _import_all() -> None:
    """Import what processes will need, by making an application as they do; nothing of it is opened, and nothing is kept."""
    for name in IMPORTED:
        import_module(name)
    from yamchi.shipped import shipped_app
    from yamchi.web import create_app

    with tempfile.TemporaryDirectory() as home, chdir(home):
        app = shipped_app()
        app.serve()
        create_app(app)
        assert not os.listdir(home)
    assert threading.active_count() == 1, "a thread is not there after a fork"
    gc.collect()
    gc.freeze()  # else a fork's first collection copies all of it


if __name__ == "__main__":
    _import_all()
    serve(socket.socket(fileno=int(sys.argv[1])))
