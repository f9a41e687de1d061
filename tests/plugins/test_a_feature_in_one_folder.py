"""A feature of somebody else's works in `yamchi up --app` like one that ships: nothing under `src/` names it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.processes import Process

HERE = Path(__file__).parent
APP = str(HERE / "app.py")
USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"
ADMIN = {"authorization": "Bearer the-admin-token-of-tests"}
SENDER = {"authorization": "Bearer a-sender-of-tests"}


@pytest.fixture
def server(own_home: Path) -> Iterator[Process]:
    tokens = {"ADMIN_TOKEN": "the-admin-token-of-tests", "API_TOKENS": "a-sender-of-tests"}
    process = Process(own_home, "up", "--port", "0", "--app", APP, PARCELS_GRAMS="750", **tokens)
    yield process
    process.process.kill()
    process.process.wait()


def test_everything_it_brings_works_in_up(server: Process, own_home: Path) -> None:
    api = f"{server.url}/api/v1"
    brought = httpx2.post(f"{api}/parcels", json={"parcel_id": "p1", "user_id": USER}, headers=SENDER)
    assert (brought.status_code, brought.json()) == (202, {"job_id": "p1"})
    assert httpx2.get(f"{api}/parcels", headers=SENDER).status_code == 403
    assert httpx2.get(f"{api}/parcels").status_code == 401

    def weighed() -> bool:
        return httpx2.get(f"{api}/parcels", headers=ADMIN).json()[0]["grams"] == 750

    server.wait_for(weighed, "the handler weighing the parcel as the setting says")
    metrics = f"{server.url}/metrics"
    server.wait_for(lambda: "parcels_counted 1.0" in httpx2.get(metrics, headers=ADMIN).text, "the cron job")
    checks = httpx2.get(f"{server.url}/readyz", headers=ADMIN).json()["checks"]
    assert {"what": "parcels", "ok": True, "found": "1 in the store"} in checks
    assert "parcels" in {
        queue["name"] for queue in httpx2.get(f"{server.url}/api/queues", headers=ADMIN).json()
    }

    assert yamchi(own_home, "parcel", "--app", APP) == [{"parcel_id": "p1", "user_id": USER, "grams": 750}]
    doctor = yamchi(own_home, "doctor", "--app", APP, "--json", "--port", "0")
    assert {"what": "parcels", "ok": True, "found": "1 in the store"} in doctor
    (mine,) = [one for one in yamchi(own_home, "plugins", "--app", APP, "--json") if one["name"] == "parcels"]
    assert mine["queues"] == ["parcels"]
    assert mine["commands"] == ["parcel"]
    assert mine["settings"] == ["PARCELS_GRAMS"]

    erased = httpx2.delete(f"{api}/users/{USER}", headers=ADMIN)
    assert (erased.status_code, erased.json()["parcels"]) == (200, 1)
    assert httpx2.get(f"{api}/parcels", headers=ADMIN).json() == []


def test_what_ships_serves_in_an_application_of_ones_own(server: Process) -> None:
    """An event that comes in over HTTP leads to a letter, though the application says nothing of notifications."""
    api = f"{server.url}/api/v1"
    person = {"email": "nurzhan@example.com", "locale": "en"}
    assert httpx2.put(f"{api}/users/{USER}", json=person, headers=ADMIN).status_code == 200
    event = {"event_type": "user_registered", "event_id": "e1", "user_id": USER, "data": {}}
    (job,) = httpx2.post(f"{api}/events", json=event, headers=SENDER).json()["jobs"]

    def is_sent() -> bool:
        delivery = httpx2.get(f"{api}/notifications/{job['job_id']}", headers=ADMIN).json()
        return delivery["status"] == "SENT"

    server.wait_for(is_sent, "the welcome letter being sent")


def yamchi(home: Path, *arguments: str):
    command = [sys.executable, "-m", "yamchi", *arguments]
    run = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout)
