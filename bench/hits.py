"""What a no-op handler notes, as cheaply as can be: when it ran, and how long after its job was added.

Handlers write to a file mapped into memory; the measuring process reads it while they run. Times are of the
monotonic clock, which all processes of a machine share.
Layout, in doubles: how many hits, then a ring of times, then a ring of latencies.
"""

import mmap
import os
import threading
from array import array
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

RING = 65_536
SIZE = 8 * (1 + 2 * RING)
_PADDING = "p" * 92


def payload(number: int) -> dict[str, object]:
    """About 200 bytes of JSON, with the time of its making."""
    return {
        "id": number,
        "t": monotonic(),
        "email": "someone@example.com",
        "kind": "welcome",
        "tags": ["a", "b"],
        "pad": _PADDING,
    }


class _Recorder:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._view: memoryview | None = None
        self._count = 0

    def hit(self, added_at: float) -> None:
        """The body of every no-op handler."""
        now = monotonic()
        with self._lock:
            view = self._view or self._open()
            place = self._count % RING
            view[1 + place] = now
            view[1 + RING + place] = now - added_at
            self._count += 1
            view[0] = self._count

    def _open(self) -> memoryview:
        # Not before the first job: some workers fork after they have imported the handler.
        with Path(os.environ["BENCH_HITS"]).open("r+b") as file:
            self._view = memoryview(mmap.mmap(file.fileno(), SIZE)).cast("d")
        return self._view


hit = _Recorder().hit


def make_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SIZE)


def count_hits(path: Path) -> int:
    with path.open("rb") as file:
        return int(array("d", file.read(8))[0])


@dataclass(frozen=True, slots=True)
class Hits:
    """The hits of a run of at most `RING` jobs, in order."""

    times: list[float]
    latencies: list[float]

    @classmethod
    def read(cls, path: Path) -> "Hits":
        doubles = array("d", path.read_bytes())
        count = min(int(doubles[0]), RING)
        return cls(list(doubles[1 : 1 + count]), list(doubles[1 + RING : 1 + RING + count]))

    @classmethod
    def last(cls, path: Path, hits: int) -> "Hits":
        """The newest of a run of any length."""
        doubles = array("d", path.read_bytes())
        count = int(doubles[0])
        places = [number % RING for number in range(count - hits, count)]
        return cls([doubles[1 + n] for n in places], [doubles[1 + RING + n] for n in places])

    def rate(self, warm_up: float = 0.1) -> float:
        """Jobs a second, without the first tenth."""
        first = int(len(self.times) * warm_up)
        return (len(self.times) - 1 - first) / (self.times[-1] - self.times[first])
