"""Yamchi: the background half of a product. Jobs, queues and workers on whatever queue a team has."""

from yamchi.app import Yamchi
from yamchi.errors import Cancelled, JobFailed, Outage, Retryable, Snooze, Unrecoverable
from yamchi.plugins import Plugin
from yamchi.queues.job import Job
from yamchi.queues.queue import New, Queue
from yamchi.queues.rates import RateLimit
from yamchi.queues.records import Backoff
from yamchi.queues.worker import Worker

__all__ = [
    "Backoff",
    "Cancelled",
    "Job",
    "JobFailed",
    "New",
    "Outage",
    "Plugin",
    "Queue",
    "RateLimit",
    "Retryable",
    "Snooze",
    "Unrecoverable",
    "Worker",
    "Yamchi",
]
