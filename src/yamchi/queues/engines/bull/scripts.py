"""The Lua that runs inside Redis: BullMQ's own scripts, and small ones of ours that call them in batches.

A script of ours names what it needs in its first lines: `-- bullmq: moveToActive` makes BullMQ's script of that name
a function of (KEYS, ARGV); `-- parts: state` puts another file of ours before it. So a batch of verdicts, with the dead
letters it causes and the jobs it claims, is one atomic step and one round trip, and every move is BullMQ's.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from yamchi.errors import ConfigurationError
from yamchi.installation import install_command
from yamchi.queues.engines.bull.connection import Arg, pack

_HEADER = re.compile(r"^-- (bullmq|parts): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script by the digest that Redis knows it by."""

    name: str
    source: bytes
    digest: bytes

    def call(self, *args: Arg, keys: int = 1) -> bytes:
        """A packed call; the first `keys` arguments are keys."""
        return pack(b"EVALSHA", self.digest, keys, *args)

    def load(self) -> bytes:
        return pack(b"SCRIPT", b"LOAD", self.source)


@cache
def script(name: str) -> Script:
    """A script of ours with everything it needs."""
    chunks = dict.fromkeys([_ours("prelude"), *_needs(name), _ours(name)])  # each once, in order
    source = "\n".join(chunks).encode()
    digest = hashlib.sha1(source, usedforsecurity=False).hexdigest()
    return Script(name, source, digest.encode())


def _needs(name: str) -> Iterator[str]:
    for kind, names in _HEADER.findall(_ours(name)):
        for needed in names.split():
            if kind == "bullmq":
                yield f"local function {needed}(KEYS, ARGV)\n{_theirs(needed)}\nend"
            else:
                yield from _needs(needed)
                yield _ours(needed)


@cache
def _ours(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text("utf-8")


@cache
def _theirs(name: str) -> str:
    """BullMQ's script; its file name ends in the number of its keys."""
    for file in _COMMANDS.glob(f"{name}-*.lua"):
        return file.read_text("utf-8")
    raise ConfigurationError(f"The installed bullmq has no script {name}: {install_command('redis')}")


def _find_commands() -> Path:
    """Where the package keeps its scripts; it is not imported, since the rest of it is not needed."""
    spec = find_spec("bullmq")
    if spec is None or spec.origin is None:
        raise ImportError("bullmq is not installed")
    return Path(spec.origin).parent / "commands"


_COMMANDS = _find_commands()
