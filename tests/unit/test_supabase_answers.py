"""What answers in Supabase's place, such as a page of a proxy with status 200, is taken for an outage; maintenance goes on."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest
from tests.services.webserver import Response, WebService

from yamchi.clock import SystemClock
from yamchi.errors import EngineUnavailable
from yamchi.queues.engines import supabase
from yamchi.queues.engines.sqlite.settling import write_letter
from yamchi.queues.engines.supabase import SupabaseEngine
from yamchi.queues.engines.supabase.rest import Rest
from yamchi.queues.records import DeadLetter, NewJob
from yamchi.testing import eventually

PAGE = b"<html><style>a {color: red}</style>We are back soon.</html>"


@dataclass
class InItsPlace(WebService):
    """Says the same to everybody, until it is told to answer as Supabase does."""

    said: bytes = PAGE
    sent: int = 0

    def respond(self, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        self.sent += path.endswith("send_batch")
        return Response(200, self.said)


@pytest.fixture
def service() -> Iterator[InItsPlace]:
    with InItsPlace() as service:
        yield service


@pytest.mark.parametrize("said", [PAGE, b'{"error": "no"}', b'"text"', b'["a"]', b"[[]]", b"[1", b"[1]"])
async def test_what_is_no_answer_of_a_queue_is_an_outage(service: InItsPlace, said: bytes) -> None:
    service.said = said
    rest = Rest(service.origin, "key")
    with pytest.raises(EngineUnavailable):
        await rest.send("q", [b"1", b"2"])
    if said != b"[1":  # a list that is cut short has no message in it
        for call in (rest.read("q", 1, 1), rest.pop("q"), rest.ping()):
            with pytest.raises(EngineUnavailable, match="does not answer as Supabase does"):
                await call
    await rest.close()


async def test_maintenance_outlives_whatever_it_meets(
    service: InItsPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supabase, "MAINTENANCE_SECONDS", 0.02)
    monkeypatch.setattr(supabase, "SEND_ON_AFTER", 0)
    monkeypatch.setattr(supabase, "SEND_AGAIN_AFTER", 0)
    engine = SupabaseEngine(service.origin, "key", tmp_path / "supabase.db", SystemClock())
    failed: list[str] = []

    async def fail(queue: str, jobs: object) -> None:
        failed.append(queue)
        raise ValueError("a defect of ours")

    await engine.open()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_send", fail)
        await engine.add("q", [NewJob("j", "work", b"1", run_at=SystemClock().now() + 50)])
        await eventually(lambda: failed)
    await eventually(lambda: service.sent)
    service.said = b"[1]"
    await eventually(lambda: _is_sent(engine))
    await engine.close()


async def _is_sent(engine: SupabaseEngine) -> bool:
    known = await engine._file.read(lambda db: db.execute("SELECT id FROM messages").fetchall())
    return ("j",) in known


@dataclass
class Lacking(WebService):
    """Has every queue but those whose names begin with "a"; knows to which its messages were sent."""

    has_all: bool = True
    sent: list[str] = field(default_factory=list)

    def respond(self, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        asked = orjson.loads(body)
        if asked["queue_name"].startswith("a") and not self.has_all:
            return Response(404, b'{"code": "42P01", "message": "relation does not exist"}')
        if not path.endswith("send_batch"):
            return Response(200, b"true")
        self.sent.append(asked["queue_name"])
        return Response(200, b"[%d]" % len(self.sent))


async def test_a_queue_that_was_dropped_there_keeps_nothing_of_others_from_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what is to be deleted from it, nor what is to be sent to it, nor its dead letters."""
    for setting, value in {"MAINTENANCE_SECONDS": 0.02, "SEND_ON_AFTER": 0, "SEND_AGAIN_AFTER": 0}.items():
        monkeypatch.setattr(supabase, setting, value)
    service = Lacking()
    service.start()
    engine = SupabaseEngine(service.origin, "key", tmp_path / "supabase.db", SystemClock())
    try:
        await engine.open()
        await engine.add("a", [NewJob("done", "work", b"1")])
        service.has_all = False
        assert await engine.cancel("a", ["done"]) == {"done": "cancelled"}
        soon = SystemClock().now() + 50
        for queue in ("a", "b"):
            await engine.add(queue, [NewJob("later", "work", b"2", run_at=soon)])
            letter = DeadLetter("x", queue, "work", b"{}", "no", 1)
            await engine._file.write(lambda db, letter=letter: write_letter(db, letter))  # type: ignore[misc]
        await eventually(lambda: {"b", "b_dlq"} <= set(service.sent))
        service.has_all = True
        await eventually(lambda: service.sent.count("a") > 1 and "a_dlq" in service.sent)
    finally:
        await engine.close()
        service.stop()
