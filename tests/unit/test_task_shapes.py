"""Queues that other programs fill: what is no task of theirs is a dead letter at once, and the next one is not held up."""

from typing import Any

import orjson
import pytest

from yamchi.queues.records import NewJob
from yamchi.testing import TestApp

QUEUES = ("email_queue", "notifications", "report_queue", "payment_queue")
WRONG: tuple[Any, ...] = ({"nonsense": True}, [1, 2], "text", None, {"kind": 5, "to": 7, "provider": []})


@pytest.mark.parametrize("queue", QUEUES)
async def test_an_unknown_shape_is_a_dead_letter(queue: str) -> None:
    async with TestApp() as app:
        app.serve()
        engine = app.queue(queue).engine
        tasks = [NewJob(str(number), "", orjson.dumps(one)) for number, one in enumerate(WRONG)]
        await engine.add(queue, [*tasks, NewJob("broken", "", b"{not json")])
        await app.drain()
        letters = (await app.queue(queue).dead_letters.list()).letters
        assert len(letters) == len(WRONG) + 1
        assert all(letter.error for letter in letters)
        stats = await app.queue(queue).stats()
        assert (stats["waiting"], stats["active"], stats["delayed"]) == (0, 0, 0)
