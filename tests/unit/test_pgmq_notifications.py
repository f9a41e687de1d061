"""Events as PostgreSQL's notifications: all of them, in as few as fit, none longer than it takes; and who listens for them."""

import orjson
import pytest
from structlog.testing import capture_logs

from yamchi.queues.engines.base import Event
from yamchi.queues.engines.pgmq.connections import Connections
from yamchi.queues.engines.pgmq.events import LONGEST_BYTES, write_events
from yamchi.queues.engines.pgmq.listening import Listener
from yamchi.testing import eventually

LONGEST_OF_POSTGRESQL = 7_999


@pytest.mark.parametrize("size", [0, 100, LONGEST_BYTES - 100])
def test_many_events_fit(size: int) -> None:
    value = orjson.dumps("x" * size)
    events = [Event("completed", "q", str(number), "n", value) for number in range(2_000)]
    notes = list(write_events("me", events))
    assert max(map(len, notes)) <= LONGEST_BYTES + len('["me",[]]')
    assert [one[2] for note in notes for one in orjson.loads(note)[1]] == [event.job_id for event in events]
    assert len(notes) <= 2 + sum(map(len, notes)) // (LONGEST_BYTES // 2), "few notifications"


def test_a_value_that_is_too_long_is_left_out() -> None:
    (note,) = write_events("me", [Event("completed", "q", "1", "n", orjson.dumps("x" * 8_000))])
    assert len(note) <= LONGEST_OF_POSTGRESQL
    assert orjson.loads(note) == ["me", [["completed", "q", "1", "n", None, True]]]


async def test_an_outage_is_said_once_and_not_at_every_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yamchi.queues.engines.pgmq.listening.random.uniform", lambda least, most: 0.0)
    listener = Listener(Connections("postgresql://127.0.0.1:1/nobody"), lambda table, places: None)
    with capture_logs() as lines:
        listener.start()
        await eventually(lambda: len(lines) >= 5)
        await listener.close()
    assert [line["log_level"] for line in lines[:5]] == ["warning", *["debug"] * 4]
