"""PostgreSQL behind pgbouncer: by the session it works, by the transaction it is refused."""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from tests.services.missing import required
from tests.services.server import Server, program

from yamchi.clock import SystemClock
from yamchi.errors import ConfigurationError
from yamchi.queues.records import NewJob
from yamchi.testing.conformance.base import claim_all, complete

pytest.importorskip("psycopg")
from tests.services.postgres import POSTGRES_BIN

from yamchi.queues.engines.pgmq import PgmqEngine


class Pgbouncer(Server):
    """A pooler before one database."""

    name = "pgbouncer"
    user = "postgres"

    def __init__(self, database: str, mode: str) -> None:
        self._binary = required("pgbouncer")
        super().__init__()
        self._database, self._mode = urlsplit(database), mode

    @property
    def url(self) -> str:
        return self._database._replace(netloc=f"somebody@127.0.0.1:{self.port}").geturl()

    def prepare(self) -> None:
        there = self._database
        login = f"user={there.username} password={there.password}"
        self.data.mkdir()
        (self.data / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={there.hostname} port={there.port} {login}\n"
            f"[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={self.port}\nunix_socket_dir=\n"
            f"auth_type=any\npool_mode={self._mode}\n"
        )
        for path in (self.folder, self.data):
            shutil.chown(path, self.user)

    def command(self) -> Sequence[str]:
        return [self._binary, str(self.data / "pgbouncer.ini")]

    def answers(self) -> bool:
        ping = [program("pg_isready", *POSTGRES_BIN), "--quiet", "--host=127.0.0.1", f"--port={self.port}"]
        return subprocess.run(ping, check=False).returncode == 0


@pytest.fixture
def pooled(postgres_url: str) -> Iterator[Callable[[str], str]]:
    """The URL of a database by way of a pooler in the mode that is asked for."""
    with ExitStack() as started:

        def start(mode: str) -> str:
            pooler = Pgbouncer(postgres_url, mode)
            started.callback(pooler.discard)
            pooler.start()
            return pooler.url

        yield start


async def test_a_pooler_in_session_mode_is_as_good_as_postgresql(pooled: Callable[[str], str]) -> None:
    engine = PgmqEngine(pooled("session"), SystemClock())
    await engine.open()
    await engine.add("mail", [NewJob("a", "send", b"1")])
    assert await complete(engine, "mail", await claim_all(engine, "mail", 1)) == ["a"]
    await engine.close()


@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_a_pooler_that_shares_sessions_is_refused(pooled: Callable[[str], str], mode: str) -> None:
    engine = PgmqEngine(pooled(mode), SystemClock())
    with pytest.raises(ConfigurationError, match="or to a pooler in session mode"):
        await engine.open()
    await engine.close()
