"""A setting that is written wrongly is told; what belongs to other programs is not."""

import json
import os
from pathlib import Path

import pytest
from tests.processes import Process
from typer.testing import CliRunner

from yamchi.cli import cli
from yamchi.envfile import all_settings
from yamchi.misspelled import misspelled

OTHERS = """
API_KEY=x
AWS_SECRET_ACCESS_KEY=x
DB_HOST=x
NEXT_PUBLIC_URL=x
POST=x
REDIS_USER=x
SMTP_SENDER=x
STRIPE_PUBLIC_KEY=x
VITE_API_URL=x
"""
OURS = "smtp_port=25\nQUEUE_URL_MAIL=memory://\nCONCURRENCY_MAIL=2\nQUEUE_URL=memory://\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in os.environ:
        monkeypatch.delenv(name)
    return tmp_path


def found(home: Path, text: str) -> dict[str, str]:
    (home / ".env").write_text(text)
    return {one.name: one.meant for one in misspelled(home, all_settings())}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("SMTP_HSOT", "SMTP_HOST"),
        ("QUEUE_ULR", "QUEUE_URL"),
        ("POTR", "PORT"),
        ("smtp_hsot", "SMTP_HOST"),
        ("TELEGRAM_BOT_TOKN", "TELEGRAM_BOT_TOKEN"),
        ("SMTP_PASSWORT", "SMTP_PASSWORD"),
        ("DATABASE_URLS", "DATABASE_URL"),
        ("QUEUE_ULR_MAIL", "QUEUE_URL_MAIL"),
        ("CONCURENCY_MEDIA_SYNC", "CONCURRENCY_MEDIA_SYNC"),
    ],
)
def test_a_slip_is_found_in_both_places(
    home: Path, monkeypatch: pytest.MonkeyPatch, written: str, meant: str
) -> None:
    assert found(home, OURS.replace(meant, "X") + OTHERS + f"{written}=x") == {written.upper(): meant}
    (home / ".env").unlink()
    monkeypatch.setenv(written, "x")
    (one,) = misspelled(home, all_settings())
    assert str(one) == f"{written.upper()} in the environment is no setting: {meant} is probably meant"


def test_what_others_have_is_left_alone(home: Path) -> None:
    assert found(home, OURS + OTHERS) == {}


def test_beside_the_right_name_another_is_no_slip(home: Path) -> None:
    assert found(home, "REDIS_URL=redis://a\nREDIS_URI=redis://a") == {}
    assert found(home, "REDIS_URI=redis://a") == {"REDIS_URI": "REDIS_URL"}


def test_no_setting_is_nearly_another(home: Path) -> None:
    names = [line[2:] for line in Path(".env.example").read_text().splitlines() if line.startswith("# ")]
    names = [name for name in names if "=" in name and name.partition("=")[0].isupper()]
    for name in names:
        assert found(home, name.replace("<QUEUE>", "MAIL")) == {}


def test_the_doctor_and_up_say_it(own_home: Path) -> None:
    (own_home / ".env").write_text("SMTP_HSOT=mail.example.com\nPOTR=80\n")
    said = CliRunner().invoke(cli, ["doctor", "--port", "0", "--json"]).output
    checks = [check for check in json.loads(said) if check["what"] == "setting"]
    place = own_home / ".env"
    potr = f"POTR in {place} is no setting: PORT is probably meant"
    smtp = f"SMTP_HSOT in {place} is no setting: SMTP_HOST is probably meant"
    assert [(check["ok"], check["found"].partition(";")[0]) for check in checks] == [
        (None, potr),
        (None, smtp),
    ]
    for arguments in (["up", "--port", "0"], ["worker"]):
        process = Process(own_home, *arguments)
        process.wait_to_say("Listening on" if "up" in arguments else "Starting queue")
        assert f"[WARN] {potr}; {smtp}\n" in process.said
        process.process.terminate()
        process.process.wait()
