"""The same letter for everybody: what each contender is given to send, from the same Jinja template."""

import os
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

NAMESPACE = UUID("5d5b8d0e-6f43-4f0a-9a2e-0c2f7a5f7b11")
SENDER = "noreply@example.com"
SMTP_HOST = "127.0.0.1"
SMTP_PORT = int(os.environ.get("BENCH_SMTP_PORT", "2525"))

SUBJECT = "Welcome, {{ first_name }}"
HTML = """<html><body style="font-family: sans-serif; margin: 0; padding: 24px">
<h1 style="font-size: 24px; color: #222222">Hello, {{ first_name }}!</h1>
<p style="font-size: 16px; color: #444444">Thank you for joining. Your account is ready.</p>
<p><a href="https://example.com/start" style="color: #0066cc">Begin here</a></p>
</body></html>
"""
TEMPLATE = f"---\nsubject: {SUBJECT!r}\nlayout: false\n---\n{HTML}"


def user_of(number: int) -> UUID:
    return uuid5(NAMESPACE, f"user-{number}")


def address_of(number: int) -> str:
    return f"user-{number}@example.com"


def name_of(number: int) -> str:
    return f"Person {number}"


def job_of(number: int) -> dict[str, Any]:
    """As a NotificationJob."""
    return {
        "job_id": uuid5(NAMESPACE, f"letter-{number}"),
        "user_id": user_of(number),
        "channel": "email",
        "template_code": "bench",
        "locale": "en",
        "data": {"first_name": name_of(number)},
        "meta": {"event_type": "bench", "event_id": f"event-{number}"},
        "created_at": datetime.now(UTC),
    }
