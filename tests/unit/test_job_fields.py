"""What a handler sees of its job, and what the log says of its progress."""

from dataclasses import asdict, fields

import pytest
from structlog.testing import capture_logs

from yamchi import Job
from yamchi.queues.options import DEFAULT_OPTIONS, Backoff
from yamchi.queues.records import JobRecord
from yamchi.testing import TestApp


async def test_a_job_knows_its_backoff_and_progress_is_logged() -> None:
    seen: list[Backoff] = []
    async with TestApp(plugins=()) as app:

        @app.job("films")
        async def cut(job: Job[int]) -> None:
            seen.append(job.backoff)
            await job.progress({"percent": 50})

        job = await app.queue("films").add(1)
        with capture_logs() as lines:
            await app.drain()
    assert seen == [job.record.options.backoff]
    said = [(line["log_level"], line["event"]) for line in lines if "progress" in line["event"]]
    assert said == [("debug", f'[films:in-memory] progress of cut {job.id}: {{"percent":50}}')]


def test_a_changed_copy_keeps_everything_else() -> None:
    """Of each field, also of those that are yet to come; and a field that there is not is refused."""
    values = {one.name: one.name for one in fields(JobRecord)}
    job = JobRecord(**values)  # type: ignore[arg-type]
    assert asdict(job.changed(state="active", worker="w")) == values | {"state": "active", "worker": "w"}
    assert asdict(job) == values
    with pytest.raises(AttributeError):
        job.changed(stat="active")


def test_a_queue_of_which_nothing_is_said_has_the_default_options_themselves() -> None:
    """They are known by being the same: other ones are written out and hashed for each job that is added."""
    app = TestApp()
    assert app.define("plain", concurrency=4).options is DEFAULT_OPTIONS
    assert app.define("plain", attempts=5).options.attempts == 5
