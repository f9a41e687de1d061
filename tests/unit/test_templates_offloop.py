"""A message that takes long is rendered beside the event loop, and one that takes too long fails alone."""

import asyncio
import threading
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any

import pytest

from yamchi.notifications.policy.rules import EventRulesHandler, Rule
from yamchi.notifications.schemas.event import Event
from yamchi.notifications.templates import Layout, Template, TemplateError, read_template, render
from yamchi.notifications.templates.meter import FIRST_TRY, LARGE, Limits, Outgrown
from yamchi.notifications.templates.offloop import LONG_SECONDS, render_message, run_metered

BARE = Layout("{{ content }}", "{{ content }}")
HEAVY = "{% for i in range(30000) %}{% set x = i * 2 %}{% endfor %}done"


def template(body: str, channel: str = "sms", settings: str = "subject: Hi") -> Template:
    text = f"---\n{settings}\n---\n{body}"
    return read_template(text, code="note", channel=channel, locale="en", layout=BARE)


def spent(work: Callable[[], Any]) -> float:
    began = thread_time()
    work()
    return thread_time() - began


async def test_a_heavy_message_costs_the_event_loop_little() -> None:
    heavy = template(HEAVY)
    whole = min(spent(lambda: render(heavy, {})) for _ in range(3))
    costs = []
    for _ in range(3):
        began = thread_time()
        assert (await render_message(heavy, {})).text == "done"
        costs.append(thread_time() - began)  # of this thread, the loop's
    assert min(costs) < whole / 3


@pytest.mark.parametrize("is_outgrown", [True, False])
async def test_heavy_ones_that_come_together_are_tried_with_the_loop_in_between(is_outgrown: bool) -> None:
    tried = most = 0

    def work(limits: Limits) -> str:
        nonlocal tried
        if limits.is_first_try:
            tried += 1
            until = perf_counter() + LONG_SECONDS * 1.5
            while perf_counter() < until:
                continue
            if is_outgrown:
                raise Outgrown("of its share")
        return "done"

    async def look() -> None:
        nonlocal most
        while True:
            before = tried
            await asyncio.sleep(0)
            most = max(most, tried - before)

    looking = asyncio.create_task(look())
    assert await asyncio.gather(*(run_metered(work) for _ in range(10))) == ["done"] * 10
    looking.cancel()
    assert (tried, most) == (10, 1)


async def test_a_small_one_stays_where_it_is_once_it_is_compiled() -> None:
    small = template("Hello, {{ name }}")
    await render_message(small, {"name": "A"})

    def work(limits: Limits) -> tuple[str, str]:
        return render(small, {"name": "B"}, limits=limits).text, threading.current_thread().name

    assert await run_metered(work) == ("Hello, B", threading.current_thread().name)


async def test_a_new_template_is_compiled_beside_the_loop() -> None:
    fresh = template("{{ 1 + 1 }} fresh")
    with pytest.raises(Outgrown):
        render(fresh, {}, limits=FIRST_TRY)
    assert (await render_message(fresh, {})).text == "2 fresh"
    assert render(fresh, {}, limits=FIRST_TRY).text == "2 fresh"


async def test_html_that_libraries_read_long_is_read_beside_the_loop() -> None:
    letter = template(
        "<p class=a>{{ words|safe }}</p>{% if 1 %}<p>{% endif %}", "email", "subject: Hi\nlayout: false"
    )
    small, large = {"words": "a"}, {"words": "<b>a</b>" * LARGE}
    render(letter, small)
    assert render(letter, small, limits=FIRST_TRY).html
    with pytest.raises(Outgrown):
        render(letter, {"words": "a " * LARGE}, limits=FIRST_TRY)
    assert (await render_message(letter, {"words": "a " * LARGE})).html
    with pytest.raises(TemplateError, match="more than 20,000 HTML tags"):
        await render_message(letter, {"words": large["words"] + "<br>"})


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{% for i in range(24000) %}{% set x = now|datetime ~ now|datetime ~ now|datetime %}{% endfor %}", "works for more than 0.5 s."),
        ("{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}", "loops or calls more than 100,000 times."),
        ("{{ 'a' * 9999999 }}{{ 'a' * 9999999 }}", "makes more than 16,000,000 characters of text."),
        ("{{ 'a' * 10001 }}", "writes more than 10,000 characters."),
    ],
)  # fmt: skip
async def test_what_goes_over_its_limit_says_so_and_stops_no_other(body: str, says: str) -> None:
    good = template("fine")
    outcomes = await asyncio.gather(
        *(render_message(template(body), {"now": "2026-02-25T15:00:00Z"}) for _ in range(2)),
        *(render_message(good, {}) for _ in range(20)),
        return_exceptions=True,
    )
    assert {str(one) for one in outcomes[:2]} == {f"Template note (sms, en) {says}"}
    assert {one.text for one in outcomes[2:] if not isinstance(one, BaseException)} == {"fine"}


@pytest.mark.parametrize(
    ("channel", "longest"), [("telegram", 100_000), ("sms", 10_000), ("push", 100_000), ("email", 1_000_000)]
)
def test_each_channel_has_its_longest_message(channel: str, longest: int) -> None:
    note = template("{{ words }}", channel)
    assert render(note, {"words": "a" * (longest - 100)}).text  # a letter has a few tags around it
    with pytest.raises(TemplateError, match=f"writes more than {longest:,} characters"):
        render(note, {"words": "a" * (longest + 1)})


@pytest.mark.parametrize(
    "settings",
    [
        "subject: '" + "{{ x }}" * 5_000 + "'",
        "subject: a\npreheader: '" + "{{ x }}" * 5_000 + "'",
        "subject: a\nbuttons: [" + ", ".join(["{text: '" + "{{ x }}" * 50 + "', url: /}"] * 60) + "]",
    ],
)
def test_settings_are_code_too(settings: str) -> None:
    with pytest.raises(
        TemplateError, match=r"more than 8 KB between its \{\{ \}\} and \{% %\} and in its settings"
    ):
        render(template("x", settings=settings), {"x": 1})


def test_buttons_are_as_many_as_fit_under_a_message() -> None:
    with pytest.raises(TemplateError, match="the setting 'buttons' is wrong"):
        template("x", settings="buttons: [" + "{text: a, url: /}, " * 101 + "]")


# ── Rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class TheseRules:
    def __init__(self, *conditions: str) -> None:
        notify = {"channel": "email", "template": "t"}
        self._rules = [Rule.model_validate({"on": "e", "when": one, "notify": notify}) for one in conditions]

    async def of(self, event_type: str) -> list[Rule]:
        return self._rules


def event(**data: Any) -> Event:
    user = "6f6f2a7c-1111-4222-8333-444455556666"
    return Event(event_type="e", event_id="1", user_id=user, data=data)  # type: ignore[arg-type]


async def test_a_rule_that_works_too_long_does_not_apply_and_the_others_do() -> None:
    endless = "range(9999)|map('float')|select('in', event.data.many)|list|length > 0"
    heavy = "event.data.some|sort|length == 3000"
    rules = TheseRules(endless, heavy, "event.data.plan == 'pro'", "event.data.plan == 'free'")
    jobs = await EventRulesHandler(rules, {}).plan(
        event(plan="pro", many=[*range(30_000)], some=[*range(3_000)]), None, 0
    )
    assert len(jobs) == 2


async def test_many_rules_share_one_first_try() -> None:
    rules = TheseRules(
        *[f"event.data.words|select('eq', 'a')|list|length > {number}" for number in range(100)]
    )
    handler, much = EventRulesHandler(rules, {}), event(words=["a"] * 300)
    began = thread_time()
    assert len(await handler.plan(much, None, 0)) == 100
    on_the_loop = thread_time() - began
    whole = spent(
        lambda: [
            render(template("{{ words|select('eq', 'a')|list|length }}"), {"words": ["a"] * 300})
            for _ in range(100)
        ]
    )
    assert on_the_loop < whole


def test_a_condition_has_a_longest_length() -> None:
    with pytest.raises(ValueError, match="at most 2000 characters"):
        Rule.model_validate(
            {"on": "e", "when": "1 + " * 600 + "1", "notify": {"channel": "email", "template": "t"}}
        )
