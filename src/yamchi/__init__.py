"""Yamchi: the background half of a product. Jobs, queues and workers on whatever queue a team has."""

from yamchi.app import Yamchi
from yamchi.errors import (
    Cancelled,
    InvalidJob,
    JobFailed,
    Outage,
    Retryable,
    Snooze,
    Unrecoverable,
    YamchiError,
)
from yamchi.plugins import Plugin
from yamchi.queues.job import Job
from yamchi.queues.newjobs import New
from yamchi.queues.options import Backoff
from yamchi.queues.queue import Queue
from yamchi.queues.rates import RateLimit
from yamchi.queues.worker import Worker
from yamchi.settings import Settings

__all__ = [
    "Backoff",
    "Cancelled",
    "InvalidJob",
    "Job",
    "JobFailed",
    "New",
    "Outage",
    "Plugin",
    "Queue",
    "RateLimit",
    "Retryable",
    "Settings",
    "Snooze",
    "Unrecoverable",
    "Worker",
    "Yamchi",
    "YamchiError",
]
