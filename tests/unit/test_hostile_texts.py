"""Texts of strangers: whatever one is made of, four times as much of it takes four times as long, and not sixteen.

Every function that reads such a text is tried with every bait: what made a regular expression, a parser or a loop start
again from each of its characters.
"""

import gc
from collections.abc import Callable
from contextlib import suppress
from time import thread_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yamchi.clock import to_millis
from yamchi.errors import YamchiError
from yamchi.notifications.channels import sms_parts
from yamchi.notifications.channels.email import mime
from yamchi.notifications.channels.email.smtp_connection import _stuffed
from yamchi.notifications.channels.telegram import telegram_html
from yamchi.notifications.people.recipients import User
from yamchi.notifications.templates import Layout, letters, locale_chain, read_template, render
from yamchi.notifications.templates.filters import FILTERS
from yamchi.notifications.templates.markup import (
    MAX_NESTING,
    MAX_TABLE,
    check_markup,
    check_styles,
    without_wide_tables,
)
from yamchi.notifications.templates.meter import METER, Meter, Refused
from yamchi.notifications.templates.sandbox import Sandbox
from yamchi.observe.logging import mask
from yamchi.queues.engines.names import pgmq_name

SMALL = 8_000
"""Characters; the large text has four times as many."""

FEW = 8.0
"""How many times as long the large one may take: four, and as much again for a busy machine. A square takes sixteen."""

NOTHING = 0.002
"""Seconds below which a clock says nothing about growth."""

BAITS: dict[str, Callable[[int], str]] = {
    f"{bait!r} over and over": lambda size, bait=bait: bait * (size // len(bait)) + "x"  # type: ignore[misc]
    for bait in (
        " ", "\n", "\n ", " \n\n", "\t", "\r", "\xa0", "<", ">", "</", "<!", "<!--", "<!-->", "<!---->", "<![", "<?", "<a ",
        "<a href=", '<a href="', "<a b='", "<b>", "<b>x", "</b>", "<b></i>", "<b/>", "<p>", "<div>", "<ul><li>",
        "<table><tr><td>", "<tr>", "<td>", "<br>", "<style>", "<!--<head>", "<head><meta charset=", "<script>", "<a>",
        "&", "&#", "&amp", "&#1;", "[", "[](", "[a](", "(", "]", "{", "{{", "{%", "{#", "{{a}}", "{%%}", "{# #}", "{%-", "- ",
        "---\n", "'", '"', "\\", "\\'", "1", "1.", "1d", "a", "aB", "a.", "a@", "a@a.", "@", "-", "=?", "://a:", "Bearer ",
        "password=", "password: ", "token' : '", "/bot1:", "error= ", "\ue000", "я", "😀", "\ud800", "x\u0301",
    )
} | {
    "a long number": lambda size: "&#" + "1" * size,
    "one tag with many attributes": lambda size: "<a " + "b=c " * (size // 4) + ">",
    "one long link": lambda size: f'<a href="https://{"a" * size}">x</a>' + "y" * 100,
    "many fonts left open": lambda size: "<font>" * 15 + "</p><p>x" * (size // 8),
}  # fmt: skip


def _plain_words(text: str) -> object:
    """What most templates do with a name."""
    template = read_template(
        "<p>{{ name }}</p>{{ name|title }}{{ name|striptags }}{{ name|trim }}",
        code="t",
        channel="sms",
        locale="en",
        layout=Layout("{{ content }}", "{{ content }}"),
    )
    return render(template, {"name": text}).text


def _letter(text: str) -> object:
    template = read_template(
        "---\nsubject: Hi\nlayout: false\n---\n<table><tr><td>{{ name|safe }}</td></tr></table><p>{{ name }}</p>",
        code="t",
        channel="email",
        locale="en",
        layout=Layout("{{ content }}", "{{ content }}"),
    )
    return render(template, {"name": text}).text


def _metered(function: Callable[[str], object]) -> Callable[[str], object]:
    def run(text: str) -> object:
        token = METER.set(Meter())
        try:
            return function(text)
        finally:
            METER.reset(token)

    return run


READERS: dict[str, Callable[[str], object]] = {
    "tidy": letters.tidy,
    "strip_tags": letters.strip_tags,
    "as_plain_text": letters.as_plain_text,
    "inline": letters.inline,
    "inlined": letters.inlined,
    "plain": letters.plain,
    "check_markup": check_markup,
    "telegram": lambda text: telegram_html.split(telegram_html.read(text)),
    "a subject": lambda text: mime._encoded(text.encode("utf-8", "replace").decode()),
    "a text part": lambda text: mime._text("plain", text),
    "an address": mime.check_address,
    "an SMS": sms_parts.size_of,
    "a template": lambda text: read_template(text, code="t", channel="email", locale="en", layout=Layout("", "")),
    "settings": lambda text: read_template(
        f"---\nsubject: a\nsample:\n  a: {text}\n---\n", code="t", channel="email", locale="en", layout=Layout("", "")
    ),
    "statements alone on a line": lambda text: Sandbox(autoescape=False).preprocess(text),
    "a locale": locale_chain,
    "a log line": mask,
    "a span of time": to_millis,
    "a table's name": pgmq_name,
    "a person": lambda text: User(email=text, phone=text[:32], timezone=text, locale=text[:16]),
    "a dotted line": lambda text: _stuffed(text.encode("utf-8", "replace")),
    "a rendered text": _plain_words,
    "a rendered letter": _letter,
}  # fmt: skip


LOOKS = 4


def _seconds(read: Callable[[str], object], text: str) -> float:
    best = float("inf")
    for _ in range(2):
        began = thread_time()
        with suppress(YamchiError, Refused, ValueError, Exception):
            read(text)
        best = min(best, thread_time() - began)
    return best


def _grows(read: Callable[[str], Any], bait: Callable[[int], str]) -> str:
    """What it took where four times the text takes too long, each time it is looked at: a machine may be slow once."""
    for _ in range(LOOKS):
        small, large = _seconds(read, bait(SMALL)), _seconds(read, bait(4 * SMALL))
        if large <= FEW * max(small, NOTHING):
            return ""
    return f"{small * 1000:.1f} ms, then {large * 1000:.1f} ms"


@pytest.mark.parametrize("reader", READERS)
def test_no_text_takes_the_square_of_its_length(reader: str) -> None:
    gc.collect()
    slow = {}
    for name, bait in BAITS.items():
        if said := _grows(READERS[reader], bait):
            slow[name] = said
    assert slow == {}


@given(st.lists(st.tuples(st.sampled_from(sorted(BAITS)), st.integers(1, 3)), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_nor_does_a_mixture(parts: list[tuple[str, int]]) -> None:
    def mixed(size: int) -> str:
        return "".join(BAITS[name](size * share // 6) for name, share in parts)

    for name in ("telegram", "as_plain_text", "tidy", "a rendered letter"):
        assert _grows(READERS[name], mixed) == "", name


# ── What libraries are not given ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "html",
    [
        "<div>" * 100_000,  # ended the process
        "<b><p>" * 1_000,
        "<div><table><tr><td></div>" * 1_000,  # the closing tag closes nothing
        "<svg><foreignObject><div></svg></foreignObject></div>" * 1_000,
        "<i id=1>" * 30 + "<p>x" * 5_000,  # each paragraph would open all of them again
        "<br>" * 50_000,
    ],
)
@pytest.mark.parametrize("read", [letters.inline, letters.as_plain_text])
def test_html_is_refused_before_it_can_do_harm(html: str, read: Callable[[str], object]) -> None:
    with pytest.raises(Refused, match=r"nests HTML|HTML tags"):
        read(html)


def test_much_css_for_many_tags_is_refused() -> None:
    css = "".join(f"p{{c{number}:r}}" for number in range(2_000))
    with pytest.raises(Refused, match="too much CSS for so many tags"):
        check_styles(f"<style>{css}</style>" + "<p>x" * 2_000)
    check_styles(f"<style>{css[:20_000]}</style>" + "<p>x" * 10)


def test_html_as_people_write_it_is_not() -> None:
    rows = "<tr><td>a<td>b<tr><th>c</th><td><p>d<p>e</td></tr>" * 400
    items = "<ul>" + "<li>a<ul><li>b</ul>" * 400 + "</ul>"
    html = f"<html><head><style>p{{a:b}}</style></head><body><table>{rows}</table>{items}<hr><img src=x><br/></body></html>"
    check_styles(html)
    check_markup("<div>" * MAX_NESTING + "</div>" * MAX_NESTING)
    with pytest.raises(Refused, match="nests HTML"):
        check_markup("<div>" * (MAX_NESTING + 1))


def test_a_wide_table_is_not_padded_to_its_widest_cell_on_every_line() -> None:
    rows = "<tr><td>a</td><td>b</td></tr>"
    wide = f"<table><tr><td>{'w' * 40_000}</td><td>x</td></tr>{rows * 2_000}</table>"
    assert len(letters.as_plain_text(wide)) < 100_000
    narrow = f"<table>{rows * 20}</table>"
    assert without_wide_tables(narrow) is narrow
    assert letters.as_plain_text(narrow).startswith("a  b\n")
    assert MAX_TABLE < 2_000 * 40_000


def test_a_character_number_is_read_only_as_long_as_one_is() -> None:
    assert letters.strip_tags("&#1055;&amp;&#" + "9" * 5_000 + ";") == "П&\ufffd;"


@pytest.mark.parametrize(
    ("html", "texts"),
    [
        ("<b>a<b>b</b>c</b>d", ["<b>abc</b>d"]),
        ("<b>a<i>b<b>c</b></i>d</b>e", ["<b>a<i>bc</i>d</b>e"]),
        ("<b><i>x</b>y", ["<b><i>x</i></b>y"]),
        ("a<!-- b --><i>c</i><!-- d", ["a<i>c</i>"]),
        ("<a href='https://x.y/?a=1&amp;b=\"'>l</a>", ['<a href="https://x.y/?a=1&amp;b=&quot;">l</a>']),
        ("<a href='javascript:x'>l</a> <a>m</a>", ["l m"]),
        ("1 < 2 <b>3</b> <4", ["1 &lt; 2 <b>3</b> &lt;4"]),
        ("<style>b > i { x: '</b>' }</style><script>if (a<b) {}</script>x", ["x"]),
        ("<b>" * 20_000 + "x", ["<b>x</b>"]),
    ],
)
def test_what_telegram_gets(html: str, texts: list[Any]) -> None:
    assert ["".join(part for part in telegram_html.split(telegram_html.read(html)))] == texts


def test_every_filter_reads_a_text_once() -> None:
    slow = {}
    for name, function in FILTERS.items():
        if name.endswith("!") or getattr(function, "jinja_pass_arg", None):
            continue
        for bait_name, bait in BAITS.items():
            if said := _grows(_metered(function), bait):
                slow[name, bait_name] = said
    assert slow == {}
