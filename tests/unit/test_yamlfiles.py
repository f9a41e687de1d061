"""YAML from people: errors with file and line, no aliases, and no text that ends or stops the process."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter

from yamchi.errors import ConfigurationError
from yamchi.notifications.policy.rules import read_rules
from yamchi.notifications.templates import Layout, TemplateError, read_template
from yamchi.yamlfiles import InvalidDocument, load, load_file

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


class Step(BaseModel):
    model_config = ConfigDict(extra="forbid")

    send: str
    after: int = 0


class Flow(BaseModel):
    name: str
    steps: list[Step]


def test_data_comes_out_as_it_is_written() -> None:
    text = "on: yes\n1: two\nlist: [1, 2.5, null, 'no', 2026-02-25]\nlong: |\n  a\n  b\n"
    assert load(text, "x.yaml").data == {
        "on": True,
        "1": "two",
        "list": [1, 2.5, None, "no", date(2026, 2, 25)],
        "long": "a\nb\n",
    }


def test_every_part_knows_its_line() -> None:
    document = load("name: a\nsteps:\n  - send: x\n  - send: y\n    after: 1\n", "flow.yaml")
    assert [document.line_of(path) for path in ((), ("steps",), ("steps", 1), ("steps", 1, "after"))] == [
        1,
        2,
        4,
        5,
    ]
    assert document.line_of(("steps", 0, "Step", "nowhere")) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "name: a\nsteps:\n  - send: x\n  - {sned: y}\n",
            "flow.yaml:4: steps.1.send: Field required (and 1 more).",
        ),
        (
            "name: a\nsteps:\n  - send: x\n    after: soon\n",
            "flow.yaml:4: steps.0.after: Input should be a valid integer",
        ),
        ("name: a\n", "flow.yaml:1: steps: Field required."),
        ("", "flow.yaml:1: name: Field required (and 1 more)."),
    ],
)
def test_a_wrong_field_is_told_with_its_line(text: str, says: str) -> None:
    with pytest.raises(InvalidDocument) as raised:
        load(text, "flow.yaml").validate(Flow)
    assert str(raised.value).startswith(says)


def test_a_model_or_an_adapter_will_do() -> None:
    document = load("[{send: x}, {send: y, after: 2}]", "steps.yaml")
    assert document.validate(TypeAdapter(list[Step]))[1] == Step(send="y", after=2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: [1\nc: 2", "x.yaml:3: it is not YAML"),
        ("a: 1\nb: &x 2\nc: *x\n", "x.yaml:3: '*x' repeats another part"),
        ("a: 1\nb: 2\na: 3", "x.yaml:3: 'a' is given twice, first on line 1"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: it has a second document"),
        ("a: !!python/object/apply:os.system [ls]", None),
        ("a: !!python/name:os.system x", "x.yaml:1: 'x' can't be read as"),
        ("\n? [1, 2]\n: 3", "x.yaml:2: a key must be one text"),
        ("a: 2026-99-99", "x.yaml:1: '2026-99-99' is no timestamp"),
        ("a: \x00", "x.yaml: it is not YAML"),
        (LAUGHS, "x.yaml:2: '*a' repeats another part"),
    ],
)
def test_what_can_not_be_read_is_told_with_its_line(text: str, says: str | None) -> None:
    if says is None:
        assert load(text, "x.yaml").data == {"a": ["ls"]}  # a tag on a list makes nothing of it
        return
    with pytest.raises(InvalidDocument) as raised:
        load(text, "x.yaml")
    assert str(raised.value).startswith(says)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "[a," * 60_000, "- " * 100_000, "{a: " * 100_000, "? " * 100_000, "[" * 60 + "]" * 60],
)
def test_deep_nesting_neither_ends_nor_stops_the_process(text: str) -> None:
    with pytest.raises(InvalidDocument, match=r"nested|YAML|a key must be one text"):
        load(text, "x.yaml")


def test_numbers_are_read_only_as_long_as_numbers_are() -> None:
    digits = "9" * 5_000
    assert load(f"a: {digits}\nb: {'1:' * 3_000}1", "x.yaml").data == {"a": digits, "b": "1:" * 3_000 + "1"}
    with pytest.raises(InvalidDocument, match="put quotes around it"):
        load(f"a: !!int {digits}", "x.yaml")


def test_the_number_of_parts_has_a_limit() -> None:
    with pytest.raises(InvalidDocument, match=r"x\.yaml:50: it has more than 50 parts"):
        load("- a\n" * 60, "x.yaml", most_parts=50)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it can't be read: No such file"):
        load_file(tmp_path / "none.yaml")


@given(st.text(alphabet=st.sampled_from("ab1:-[]{},&*!|>'\"#? \n\t%@"), max_size=80))
@settings(max_examples=500, deadline=None)
def test_any_text_is_data_or_one_sentence(text: str) -> None:
    data, said = _read(text)
    if data is None:
        assert "\n" not in said
    else:
        assert _shape(yaml.load(text, Loader=yaml.CBaseLoader)) == _shape(data)


def _read(text: str) -> tuple[Any, str]:
    try:
        return load(text, "x.yaml").data, ""
    except InvalidDocument as error:
        return None, str(error)


def _shape(value: Any) -> Any:
    """Lists and mappings, without what their scalars mean."""
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    return [_shape(item) for item in value] if isinstance(value, list) else "x"


# ── Where it is used ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_template_has_no_aliases_and_says_the_line() -> None:
    text = f"---\nsubject: Hi\nsample:\n  {LAUGHS.replace(chr(10), chr(10) + '  ')}\n---\nbody"
    with pytest.raises(
        TemplateError, match=r"Template t \(email, en\): '\*a' repeats another part"
    ) as raised:
        read_template(text, code="t", channel="email", locale="en", layout=Layout("", ""))
    assert raised.value.line == 5
    with pytest.raises(TemplateError, match="the setting 'sampel' is wrong") as raised:
        read_template(
            "---\nsubject: Hi\nsampel: {}\n---\n",
            code="t",
            channel="email",
            locale="en",
            layout=Layout("", ""),
        )
    assert raised.value.line == 3


def test_a_rule_is_told_with_file_and_line(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "- on: a\n  notify: {channel: email, template: x}\n- on: b\n  when: (\n  notify: {channel: email, template: x}\n"
    )
    with pytest.raises(ConfigurationError, match=r"rules.yaml:4: 1.when: '\(' is not an expression"):
        read_rules(rules)
    rules.write_text("on: a\n")
    with pytest.raises(ConfigurationError, match=r"rules.yaml:1: it must be a list of rules"):
        read_rules(rules)
    rules.write_text("")
    assert read_rules(rules) == []
