"""Orders that break other engines, each over many random interleavings: what is shared waits at random before it goes on."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.scale import FULL
from tests.scenarios.harness import Harness, open_harness
from tests.scenarios.invariants import check_leads
from yamchi.storage.database import Database

SCHEDULES = 3_000 if FULL else 40
pytestmark = [pytest.mark.faults, pytest.mark.timeout(5_400 if FULL else 600)]

WAITING = """
scenario: waiting
on: go
entity: lead
key: "{{ lead.id }}"
stop_on: halt
steps:
  - {job: first, wait: 1h, send: {channel: email, template: note}}
  - {job: answer, wait_for: replied, timeout: 1h, on_timeout: late}
  - {job: thanks, send: {channel: telegram, template: note}, next: end}
  - {job: late, send: {channel: telegram, template: note}}
"""


@asynccontextmanager
async def shaken(home: Path) -> AsyncIterator[tuple[Harness, random.Random]]:
    """A harness in which every transaction is put off by a random number of turns of the event loop."""
    dice = random.Random(1)
    write = Database.write

    async def later(self: Database, op: Any) -> Any:
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        result = await write(self, op)
        for _ in range(dice.randrange(6)):
            await asyncio.sleep(0)
        return result

    async with open_harness(home) as harness:
        for channel in ("email", "telegram"):
            harness.template("note", "---\nsubject: note\ntransactional: true\n---\nnote", channel)
        harness.scenario(WAITING, "waiting")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Database, "write", later)
            yield harness, dice
        await harness.check()
        await check_leads(harness.app)


async def at_once(dice: random.Random, *acts: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Do these at the same time, each after a random number of turns."""

    async def begin(act: Callable[[], Awaitable[Any]]) -> Any:
        for _ in range(dice.randrange(40)):
            await asyncio.sleep(0)
        return await act()

    return await asyncio.gather(*(begin(act) for act in acts))


async def in_some_order(dice: random.Random, number: int, *acts: Callable[[], Awaitable[Any]]) -> None:
    """One after the other, the other way round, and at the same time: each of them in its turn."""
    if number % 3 == 2:
        await at_once(dice, *acts)
    else:
        for act in acts if number % 3 else reversed(acts):
            await act()


async def test_the_event_comes_before_during_or_after_the_message_it_answers(tmp_path: Path) -> None:
    """The client answers while the letter is leaving, before the engine knows that it left: that still counts."""
    async with shaken(tmp_path) as (harness, dice):
        for number in range(SCHEDULES):
            lead = f"lead-{number}"
            await harness.lead(lead)
            await harness.event("go", lead)
            place = dice.choice(["during", "after", "at once"])

            async def reply(lead: str = lead) -> None:
                await harness.event("replied", lead)

            tasks: list[Any] = []

            async def answer(_: Any, reply: Any = reply, tasks: list[Any] = tasks) -> None:
                tasks.append(asyncio.create_task(reply()))
                if dice.random() < 0.5:
                    await tasks[-1]

            harness.email.before = answer if place == "during" else None
            if place == "at once":
                harness.app.clock._now += 3_600_000
                await at_once(dice, harness.app.drain, reply)
            else:
                await harness.pass_time("1h")
            await asyncio.gather(*tasks)
            if place == "after":
                await reply()
            await harness.app.drain()
            steps = {
                step: reason
                for step, state, reason in await harness.steps("waiting", lead)
                if state == "done"
            }
            if place == "at once":  # before the letter was begun, it is no answer to it
                await harness.pass_time("2h")
                run = await harness.run("waiting", lead)
                assert run["status"] == "finished", run
            else:
                assert steps.get("answer") == "received replied", (place, steps)
                assert "thanks" in steps


async def test_timer_and_event_in_the_same_millisecond(tmp_path: Path) -> None:
    async with shaken(tmp_path) as (harness, dice):
        outcomes = set()
        for number in range(SCHEDULES):
            lead = f"lead-{number}"
            await harness.lead(lead)
            await harness.event("go", lead)
            await harness.pass_time("1h")
            harness.app.clock._now += 3_600_000  # both are due now
            harness.telegram.sent.clear()
            await in_some_order(
                dice, number, harness.app.drain, lambda lead=lead: harness.event("replied", lead)
            )
            await harness.app.drain()
            run = await harness.run("waiting", lead)
            done = [line["step"] for line in run["timeline"] if line["state"] == "done"]
            assert done in (["first", "answer", "thanks"], ["first", "answer", "late"]), run
            assert len(harness.telegram.sent) == 1
            outcomes.add(done[-1])
        assert outcomes == {"thanks", "late"}, "both orders were tried"


async def test_crossed_keys(tmp_path: Path) -> None:
    """An event is heard by the run of its own key and by no other."""
    async with shaken(tmp_path) as (harness, dice):
        for number in range(SCHEDULES):
            one, other = f"lead-{number}-a", f"lead-{number}-b"
            for lead in (one, other):
                await harness.lead(lead)
            await at_once(dice, *(lambda lead=lead: harness.event("go", lead) for lead in (one, other)))
            await harness.pass_time("1h")
            answering = dice.choice([one, other])
            await at_once(dice, lambda lead=answering: harness.event("replied", lead), harness.app.drain)
            await harness.pass_time("2h")
            for lead in (one, other):
                done = [step for step, state, _ in await harness.steps("waiting", lead) if state == "done"]
                assert done[-1] == ("thanks" if lead == answering else "late"), (lead, answering, done)


async def test_a_stop_that_was_acknowledged_is_kept(tmp_path: Path) -> None:
    """No send begins after the answer; what had begun before is named in it."""
    async with shaken(tmp_path) as (harness, dice):
        begun: list[str] = []
        is_leaving = asyncio.Event()

        async def leaving(message: Any) -> None:
            begun.append(message.to)
            is_leaving.set()
            for _ in range(dice.randrange(10)):
                await asyncio.sleep(0)
            left.append(message.to)

        harness.email.before = leaving
        left: list[str] = []
        outcomes = set()
        for number in range(SCHEDULES):
            lead, address = f"lead-{number}", f"lead-{number}@example.com"
            await harness.lead(lead, email=address)
            await harness.event("go", lead)
            harness.app.clock._now += 3_600_000
            is_leaving.clear()

            async def stop(
                number: int = number, lead: str = lead, address: str = address
            ) -> tuple[Any, bool]:
                """While the letter leaves, or at any moment around it."""
                if number % 3 == 1:
                    await is_leaving.wait()
                answer = None
                if number % 4 == 0:
                    await harness.event("halt", lead)
                elif number % 4 == 1:
                    answer = await harness.scenarios.stop("waiting", lead)
                else:
                    answer = (await harness.scenarios.act("waiting", lead, "stop", by="test")).stopped
                assert (address in begun) == (address in left), "what was leaving has left"
                return answer, address in begun

            if number % 3 == 0:
                answer, had_begun = await stop()
                await harness.app.drain()
            else:
                _, (answer, had_begun) = await at_once(dice, harness.app.drain, stop)
            await harness.app.drain()
            await harness.pass_time("3h")
            assert (address in begun) == had_begun, "nothing began after the acknowledgement"
            assert answer is None or had_begun or answer.on_its_way is None
            assert begun.count(address) <= 1
            if answer is not None or number % 4 == 0:
                assert (await harness.run("waiting", lead))["status"] == "stopped"
            outcomes.add(had_begun)
        assert outcomes == {True, False}, "both orders were tried"


async def test_a_hundred_reschedules_while_reminders_fall_due(tmp_path: Path) -> None:
    """However often a lesson moves, and whatever is being sent meanwhile: one reminder of each kind for its last date."""
    async with shaken(tmp_path) as (harness, dice):
        rounds = max(SCHEDULES // 20, 3)
        for number in range(rounds):
            lead = f"lead-{number}"
            harness.telegram.sent.clear()
            await harness.lead(lead, tg_id=lead)
            await harness.event("lesson.booked", lead, lesson_datetime=harness.ahead(days=10))
            for _ in range(100):
                days = dice.randrange(2, 20)

                async def move(lead: str = lead, days: int = days) -> None:
                    await harness.event("lesson.rescheduled", lead, lesson_datetime=harness.ahead(days=days))

                await at_once(dice, move, harness.app.drain)
            assert harness.telegram.sent == []
            await harness.pass_time("30d")
            assert harness.chats() == ["remind_24h", "remind_5h"]


async def test_the_clock_is_set_back_an_hour(tmp_path: Path) -> None:
    """At any moment, while an answer comes at any other: each message leaves once, and the run ends."""
    async with shaken(tmp_path) as (harness, dice):
        moments = ["30m", "1h", "90m", *(f"{dice.randrange(1, 9_000)}s" for _ in range(SCHEDULES - 3))]
        for back_after in moments:
            lead = f"lead-{len(harness.email.sent)}"
            harness.telegram.sent.clear()
            await harness.lead(lead, email=f"{lead}@example.com")
            await harness.event("go", lead)
            await harness.pass_time(back_after)
            harness.app.clock._now -= 3_600_000
            reply = partial(harness.event, "replied", lead)
            await at_once(dice, reply, partial(harness.pass_time, f"{dice.randrange(3)}h"))
            await harness.pass_time("6h")
            assert [message.to for _, message in harness.email.sent].count(f"{lead}@example.com") == 1
            assert len(harness.telegram.sent) == 1
            assert (await harness.run("waiting", lead))["status"] == "finished"
