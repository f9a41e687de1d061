"""From a template and data to a message: both parts of a letter, one-line subjects, dates, money, plurals."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yamchi.errors import Unrecoverable
from yamchi.notifications.templates import (
    Button,
    FileTemplates,
    Layout,
    Template,
    TemplateError,
    read_template,
    render,
)
from yamchi.notifications.templates.model import Format

BARE = Layout("<style>p { color: red }</style><div>{{ content }}</div>", "{{ content }}", {"name": "Us"})


def template(
    text: str, *, channel: str = "sms", locale: str = "ru", format: Format | None = None
) -> Template:
    return read_template(text, code="note", channel=channel, locale=locale, layout=BARE, format=format)


def letter(body: str, *, subject: str = "Hello") -> Template:
    return template(f"---\nsubject: {subject}\n---\n{body}", channel="email")


def said(text: str, data: dict[str, Any] | None = None, locale: str = "ru", **options: Any) -> str:
    return render(template(text, locale=locale), data or {}, **options).text


# ── Letters ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_html_is_escaped_and_plain_text_is_not() -> None:
    rendered = render(letter("<p>{{ name }}</p>", subject='"{{ name }}"'), {"name": "<b>Tom & Co</b>"})
    assert rendered.html is not None
    assert "&lt;b&gt;Tom &amp; Co&lt;/b&gt;" in rendered.html
    assert rendered.text == "<b>Tom & Co</b>"
    assert rendered.subject == "<b>Tom & Co</b>"


def test_css_is_inlined_and_statements_stay_where_they_are() -> None:
    body = "<table>{% for film in films %}<tr><td><p>{{ film }}</p></td></tr>{% endfor %}</table>"
    html = render(letter(body), {"films": ["A", "B"]}).html
    assert html is not None
    assert html.count('<p style="color: red;">') == 2
    assert html.index(">A<") < html.index(">B<") < html.index("</table>")


def test_a_loop_that_comes_first_writes_the_document_once() -> None:
    text = "---\nsubject: a\nlayout: false\n---\n{% for film in films %}<p>{{ film }}</p>{% endfor %}"
    html = render(template(text, channel="email", format="html"), {"films": ["A", "B"]}).html
    assert html == "<html><head></head><body><p>A</p><p>B</p></body></html>"


def test_html_that_the_inliner_would_change_is_inlined_after_rendering() -> None:
    body = "{% if fancy %}<p>{% else %}<h2>{% endif %}x{% if fancy %}</p>{% else %}</h2>{% endif %}"
    fancy, plain = (render(letter(body), {"fancy": fancy}).html for fancy in (True, False))
    assert fancy is not None
    assert plain is not None
    assert '<p style="color: red;">x</p>' in fancy
    assert "<h2>x</h2>" in plain


def test_plain_text_has_lists_links_and_no_empty_gaps() -> None:
    body = """
<h1>Films</h1>
{% if false %}
<p>never</p>
{% endif %}
<ul>
{% for film in films %}
<li>{{ film }}</li>
{% endfor %}
</ul>
<p>See <a href="{{ url }}">all of them</a> or <a href="mailto:a@b.c">a@b.c</a>.</p>
"""
    text = render(letter(body), {"films": ["A & B", "C"], "url": "https://x.y/?a=1&b=2"}).text
    assert text == "Films\n\n  * A & B\n  * C\n\nSee all of them (https://x.y/?a=1&b=2) or a@b.c."


def test_a_value_that_is_html_becomes_text_too() -> None:
    rendered = render(letter("<p>{{ bio|safe }}</p>"), {"bio": "<b>bold</b> &amp; brave"})
    assert rendered.text == "bold & brave"


def test_a_picture_with_a_variable_address_has_no_place_in_plain_text() -> None:
    rendered = render(
        letter('<p><img src="{{ url }}" alt="{{ name }}">Hi</p>'), {"url": "https://x/y.png", "name": "n"}
    )
    assert rendered.text == "Hi"
    assert rendered.html is not None
    assert 'src="https://x/y.png"' in rendered.html


def test_a_whole_document_keeps_its_own_layout() -> None:
    rendered = render(letter("<!doctype html><html><body><p>Whole</p></body></html>"), {})
    assert rendered.html is not None
    assert "<div>" not in rendered.html
    assert rendered.text == "Whole"


def test_a_letter_may_be_plain_text_alone() -> None:
    rendered = render(template("---\nsubject: a\n---\n1 < 2", channel="email", format="text"), {})
    assert (rendered.html, rendered.text) == (None, "1 < 2")


def test_raw_text_and_private_characters_survive() -> None:
    rendered = render(
        letter("<p>{% raw %}{{ not_a_variable }}{% endraw %}\ue0000\ue001 {{ x }}</p>"),
        {"x": "\ue0001\ue001"},
    )
    assert rendered.text == "{{ not_a_variable }}0 \ue0001\ue001"


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["name", "url"]), st.text(max_size=200), min_size=2))
def test_whatever_the_data_no_tag_of_it_reaches_the_html(data: dict[str, str]) -> None:
    note = letter('<p>{{ name }}</p><a href="{{ url }}">x</a>')
    html, empty = render(note, data).html, render(note, {"name": "", "url": ""}).html
    assert html is not None
    assert empty is not None
    assert [html.count(sign) for sign in '<>"'] == [empty.count(sign) for sign in '<>"']


# ── One line ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "evil", ["a\r\nBcc: x@y.z", "a\nb", "a\rb", "a\0b", "a\x85b", "a\u2028b", "a\x1bb", "a\ud800"]
)
def test_a_subject_is_one_line(evil: str) -> None:
    with pytest.raises(TemplateError, match=r"Template note \(email, ru\) puts .* into its subject"):
        render(letter("x", subject='"{{ x }}"'), {"x": evil})


@settings(deadline=None)
@given(st.text(max_size=100))
def test_no_subject_ever_breaks_a_header(value: str) -> None:
    try:
        subject = render(letter("x", subject='"To {{ x }}"'), {"x": value}).subject
    except TemplateError:
        return
    assert subject is not None
    assert len(subject.splitlines()) == 1
    assert subject.encode("utf-8")


def test_a_subject_has_an_end() -> None:
    with pytest.raises(TemplateError, match="more than 500 characters"):
        render(letter("x", subject='"{{ x }}"'), {"x": "a" * 501})


def test_an_email_needs_a_subject() -> None:
    with pytest.raises(TemplateError, match="has no subject"):
        render(template("<p>x</p>", channel="email"), {})


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "data:text/html,x", "not an address", 'https://x/"onclick']
)
def test_a_push_opens_addresses_only(url: str) -> None:
    push = template('---\ntitle: t\nurl: "{{ url }}"\n---\nx', channel="push")
    with pytest.raises(TemplateError, match="is no address"):
        render(push, {"url": url})
    assert render(push, {"url": "https://x.y/z?a=1"}).url == "https://x.y/z?a=1"


# ── Buttons ───────────────────────────────────────────────────────────────────────────────────────────────────────

BUTTONS = """---
buttons:
  - {text: "Yes, {{ name }}", callback: "confirm:{{ leadId }}"}
  - {text: Map, url: "{{ map|default('') }}"}
---
<b>{{ name }}</b>
"""


def test_buttons_are_rendered_and_an_empty_one_is_left_out() -> None:
    message = template(BUTTONS, channel="telegram")
    rendered = render(message, {"name": "A<", "leadId": "7"})
    assert rendered.html == "<b>A&lt;</b>"
    assert rendered.text == "A<"
    assert rendered.buttons == ((Button("Yes, A<", None, "confirm:7"),),)
    with_map = render(message, {"name": "A", "leadId": "7", "map": "https://x.y"})
    assert with_map.buttons[0][1] == Button("Map", "https://x.y", None)


def test_rows_of_buttons() -> None:
    rows = template("---\nbuttons: [[{text: a, url: /a}], [{text: b, url: /b}, {text: c, url: /c}]]\n---\nx")
    assert [[button.text for button in row] for row in render(rows, {}).buttons] == [["a"], ["b", "c"]]


def test_a_callback_is_no_longer_than_telegram_takes() -> None:
    with pytest.raises(TemplateError, match="64 bytes"):
        render(template(BUTTONS, channel="telegram"), {"name": "A", "leadId": "7" * 60})


# ── What a template sees ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"first_name": "A", "user": {"first_name": "B"}}, "A"),
        ({"name": "N"}, "N"),
        ({"user": {"first_name": "B", "name": "C"}}, "B"),
        ({"user": {"name": "C"}}, "C"),
        ({"user": None, "first_name": "  "}, ""),
        ({}, ""),
    ],
)
def test_the_recipients_name_is_found_where_it_is(data: dict[str, Any], name: str) -> None:
    assert said("[{{ recipient_name }}]", data) == f"[{name}]"


def test_the_seeds_spelling_of_a_field_is_known_too() -> None:
    assert (
        said("{{ leadId }} {{ lead_id }} {{ lesson_datetime }}", {"leadId": 1, "lessonDatetime": 2})
        == "1 1 2"
    )


def test_what_yamchi_knows_wins_over_the_data() -> None:
    data = {"unsubscribe_url": "https://evil", "now": "never"}
    options: dict[str, Any] = {"unsubscribe_url": "https://good", "now": datetime(2026, 1, 2, tzinfo=UTC)}
    assert said("{{ unsubscribe_url }} {{ now|date('y') }}", data, **options) == "https://good 2026"


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("{{ first_name }}", "'first_name'"),
        ("{{ user.first_name }}", "'user.first_name'"),
        ("{{ order.customer.name|upper }}", "'order.customer.name'"),
        ("{% for film in films %}{% endfor %}", "'films'"),
        ("{{ total|money }}", "'total'"),
    ],
)
def test_a_missing_variable_is_named(body: str, names: str) -> None:
    with pytest.raises(Unrecoverable) as raised:
        said(body, {"order": {"customer": {}}})
    assert str(raised.value) == f"Template note (sms, ru): the variable {names} is missing."


def test_null_is_written_as_nothing_and_a_list_not_at_all() -> None:
    assert said("[{{ x }}]", {"x": None}) == "[]"
    with pytest.raises(TemplateError, match="loop over it or use"):
        said("{{ x }}", {"x": [1]})


def test_keys_come_before_methods() -> None:
    assert (
        said("{{ order.items|length }} {{ order.values }}", {"order": {"items": [1, 2], "values": 7}})
        == "2 7"
    )


def test_a_line_of_statements_leaves_no_line_and_other_lines_stay() -> None:
    body = "a\n  {% if x %}{# why #}\nb {% if x %}c{% endif %}\n  {% endif %}\nd"
    assert said(body, {"x": 1}) == "a\nb c\nd"


# ── Dates, money, plurals ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("locale", "body", "text"),
    [
        ("ru", "{{ t|date }}", "25 февраля 2026\u202fг."),
        ("en", "{{ t|date }}", "February 25, 2026"),
        ("kk", "{{ t|date('d MMMM, EEEE') }}", "25 ақпан, сәрсенбі"),
        ("ru", "{{ t|time }}", "20:00"),
        ("ru", "{{ t|datetime('d MMMM, HH:mm') }}", "25 февраля, 20:00"),
        ("ru", "{{ '2026-02-25'|date('d.MM') }}", "25.02"),
        ("ru", "{{ '2026-02-25T15:00'|time }}", "15:00"),
        ("ru", "{{ 12990|money('KZT') }}", "12\xa0990\xa0₸"),
        ("ru", "{{ '1990.50'|money('RUB') }}", "1\xa0990,50\xa0₽"),
        ("en", "{{ 12990|money('USD') }}", "$12,990"),
        ("en", "{{ 5|money('JPY') }}", "¥5"),
        ("kk", "{{ 1234567|number }}", "1\xa0234\xa0567"),
        ("ru", "{{ 1|plural('фильм', 'фильма', 'фильмов') }}", "фильм"),
        ("ru", "{{ 3|plural('фильм', 'фильма', 'фильмов') }}", "фильма"),
        ("ru", "{{ 11|plural('фильм', 'фильма', 'фильмов') }}", "фильмов"),
        ("ru", "{{ 1.5|plural('фильм', 'фильма', 'фильмов') }}", "фильма"),
        ("en", "{{ 1|plural('film', 'films') }}", "film"),
        ("en", "{{ 5|plural('film', 'films') }}", "films"),
        ("kk", "{{ 5|plural('фильм', 'фильм') }}", "фильм"),
        ("en", "{% for row in [1, 2, 3]|batch(2) %}{{ row|join(',') }};{% endfor %}", "1,2;3;"),
        ("en", "{% for row in [1, 2, 3]|batch(2, 0) %}{{ row|join(',') }};{% endfor %}", "1,2;3,0;"),
        ("en", "{{ []|batch(2, 0)|length }}", "0"),
        ("ru", "{{ [1, 2.5]|sum }} {{ 2.345|round(2) }} {{ [1,2,3]|batch(2)|length }}", "3.5 2.34 2"),
        ("ru", '{{ {"a": "</script>"}|tojson }}', '{"a": "\\u003c/script\\u003e"}'),
        ("xx", "{{ t|date }}", "February 25, 2026"),
    ],
)
def test_values_are_written_for_people(locale: str, body: str, text: str) -> None:
    data = {"t": "2026-02-25T15:00:00Z"}
    assert said(body, data, locale, timezone="Asia/Almaty") == text


def test_the_users_time_zone_is_used() -> None:
    data = {"t": datetime(2026, 2, 25, 15, tzinfo=UTC), "user": {"timezone": "America/New_York"}}
    assert said("{{ t|time }}", data) == "10:00"


def test_a_time_zone_that_is_none_matters_only_where_a_time_is_written() -> None:
    data = {"user": {"timezone": "Mars/Olympus"}}
    assert said("fine", data) == "fine"
    with pytest.raises(TemplateError, match="'Mars/Olympus' is not a time zone"):
        said("{{ '2026-02-25T15:00:00Z'|time }}", data)


async def test_versions_do_not_mix() -> None:
    one, two = template("one {{ x }}"), template("two {{ x }}")
    assert one.version != two.version
    assert [render(t, {"x": 1}).text for t in (one, two, one)] == ["one 1", "two 1", "one 1"]


async def test_the_seeds_welcome_letter() -> None:
    found = await FileTemplates().find("welcome_email", "email", ["ru"])
    assert found is not None
    assert found.is_transactional
    rendered = render(found, {"registration_channel": "web", "user_agent": "Mozilla/5.0"})
    assert rendered.subject == "Добро пожаловать в Yamchi!"
    named = render(found, {"first_name": "Нуржан", "login_url": "https://cinema.kz/login"})
    assert named.subject == "Нуржан, добро пожаловать в Yamchi!"
    assert "https://cinema.kz/login" in named.text
