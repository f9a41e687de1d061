"""SIGKILL at each named point of a report's way: afterwards there is one file and one letter with it."""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.processes import DEADLINE, Process
from tests.reports.test_reports import RESULTS
from yamchi.testing import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]

REPORTS = Path(__file__).parents[2] / "src/yamchi/reports"
POINTS = ("report.written", "report.ready")

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def start(**environment: str) -> Process:
        started.append(Process(tmp_path, "up", "--port", "0", LEASE="1s", **environment))
        return started[-1]

    yield start
    for process in started:
        process.process.kill()
        process.process.wait()


async def call(process: Process, method: str, path: str, body: Any = None) -> Any:
    url = await asyncio.to_thread(lambda: process.url)
    async with httpx2.AsyncClient(base_url=f"{url}/api", timeout=DEADLINE) as client:
        answer = await client.request(method, path, json=body)
    assert answer.is_success, answer.text
    return answer.json()


def test_every_point_is_tried() -> None:
    sources = "".join(path.read_text() for path in REPORTS.rglob("*.py"))
    assert set(re.findall(r'fault_point\("([a-z.]+)"\)', sources)) == set(POINTS)


@pytest.mark.parametrize("point", POINTS)
async def test_one_file_and_one_letter(start: Start, tmp_path: Path, point: str) -> None:
    process = start(YAMCHI_FAULT=point)
    wish = {"kind": "checkup", "params": RESULTS, "notify": {"email": "boss@example.com"}}
    asked = await call(process, "POST", "/v1/reports", wish)
    await eventually(lambda: process.process.poll() == -9, DEADLINE)
    process = start()

    async def letters() -> list[Any]:
        return list(await call(process, "GET", "/v1/mailbox"))

    await eventually(letters, DEADLINE)

    async def is_done() -> bool:
        job = (await call(process, "GET", f"/queues/report_queue/jobs/{asked['jobId']}"))["state"]
        return bool(job == "completed")

    await eventually(is_done, DEADLINE)
    (letter,) = await letters()
    shown = await call(process, "GET", f"/v1/mailbox/{letter['message_id']}")
    assert shown["attachments"] == ["Результаты чекапа.pdf"]
    report = await call(process, "GET", f"/v1/reports/{asked['id']}")
    assert report["status"] == "ready"
    assert [file.name for file in (tmp_path / "var/reports").iterdir()] == [f"{asked['id']}.pdf"]
