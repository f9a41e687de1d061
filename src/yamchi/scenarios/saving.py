"""A run's new state as it is written: the run, its steps, and in the outbox what is to be done outside."""

from collections.abc import Sequence
from typing import Any

import structlog
from sqlalchemy import Connection, Row

from yamchi.clock import Millis, to_millis
from yamchi.errors import InvalidJob
from yamchi.faultpoints import fault_point
from yamchi.fields import check_json
from yamchi.scenarios import flow, store
from yamchi.scenarios.definition import Definition, Step
from yamchi.scenarios.expressions import ExpressionFailed, fill
from yamchi.scenarios.flow import Facts, Run
from yamchi.scenarios.moves import StepChange
from yamchi.scenarios.outbox import Entry, Outbox
from yamchi.scenarios.store import StepId

log = structlog.get_logger("yamchi.scenarios")

LONGEST_NAME = 512
"""Characters of a key's name."""


class RunSaver:
    """Saves runs, each in the transaction of whoever moved it and has locked it."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def save(
        self,
        connection: Connection,
        definition: Definition | None,
        before: Row[Any] | None,
        after: Run,
        changes: Sequence[StepChange],
        facts: Facts | None,
        now: Millis,
        *,
        by: str | None = None,
        effects: dict[str, Any] | None = None,
        queue: str | None = None,
    ) -> list[Entry]:
        """Write the run and its steps, and what is to be done outside. `by` is the job at hand, which ends by itself.

        A run that ends needs no definition. `queue` is where the pending step's job goes, if that is not the scenario's own queue.
        """
        holder = before.held_by if before is not None and store.is_held(before, now) else None
        entries = []
        for change in changes:
            job_id = str(StepId(after.id, change.step, change.arming))
            is_leaving = change.state == "cancelled" and job_id == holder
            if not is_leaving:  # else its own job says how it ended
                store.record(connection, after.id, change, effects if job_id == by else None)
            fault_point("scenario.recorded")
            if change.state == "armed":
                assert definition is not None
                entries += self._pend(
                    connection, definition, after, change, facts, now, queue or definition.queue
                )
            else:
                entries += self._settle(connection, after, change, job_id == by)
        store.save(connection, after, release=by is not None and holder == by)
        if after.status == "stopped" and before is not None and before.status == "running":
            _tell_of_stop(before, after)
        fault_point("scenario.saved")
        return entries

    def _pend(
        self,
        connection: Connection,
        definition: Definition,
        run: Run,
        change: StepChange,
        facts: Facts | None,
        now: Millis,
        queue: str,
    ) -> list[Entry]:
        """The job of a step that is pending; one that waits for an event as long as it takes has none."""
        if change.due is None:
            return []
        step = definition.step(change.step)
        id = StepId(run.id, change.step, change.arming)
        key = self._key(definition, run, step, facts, now)
        store.place(connection, id, queue, key)
        body = {
            "queue": queue,
            "name": change.step,
            "data": self._data(definition, run, step, facts, now),
            "run_at": change.due if change.due > now else None,
            "key": key,
            "ttl": to_millis(step.remember.ttl) if step.remember and key else None,
        }
        return [self._outbox.put(connection, "job", body, str(id))]

    def refresh(
        self, connection: Connection, definition: Definition, run: Run, facts: Facts, now: Millis
    ) -> list[Entry]:
        """The pending step's job gets its data anew: what it is about has changed since it was queued."""
        if run.armed is None or run.armed.due is None:
            return []
        id = StepId(run.id, run.armed.step, run.armed.arming)
        row = store.step_row(connection, id)
        if row is None or row.queue is None:
            return []
        data = self._data(definition, run, definition.step(id.step), facts, now)
        return [self._outbox.put(connection, "data", {"queue": row.queue, "data": data}, str(id))]

    def _data(
        self, definition: Definition, run: Run, step: Step, facts: Facts | None, now: Millis
    ) -> dict[str, Any]:
        return {
            name: self._filled(value, definition, run, facts, now)
            for name, value in definition.data_of(step).items()
        }

    def _settle(self, connection: Connection, run: Run, change: StepChange, is_own: bool) -> list[Entry]:
        """A step that is over: its key goes, and its job, unless that ends by itself.

        So does the one at hand, and one that has begun: its message may have left, which nobody else would find out.
        """
        id = StepId(run.id, change.step, change.arming)
        row = store.step_row(connection, id)
        if row is None or row.queue is None:
            return []
        self._outbox.withdraw(connection, str(id))
        is_own = is_own or (row.began_at is not None and not _is_repeated(run, change))
        if is_own and row.key is None:
            return []
        body = {"queue": row.queue, "key": row.key, "is_own": is_own}
        return [self._outbox.put(connection, "drop", body, str(id))]

    def _key(
        self, definition: Definition, run: Run, step: Step, facts: Facts | None, now: Millis
    ) -> str | None:
        if step.remember is None:
            return None
        filled = self._filled(step.remember.key, definition, run, facts, now)
        return str(filled)[:LONGEST_NAME] if filled else None

    def _filled(self, value: Any, definition: Definition, run: Run, facts: Facts | None, now: Millis) -> Any:
        """A template of a job's data or key. What can't be filled in, or kept, does not keep the run from going on."""
        facts = facts or Facts()
        try:
            return check_json(fill(value, flow.values_of(definition, run, facts, now), facts.zone.key))
        except (ExpressionFailed, InvalidJob) as error:
            log.warning(
                f"{definition.scenario}: a value for its job is left empty, since {error}", key=run.key
            )
            return None

    def emit(
        self,
        connection: Connection,
        run: Run,
        definition: Definition,
        id: str,
        type: str,
        data: dict[str, Any],
    ) -> Entry:
        """An event for this installation's own rules and scenarios, about the same entity or with the same data."""
        about = (
            {f"{definition.entity}_id": run.entity_id} if definition.entity else run.event.get("data") or {}
        )
        body = {"event_type": type, "event_id": id, "user_id": run.user_id, "data": {**about, **data}}
        return self._outbox.put(connection, "event", body)


def _tell_of_stop(before: Row[Any], after: Run) -> None:
    """`Email chain cancelled`, and of whom, why, and which job was pending."""
    pending = before.armed_step and str(StepId(after.id, before.armed_step, before.arming))
    title = after.scenario.replace("_", " ").capitalize()
    log.info(f"{title} cancelled", key=after.key, job=pending, reason=after.reason)


def _is_repeated(run: Run, change: StepChange) -> bool:
    """Whether the pending step sends the message of this one, if that has not left."""
    armed, message = run.armed, run.message_of(change.step, change.arming)
    return (
        armed is not None
        and armed.step == change.step
        and run.message_of(armed.step, armed.arming) == message
    )
