"""The most memory that a process and its children had at once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count

import psutil

EVERY_SECONDS = 0.05
FAMILY_SECONDS = 1.0
"""Children are looked for this often: going over all processes of the machine takes time from those that are measured."""


@dataclass(slots=True)
class Peak:
    megabytes: float = 0.0


@contextmanager
def peak_memory(pid: int) -> Iterator[Peak]:
    """Looked at many times a second; resident pages, so what children share counts for each of them."""
    peak, is_over = Peak(), threading.Event()

    def watch() -> None:
        family: list[psutil.Process] = []
        for look in count():
            if look % round(FAMILY_SECONDS / EVERY_SECONDS) == 0:
                family = _family(pid)
            peak.megabytes = max(peak.megabytes, _resident(family) / 1_000_000)
            if is_over.wait(EVERY_SECONDS):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _resident(family: list[psutil.Process]) -> int:
    total = 0
    for one in family:
        with suppress(psutil.NoSuchProcess):
            total += one.memory_info().rss
    return total
