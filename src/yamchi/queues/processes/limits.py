"""What a handler in child processes is allowed: how many of them, and how much memory each."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from yamchi.errors import ConfigurationError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """How many child processes a handler runs in, and how many bytes of memory each may use (None: any)."""

    processes: int
    memory: int | None = None

    @classmethod
    def parse(cls, processes: int, memory: int | str | None) -> "ProcessLimits":
        if processes < 1:
            raise ConfigurationError(f"processes must be at least 1, not {processes}.")
        return cls(processes, None if memory is None else to_bytes(memory))


def limits_of(queue: str, processes: int | None, memory: int | str | None) -> ProcessLimits | None:
    """What a handler is declared with; None where it runs in the worker itself."""
    if processes is not None:
        return ProcessLimits.parse(processes, memory)
    if memory is not None:
        raise ConfigurationError(
            f"Queue {queue} has a memory limit but no processes: only a child process can be limited."
        )
    return None


def to_bytes(size: int | str) -> int:
    """A number of bytes, or text such as "512MB"."""
    match = _SIZE.fullmatch(str(size).strip())
    if not match or (count := int(float(match[1]) * _UNITS[match[2].lower()])) <= 0:
        raise ConfigurationError(f"{size!r} is not a size: write it as 512MB or 2GB.")
    return count


def check_importable(queue: str, function: Callable[..., Any]) -> None:
    """A child finds its function by name, so it must have one."""
    if "<" in function.__qualname__:
        raise ConfigurationError(
            f"{function.__qualname__} of queue {queue} runs in child processes, which import it: "
            "define it at the top level of a module."
        )
