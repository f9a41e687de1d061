"""Every variable that is missing is named at once, and none that a template can do without."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from yamchi.cli import cli
from yamchi.notifications.templates.model import Button, Layout, MissingVariable, Template
from yamchi.notifications.templates.preview import preview
from yamchi.notifications.templates.rehearsing import lacking, rehearse
from yamchi.testing import TestApp


def note(body: str, **parts: Any) -> Template:
    return Template("note", "sms", "en", None, body, body, **parts)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("{{ b }} {{ a.x|upper }} {{ c[0] }}", ["a", "b", "c"]),
        ("{% if a %}{{ b }}{% elif c %}{% else %}{{ d }}{% endif %}", ["a"]),
        ("{% for one in a %}{{ one }} {{ b }}{% endfor %}", ["a"]),
        ("{{ a|default('') }} {{ b is defined }} {{ c.x|default('') }}", ["c"]),
        ("{{ a or b }} {{ c if d else e }} {{ f and g }} {{ 1 < h < i }}", ["a", "d", "f", "h"]),
        ("{% set a = b %}{{ a }}", ["b"]),
        ("{% macro m(x) %}{{ x }}{{ a }}{% endmacro %}{{ m(b) }}{% call m(c) %}{% endcall %}", ["b", "c"]),
        ("{{ given }} {{ camel_case }} {{ user }} {{ now }} {{ brand.name }} {{ range(2) }}", []),
    ],
)
def test_what_is_certainly_missing(body: str, names: list[str]) -> None:
    assert lacking(note(body), {"given": 1, "camelCase": 2}) == names


def test_a_name_that_is_set_on_one_way_only_may_be_wanting_and_stops_nothing() -> None:
    assert "a" not in lacking(note("{% if b %}{% set a = 1 %}{% endif %}{{ a }}"), {"a": 1, "b": True})


def test_all_parts_are_looked_through() -> None:
    layout = Layout("{% macro code(x) %}{{ x }}{% endmacro %}{{ in_html }}{{ content }}", "{{ content }}")
    buttons = ((Button("{{ on_button }}", "{{ to }}"),),)
    lines = {"title": "{{ as_title }}", "url": "https://{{ host }}", "image": "{{ picture }}"}
    template = note("{{ code(inside) }}", format="html", layout=layout, buttons=buttons, **lines)
    names = {"in_html", "inside", "on_button", "to", "as_title", "host", "picture"}
    assert set(lacking(template, {})) == names


async def test_the_error_names_the_first_and_then_the_others() -> None:
    template = note("{{ user.name }} {{ a }} {{ b }}")
    with pytest.raises(MissingVariable) as raised:
        await rehearse(template, {})
    first = "Template note (sms, en): the variable 'user.name' is missing."
    assert str(raised.value) == f"{first} Missing, too: 'a', 'b'."
    with pytest.raises(MissingVariable) as raised:
        await rehearse(template, {"a": 1, "b": 2})
    assert str(raised.value) == first
    assert (await rehearse(template, {"a": 1, "b": 2, "user": {"name": "Ann"}})).text == "Ann 1 2"


async def test_a_preview_names_them() -> None:
    async with TestApp() as app:
        with pytest.raises(MissingVariable, match=r"'discount' is missing\. Missing, too: 'promo_code'"):
            await preview(app.notifications.templates, "black_friday_sale", "email", "en", {})


def test_a_message_that_can_not_be_made_is_not_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YAMCHI_HOME", str(tmp_path))
    words = ["send", "email", "ann@example.com", "--template", "black_friday_sale", "--json"]
    refused = CliRunner().invoke(cli, words)
    assert refused.exit_code == 1
    assert "'discount' is missing. Missing, too: 'promo_code'" in " ".join(refused.output.split())
    data = '{"discount": "50%", "promo_code": "B", "shop_url": "https://example.com"}'
    assert CliRunner().invoke(cli, [*words, "--data", data]).exit_code == 0
