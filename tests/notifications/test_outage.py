"""The mail server is gone for a while, in the middle of the work: nobody pays an attempt, nobody storms its door, all arrives."""

import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.notifications.fleet import SLOTS, TIMEOUT_SECONDS, Fleet, UnhurriedMailServer
from tests.scale import FULL
from yamchi.notifications.channels.circuits import Circuit
from yamchi.testing import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

LETTERS = 2_000 if FULL else 400
PROBES = 5 if FULL else 3
"""How many failures the outage lasts: waits of 1, 2, 4 and 8 seconds lie between five."""

WORKERS = 2


class SlammedDoor:
    """Listens where the mail server was, and shuts the door in the face of everybody who comes, counting them."""

    def __init__(self, port: int) -> None:
        self.knocks = 0
        self._listener = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._slam, daemon=True)
        self._thread.start()

    def _slam(self) -> None:
        with suppress(OSError):  # closed: the outage is over
            while True:
                visitor, _ = self._listener.accept()
                self.knocks += 1
                visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                visitor.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@contextmanager
def away(mail: UnhurriedMailServer) -> Iterator[None]:
    """The mail server refuses connections."""
    mail.stop()
    yield
    mail.start()


@contextmanager
def slamming(mail: UnhurriedMailServer) -> Iterator[SlammedDoor]:
    """The mail server takes connections and drops them at once."""
    mail.stop()
    door = SlammedDoor(mail.port)
    yield door
    door.close()
    mail.start()


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    mail = UnhurriedMailServer()
    mail.start()
    fleet = Fleet(tmp_path, f"sqlite:///{tmp_path}/jobs.db", mail)
    yield fleet
    await fleet.close()
    mail.stop()


async def begin(fleet: Fleet) -> None:
    """Work is under way in two processes."""
    await fleet.send(LETTERS)
    for _ in range(WORKERS):
        fleet.start_worker()
    await eventually(lambda: len(fleet.mail.letters) >= LETTERS // 4, TIMEOUT_SECONDS)


async def probed(fleet: Fleet) -> Circuit:
    """Wait until the circuit, as a third process sees it, has been found down so often, and whoever was sending has noticed.

    A slow worker that looks for the server only when it is back takes the outage for one broken connection.
    """

    async def state() -> Circuit | None:
        (circuit,) = await fleet.notifications.circuits.all() or [None]
        if not circuit or not circuit.is_open or circuit.failures < PROBES:
            return None
        return None if (await fleet.notifications.queue.stats())["active"] else circuit

    return await eventually(state, TIMEOUT_SECONDS)


async def test_an_outage_costs_nobody_an_attempt(fleet: Fleet) -> None:
    await begin(fleet)
    with away(fleet.mail):
        expiring = await fleet.send(1, expires_at=datetime.now(UTC) + timedelta(seconds=1))
        circuit = await probed(fleet)
        tried = (await fleet.outcomes())["outage"]
        # Letters that were under way when it went may be the last to say so.
        assert re.search(r"can't be reached|broke off", circuit.reason or "")
    await fleet.all_sent(LETTERS)

    received, outcomes = fleet.mail.by_recipient(), await fleet.outcomes()
    print(f"refused: {LETTERS} letters, {PROBES} probes, {tried} tries while it was down, {dict(outcomes)}")
    assert await fleet.statuses() == {"SENT": LETTERS, "EXPIRED": len(expiring)}
    assert await fleet.attempts_paid() == {1: LETTERS, 0: len(expiring)}
    assert len(received) == LETTERS
    assert received.total() - LETTERS <= outcomes["unknown"]
    assert tried <= WORKERS * SLOTS + PROBES
    assert not (await fleet.notifications.circuits.all())[0].is_open


async def test_nobody_storms_a_server_that_is_down(fleet: Fleet) -> None:
    await begin(fleet)
    with slamming(fleet.mail) as door:
        await probed(fleet)
        knocks = door.knocks
    before = fleet.mail.connections
    await fleet.all_sent(LETTERS)
    print(f"slammed: {LETTERS} letters, {knocks} connections during {PROBES} probes")
    assert knocks <= 2 * WORKERS * SLOTS + PROBES
    assert fleet.mail.connections - before <= WORKERS * SLOTS
    assert await fleet.attempts_paid() == {1: LETTERS}
