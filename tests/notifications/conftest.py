"""What notification tests ask for: a mail server, and the message of the seed."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.services.mail import MailServer

USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        yield server


@pytest.fixture
def welcome() -> dict[str, Any]:
    """The welcome e-mail, as another system writes it."""
    return {
        "job_id": "f4d7c0c3-7bd2-4d5b-9891-93f6ac0242ef",
        "user_id": USER,
        "channel": "email",
        "template_code": "welcome_email",
        "locale": "ru",
        "data": {"registration_channel": "web", "user_agent": "Mozilla/5.0"},
        "meta": {
            "event_type": "user_registered",
            "event_id": "6a9f7f26-4c0c-4a91-9f3d-b159c2dcb001",
            "campaign_id": None,
            "priority": "normal",
        },
        "created_at": "2025-11-14T12:35:10Z",
        "send_after": None,
        "expires_at": None,
    }
