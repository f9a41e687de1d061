"""Templates and data that would stop the process, on a running `yamchi up`: each fails alone, and the others are sent."""

import re
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.processes import Process

USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"
SETTINGS = "---\nsubject: Hi\nlayout: false\n---\n"
LATE = "<p class=x>{{ name|safe }}</p>{% if 1 %}<p>{% endif %}"
"""A letter whose CSS is inlined, and whose text is made, after it is rendered."""

HOSTILE = {
    "loops": ("{% for a in range(999) %}{% for b in range(999) %}x{% endfor %}{% endfor %}", {}, "loops or calls more than"),
    "works": (
        "{% for i in range(24000) %}{% set x = now|datetime ~ now|datetime ~ now|datetime %}{% endfor %}",
        {},
        "works for more than 0.5 s",
    ),
    "selects": ("{{ range(9999)|map('float')|select('in', range(99999))|list|length }}", {}, "loops or calls more than"),
    "grows": ("{{ 'a' * 9999999 }}{{ 'a' * 9999999 }}", {}, "makes more than"),
    "nests": (LATE, {"name": "<div>" * 60_000}, "nests HTML more than"),  # ended the process
    "tags": (LATE, {"name": "<br>" * 30_000}, "more than 20,000 HTML tags"),
    "styles": (
        LATE,
        {"name": "<style>" + "".join(f"p{{c{n}:r}}" for n in range(2_000)) + "</style>" + "<p>x" * 2_000},
        "too much CSS for so many tags",
    ),
}  # fmt: skip
HARMLESS = {
    "spaces": ("<p>{{ name }}</p>", {"name": " " * 400_000 + "x"}),
    "comments": (LATE, {"name": "<!--" * 100_000}),
    "brackets": (LATE, {"name": "[](" * 100_000}),
    "wide": (LATE, {"name": "<table><tr><td>" + "w" * 40_000 + "<tr><td>a<td>b" * 3_000 + "</table>"}),
    "numbers": (LATE, {"name": "&#" + "9" * 100_000}),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path, "up", "--port", "0")
    yield process
    if process.process.poll() is None:
        process.end(signal.SIGTERM)


def job(template: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "job_id": str(uuid4()),
        "user_id": USER,
        "channel": "email",
        "template_code": template,
        "locale": "en",
        "data": {"now": "2026-02-25T15:00:00Z", **data},
        "meta": {"event_type": "test", "event_id": str(uuid4()), "priority": "normal"},
        "created_at": "2026-02-25T15:00:00Z",
    }


def test_each_fails_alone_with_its_reason(server: Process) -> None:
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        assert client.put(f"/api/v1/users/{USER}", json={"email": "a@example.com"}).is_success
        for name, (body, *_) in {**HOSTILE, **HARMLESS, "good": ("<p>fine</p>",)}.items():
            kept = client.put(f"/api/v1/templates/{name}/email/en", json={"text": SETTINGS + body})
            assert kept.is_success, kept.text
        bad = {name: job(name, data) for name, (_, data, _) in HOSTILE.items()}
        harmless = {name: job(name, data) for name, (_, data) in HARMLESS.items()}
        good = {f"good {number}": job("good", {}) for number in range(30)}
        everything = {**bad, **harmless, **good}
        for one in everything.values():
            answer = client.post("/api/v1/notifications", json=one)
            assert answer.is_success, answer.text

        def ended() -> dict[str, Any] | None:
            rows = {
                name: client.get(f"/api/v1/notifications/{one['job_id']}").json()
                for name, one in everything.items()
            }
            is_over = all(row["status"] in ("SENT", "FAILED") for row in rows.values())
            return rows if is_over else None

        rows: Any = server.wait_for(ended, "the end of every job")
        assert {name: row["status"] for name, row in rows.items() if name not in bad} == dict.fromkeys(
            [*harmless, *good], "SENT"
        )
        for name, (_, _, says) in HOSTILE.items():
            assert rows[name]["status"] == "FAILED"
            assert says in rows[name]["last_error"]
            assert f"Template {name} (email, en)" in rows[name]["last_error"]
        preview = client.post(
            "/api/v1/templates/works/email/en/preview", json={"data": {"now": "2026-02-25"}}
        )
        assert preview.status_code == 422
        assert "works for more than 0.5 s" in preview.json()["detail"]
    busy = [
        int(found.replace(",", ""))
        for found in re.findall(r"stood still for .* ms, ([\d,]+) ms", server.said)
    ]
    assert [
        pause for pause in busy if pause >= 250
    ] == []  # milliseconds that the event loop itself worked on end


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "---\nsubject: a\nsample: {a: &a [1, 1], b: &b [*a, *a], c: [*b, *b]}\n---\n",
            "repeats another part",
        ),
        (
            "---\nsubject: a\nsample: " + "[" * 60_000 + "\n---\n",
            "nested more than 50 deep",
        ),  # ended the process
        (SETTINGS + "<div>" * 45_000, "nests HTML more than"),  # ended the process
        (SETTINGS + "{{ x }}" * 5_000, "more than 8 KB"),
    ],
)
def test_a_template_that_would_do_harm_is_not_kept(server: Process, text: str, says: str) -> None:
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        refused = client.put("/api/v1/templates/evil/email/en", json={"text": text})
        assert refused.status_code == 422
        assert says in refused.json()["detail"]
        assert client.get("/api/v1/templates/evil/email/en").status_code == 404


def test_one_that_an_older_version_kept_stops_only_its_own_letters(server: Process, tmp_path: Path) -> None:
    aliases = "---\nsubject: a\nsample: {a: &a [1], b: *a}\n---\nx"
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        assert client.put(f"/api/v1/users/{USER}", json={"email": "a@example.com"}).is_success
        for name in ("old", "good"):
            assert client.put(f"/api/v1/templates/{name}/email/en", json={"text": SETTINGS + "x"}).is_success
        _change(tmp_path, "old", aliases)
        jobs = {name: job(name, {}) for name in ("old", "good")}
        for one in jobs.values():
            assert client.post("/api/v1/notifications", json=one).is_success

        def statuses() -> dict[str, str]:
            return {
                name: client.get(f"/api/v1/notifications/{one['job_id']}").json()["status"]
                for name, one in jobs.items()
            }

        server.wait_for(lambda: statuses() == {"old": "FAILED", "good": "SENT"}, "the end of both")
        assert "good" in {one["code"] for one in client.get("/api/v1/templates").json()}


def _change(home: Path, code: str, text: str) -> None:
    """A version that only an older Yamchi would have kept."""
    (database,) = [path for path in (home / "var").glob("*.db") if _has_templates(path)]
    with sqlite3.connect(database) as connection:
        connection.execute(
            "INSERT INTO templates (code, channel, locale, subject, body, version, meta, created_at)"
            " SELECT code, channel, locale, subject, ?, version + 1, meta, created_at FROM templates WHERE code = ?",
            (text, code),
        )
    connection.close()


def _has_templates(path: Path) -> bool:
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'templates'").fetchone()
    connection.close()
    return found is not None
