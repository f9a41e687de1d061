"""A scenario that can't be used is one sentence with its file, its line and its field."""

from pathlib import Path
from typing import Any

import pytest

from yamchi.scenarios.definition import Definition
from yamchi.scenarios.reading import find_cycle, paths_in, read_text
from yamchi.yamlfiles import InvalidDocument

GOOD = """\
scenario: email_chain
on: lead.created
entity: lead
key: "{{ lead.id }}"
stop_on: bot.activated
queue: emailChain
steps:
  - job: email1
    wait: 30m
    unless: lead.bot_activated
    send: {channel: email, template: email_1}
    set: {email_1_sent: true, email_1_sent_at: "{{ now }}"}
    log: EMAIL_1_SENT
  - job: email2
    wait: 24h
    log: EMAIL_2_SENT
"""

WRONG = [
    ("wait: 30m", "wait: 30x", 9, "steps.0.wait: '30x' is not a span of time"),
    ("unless:", "unles:", 10, "there is no field 'unles'"),
    ("job: email2", "job: email1", 14, "'email1' is taken"),
    ("log: EMAIL_2_SENT", "next: email1", 16, "email1 → email2 → email1 is a cycle"),
    ("log: EMAIL_2_SENT", "next: email3", 16, "there is no step 'email3'"),
    ("log: EMAIL_2_SENT", "emit: lead.created", 16, "starts this scenario, which is a cycle"),
    ("log: EMAIL_2_SENT", "log: [1", 17, "it is not YAML"),
    ("log: EMAIL_2_SENT", "log: '{{ x'", 16, "is not an expression"),
    ("log: EMAIL_2_SENT", "past: now", 14, "only a step with 'at' can have"),
    ("entity: lead", "entity: *x", 3, "'*x' repeats another part"),
    ("entity: lead", "entity: event", 3, "is not the name of a kind of thing"),
    (
        'entity: lead\nkey: "{{ lead.id }}"',
        'key: "{{ event.data.lead_id }}"',
        6,
        "'set' and 'log' write to an entity",
    ),
    ("lead.bot_activated", "lead.(", 10, "is not an expression"),
    ("channel: email", "channel: fax", 11, "there is no channel 'fax'"),
    ("channel: email, ", "", 11, "name either 'channel' or 'first_of'"),
    ("scenario: email_chain", "title: chain", 1, "the field 'scenario' is missing"),
    ("wait: 24h", "at: 24h before", 15, "is not a moment"),
    ("wait: 24h", "wait: 24h\n    at: x - 1h", 14, "has both 'wait' and 'at'"),
    ("wait: 24h", "wait: 24h\n    timeout: 1h", 14, "add 'wait_for'"),
    ("wait: 24h", "wait: 24h\n    wait: 25h", 16, "'wait' is given twice"),
    ("stop_on: bot.activated", "stop_on: lead.created", 5, "it can do only one of them"),
    ("queue: emailChain", "queue: email chain", 6, "queue: String should match"),
]


@pytest.mark.parametrize(("old", "new", "line", "said"), WRONG)
def test_a_mistake_is_named_with_its_line(old: str, new: str, line: int, said: str) -> None:
    assert old in GOOD
    with pytest.raises(InvalidDocument) as caught:
        read_text(GOOD.replace(old, new, 1), "scenarios/email_chain.yaml")
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"scenarios/email_chain.yaml:{line}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "5", "[]", "a: " * 2000, "- " * 500, "\x00", "%%%", "a: !!python/name:os.system x"]
)
def test_whatever_the_file_holds_the_answer_is_a_sentence(text: str) -> None:
    with pytest.raises(InvalidDocument):
        read_text(text)


def test_the_version_is_of_what_it_says_and_not_how_it_is_written() -> None:
    version = read_text(GOOD).version
    assert (
        read_text(GOOD.replace("on: lead.created", "on: [lead.created]  # a list of one")).version == version
    )
    assert read_text(GOOD.replace("30m", "31m")).version != version
    assert Definition.model_validate(read_text(GOOD).body).version == version


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (
            "answered",
            "answered",
        ),  # as stored versions have it: theirs is the version of the file that did not change
        ("{event: answered}", "answered"),
        ("{event: answered, data: {of: 1}}", {"event": "answered", "data": {"of": 1}}),
    ],
)
def test_what_a_button_tells_is_kept_as_briefly_as_it_can_be_said(written: str, kept: Any) -> None:
    read = read_text(f"{GOOD}actions:\n  yes: {{emit: {written}}}\n")
    assert read.body["actions"] == {"yes": {"emit": kept}}
    assert Definition.model_validate(read.body) == read


def test_the_key_names_the_kind_where_the_file_does_not() -> None:
    without = read_text(GOOD.replace("entity: lead\n", ""))
    assert without.entity == "lead"
    assert without.version == read_text(GOOD).version


@pytest.mark.parametrize(
    "key",
    [
        "{{ event.event_id }}",
        "{{ user.id }}",
        "{{ order }}",
        "{% set a = event.data %}{{ a.id }}",
        "order.id",
    ],
)
def test_a_key_of_something_else_names_no_kind(key: str) -> None:
    """Runs of such scenarios may be on their way, under the version without a kind."""
    definition = Definition.model_validate({"scenario": "a", "on": "b", "key": key, "steps": [{"job": "c"}]})
    assert definition.entity is None


def test_scenarios_that_start_each_other_are_found() -> None:
    def one(name: str, on: str, emits: str) -> Definition:
        return read_text(f"{{scenario: {name}, on: {on}, key: k, steps: [{{job: a, emit: {emits}}}]}}")

    assert find_cycle([one("first", "a", "b"), one("second", "b", "c")]) == []
    cycle = find_cycle([one("first", "a", "b"), one("second", "b", "c"), one("third", "c", "a")])
    assert [member.scenario for member in cycle] == ["first", "second", "third", "first"]


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "c.txt", ".a.yaml"):
        (tmp_path / name).write_text(GOOD)
    assert [path.name for path in paths_in(tmp_path)] == ["a.yaml", "b.yml"]
    assert paths_in(tmp_path / "nowhere") == []
