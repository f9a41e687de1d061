"""A soak: a running `yamchi up` is sent whatever a hostile caller can think of, for a minute (ten with FAULTS=full).

Two callers at the same time: schemathesis, which knows the OpenAPI page, and the generator of hostile documents, which
knows what has broken before. Between the bad events are good ones. In the end: no answer was a server error, the event
loop never stood still for a quarter of a second by work of the process (a busy machine is not counted), memory is where it was, every accepted event is finished, no
background service failed, and the process is the one that was started.
"""

import asyncio
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest

from tests.faults import hostile
from tests.processes import Process
from tests.scale import FULL
from tests.services import telegram, yookassa
from tests.services.telegram import BotServer
from tests.services.yookassa import YooKassaServer
from yamchi.testing import eventually

SECONDS = 600.0 if FULL else 60.0
CALLERS = 6
LONGEST_BUSY_MS = 250
MOST_GROWTH = 1.2
SEED = 7
"""The short soak tries the same each time; the long one, something new."""
FINAL = ("SENT", "FAILED", "EXPIRED", "CANCELLED", "SUPPRESSED")
USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"
OTHER = "0b0e7a3c-9a39-4f0a-8d51-0c9f6a3f1e77"

LIMITS = {f"RATE_LIMIT_{kind}": "off" for kind in ("SEND", "READ", "CHANGE", "PERSON")}
"""None: this is about what gets through."""

RULES = """
- on: soak
  notify: {channel: email, template: welcome_email}
"""

EVENT = {
    "event_type": "soak", "event_id": "", "user_id": USER, "occurred_at": "2026-01-01T00:00:00Z",
    "data": {"first_name": "Asel", "plan": "pro", "items": [{"title": "Film", "price": 5}], "locale": "ru"},
}  # fmt: skip
NOTIFICATION = {
    "job_id": "bd0b0a5c-61b4-4a44-a6ae-1d3c0e1f2b3c", "user_id": OTHER, "channel": "email", "template_code": "welcome_email",
    "locale": "ru", "data": {"first_name": "Asel"}, "created_at": "2026-01-01T00:00:00Z", "send_after": None, "expires_at": None,
    "meta": {"event_type": "x", "event_id": "y", "campaign_id": None, "priority": "normal"},
}  # fmt: skip
DIRECT = {
    "channel": "email",
    "options": {"to": "a@example.com", "subject": "Hi", "text": "there", "html": "<p>x</p>", "data": {}},
}
PERSON = {
    "email": "a@example.com", "phone": "+77010000000", "telegram_id": 5, "locale": "kk", "timezone": "Asia/Almaty",
    "attributes": {"first_name": "Asel", "age": 30, "tags": ["a"]},
}  # fmt: skip
JOB = {
    "data": {"name": "you"}, "name": "hello", "id": "job-1", "delay": "30s", "run_at": None, "priority": 5, "attempts": 3,
    "backoff": {"type": "exponential", "delay": 1, "jitter": 0.1}, "expires_at": "2036-01-01T00:00:00Z", "timeout": "5s",
    "keep_completed": 10, "keep_failed": 10,
}  # fmt: skip
RULE = {
    "on": "other", "when": "event.data.plan == 'pro'",
    "notify": {"channel": "email", "template": "welcome_email", "delay": "1s", "expires_in": "7d", "priority": "normal"},
}  # fmt: skip
CAMPAIGN = {
    "campaign_id": "c-1", "template_code": "welcome_email", "channel": "null", "rate": "100/s", "locale": "ru",
    "audience": {"where": {"attributes.plan": "pro", "attributes.age": {"gte": 18}}}, "data": {"discount": 30},
    "send_after": "2036-01-01T00:00:00Z", "variants": [{"name": "a", "percent": 100, "data": {}}],
}  # fmt: skip
TEMPLATE = {
    "text": "---\nsubject: Hi {{ user.first_name }}\nsample: {a: 1}\n---\n<p>Hello {{ a }}</p>",
    "format": "html",
}
PREFERENCES = {"allowed": {"email": {"news": False}}, "quiet_hours": {"from": "22:00", "until": "08:00"}}
PUSH = {"endpoint": "https://push.example/x", "keys": {"p256dh": "BPc", "auth": "aaaa"}, "device": "x"}

FORM = {"name": "Asel", "email": "a@example.com", "phone": "+77010000000", "tranid": "1:1", "comment": "soon"}
UPDATE = {
    "update_id": 1,
    "message": {
        "message_id": 1, "from": {"id": 5, "first_name": "Asel", "language_code": "ru"}, "text": "/start",
        "chat": {"id": 5, "type": "private"}, "contact": {"phone_number": "+77010000000", "user_id": 5},
    },
}  # fmt: skip
PRESSED = {
    "update_id": 2,
    "callback_query": {"id": "1", "from": {"id": 5}, "data": "day:2026-01-01", "message": {}},
}
LEAD_EVENT = {
    "event_type": "lead.created", "event_id": "", "occurred_at": "2026-01-01T00:00:00Z",
    "data": {"lead_id": "lead-1", "name": "Asel", "email": "a@example.com", "phone": "+77010000000", "tg_id": "5",
             "locale": "ru", "timezone": "Asia/Almaty", "lesson_datetime": "2036-01-01T10:00:00Z", "extra": {"a": "b"}},
}  # fmt: skip
LEAD = {
    "name": "Asel", "email": "a@example.com", "phone": "+77010000000", "tg_id": "5", "locale": "ru", "status": "NEW",
    "timezone": "Asia/Almaty", "lesson_datetime": "2036-01-01T10:00:00Z", "zoom_link": "https://zoom.us/j/1",
    "extra": {"a": "b"},
}  # fmt: skip
PAYMENT = {
    "amount": "100.00", "currency": "RUB", "id": "p-1", "description": "x", "order_id": "5", "user_id": USER,
    "return_url": "https://example.com/", "capture": True, "metadata": {"a": "b"},
}  # fmt: skip
WEBHOOK = {"event": "payment.succeeded", "object": {"id": "2d8b", "status": "succeeded"}}
REPORT = {
    "kind": "checkup", "format": "csv", "notify": {"email": "a@example.com", "channel": "email", "locale": "ru"},
    "params": {"name": "Asel", "date": "2026-01-01", "results": [{"name": "x", "value": 1, "unit": "g", "low": 0, "high": 2}]},
}  # fmt: skip
MARK = {"watermarkId": "wm", "position": "center", "opacity": 0.5, "scale": 0.2, "variants": ["thumb"]}
CHECKS = {"secret": "of-tilda", "x-telegram-bot-api-secret-token": "of-telegram"}
"""What the webhooks want to be shown."""

TARGETS: list[tuple[str, str, Any]] = [
    ("POST", "/api/webhooks/tilda", FORM),
    ("POST", "/api/webhooks/tilda", FORM),
    ("POST", "/api/webhooks/telegram", UPDATE),
    ("POST", "/api/webhooks/telegram", PRESSED),
    ("POST", "/api/v1/events", LEAD_EVENT),
    ("POST", "/api/v1/events", {**LEAD_EVENT, "event_type": "lesson.booked"}),
    ("PATCH", "/api/v1/leads/lead-1", LEAD),
    ("POST", "/api/v1/payments", PAYMENT),
    ("POST", "/api/webhooks/payments/yookassa", WEBHOOK),
    ("POST", "/api/v1/reports", REPORT),
    ("POST", "/api/admin/media/none/watermark", MARK),
    ("POST", "/api/admin/media/sync", {"mediaIds": ["x"], "operation": "upload", "priority": 5}),
    ("POST", "/api/v1/events", EVENT),
    ("POST", "/api/v1/events", EVENT),
    ("POST", "/api/v1/events/batch", [EVENT, EVENT]),
    ("POST", "/api/v1/notifications", NOTIFICATION),
    ("POST", "/api/queues/hello/jobs", JOB),
    ("POST", "/api/queues/notifications/jobs", {"data": DIRECT}),
    ("PUT", f"/api/v1/users/{OTHER}", PERSON),
    ("PUT", f"/api/v1/users/{OTHER}/preferences", PREFERENCES),
    ("POST", f"/api/v1/users/{OTHER}/token", {"expires_in": "5m"}),
    ("POST", f"/api/v1/users/{OTHER}/push", PUSH),
    ("POST", "/api/v1/rules", RULE),
    ("POST", "/api/v1/campaigns", CAMPAIGN),
    ("PUT", "/api/v1/templates/odd/email/ru", TEMPLATE),
    ("POST", "/api/v1/templates/welcome_email/email/ru/preview", {"data": {"user": PERSON, "first_name": "Asel"}}),
    ("POST", "/api/v1/suppressions", {"channel": "email", "address": "gone@example.com", "reason": "asked"}),
    ("POST", "/api/queues/hello/clean", {"state": "completed", "older_than": "7d", "limit": 100}),
    ("POST", "/api/queues/hello/remove", {"ids": ["a", "b"]}),
    ("POST", "/api/v1/keys", {"name": "soak", "scopes": ["send"], "test": True, "expires_in": "1h"}),
]  # fmt: skip
LOOKS = (
    "/api/queues/hello/jobs?q={}", "/api/queues/hello/jobs?page={}", "/api/queues/hello/jobs?state={}", "/api/queues/{}",
    "/api/queues/hello/jobs/{}", "/api/queues/hello/dlq/{}", "/api/v1/notifications?event_id={}", "/api/v1/notifications/{}",
    "/api/v1/notifications?user_id={}", "/api/v1/campaigns/{}", f"/api/v1/users/{OTHER}/history?cursor={{}}",
    f"/api/v1/users/{OTHER}/inbox?cursor={{}}", "/api/v1/users/{}", "/api/v1/templates/{}/email/ru", "/api/v1/audit?who={}",
    "/api/v1/templates/welcome_email/email/{}", "/unsubscribe/{}", "/api/v1/mailbox/{}", "/{}",
    "/api/v1/suppressions?cursor={}", "/api/queues/hello/jobs", "/api/v1/campaigns", "/api/v1/rules", "/api/v1/templates",
    "/api/v1/mailbox", "/api/v1/dlq", "/metrics", "/readyz", "/api/v1/leads?search={}", "/api/v1/leads?cursor={}",
    "/api/v1/leads/{}", "/api/v1/leads", "/api/v1/leads/lead-1", "/api/v1/runs?key={}", "/api/v1/runs/{}", "/api/v1/runs",
    "/api/v1/scenarios/{}", "/api/v1/payments?order_id={}", "/api/v1/payments", "/api/v1/reports?kind={}", "/api/v1/reports",
    "/reports/{}", "/act/{}", "/api/admin/media?userId={}", "/api/admin/media", "/media/{}/thumb", "/api/v1/leads/export.csv",
)  # fmt: skip


@dataclass
class Soak:
    """One run: what was sent, and what came of it."""

    url: str
    seed: int
    answers: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    accepted: set[str] = field(default_factory=set)
    sent: int = 0

    async def warm_up(self, client: httpx2.AsyncClient) -> None:
        """Each good document once: what a server imports and builds at its first request is none of a stranger's doing."""
        rng = random.Random(self.seed)
        for method, path, good in TARGETS:
            await self._send(client, rng, method, path, hostile.as_json(_fresh(good, rng)))
        for path in LOOKS:
            await self._send(client, rng, "GET", path.format("x"), None)

    async def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(self._call(random.Random(self.seed + number), until))

    async def _call(self, rng: random.Random, until: float) -> None:
        async with httpx2.AsyncClient(base_url=self.url, timeout=60) as client:
            while time.monotonic() < until:
                kind = rng.random()
                if kind < 0.2:
                    await self._good_event(client, rng)
                elif kind < 0.35:
                    await self._look(client, rng)
                else:
                    await self._hostile(client, rng)

    async def _good_event(self, client: httpx2.AsyncClient, rng: random.Random) -> None:
        event = {**EVENT, "event_id": str(UUID(int=rng.getrandbits(128)))}
        answer = await self._send(client, rng, "POST", "/api/v1/events", hostile.as_json(event))
        assert answer is None or answer.status_code in (202, 429), answer.text[:300]

    async def _look(self, client: httpx2.AsyncClient, rng: random.Random) -> None:
        odd = hostile.texts(rng, 3_000).encode("utf-8", "replace")[:6_000]
        path = rng.choice(LOOKS).format("".join(f"%{byte:02x}" for byte in odd))
        await self._send(client, rng, "GET", path, None)

    async def _hostile(self, client: httpx2.AsyncClient, rng: random.Random) -> None:
        method, path, good = rng.choice(TARGETS)
        document = hostile.mutated(_fresh(good, rng), rng)
        body = hostile.as_json(document)
        body = hostile.broken(rng, body) if rng.random() < 0.05 else body
        await self._send(client, rng, method, path, body)

    async def _send(
        self, client: httpx2.AsyncClient, rng: random.Random, method: str, path: str, body: bytes | None
    ) -> httpx2.Response | None:
        headers = {} if body is None else {"content-type": "application/json", **CHECKS}
        self.sent += 1
        try:
            answer = await client.request(method, path, content=body, headers=headers)
        except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError):
            self.answers[0] += 1  # closed while a body that is too large was being sent
            return None
        self.answers[answer.status_code] += 1
        if answer.status_code >= 500:
            self.wrong.append(
                f"{answer.status_code} {method} {path[:200]} {(body or b'')[:500]!r} {answer.text[:200]}"
            )
        if path.startswith("/api/v1/events") and answer.status_code == 202:
            answers = answer.json()
            for one in answers if isinstance(answers, list) else [answers]:
                self.accepted.add(one["event_id"])
        return answer


def _fresh(good: Any, rng: random.Random) -> Any:
    """With ids of its own, so that it is not merely a repetition."""
    if isinstance(good, list):
        return [_fresh(one, rng) for one in good]
    names = ("event_id", "job_id", "campaign_id", "id", "tranid")
    return {**good, **{name: str(UUID(int=rng.getrandbits(128))) for name in names if name in good}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    (tmp_path / "rules.yaml").write_text(RULES)
    bot, shop = BotServer(), YooKassaServer()
    bot.start()
    shop.start()
    settings = {
        "TILDA_SECRET": CHECKS["secret"], "TELEGRAM_BOT": "webhook", "TELEGRAM_API_URL": bot.origin,
        "TELEGRAM_BOT_TOKEN": telegram.TOKEN, "TELEGRAM_BOT_NAME": "some_bot", "PUBLIC_URL": "https://example.com",
        "TELEGRAM_WEBHOOK_SECRET": CHECKS["x-telegram-bot-api-secret-token"], "YOOKASSA_URL": shop.url,
        "YOOKASSA_SHOP_ID": yookassa.SHOP, "YOOKASSA_SECRET_KEY": yookassa.SECRET,
    }  # fmt: skip
    process = Process(tmp_path, "up", "--port", "0", **LIMITS, **settings)
    yield process
    if process.process.poll() is None:
        process.end(signal.SIGTERM)
    bot.stop()
    shop.stop()


@pytest.mark.faults
@pytest.mark.timeout(1_800)
async def test_nothing_that_comes_in_stops_it(server: Process, tmp_path: Path) -> None:
    soak = Soak(server.url, seed=random.SystemRandom().randrange(10**6) if FULL else SEED)
    print(f"seed {soak.seed}")
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
        (
            await client.put(f"/api/v1/users/{USER}", json={"email": "asel@example.com", "locale": "ru"})
        ).raise_for_status()
        (await client.get("/openapi.json")).raise_for_status()
        await soak.warm_up(client)
        began = len(server.said)
        await soak.run(SECONDS / 2)  # whatever is loaded once, and kept
        before = _memory(server)
        crowd = _schemathesis(server.url, SECONDS * 0.6, tmp_path)
        await soak.run(SECONDS / 2)
        said = await asyncio.to_thread(crowd.communicate)
        await _all_finished(tmp_path, soak.accepted)
        after = await _settled_memory(server, before)
        services = (await client.get("/readyz")).json()["services"]
    print(f"{soak.sent} requests: {dict(sorted(soak.answers.items()))}; memory {before} → {after} KiB")
    print(said[0][-1_200:])
    assert soak.wrong == []
    assert "Server error" not in said[0], said[0][-4_000:]
    assert re.search(r"Tested: \d+", said[0])
    assert server.process.poll() is None
    assert server.said.count("Listening on") == 1
    assert [one for one in services if one["failures"]] == []
    assert _pauses(server.said[began:]) == []
    assert after <= before * MOST_GROWTH
    assert soak.answers[202] > 10


def _schemathesis(url: str, seconds: float, folder: Path) -> "subprocess.Popen[str]":
    """It knows nothing of what must not be done to a queue that others wait for."""
    left_out = r"(pause|clean|drain|purge|cancel|remove|/dlq|users/\{user_id\}$|notifications/\{job_id\}$)"
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", "not_a_server_error",
        "--phases", "fuzzing", "--continue-on-failure", "--no-color", "--max-time", str(int(seconds)), "--workers", "1",
        "--exclude-path-regex", left_out, "--warnings", "off", *([] if FULL else ["--seed", str(SEED)]),
    ]  # fmt: skip
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


async def _all_finished(home: Path, accepted: set[str]) -> None:
    deadline = time.monotonic() + 120
    while left := await asyncio.to_thread(_unfinished, home, accepted):
        assert time.monotonic() < deadline, left[:5]
        await asyncio.sleep(0.2)


def _unfinished(home: Path, accepted: set[str]) -> list[Any]:
    """Not what has its moment: by somebody's quiet hours, which nonsense may set at any time of day, or by its sender's wish."""
    with sqlite3.connect(home / "var" / "data.db", timeout=60) as db:
        events = dict(db.execute("SELECT event_id, state FROM events").fetchall())
        waiting = db.execute(
            "SELECT event_id, job_id, status, last_error FROM notification_delivery "
            f"WHERE status NOT IN ({','.join('?' * len(FINAL))}) "
            "AND NOT (status = 'QUEUED' AND coalesce(last_error, '') LIKE 'waits until %: quiet hours%') "
            "AND NOT (status = 'QUEUED' AND last_error IS NULL AND due_at > datetime('now'))",
            FINAL,
        ).fetchall()
    missing = [event_id for event_id in accepted if events.get(event_id) != "enqueued"]
    return missing + [row for row in waiting if row[0] in accepted]


async def _settled_memory(server: Process, before: int) -> int:
    """What it uses when it has come to rest, or after half a minute."""
    with suppress(AssertionError):
        await eventually(lambda: _memory(server) <= before * MOST_GROWTH, within=30)
    return _memory(server)


def _memory(server: Process) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


def _pauses(said: str) -> list[str]:
    """What the watchdog said of stretches in which the process itself kept the event loop from going on."""
    lines = re.findall(r".*the event loop stood still for [\d,]+ ms, ([\d,]+) ms of them working.*", said)
    found = re.findall(r".*the event loop stood still for .*", said)
    return [
        line for line, busy in zip(found, lines, strict=True) if int(busy.replace(",", "")) >= LONGEST_BUSY_MS
    ]
