"""Bait in every string that reaches a message: each job ends, and four times the bait takes no sixteen times as long."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any
from uuid import uuid4

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.notifications.conftest import USER
from yamchi.notifications.people.recipients import User
from yamchi.queues.records import NewJob
from yamchi.testing import TestApp

SMALL = 8_000
FEW = 8.0
NOTHING = 0.1
"""Seconds of all processors below which the machinery around a job is all that is measured."""
LOOKS = 3
"""A machine may be slow once."""

LETTER = """---
subject: For {{ first_name|truncate(40) }}
preheader: "{{ words|striptags|truncate(40) }}"
---
<p>{{ first_name }}, {{ user.bio }}</p>
<table><tr><td>{{ words|safe }}</td><td>{{ words|title }}</td></tr></table>
{% for one in several %}<p>{{ one }}</p>{% endfor %}{{ nested.deep.text }}
"""
NOTE = "---\ntitle: '{{ first_name|truncate(40) }}'\n---\n{{ words }}\n{{ several|join('\\n') }}{{ nested.deep.text }}"
BAIT = (
    " ", "\n ", "\t\n", "<", "<!--", "<!---->", "<b>", "<div>", "<p>", "<table><tr><td>", "<a href=", "&#", "&", "[](",
    "{{", "{% ", "'", "\\", "a@", "1", "://a:", "я", "😀", "<style>p{a:b}", "<!--<head>", "<head><meta charset=", "<li>",
)  # fmt: skip


def jobs(text: str) -> list[dict[str, Any]]:
    """One with the bait in each place, and one with it in all."""
    places = {
        "first_name": {"first_name": text},
        "words": {"words": text},
        "several": {"several": [text[:100]] * (len(text) // 100)},
        "nested": {"nested": {"deep": {"text": text}}},
        "a key": {text[:1_000]: "x", text: "y"},
    }
    plain = {"first_name": "A", "words": "b", "several": ["c"], "nested": {"deep": {"text": "d"}}}
    everywhere = {**places["first_name"], **places["words"]}
    datas = [plain | place for place in ({}, *places.values(), everywhere)]
    return [
        {
            "job_id": str(uuid4()),
            "user_id": USER,
            "channel": channel,
            "template_code": "hostile",
            "locale": "en",
            "data": data,
            "meta": {"event_type": "test", "event_id": str(uuid4()), "priority": "normal"},
            "created_at": "2025-11-14T12:35:10Z",
        }
        for channel in ("email", "database")
        for data in datas
    ]


async def seconds(home: Path, text: str) -> float:
    """The processors' time for a job with this text in each place."""
    app = TestApp(home=home)
    app.notifications.serve()
    try:
        bio = text[: len(text) // 2]  # attributes have 64 KB at most
        await app.notifications.recipients.put(
            USER, User(email="a@example.com", locale="en", attributes={"bio": bio})
        )
        messages = jobs(text)
        new = [NewJob(one["job_id"], "send", orjson.dumps(one)) for one in messages]
        began = process_time()
        await app.notifications.queue.engine.add("notifications", new)
        await app.drain()
        spent = process_time() - began
        ended = [await app.notifications.deliveries.status(one["job_id"]) for one in messages]
        assert set(ended) <= {"SENT", "FAILED"}
        assert ended[len(ended) // 2] == "SENT"  # the note without bait
        return spent
    finally:
        await app.close()


@pytest.mark.timeout(600)  # seconds on a free machine; the measure is processor time
@given(
    st.lists(st.sampled_from(BAIT), min_size=1, max_size=3),
    st.sampled_from(["in turns", "one after the other"]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bait_in_every_string(tmp_path: Path, parts: list[str], how: str) -> None:
    home = tmp_path / str(uuid4())
    folder = home / "templates" / "hostile"
    folder.mkdir(parents=True)
    (folder / "email.en.html").write_text(LETTER)
    (folder / "database.en.txt").write_text(NOTE)

    def text(size: int) -> str:
        if how == "in turns":
            return "".join(parts) * (size // len("".join(parts))) + "x"
        return "".join(part * (size // len(parts) // len(part)) for part in parts) + "x"

    assert not all(grows(home, text) for _ in range(LOOKS)), (
        "four times the text took more than eight times as long"
    )


def grows(home: Path, text: Callable[[int], str]) -> bool:
    small, large = (asyncio.run(seconds(home, text(size))) for size in (SMALL, 4 * SMALL))
    return large > FEW * max(small, NOTHING)
