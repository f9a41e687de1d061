"""What engines show of queues: pages of jobs and dead letters, workers, minutes, events."""

from dataclasses import dataclass
from typing import Literal

from yamchi.clock import Millis
from yamchi.queues.records import DeadLetter, JobRecord


@dataclass(frozen=True, slots=True)
class Page:
    """A page of jobs, newest first for finished ones, next first for waiting ones."""

    jobs: list[JobRecord]
    total: int


@dataclass(frozen=True, slots=True)
class LetterPage:
    letters: list[DeadLetter]
    total: int


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as others see it: one row, renewed every few seconds while it lives."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    running: tuple[str, ...]
    started_at: Millis
    seen_at: Millis


@dataclass(frozen=True, slots=True)
class Minute:
    """How many jobs of a queue ended in one minute."""

    moment: Millis
    completed: int
    failed: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job. `value` is JSON: the result, the reason, the progress."""

    type: Literal["added", "completed", "failed", "retrying", "progress", "stalled", "cancelled", "expired"]
    queue: str
    job_id: str
    name: str
    value: bytes | None = None
