"""A template can't reach Python, work for ever or grow without end; each try is one clear sentence."""

import time
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateSyntaxError

from yamchi.notifications.templates import Layout, TemplateError, read_template, render
from yamchi.notifications.templates.letters import TEXT
from yamchi.notifications.templates.meter import MAX_SECONDS

DATA: dict[str, Any] = {"x": "hi", "d": {"a": 1}, "l": [1, 2], "big": "a" * 1_000_000}
LAYOUT = Layout("{{ content }}", "{{ content }}")


def said(body: str, data: dict[str, Any] | None = None) -> str:
    template = read_template(body, code="evil", channel="sms", locale="ru", layout=LAYOUT)
    return render(template, DATA if data is None else data).text


def refusal(body: str) -> str:
    with pytest.raises(TemplateError) as raised:
        said(body)
    sentence = str(raised.value)
    assert sentence.startswith("Template evil (sms, ru)")
    assert "\n" not in sentence
    assert "<function" not in sentence
    return sentence


@pytest.mark.parametrize(
    "body",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ x['__class__'] }}",
        "{{ x|attr('__class__') }}",
        "{{ [x]|map(attribute='__class__')|list }}",
        "{{ [x]|map('attr', '__class__')|list }}",
        "{{ [x]|sort(attribute='__class__') }}",
        "{{ [d]|groupby('__class__') }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{{ '{x.__class__}'.format_map(d) }}",
        "{{ '%s'|format(x) }}",
        "{{ range.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum.__globals__ }}",
        "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
        "{% macro m() %}{% endmacro %}{{ m }}",
        "{% for i in l %}{{ loop._iterator }}{% endfor %}",
        "{{ d.clear() }}",
        "{{ l.append(3) }}",
        "{{ d.update(d) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% from 'os' import system %}",
        "{% extends 'x' %}",
        "{% block x %}{% endblock %}",
        "{% autoescape false %}{% endautoescape %}",
    ],
)
def test_python_is_out_of_reach(body: str) -> None:
    refusal(body)
    assert DATA["d"] == {"a": 1}
    assert DATA["l"] == [1, 2]


@pytest.mark.parametrize(
    "body",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
        "{% for i in l recursive %}{{ loop(l) }}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n < 25 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(0) }}",
        "{% for i in range(99999) %}{{ 'q' in big }}{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999)|sum }}{% endfor %}",
    ],
)
def test_work_without_end_is_stopped(body: str) -> None:
    began = time.thread_time()
    refusal(body)
    assert time.thread_time() - began < 5


@pytest.mark.parametrize(
    "body",
    [
        "{{ 'a' * 10**9 }}",
        "{{ [0] * 10**9 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%999999999d'|format(1) }}",
        "{{ 'a'.center(999999999) }}",
        "{{ 'a'|center(999999999) }}",
        "{{ 'a'|indent(999999999) }}",
        "{{ l|batch(999999999, 'x') }}",
        "{{ l|slice(999999999)|list }}",
        "{{ 1.5|round(999999999) }}",
        "{{ d|tojson(indent=999999999) }}",
        "{{ big|replace('a', big) }}",
        "{{ range(90000)|join(big) }}",
        "{% for i in range(90000) %}{{ big[1:] }}{% endfor %}",
        "{% set b %}{% for i in range(90000) %}{{ big }}{% endfor %}{% endset %}{{ b|length }}",
        "{% set ns = namespace(a='x') %}{% for i in range(64) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
        "{% set ns = namespace(a='x') %}{% for i in range(64) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
        "{% set ns = namespace(a=l) %}{% for i in range(64) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}",
        "{% set ns = namespace(a=l) %}{% for i in range(64) %}{% set ns.a = {'a': ns.a, 'b': ns.a} %}{% endfor %}",
        "{% set ns = namespace(a=l) %}{% for i in range(64) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
        "{% set ns = namespace(a=99999) %}{% for i in range(64) %}{% set ns.a = ns.a * ns.a %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.me = ns %}",
        "{{ big }}{{ big }}",
        "{% for i in range(90000) %}" + "x" * 1000 + "{% endfor %}",
        "{% set b %}{% for i in range(90000) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
        "{% macro m() %}"
        + "x" * 200_000
        + "{% endmacro %}{% for i in range(999) %}{% set b = m() %}{% endfor %}",
        "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
        "{% if 1 %}" * 300 + "{% endif %}" * 300,
        "{% for a in l %}" * 60 + "{% endfor %}" * 60,
        "{{ " + "9" * 5000 + " }}",
        "{{ x }}" * 5000,
    ],
)
def test_growth_without_end_is_stopped(body: str) -> None:
    refusal(body)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("a\n{{ x|nope }}", "line 2: there is no filter named 'nope'"),
        ("{% if false %}{{ x is nope }}{% endif %}", "there is no test named 'nope'"),
        ("a\n\n{% if x %}", "line 3"),
        ("{{ x", "line 1"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ x + 1 }}", "uses '+' on a text and a number"),
        ("{{ 'soon'|date }}", "'soon' is not a date"),
        ("{{ 'much'|money }}", "'much' is not a number"),
        ("{{ 5|money('XXXX') }}", "'XXXX' is not a currency"),
        ("{{ x.y }}", "a text has no 'y'"),
    ],
)
def test_a_mistake_is_told_with_its_place(body: str, says: str) -> None:
    assert says in refusal(body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("{% for i in range(50000) %}{% endfor %}fine", "fine"),
        ("{% for i in l %}{{ loop.index }}{{ loop.last }}{{ loop.length }} {% endfor %}", "1False2 2True2"),
        ("{% for key, value in d.items() %}{{ key }}={{ value }}{% endfor %}", "a=1"),
        ("{{ x.upper() }} {{ x|title }} {{ 'a,b'.split(',')|join('-') }}", "HI Hi a-b"),
        ("{{ '-' * 5 }} {{ 2 ** 10 }} {{ 7 // 2 }} {{ 7 % 4 }}", "----- 1024 3 3"),
        ("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(1) }}{{ m('b') }}", "<1><b>"),
        ("{% call m() %}in{% endcall %}{% macro m() %}{% endmacro %}", None),
        ("{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in{% endcall %}", "[in]"),
        ("{% set ns = namespace(n=0) %}{% for i in l %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ [3, 1, 2]|sort|join(',') }} {{ l|map('string')|list|join }}", "1,2,3 12"),
        ("{{ missing|default('none') }} {{ 'y' if missing is defined else 'n' }}", "none n"),
        ("{% if missing is defined and missing %}a{% else %}b{% endif %}", "b"),
    ],
)
def test_what_messages_need_works(body: str, text: str | None) -> None:
    if text is None:
        refusal(body)
    else:
        assert said(body) == text


NAMES = st.sampled_from(
    ["x", "d", "l", "user", "missing", "loop", "self", "range", "namespace", "''", "[]", "{}", "1"]
)
STEPS = (
    ".__class__ ['__class__'] .__init__ .__globals__ .mro() |attr('__class__') |list |string .format(x) () [0]"
    " |map(attribute='__class__')|list |first |tojson .items() .items .a |upper |e"
)
PARTS = st.sampled_from(STEPS.split(" "))


@given(NAMES, st.lists(PARTS, max_size=5))
@settings(max_examples=300, deadline=None)
def test_no_chain_of_attributes_leads_to_python(name: str, parts: list[str]) -> None:
    try:
        text = said("{{ " + name + "".join(parts) + " }}")
    except TemplateError:
        return
    assert not any(
        word in text for word in ("<class", "<function", "<bound", "<module", "<built-in", "object at 0x")
    )


@given(st.text(alphabet=st.sampled_from("{}%#[]()|.~+-*'\" \n\\abx019_:,="), max_size=60))
@settings(max_examples=500, deadline=None)
def test_any_text_is_a_message_or_one_sentence(body: str) -> None:
    with suppress(TemplateError):
        said(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["x", "d", "l", "user", "first_name", "name"]), JSON))
def test_any_data_gives_a_message_or_one_sentence(data: dict[str, Any]) -> None:
    body = "{{ recipient_name }}{% if x is defined %}{{ x }}{{ x|date }}{% endif %}{% for i in l|default([]) %}{{ i }}{% endfor %}"
    with suppress(TemplateError):
        said(body, data)


# ── Everything is metered ─────────────────────────────────────────────────────────────────────────────────────────

HOSTILE = [
    "{% for i in range(9999) %}{{ 'x' in range(99999) }}{% endfor %}",
    "{% for i in range(9999) %}{{ 1.5 in range(99999) }}{% endfor %}",
    "{% for i in range(9999) %}{{ i is in range(99999) }}{% endfor %}",
    "{{ range(9999)|select('in', range(99999))|list|length }}",
    "{{ range(9999)|map('float')|select('in', range(99999))|list|length }}",
    "{{ range(9999)|reject('eq', many)|list|length }}",
    "{% for i in range(9999) %}{{ many == many2 }}{% endfor %}",
    "{% for i in range(9999) %}{{ many < many2 }}{% endfor %}",
    "{% for i in range(9999) %}{{ many is eq(many2) }}{% endfor %}",
    "{% for i in range(9999) %}{{ big == big2 }}{% endfor %}",
    "{% for i in range(9999) %}{{ big.isdigit() }}{% endfor %}",
    "{% for i in range(9999) %}{{ big.split('b')|length }}{% endfor %}",
    "{% for i in range(9999) %}{{ big.startswith(big2) }}{% endfor %}",
    "{{ range(99999)" + "|map('string')" * 300 + "|list|length }}",
    "{{ range(99999)" + "|select('defined')" * 300 + "|list|length }}",
    "{{ range(99999)" + "|map(attribute='x', default=1)" * 300 + "|list|length }}",
    "{{ dicts" + "|selectattr('a')" * 600 + "|list|length }}",
    "{{ range(99999)|map(attribute='x', default=big)|list|string|length }}",
    "{{ range(99999)|map(attribute='x', default=big)|sort|length }}",
    "{{ range(99999)|map(attribute='x', default=big)|unique|list|length }}",
    "{{ range(99999)|map(attribute='x', default=big)|max }}",
    "{{ range(99999)|map(attribute='x', default=big)|join|length }}",
    "{{ range(99999)|map(attribute='x', default=big)|sum }}",
    "{{ range(99999)|map(attribute='x', default=big)|list|tojson|length }}",
    "{{ range(99999)|map(attribute='x', default=big)|list|upper|length }}",
    "{{ range(99999)|map(attribute='x', default=big)|list|urlencode|length }}",
    "{{ range(9999)|map('batch', 1)|list }}{{ big|sort|length }}",
    "{{ big|unique|list|length }}",
    "{{ big|map('upper')|list|length }}",
    "{{ big|batch(1)|length }}",
    "{{ big|join(',')|length }}",
    "{{ big|max }}",
    "{% for i in range(999) %}{{ many|sort|length }}{% endfor %}",
    "{% for i in range(999) %}{{ dicts|groupby('a')|length }}{% endfor %}",
    "{% for i in range(999) %}{{ dicts|sum(attribute='a') }}{% endfor %}",
    "{% for i in range(999) %}{{ dicts|tojson|length }}{% endfor %}",
    "{% for i in range(999) %}{{ d|dictsort|length }}{{ many|batch(2)|length }}{% endfor %}",
    "{% for i in range(99999) %}{{ now|datetime }}{{ 5|money }}{% endfor %}",
    "{% for i in range(999) %}{% set x = loop.changed(many) %}{% endfor %}",
    "{{ [-99999999999]|map('repeat!')|list|length }}",
    "{{ [l]|map('loop!', -99999999999)|map('list')|list|length }}",
    "{{ [l]|map('compare!')|list|length }}",
    "{{ (big|replace('a', 'f'))|int(0, 16) }}",
    "{{ huge * huge }}",
    "{{ huge // 3 }}",
    "{{ huge % 7 }}",
    "{{ bait|striptags|length }}" * 60,
    "{% for i in range(99999) %}{{ big|wordcount }}{% endfor %}",
    "{% for i in range(99999) %}{{ big|e|length }}{% endfor %}",
    "{{ " + "big|e" + "|e" * 500 + " }}",
    "{{ '%s' % big }}",
    "{{ big|truncate(9, true, big)|length }}{{ big|truncate(9, true, big) * 99 }}",
]  # fmt: skip
LARGE: dict[str, Any] = {
    "big": "a" * 1_000_000,
    "big2": "".join(["a"] * 1_000_000),
    "many": list(range(50_000)),
    "many2": list(range(50_000)),
    "dicts": [{"a": number % 7, "b": "x" * 20} for number in range(10_000)],
    "d": {str(number): number for number in range(1_000)},
    "l": [1, 2],
    "huge": int("f" * 200_000, 16),
    "bait": "<!---->" * 100_000,
    "now": "2026-02-25T15:00:00Z",
}


@pytest.mark.parametrize("body", HOSTILE)
def test_work_is_counted_wherever_it_is_done(body: str) -> None:
    """The last step may go over the limit, but not by many times; the machinery that counts memory takes its share."""
    tracemalloc.start()
    began = time.thread_time()
    try:
        with pytest.raises(TemplateError) as raised:
            said(body, LARGE)
        spent, (_, peak) = time.thread_time() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "\n" not in str(raised.value)
    assert spent < 10 * MAX_SECONDS
    assert peak < 300_000_000


OPERANDS = st.sampled_from(
    [
        "big",
        "big2",
        "many",
        "dicts",
        "d",
        "huge",
        "bait",
        "range(99999)",
        "1.5",
        "'a'",
        "l",
        "now",
        "[big, big]",
        "missing",
    ]
)
CHAINS = st.lists(
    st.sampled_from(
        [
            "|sort",
            "unique|list",
            "map('upper')",
            "map('list')",
            "select('in', many)",
            "select('eq', big)",
            "map('select', 'in', many)",
            "join(big)",
            "join",
            "replace('a', big)",
            "batch(2)",
            "tojson",
            "string",
            "list",
            "reverse|list",
            "sum",
            "max",
            "length",
            "upper",
            "e",
            "striptags",
            "title",
            "wordcount",
            "urlencode",
            "dictsort",
            "groupby('a')",
            "map(attribute='a', default=big)",
            "int",
            "abs",
            "truncate(5)",
            "first",
            "last",
            "trim",
            "default(many)",
            "selectattr('a')",
            "reject('odd')",
            "round",
            "number",
            "date",
        ]
    ).map(lambda part: part if part.startswith("|") else f"|{part}"),
    max_size=6,
)
BETWEEN = st.sampled_from([" == ", " in ", " < ", " ~ ", " + ", " * ", " % ", " // ", " and ", " is eq "])


@given(OPERANDS, CHAINS, BETWEEN, OPERANDS, CHAINS, st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_expression_works_or_grows_without_end(
    left: str, one: list[str], between: str, right: str, other: list[str], again: bool
) -> None:
    right = f"({right}{''.join(other)})"
    body = f"{{% set x = {left}{''.join(one)}{between}{right} %}}"
    body = f"{{% for i in range(9999) %}}{body}{{% endfor %}}" if again else body
    began = time.thread_time()
    with suppress(TemplateError):
        said(body, LARGE)
    assert time.thread_time() - began < 10 * MAX_SECONDS


# Python itself can read less than Jinja, and each of them says so in its own way.
DEEP = [
    "1" + "+7" * 300,
    "1" + "+7" * 900,
    "x" + "|upper" * 300,
    "x" + ".a" * 200,
    "1" + " and 7" * 300,
    "(" * 200 + "1" + ")" * 200,
]


@pytest.mark.parametrize("expression", DEEP)
def test_what_is_nested_too_deeply_is_a_mistake_like_any_other(expression: str) -> None:
    with pytest.raises(TemplateSyntaxError, match=r"^it is nested too deeply$"):
        TEXT.compile_expression(expression)
    with pytest.raises(TemplateSyntaxError, match=r"^it is nested too deeply$"):
        TEXT.from_string(f"{{{{ {expression} }}}}")
    assert "nested too deeply" in refusal(f"{{{{ {expression} }}}}")


def test_so_is_what_can_not_even_be_parsed() -> None:
    with pytest.raises(TemplateSyntaxError, match=r"^it is nested too deeply$"):
        TEXT.parse("{{ " + "(" * 200 + "1" + ")" * 200 + " }}")
