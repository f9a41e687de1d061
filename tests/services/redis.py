"""Redis with an append-only file: what it acknowledged is there after a kill, but for at most the last second."""

from collections.abc import Sequence

from tests.services.server import Server, ask, program

DATABASES = 64


class Redis(Server):
    """`options` are further arguments of redis-server, such as `--maxmemory 10mb`."""

    name = "redis"

    def __init__(self, *options: str, password: str | None = None) -> None:
        self._binary = program("redis-server")
        self._options = [*options, *(["--requirepass", password] if password else [])]
        self._password = password
        super().__init__()

    @property
    def url(self) -> str:
        login = f":{self._password}@" if self._password else ""
        return f"redis://{login}127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        self.data.mkdir()

    def command(self) -> Sequence[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.data),
            "databases": str(DATABASES),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
        }
        return [
            self._binary,
            *(part for key, value in settings.items() for part in (f"--{key}", value)),
            *self._options,
        ]

    def answers(self) -> bool:
        # A Redis that still reads its file says -LOADING, one with a password -NOAUTH: it is up.
        return ask(self.port, b"PING\r\n").startswith((b"+PONG", b"-NOAUTH"))
