"""The generator of hostile documents is itself tried: it can be repeated, and everything it makes can be sent."""

import random

from hypothesis import given, settings
from tests.faults import hostile

GOOD = {"event_id": "e", "data": {"a": [1, "x"], "at": "2026-01-01T00:00:00Z"}, "priority": 5}


def test_the_same_seed_makes_the_same_documents() -> None:
    made = [hostile.as_json(hostile.mutated(GOOD, random.Random(seed))) for seed in range(300)]
    again = [hostile.as_json(hostile.mutated(GOOD, random.Random(seed))) for seed in range(300)]
    assert made == again
    assert len(set(made)) > 200


@settings(max_examples=50)
@given(hostile.hypothesis_documents(GOOD))
def test_whatever_it_makes_can_be_written(document: object) -> None:
    assert hostile.as_json(document)
