"""Names of tables, and what PostgreSQL can't keep."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yamchi.queues.engines.base import Event
from yamchi.queues.engines.names import LONGEST_NAME, pgmq_name, second_name
from yamchi.queues.engines.pgmq.events import LONGEST_BYTES as LONGEST_NOTE
from yamchi.queues.engines.pgmq.events import write_events
from yamchi.queues.engines.pgmq.rows import clean, clean_json, compact


@pytest.mark.parametrize(
    ("queue", "name"),
    [("email_queue", "email_queue"), ("media-processing", "media_processing"), ("emailChain", "emailchain")],
)
def test_names_are_what_a_person_expects(queue: str, name: str) -> None:
    assert pgmq_name(queue) == name


@given(st.text(min_size=1, max_size=200))
def test_every_name_fits_and_needs_no_quotes(queue: str) -> None:
    for name in (pgmq_name(queue), second_name(queue)):
        assert len(name) <= LONGEST_NAME
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")


def test_long_names_stay_apart() -> None:
    assert pgmq_name("a" * 60 + "1") != pgmq_name("a" * 60 + "2")


def test_compact_json_has_no_spaces() -> None:
    assert compact('{"n": [1, 2.5, null], "имя": "Нуржан"}') == '{"n":[1,2.5,null],"имя":"Нуржан"}'.encode()
    assert compact(None) == b"null"


def test_nul_and_half_characters_are_left_out() -> None:
    assert clean("a\0b\udcff") == "ab?"
    assert clean_json(rb'{"a\u0000":["x\u0000y",1]}') == b'{"a":["xy",1]}'
    assert clean_json(rb'["\\u0000"]') == rb'["\\u0000"]', "a backslash before u0000 is no NUL"


@given(st.lists(st.binary(max_size=9_000).map(lambda raw: orjson.dumps(raw.hex())), max_size=20))
def test_notes_fit_and_lose_no_event(values: list[bytes]) -> None:
    events = [Event("completed", "q", str(n), "work", value) for n, value in enumerate(values)]
    notes = list(write_events("me", events))
    assert all(len(note.encode()) < LONGEST_NOTE + 500 for note in notes)
    told = [event for note in notes for event in orjson.loads(note)[1]]
    assert [event[2] for event in told] == [event.job_id for event in events]
