"""Rules of one line each that the tests of whole features pass by: at which moment, at which limit, for which of two reasons."""

import asyncio
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yamchi.errors import EngineError, EngineUnavailable, StorageFull
from yamchi.notifications.campaigns.lists import _columns
from yamchi.notifications.channels.sms_parts import size_of
from yamchi.queues.engines.base import STALLED_JITTER, stalled_verdict
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.leases import LeaseKeeper
from yamchi.queues.options import JobOptions
from yamchi.queues.probes import _through
from yamchi.queues.records import Claim, Failed, JobRecord, RetryAt
from yamchi.queues.runner import QueueRunner
from yamchi.storage.sqlite import explain
from yamchi.storage.sweeping import FULL_SWEEP_FACTOR, Sweep
from yamchi.testing import MovableClock


def claim_of(**fields: Any) -> Claim:
    options = JobOptions(attempts=3, timeout=fields.pop("timeout", None))
    job = JobRecord(
        id="j", queue="q", name="work", payload=b"{}", state="active", options=options, created_at=0, run_at=0
    )
    for name, value in fields.items():
        setattr(job, name, value)
    return Claim(job, "token")


def test_jobs_of_workers_that_died_more_than_once_come_back_apart() -> None:
    again = [stalled_verdict(claim_of(attempts_made=2), 1_000) for _ in range(200)]
    moments = [verdict.moment for verdict in again if isinstance(verdict, RetryAt)]
    assert len(moments) == 200
    assert 1_000 <= min(moments) < max(moments) < 1_000 + STALLED_JITTER
    first = stalled_verdict(claim_of(attempts_made=1), 1_000)
    assert isinstance(first, RetryAt)
    assert first.moment == 1_000, "the first time at once"
    assert isinstance(stalled_verdict(claim_of(attempts_made=3), 1_000), Failed)


@pytest.mark.parametrize(("now", "is_overdue"), [(1_900, False), (2_000, False), (2_001, True)])
def test_a_job_past_its_timeout_is_renewed_for_one_lease_more(now: int, is_overdue: bool) -> None:
    keeper = SimpleNamespace(_clock=SimpleNamespace(now=lambda: now), _lease=500)
    claim = claim_of(started_at=1_000, timeout=500)
    assert LeaseKeeper._is_overdue(keeper, SimpleNamespace(timeout=None), claim) is is_overdue  # type: ignore[arg-type]
    assert LeaseKeeper._is_overdue(keeper, SimpleNamespace(timeout=None), claim_of(started_at=1)) is False  # type: ignore[arg-type]


def test_a_runner_that_was_interrupted_names_the_failure_and_not_the_cancelling() -> None:
    runner: Any = SimpleNamespace(queue=SimpleNamespace(name="mail"))
    cause = KeyError("lost")
    error = QueueRunner._explain(runner, [None, asyncio.CancelledError(), cause])
    assert error.__cause__ is cause
    assert str(error) == "The work of queue mail was interrupted: KeyError('lost')"


@pytest.mark.parametrize(("free", "kind"), [(999_999, StorageFull), (1_000_000, EngineError)])
def test_an_input_output_error_is_a_full_disk_only_if_there_is_no_room(
    free: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
    said = explain(sqlite3.OperationalError("disk I/O error"), tmp_path / "a.db")
    assert type(said) is kind


@pytest.mark.parametrize("text", ["database or disk is full", "[Errno 28] No space left on device"])
def test_a_full_disk_is_told_as_such_however_it_is_said(text: str, tmp_path: Path) -> None:
    assert type(explain(OSError(text), tmp_path / "a.db")) is StorageFull


@pytest.mark.parametrize("text", ["database is locked", "database table is locked", "the file is busy"])
def test_a_lock_of_another_process_may_pass(text: str, tmp_path: Path) -> None:
    said = explain(sqlite3.OperationalError(text), tmp_path / "a.db")
    assert type(said) is EngineUnavailable
    assert "locked by another process" in str(said)
    other = explain(sqlite3.OperationalError("no such column"), tmp_path / "a.db")
    assert type(other) is EngineError


def test_after_a_long_sweep_the_next_ones_begin_where_the_last_left_off() -> None:
    sweep = Sweep()
    assert sweep.begin(0.0) is None
    sweep.finish(None, 7, began=0.0, now=1.0)
    assert sweep.begin(1.0 + 0.99 * FULL_SWEEP_FACTOR) == 7
    sweep.finish(7, 9, began=2.0, now=40.0)
    assert sweep.begin(1.0 + 0.99 * FULL_SWEEP_FACTOR) == 9, "a sweep that began later puts nothing off"
    assert sweep.begin(1.0 + 1.01 * FULL_SWEEP_FACTOR) is None


async def test_how_long_a_probe_took_is_what_went_by() -> None:
    clock = MovableClock()

    class SlowEngine(MemoryEngine):
        async def add(self, queue: str, jobs: Any) -> list[bool]:
            answer = await super().add(queue, jobs)
            await clock.advance("40ms")
            return answer

    assert await _through(SlowEngine(clock), clock) == 40


def test_letters_outside_the_first_plane_count_twice_in_an_sms() -> None:
    assert size_of("ы" * 70).parts == 1
    assert (size_of("🙂" * 35).length, size_of("🙂" * 35).parts) == (70, 1)
    assert size_of("🙂" * 36).parts == 2


def test_the_columns_of_a_list_are_known_in_any_case_and_others_stay_as_they_are() -> None:
    assert _columns("User_ID, EMAIL,firstName", ",") == ["user_id", "email", "firstName"]
