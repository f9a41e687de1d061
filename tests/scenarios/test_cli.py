"""`yamchi scenario` and `yamchi schema` as a user types them."""

import json
from pathlib import Path

import pytest

from tests.processes import DEADLINE, Process

OWN = """
scenario: cart
on: cart.left
key: "{{ event.data.cart }}"
stop_on: order.paid
steps:
  - {job: remind, wait: 2h, send: {channel: email, template: welcome_email}}
  - {job: answer, wait_for: cart.opened, timeout: 1d, on_timeout: stop}
  - {job: thanks, emit: cart.revived}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "cart.yaml").write_text(OWN)
    return tmp_path


def yamchi(home: Path, *arguments: str) -> tuple[int, str]:
    command = Process(home, *arguments)
    return command.process.wait(DEADLINE), command.said


def test_simulating_a_scenario_of_ones_own(home: Path) -> None:
    code, said = yamchi(
        home,
        "scenario",
        "simulate",
        "cart",
        "--start",
        "2027-01-01T10:00",
        "--event",
        "3h cart.opened",
        "--json",
    )
    assert code == 0, said
    told = json.loads(said)
    assert told["status"] == "finished"
    done = [(step["step"], step["at"], step["reason"]) for step in told["steps"] if step["state"] == "done"]
    assert done == [
        ("remind", "2027-01-01T12:00:00Z", None),
        ("answer", "2027-01-01T13:00:00Z", "received cart.opened"),
        ("thanks", "2027-01-01T13:00:00Z", None),
    ]


def test_what_ships_is_simulated_for_a_lead_that_is_made_up(home: Path) -> None:
    code, said = yamchi(home, "scenario", "simulate", "email_chain", "--start", "2027-01-01T10:00", "--json")
    assert code == 0, said
    done = [(step["step"], step["at"]) for step in json.loads(said)["steps"] if step["state"] == "done"]
    assert done == [
        ("email1", "2027-01-01T10:30:00Z"),
        ("email2", "2027-01-02T10:30:00Z"),
        ("callAlert", "2027-01-03T10:30:00Z"),
    ]


def test_mistakes_are_one_sentence(home: Path) -> None:
    (home / "scenarios" / "cart.yaml").write_text(OWN.replace("wait: 2h", "wait: soon"))
    code, said = yamchi(home, "scenario", "lint")
    assert code == 1
    assert "cart.yaml:7: steps.0.wait: 'soon' is not a span of time" in said
    for arguments, sentence in (
        (("simulate", "nothing"), "There is no scenario 'nothing'"),
        (("stop", "email_chain", "--key", "x"), "No run of email_chain is running for 'x'"),
    ):
        code, said = yamchi(home, "scenario", *arguments)
        assert (code, sentence in said, "Traceback" in said) == (1, True, False), said


def test_the_schema_is_json(home: Path) -> None:
    code, said = yamchi(home, "schema", "scenario")
    assert code == 0
    assert json.loads(said)["title"] == "A scenario of Yamchi"
