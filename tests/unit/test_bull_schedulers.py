"""Schedules that BullMQ keeps in Redis: when their next run is due."""

from typing import Any

import orjson
import pytest

from yamchi.queues.engines.bull.schedulers import next_run

MINUTE = 60_000
NOW = 1_800_000_000_000  # on the minute


@pytest.mark.parametrize(
    ("opts", "moment"),
    [
        ({"repeat": {"pattern": "* * * * *", "tz": "UTC"}}, NOW + MINUTE),
        ({"repeat": {"pattern": "* * * * *", "tz": "UTC"}, "prevMillis": NOW - MINUTE}, NOW + MINUTE),
        ({"repeat": {"pattern": "* * * * *", "tz": "UTC"}, "prevMillis": NOW + MINUTE}, NOW + 2 * MINUTE),
        ({"repeat": {"every": MINUTE}}, NOW),
    ],
    ids=["the first", "a late one", "one that was run before its time", "at a distance"],
)
def test_the_next_run(opts: dict[str, Any], moment: int) -> None:
    arguments = next_run("q", b"1", {b"rjk": b"every-minute", b"opts": orjson.dumps(opts)}, NOW)
    assert arguments is not None
    assert arguments[0] == moment
