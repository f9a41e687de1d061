"""The most memory that a process and its children had at once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

EVERY_SECONDS = 0.05


@dataclass(slots=True)
class Peak:
    megabytes: float = 0.0


@contextmanager
def peak_memory(pid: int) -> Iterator[Peak]:
    """Looked at many times a second; resident pages, so what children share counts for each of them."""
    peak, is_over = Peak(), threading.Event()

    def watch() -> None:
        while not is_over.wait(EVERY_SECONDS):
            peak.megabytes = max(peak.megabytes, _resident(pid) / 1_000_000)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()


def _resident(pid: int) -> int:
    total = 0
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
    return total
