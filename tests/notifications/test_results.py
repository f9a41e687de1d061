"""The results of notification jobs as JSON: the board and other programs read these shapes."""

import pytest

from yamchi.notifications.sending.results import Collected, Ended, Result, Sent, Split

SHAPES = [
    (Sent("250 ok"), {"status": "SENT", "provider_message_id": "250 ok"}),
    (Sent(None), {"status": "SENT", "provider_message_id": None}),
    (Ended("EXPIRED"), {"status": "EXPIRED"}),
    (Ended("SUPPRESSED", "opted out"), {"status": "SUPPRESSED", "reason": "opted out"}),
    (Ended("FAILED", "gone", "job-2"), {"status": "FAILED", "reason": "gone", "next": "job-2"}),
    (Collected("digest-1"), {"status": "QUEUED", "digest": "digest-1"}),
    (Split(("a", "b")), {"status": "SPLIT", "jobs": ["a", "b"]}),
]


@pytest.mark.parametrize(("result", "shape"), SHAPES, ids=lambda value: type(value).__name__)
def test_the_shape_of_a_result(result: Result, shape: dict[str, object]) -> None:
    assert result.as_json() == shape
