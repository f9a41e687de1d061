"""Two applications on one PostgreSQL: whose transaction is first decides, and the other one sees it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete, func, select, text, update

from tests.notifications.conftest import mail_server  # noqa: F401 - a fixture
from tests.scenarios.harness import LEAD, ScriptedChannel
from tests.scenarios.invariants import check_invariants
from tests.scenarios.leads import TableLeads
from tests.scenarios.test_engines import TIMEOUT_SECONDS, an_app, happen, status, working
from tests.services.mail import MailServer
from yamchi import Yamchi
from yamchi.notifications.schemas.event import Event
from yamchi.scenarios import store
from yamchi.scenarios.entities import Change
from yamchi.scenarios.plugin import Scenarios
from yamchi.scenarios.store import StepId
from yamchi.scenarios.tables import scenario_definitions, scenario_runs, scenario_steps
from yamchi.testing import eventually

pytestmark = pytest.mark.services

LETTER = """
scenario: letter
on: go
entity: lead
key: "{{ lead.id }}"
stop_on: halt
steps:
  - {job: one, send: {channel: email, template: note}, log: SENT}
  - {job: two, wait: 1h}
"""


ORDERED = """
scenario: thanks
on: ordered
key: "{{ event.data.order }}"
steps:
  - {job: thank, wait: 1h, send: {channel: email, template: note, to: "buyer@example.com"}}
"""


@dataclass
class Pair:
    """An application that works, another beside it, and what left."""

    one: Yamchi
    other: Yamchi
    leads: TableLeads
    email: ScriptedChannel

    async def is_waiting(self) -> bool:
        """Whether some transaction waits for another one's lock."""
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(await self.other.database.read(lambda c: c.execute(waiting).scalar_one()))


@pytest.fixture
async def pair(
    postgres_database: Any,
    tmp_path: Path,
    mail_server: MailServer,  # noqa: F811
) -> AsyncIterator[Pair]:
    url = postgres_database().url
    for path, content in (
        ("scenarios/letter.yaml", LETTER),
        ("scenarios/thanks.yaml", ORDERED),
        ("templates/note/email.ru.html", "---\nsubject: note\ntransactional: true\n---\nnote"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    async with (
        an_app(tmp_path, url, url, mail_server) as one,
        an_app(tmp_path, url, url, mail_server) as other,
    ):
        email = ScriptedChannel("email", lambda recipient: recipient.email)
        one.notifications.register(email)
        made = Pair(one, other, TableLeads(one.database), email)
        await made.leads.create(LEAD, email="marat@example.com")
        yield made


def elsewhere(act: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Done by the other application, which does not know what this one is doing."""
    return asyncio.create_task(act, context=Context())


async def test_a_stop_that_is_being_committed_holds_the_message_back(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step was begun; then the other application's stop has the run's row, when the message asks whether it may leave."""
    performer, engine = pair.one.plugin(Scenarios).performer, pair.other.plugin(Scenarios).scenario_engine
    has_stopped, may_commit = threading.Event(), threading.Event()
    hold, end_in = performer._hold, engine.end_in
    stopping: list[asyncio.Task[Any]] = []

    def end_slowly(*given: Any) -> Any:
        entries = end_in(*given)
        has_stopped.set()
        assert may_commit.wait(TIMEOUT_SECONDS)
        return entries

    async def hold_late(id: StepId) -> None:
        stopping.append(elsewhere(engine.stop("letter", LEAD, "by hand")))
        await asyncio.to_thread(has_stopped.wait, TIMEOUT_SECONDS)
        holding = asyncio.create_task(hold(id))
        await eventually(pair.is_waiting, TIMEOUT_SECONDS)
        may_commit.set()
        await holding

    monkeypatch.setattr(engine, "end_in", end_slowly)
    monkeypatch.setattr(performer, "_hold", hold_late)
    await happen(pair.one, "go", "e-1")
    async with working(pair.one):
        await eventually(lambda: is_over(pair), TIMEOUT_SECONDS)
        answer = await stopping[0]
    assert (answer.on_its_way, answer.is_still_sending) == (None, False)
    assert pair.email.sent == []
    assert await pair.leads.log(LEAD) == []
    await check_invariants(pair.one)


async def is_over(pair: Pair) -> bool:
    """Whether the run was stopped and its job has seen that."""
    states = select(scenario_steps.c.state)
    found = await pair.other.database.read(lambda c: c.execute(states).scalars().all())
    return await status(pair.other, "letter") == "stopped" and set(found) <= {"cancelled", "done"}


async def test_a_stop_while_the_message_leaves_waits_for_it_and_names_it(pair: Pair) -> None:
    stopping: list[asyncio.Task[Any]] = []

    async def is_stopped() -> bool:
        return await status(pair.other, "letter") == "stopped"

    async def leaving(_: Any) -> None:
        stopping.append(elsewhere(pair.other.plugin(Scenarios).stop("letter", LEAD)))
        await eventually(is_stopped, TIMEOUT_SECONDS)
        assert not stopping[0].done()

    pair.email.before = leaving
    await happen(pair.one, "go", "e-1")
    async with working(pair.one):
        await eventually(lambda: is_over(pair), TIMEOUT_SECONDS)
        answer = await stopping[0]
    assert (answer.on_its_way, answer.is_still_sending) == ("one", False)
    assert len(pair.email.sent) == 1
    assert await pair.leads.log(LEAD) == ["SENT"]
    await check_invariants(pair.one)


async def test_the_version_of_a_run_that_is_beginning_is_not_forgotten(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that nobody has followed for long is started again in the moment in which it is forgotten."""
    await happen(pair.one, "go", "e-1")
    aged = update(scenario_definitions).values(created_at=0)
    for statement in (aged, delete(scenario_steps), delete(scenario_runs)):
        await pair.one.database.write(lambda c, statement=statement: c.execute(statement).rowcount)
    has_begun, may_commit = threading.Event(), threading.Event()
    add = store.add

    def add_slowly(*given: Any) -> None:
        add(*given)
        has_begun.set()
        assert may_commit.wait(TIMEOUT_SECONDS)

    monkeypatch.setattr(store, "add", add_slowly)
    beginning = asyncio.create_task(happen(pair.one, "go", "e-2"))
    await asyncio.to_thread(has_begun.wait, TIMEOUT_SECONDS)
    pruning = asyncio.create_task(pair.other.plugin(Scenarios).sweeper.prune())

    async def is_waiting_or_done() -> bool:
        return pruning.done() or await pair.is_waiting()

    await eventually(is_waiting_or_done, TIMEOUT_SECONDS)
    may_commit.set()
    await asyncio.gather(beginning, pruning)
    stored = select(func.count()).select_from(scenario_definitions)
    assert await pair.one.database.read(lambda c: c.execute(stored).scalar_one()) == 1


async def test_steps_and_events_of_one_lead_at_once_wait_for_each_other_in_one_order(pair: Pair) -> None:
    """A step that sets a field looks at the lead's other runs, as an event does: no transaction has to give way."""
    folder, names = pair.one.settings.home / "scenarios", "abcdefgh"
    (folder / "letter.yaml").unlink()
    for name in names:
        steps = f"[{{job: one, set: {{{name}: true}}}}, {{job: two, wait: 1h}}]"
        body = f'scenario: {name}\non: go\nentity: lead\nkey: "{{{{ lead.id }}}}"\nsteps: {steps}\n'
        (folder / f"{name}.yaml").write_text(body)
    for app in (pair.one, pair.other):
        app.plugin(Scenarios).library.refresh()
    async with working(pair.one), working(pair.other):
        await happen(pair.one, "go", "go")
        for turn in range(20):
            await happen(pair.other, "tick", f"tick-{turn}")

        async def are_set() -> bool:
            return set(names) <= set(await pair.leads.fields(LEAD))

        await eventually(are_set, TIMEOUT_SECONDS)
    deadlocks = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert await pair.one.database.read(lambda c: c.execute(deadlocks).scalar_one()) == 0


async def waiting_of(app: Yamchi) -> Callable[[], Awaitable[bool]]:
    """Whether what an application writes waits for another one's lock."""
    pid = await app.database.write(lambda c: c.execute(text("SELECT pg_backend_pid()")).scalar_one())
    locks = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = :pid").bindparams(pid=pid)

    async def is_waiting() -> bool:
        return bool(await app.database.read(lambda c: c.execute(locks).scalar_one()))

    return is_waiting


def leads_of(app: Yamchi) -> TableLeads:
    leads = app.plugin(Scenarios).entities.of("lead")
    assert isinstance(leads, TableLeads)
    return leads


async def test_an_event_that_changes_a_lead_and_a_step_that_does_wait_for_each_other_in_one_order(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step has its run and is about to write its log line when the event comes: neither has to begin anew."""
    writing, telling = leads_of(pair.one), leads_of(pair.other)
    apply_in, note_in = writing.apply_in, telling.note_in
    is_writing, may_write, tries = threading.Event(), threading.Event(), []

    def apply_late(connection: Connection, entity_id: str, change: Change) -> None:
        tries.append("step")
        is_writing.set()
        assert may_write.wait(TIMEOUT_SECONDS)
        apply_in(connection, entity_id, change)

    def note(connection: Connection, event: Event) -> None:
        tries.append("event")
        note_in(connection, event)

    monkeypatch.setattr(writing, "apply_in", apply_late)
    monkeypatch.setattr(telling, "note_in", note)
    is_waiting = await waiting_of(pair.other)
    await happen(pair.one, "go", "e-1")
    async with working(pair.one):
        await asyncio.to_thread(is_writing.wait, TIMEOUT_SECONDS)
        event = elsewhere(happen(pair.other, "corrected", "e-2", fields={"name": "Another"}))
        await eventually(is_waiting, TIMEOUT_SECONDS)
        may_write.set()
        await event

        async def is_logged() -> bool:
            return await pair.leads.log(LEAD) == ["SENT"]

        await eventually(is_logged, TIMEOUT_SECONDS)
    assert (await pair.leads.fields(LEAD))["name"] == "Another"
    assert tries == ["step", "event"]


async def test_batches_about_the_same_leads_wait_for_each_other_in_one_order(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has changed its first lead when the other comes, whose events are in the opposite order: neither begins anew."""
    await pair.leads.create("other", email="aida@example.com")
    writing, telling = leads_of(pair.one), leads_of(pair.other)
    has_changed, may_go_on, told = threading.Event(), threading.Event(), []

    def noting(leads: TableLeads, name: str) -> Callable[[Connection, Event], None]:
        note_in = leads.note_in

        def note(connection: Connection, event: Event) -> None:
            told.append((name, str(leads.id_of(event))))
            note_in(connection, event)
            if told == [("one", LEAD)]:
                has_changed.set()
                assert may_go_on.wait(TIMEOUT_SECONDS)

        return note

    monkeypatch.setattr(writing, "note_in", noting(writing, "one"))
    monkeypatch.setattr(telling, "note_in", noting(telling, "two"))
    one = elsewhere(corrected(pair.one, "one", LEAD, "other"))
    await asyncio.to_thread(has_changed.wait, TIMEOUT_SECONDS)
    is_waiting = await waiting_of(pair.other)
    two = elsewhere(corrected(pair.other, "two", "other", LEAD))
    await eventually(is_waiting, TIMEOUT_SECONDS)
    may_go_on.set()
    await asyncio.gather(one, two)
    assert told == [("one", LEAD), ("one", "other"), ("two", "other"), ("two", LEAD)]


async def corrected(app: Yamchi, name: str, *lead_ids: str) -> None:
    """Both leads get a name, by one batch."""
    events = [
        Event(
            event_type="corrected",
            event_id=f"{name}-{lead_id}",
            data={"lead_id": lead_id, "fields": {"name": name}},
        )
        for lead_id in lead_ids
    ]
    await app.notifications.service.handle_events(events)


DATED = """
scenario: letter
on: go
entity: lead
key: "{{ lead.id }}"
steps:
  - {job: one, at: lead.lesson_datetime - 1h}
"""


@pytest.mark.parametrize("first", ["start", "move"])
async def test_a_date_that_moves_while_a_run_begins_moves_the_run(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The event that begins it changes nothing of the lead, so that nothing but the engine makes one wait for the other."""
    (pair.one.settings.home / "scenarios" / "letter.yaml").write_text(DATED)
    for app in (pair.one, pair.other):
        app.plugin(Scenarios).library.refresh()
    await happen(pair.one, "booked", "e-1", lesson_datetime="2100-01-01T10:00:00Z")
    starting = partial(happen, pair.one, "go", "e-2")
    moving = partial(happen, pair.other, "moved", "e-3", lesson_datetime="2100-02-01T10:00:00Z")
    engine = (pair.one if first == "start" else pair.other).plugin(Scenarios).scenario_engine
    has_decided, may_commit = threading.Event(), threading.Event()
    take = engine._take

    def take_slowly(*given: Any) -> Any:
        entries = take(*given)
        has_decided.set()
        assert may_commit.wait(TIMEOUT_SECONDS)
        return entries

    monkeypatch.setattr(engine, "_take", take_slowly)
    early, late = (starting, moving) if first == "start" else (moving, starting)
    one = elsewhere(early())
    await asyncio.to_thread(has_decided.wait, TIMEOUT_SECONDS)
    other = elsewhere(late())

    async def is_waiting_or_done() -> bool:
        return other.done() or await pair.is_waiting()

    await eventually(is_waiting_or_done, TIMEOUT_SECONDS)
    may_commit.set()
    await asyncio.gather(one, other)
    run = await pair.one.plugin(Scenarios).timelines.latest("letter", LEAD)
    assert [line["due"] for line in run["timeline"] if line["state"] == "armed"] == ["2100-02-01T09:00:00Z"]


async def test_batches_of_the_same_keys_wait_for_each_other_in_one_order(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their scenario is about nothing that could be locked but its keys."""
    begun: list[tuple[str, str]] = []
    has_begun, may_go_on = threading.Event(), threading.Event()

    def starting(app: Yamchi, name: str) -> None:
        engine = app.plugin(Scenarios).scenario_engine
        start = engine._start

        def start_slowly(connection: Connection, match: Any, *given: Any) -> Any:
            begun.append((name, match.key))
            if begun == [("one", "a")]:
                has_begun.set()
                assert may_go_on.wait(TIMEOUT_SECONDS)
            return start(connection, match, *given)

        monkeypatch.setattr(engine, "_start", start_slowly)

    starting(pair.one, "one")
    starting(pair.other, "two")
    one = elsewhere(ordered(pair.one, "one", "a", "b"))
    await asyncio.to_thread(has_begun.wait, TIMEOUT_SECONDS)
    is_waiting = await waiting_of(pair.other)
    two = elsewhere(ordered(pair.other, "two", "b", "a"))
    await eventually(is_waiting, TIMEOUT_SECONDS)
    may_go_on.set()
    await asyncio.gather(one, two)
    assert begun == [("one", "a"), ("one", "b"), ("two", "b"), ("two", "a")]


async def ordered(app: Yamchi, name: str, *orders: str) -> None:
    events = [
        Event(event_type="ordered", event_id=f"{name}-{order}", data={"order": order}) for order in orders
    ]
    await app.notifications.service.handle_events(events)
