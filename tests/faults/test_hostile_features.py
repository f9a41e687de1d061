"""What strangers and senders can hand to every feature of a running server, on each kind of database.

No answer is a server error, no background service fails, and every list can be shown afterwards.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults import hostile
from tests.processes import Process
from yamchi.leads.model import LARGEST_EXTRA

USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TILDA, TELEGRAM = {"secret": "the-secret-of-tilda"}, {"x-telegram-bot-api-secret-token": "of-telegram"}
SETTINGS = {
    "TILDA_SECRET": "the-secret-of-tilda",
    "TELEGRAM_BOT": "webhook",
    "TELEGRAM_WEBHOOK_SECRET": "of-telegram",
    "TELEGRAM_BOT_TOKEN": "123456:" + "A" * 35,
    "TELEGRAM_BOT_NAME": "some_bot",
    "TELEGRAM_API_URL": "http://127.0.0.1:9",
    "PUBLIC_URL": "https://example.com",
    "YOOKASSA_SHOP_ID": "1",
    "YOOKASSA_SECRET_KEY": "secret",
    "YOOKASSA_URL": "http://127.0.0.1:9",
    "QUEUE_URL": "sqlite:///var/yamchi.db",
}
LISTS = ("/api/v1/leads?limit=500", "/api/v1/payments", "/api/v1/reports", "/api/v1/runs", "/api/admin/media")
ADDRESSES = (
    "/api/v1/leads?status={}", "/api/v1/leads?search={}", "/api/v1/leads/{}", "/api/v1/leads/{}/log",
    "/api/v1/leads/export.csv?status={}", "/api/v1/payments?status={}", "/api/v1/payments?order_id={}", "/api/v1/payments/{}",
    "/api/v1/payments?before={}", "/api/v1/reports?kind={}", "/api/v1/reports/{}", "/api/v1/reports/{}/file", "/reports/{}",
    "/api/admin/media?userId={}", "/api/admin/media?entityType={}", "/api/admin/media/{}", "/media/{}/x", "/media/x/{}",
    "/api/v1/runs?key={}", "/api/v1/runs?scenario={}", "/api/v1/runs/{}", "/api/v1/runs/{}/picture.svg", "/api/v1/scenarios/{}",
    "/api/v1/scenarios/{}/runs?key=x", "/act/{}", "/unsubscribe/{}", "/api/v1/audit?who={}", "/api/v1/mailbox/{}",
    "/api/v1/users/{}", "/api/v1/notifications?event_id={}", "/api/v1/campaigns/{}", "/api/queues/hello/jobs/{}",
)  # fmt: skip
CURSORS = (
    "/api/v1/leads?cursor={}",
    f"/api/v1/users/{USER}/inbox?cursor={{}}",
    "/api/v1/suppressions?cursor={}",
)
ODD = (
    "%00",
    "a%00b",
    "%ed%a0%80",
    "%ff",
    "a" * 3_000,
    "0001-01-01T00:00:00%2B14:00",
    "..%2f..%2fetc%2fpasswd",
)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Process]:
    settings = dict(SETTINGS)
    if request.param == "postgresql":
        settings["DATABASE_URL"] = str(request.getfixturevalue("postgres_database")().url)
    process = Process(tmp_path, "up", "--port", "0", **settings)
    yield process
    process.process.kill()
    process.process.wait()


class Attack:
    """Sends, and notes what must not be answered."""

    def __init__(self, url: str) -> None:
        self.client = httpx2.Client(base_url=url, timeout=60)
        self.wrong: list[str] = []

    def send(self, method: str, path: str, **request: Any) -> httpx2.Response:
        answer = self.client.request(method, path, **request)
        if answer.status_code >= 500:
            self.wrong.append(
                f"{answer.status_code} {method} {path[:100]} {str(request)[:200]}: {answer.text[:200]}"
            )
        return answer

    def event(self, kind: str, **data: Any) -> int:
        number = len(self.wrong) + id(data)
        body = {"event_type": kind, "event_id": f"{kind}-{number}", "data": data}
        return self.send("POST", "/api/v1/events", json=body).status_code

    def upload(self, **fields: str) -> int:
        files = {"file": ("x.png", PNG, "image/png")}
        return self.send("POST", "/api/admin/media/upload-async", data=fields, files=files).status_code


def test_no_feature_answers_an_error_of_ours(server: Process) -> None:
    attack = Attack(server.url)
    look_everywhere(attack)
    attack_media(attack)
    attack_leads(attack)
    attack_the_bot(attack)
    attack_payments(attack)
    attack_reports(attack)
    for path in LISTS:
        assert attack.send("GET", path).status_code == 200
    assert attack.wrong == []
    failing = [one for one in attack.client.get("/readyz").json()["services"] if one["failures"]]
    assert [one for one in failing if one["name"] != "telegram webhook"] == []  # which is not there


def look_everywhere(attack: Attack) -> None:
    for path in ADDRESSES:
        for odd in ODD:
            attack.send("GET", path.format(odd))
    with_nul = base64.urlsafe_b64encode(b"5\na\0").decode()
    for path in CURSORS:
        assert attack.send("GET", path.format(with_nul)).status_code == 422


def attack_media(attack: Attack) -> None:
    before = attack.client.get("/api/admin/media").json()["total"]
    assert attack.upload(userId="u" * 65) == 422
    assert attack.upload(userId="a\0b") == 422
    assert attack.upload(metadata='{"a":' * 120 + "1" + "}" * 120) == 422
    assert attack.upload(metadata='{"a":' * 300 + "1" + "}" * 300) == 422
    assert attack.upload(metadata='{"a":"\\u0000"}') == 422
    assert attack.upload(entityType="e" * 5_000) in (404, 422)
    assert attack.upload(entityType="../x") in (404, 422)
    length = {"tus-resumable": "1.0.0", "upload-length": str(len(PNG))}
    for owner in ("u" * 4_000, "a\0b"):
        about = f"userId {base64.b64encode(owner.encode()).decode()}"
        begun = attack.send("POST", "/api/admin/media/tus", headers={**length, "upload-metadata": about})
        part = {"upload-offset": "0", "content-type": "application/offset+octet-stream"}
        answer = attack.send("PATCH", begun.headers["location"], content=PNG, headers=part)
        assert answer.status_code == 422
    assert attack.client.get("/api/admin/media").json()["total"] == before  # nothing of it was kept
    for kind in (
        "multipart/form-data",
        "multipart/form-data; boundary=",
        f"multipart/form-data; boundary={'a' * 5_000}",
    ):
        headers = {"content-type": kind}
        attack.send("POST", "/api/admin/media/upload-async", content=b"--a\r\n" * 100, headers=headers)


def attack_leads(attack: Attack) -> None:
    good = {"name": "Асель", "email": "a@example.com", "phone": "+77010000000"}
    made = attack.send("POST", "/api/webhooks/tilda", data=good, headers=TILDA)
    assert made.text == "ok"
    for number, bait in enumerate(hostile.BAITS):
        form = {**good, "tranid": f"bait-{number}", list(good)[number % len(good)]: bait(20_000)}
        attack.send("POST", "/api/webhooks/tilda", json=form, headers=TILDA)
    for number, odd in enumerate((5, [], {}, {"a": [1]}, None, 1e300, True, 2**63)):
        for name in (*good, "tranid", "secret", "test", "locale", "timezone"):
            form = {**good, "tranid": f"odd-{name}-{number}", name: odd}
            attack.send("POST", "/api/webhooks/tilda", json=form, headers=TILDA)
    long = {f"k{number}": "x" * 2_000 for number in range(90)}
    assert attack.send("POST", "/api/webhooks/tilda", json={**long, **good}, headers=TILDA).text == "ok"
    lead = attack.client.get("/api/v1/leads?limit=1").json()["items"][0]
    assert 0 < len(json.dumps(lead["extra"])) < LARGEST_EXTRA * 1.1  # the lead is kept, and as much as fits
    whose = {"lead_id": lead["id"]}
    big = {"k": "x" * LARGEST_EXTRA}
    assert attack.event("lead.created", lead_id="other", email="a@example.com", extra=big) == 422
    assert attack.event("bot.activated", **whose, by="x" * 3_000) == 422
    assert attack.event("lesson.booked", **whose, lesson_datetime="0001-01-01T00:00:00+14:00") == 422
    changes = [
        {"extra": big},
        {"tg_id": "٣٣"},
        {"lesson_datetime": "9999-12-31T23:59:59-14:00"},
        {"timezone": "Asia"},
    ]
    for change in changes:
        assert attack.send("PATCH", f"/api/v1/leads/{lead['id']}", json=change).status_code == 422


def attack_the_bot(attack: Attack) -> None:
    message = {"from": {"id": 5, "first_name": "A"}, "chat": {"id": 5, "type": "private"}, "text": "/start"}
    for number, odd in enumerate((5, [], {}, None, 1e300, 2**63, "x" * 20_000, "/start " + "a" * 5_000)):
        for name in (*message, "contact"):
            update = {"update_id": 1_000 + number * 10 + len(name), "message": {**message, name: odd}}
            attack.send("POST", "/api/webhooks/telegram", json=update, headers=TELEGRAM)
        update = {
            "update_id": 2_000 + number,
            "callback_query": {"id": odd, "from": {"id": 5}, "data": f"slot:{odd}"},
        }
        attack.send("POST", "/api/webhooks/telegram", json=update, headers=TELEGRAM)
        attack.send("POST", "/api/webhooks/telegram", json={"update_id": odd}, headers=TELEGRAM)


def attack_payments(attack: Attack) -> None:
    for body in (
        {"amount": "9999999999999"}, {"amount": "٣.00"}, {"amount": "1", "currency": "zzz"}, {"amount": "1e5"}, {"amount": 1},
        {"amount": "1", "return_url": f"http://a/{'x' * 100_000}"}, {"amount": "1", "metadata": {"a" * 33: "b"}},
        {"amount": "1", "id": "a/b"}, {"amount": "1", "currency": "ſſſ"}, {"amount": "1.0001"},
    ):  # fmt: skip
        assert attack.send("POST", "/api/v1/payments", json=body).status_code == 422
    hook = "/api/webhooks/payments/yookassa"
    for odd in ("", "a\0b", "a b:c\n", "../x", "x" * 65, "\ud83d\ude00", 5.5e300, {}):
        body = hostile.as_json({"event": "payment.succeeded", "object": {"id": odd}})
        for kind in ("application/json", "text/plain"):  # which nobody but the route reads
            answer = attack.send("POST", hook, content=body, headers={"content-type": kind})
            assert answer.status_code in (400, 422)
    deep = b'{"event": ' + b"[" * 1_000 + b"]" * 1_000 + b', "object": {"id": "x"}}'
    for kind in ("application/json", "text/plain"):
        answer = attack.send("POST", hook, content=deep, headers={"content-type": kind})
        assert answer.status_code in (400, 422)


def attack_reports(attack: Attack) -> None:
    results = [{"name": "x" * 200, "value": 1}] * 400
    asked = {"kind": "checkup", "params": {"name": "A", "results": results}}
    made = attack.send("POST", "/api/v1/reports", json=asked)
    assert made.status_code == 202
    listed = attack.client.get("/api/v1/reports").json()["items"]
    assert [one["params"] for one in listed if one["id"] == made.json()["id"]] == [None]
    whole = attack.client.get(f"/api/v1/reports/{made.json()['id']}").json()
    assert len(whole["params"]["results"]) == 400
    for params in (
        {"since": "0001-01-01"},
        {"since": "x" * 50_000},
        {"until": 5e300},
        {"locale": 5},
        {"a": {"b": [1] * 9_000}},
    ):
        attack.send("POST", "/api/v1/reports", json={"kind": "deliveries", "params": params})
    attack.send(
        "POST", "/api/v1/reports", json={"kind": "checkup", "params": {}, "notify": {"email": "a@" * 200}}
    )
