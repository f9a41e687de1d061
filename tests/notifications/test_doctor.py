"""What `yamchi doctor` finds about mail and queues: does the server let us in, does it take our sender, are the queues there."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from tests.services.databases import Database
from tests.services.mail import MailServer
from yamchi.cli import cli

LOGIN = ("noreply@balansity.ru", "secret-of-the-mailbox")


@pytest.fixture
def server() -> Iterator[MailServer]:
    with MailServer(login=LOGIN) as server:
        yield server


@pytest.fixture
def doctor(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, dict[str, Any]]]:
    """What it says, by what it says it of."""
    monkeypatch.chdir(own_home)

    def ask(*options: str, **variables: str) -> dict[str, dict[str, Any]]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        said = CliRunner().invoke(cli, ["doctor", "--port", "0", "--json", *options]).stdout
        return {check["what"]: check for check in json.loads(said)}

    return ask


def settings_of(server: MailServer, **changes: str) -> dict[str, str]:
    user, password = LOGIN
    return {
        "SMTP_HOST": server.host,
        "SMTP_PORT": str(server.port),
        "SMTP_SECURITY": "none",
        "SMTP_USER": user,
        "SMTP_PASSWORD": password,
        "SMTP_FROM": f"Balansity <{user}>",
        **changes,
    }


def test_a_mail_server_that_takes_our_letters(server: MailServer, doctor: Any) -> None:
    check = doctor(**settings_of(server))["provider email"]
    assert check["ok"], check
    assert check["found"] == f"127.0.0.1:{server.port} knows {LOGIN[0]} and takes letters from {LOGIN[0]}"
    assert server.letters == [], "no letter is sent by looking"


def test_a_wrong_password(server: MailServer, doctor: Any) -> None:
    check = doctor(**settings_of(server, SMTP_PASSWORD="another-secret"))["provider email"]
    assert check["ok"] is False
    assert "refused SMTP_USER and SMTP_PASSWORD: 535" in check["found"]
    assert "another-secret" not in check["found"]


def test_a_sender_whose_mailbox_is_not_there(server: MailServer, doctor: Any) -> None:
    server.refusals[LOGIN[0]] = "550 5.1.8 Sender address rejected: no such mailbox"
    check = doctor(**settings_of(server))["provider email"]
    assert check["ok"] is False
    assert f"takes no letters from {LOGIN[0]} (550 5.1.8 Sender address rejected" in check["found"]
    assert "does that mailbox exist" in check["found"]


def test_a_mail_server_that_is_away(server: MailServer, doctor: Any) -> None:
    server.stop()
    check = doctor(**settings_of(server))["provider email"]
    assert (check["ok"], "can't be reached" in check["found"]) == (False, True)


@pytest.mark.services
def test_queues_are_made_on_request(postgres_database: Callable[[], Database], doctor: Any) -> None:
    url = postgres_database().url
    assert all(check["ok"] is not False for check in doctor("--make-queues", DATABASE_URL=url).values())
    with psycopg.connect(url) as connection:
        there = {row[0] for row in connection.execute("SELECT queue_name FROM pgmq.list_queues()")}
        views = connection.execute("SELECT msg_id, enqueued_at, msg FROM pgmq.email_queue").fetchall()
    assert {"email_queue", "notifications", "report_queue", "payment_queue"} <= there
    assert views == []
