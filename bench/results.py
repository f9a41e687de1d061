"""The figures of a run: per suite and contender, and why a contender has none."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench.contenders import Entry, entries_of
from bench.measure import Figures


@dataclass(slots=True)
class SuiteResults:
    """Medians by contender; `extra` are figures of runs that only we make."""

    figures: dict[str, Figures]
    unable: dict[str, str] = field(default_factory=dict)
    extra: Figures = field(default_factory=dict)

    def get(self, contender: str, figure: str) -> float | None:
        return self.figures.get(contender, {}).get(figure)

    def best_peer(self, suite: str, figure: str, *, python_only: bool = False) -> tuple[Entry, float] | None:
        """The peer with the highest figure."""
        peers = [
            (entry, value)
            for entry in entries_of(suite)
            if entry.role == "peer" and not entry.tuned and not (python_only and entry.runtime == "node")
            if (value := self.get(entry.name, figure)) is not None
        ]
        return max(peers, key=lambda peer: peer[1], default=None)


@dataclass(slots=True)
class Results:
    """A whole run."""

    machine: dict[str, str]
    full: bool
    suites: dict[str, SuiteResults]
    notifications: dict[str, float] = field(default_factory=dict)
    """Letters and events a second."""
    media: dict[str, float] = field(default_factory=dict)
    """Pictures and objects a second, megabytes and bytes, by contender."""
    held: dict[str, list[float]] = field(default_factory=dict)
    """Jobs a second on PostgreSQL in each round, by what went on beside."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> "Results":
        return cls(
            **found | {"suites": {name: SuiteResults(**suite) for name, suite in found["suites"].items()}}
        )

    def over(self, older: "Results") -> "Results":
        """What this run measured, and what only an older one did."""
        return replace(
            self,
            suites={**older.suites, **self.suites},
            notifications=self.notifications or older.notifications,
            media=self.media or older.media,
            held=self.held or older.held,
        )
