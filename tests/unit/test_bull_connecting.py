"""Reaching Redis: by password, TLS, sentinel and cluster; and one clear sentence where it can't be."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.services.missing import required
from tests.services.redis import Redis
from tests.services.server import Server, ask, free_port, program

from yamchi import Yamchi
from yamchi.clock import SystemClock
from yamchi.errors import ConfigurationError, EngineUnavailable, StorageFull, YamchiError
from yamchi.queues.engines import EngineContext, make_engine
from yamchi.queues.engines.base import Engine
from yamchi.queues.engines.bull import BullEngine
from yamchi.queues.engines.bull.address import read_address
from yamchi.queues.records import Completed, NewJob
from yamchi.settings import Settings
from yamchi.testing.conformance.worker import in_state, working
from yamchi.testing.waiting import eventually

Servers = Callable[..., Redis]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Engine]:
    engine = BullEngine(url, SystemClock())
    try:
        await engine.open()
        yield engine
    finally:
        await engine.close()


async def works(engine: Engine) -> bool:
    """Whether a job can go all the way."""
    await engine.add("mail", [NewJob("a", "send", b"1")])
    (held,) = (await engine.exchange("mail", [], 1, 10_000, "tester")).claims
    return (await engine.exchange("mail", [Completed(held)], 0, 0, "tester")).settled == ["a"]


async def complaint(url: str) -> YamchiError:
    with pytest.raises(YamchiError) as caught:
        async with opened(url):
            await asyncio.sleep(0)
    assert "\n" not in str(caught.value)
    return caught.value


# ── What can be wrong ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_nobody_listens() -> None:
    port = free_port()
    error = await complaint(f"redis://127.0.0.1:{port}")
    assert isinstance(error, EngineUnavailable)
    assert f"Redis at 127.0.0.1:{port} can't be reached" in str(error)
    assert "are host and port right?" in str(error)


async def test_a_host_that_does_not_exist() -> None:
    assert "can't be reached" in str(await complaint("redis://no-such-host.invalid:6379"))


async def test_a_wrong_password_is_said_and_not_shown(private_redis: Servers) -> None:
    redis = private_redis(password="right")
    for url in (f"redis://:wrong@127.0.0.1:{redis.port}", f"redis://127.0.0.1:{redis.port}"):
        error = await complaint(url)
        assert isinstance(error, ConfigurationError)
        said = str(error)
        assert "refuses the user name or password" in said
        assert "correct them in the URL" in said
        assert ":wrong@" not in said
    async with opened(redis.url) as engine:
        assert await works(engine)


async def test_a_user_with_the_rights_that_the_docs_name(private_redis: Servers) -> None:
    redis = private_redis()
    for user, more in (("worker", "+info +client|list"), ("guest", "")):
        rules = f"on >x resetchannels ~bull:* +@all -@dangerous {more}"
        assert ask(redis.port, f"ACL SETUSER {user} {rules}\r\n".encode()).startswith(b"+OK")
    async with opened(f"redis://worker:x@127.0.0.1:{redis.port}/3") as engine:
        assert await works(engine)
        assert await engine.queues() == ["mail"]
        assert await engine.workers() == []
    said = str(await complaint(f"redis://guest:x@127.0.0.1:{redis.port}"))
    assert "does not let our user do this" in said
    assert "'info' command" in said


async def test_an_old_redis() -> None:
    async def old_redis(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = b"redis_version:5.0.14\r\nredis_mode:standalone\r\n"
        while data := await reader.read(1 << 16):
            if b"INFO" in data:
                writer.write(b"$%d\r\n%b\r\n" % (len(info), info))
            else:
                writer.write(b"+OK\r\n:0\r\n")
        writer.close()

    server = await asyncio.start_server(old_redis, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    error = await complaint(f"redis://127.0.0.1:{port}")
    server.close()
    assert isinstance(error, ConfigurationError)
    assert "is version 5.0.14, which is too old: BullMQ needs 6.2 or newer" in str(error)


async def test_something_else_listens() -> None:
    async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(web_server, "127.0.0.1", 0)
    error = await complaint(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    server.close()
    assert isinstance(error, EngineUnavailable)
    assert "is not Redis: check host and port" in str(error)


async def test_a_database_that_is_not_there(private_redis: Servers) -> None:
    redis = private_redis()
    assert "has no database 4711" in str(await complaint(f"redis://127.0.0.1:{redis.port}/4711"))


async def test_a_full_redis(private_redis: Servers) -> None:
    redis = private_redis("--maxmemory", "3mb")
    async with opened(redis.url) as engine:
        with pytest.raises(StorageFull, match="can't take more"):
            await fill(engine)
        assert (await engine.counts("mail"))["waiting"] > 0


@pytest.mark.parametrize(("policy", "is_told"), [("allkeys-lru", True), ("noeviction", False)])
async def test_a_redis_that_may_throw_jobs_away_is_told(
    private_redis: Servers, policy: str, is_told: bool
) -> None:
    redis = private_redis("--maxmemory-policy", policy)
    with capture_logs() as lines:
        async with opened(redis.url):
            assert any(f"(maxmemory-policy {policy})" in line["event"] for line in lines) is is_told


async def fill(engine: Engine) -> None:
    payload = b'"%b"' % (b"x" * 5_000)
    for n in range(100):
        await engine.add("mail", [NewJob(f"j{n}-{i}", "send", payload) for i in range(20)])


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://host:port/0", "The port of the Redis URL is not a number"),
        ("redis://host/zero", "The database of the Redis URL is not a number"),
        ("redis+sentinel://host:26379", "names no service"),
        ("rediss://host?ssl_ca_certs=/nowhere.pem", "The certificates named in the Redis URL can't be read"),
        ("rediss://host?ssl_ca_cert=/etc/ca.pem", "has no parameter ssl_ca_cert: of TLS it has ssl_ca_certs"),
        ("rediss://host?ssl_cert_reqs=no", "ssl_cert_reqs of the Redis URL is none, optional or required"),
    ],
)
def test_a_url_that_can_not_be_read(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_engine(url, EngineContext(SystemClock()))


def test_urls() -> None:
    address = read_address("redis://user:p%40ss@h:7000/3?prefix={bull}")
    assert (address.hosts, address.database, address.prefix) == ((("h", 7000),), 3, "{bull}")
    assert (address.username, address.password) == ("user", "p@ss")
    assert "p@ss" not in str(address)
    assert read_address("redis://[::1]").hosts == (("::1", 6379),)
    sentinel = read_address("redis+sentinel://a,b:1/main/2")
    assert (sentinel.hosts, sentinel.service, sentinel.database) == ((("a", 26379), ("b", 1)), "main", 2)


# ── What is possible ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_tls(private_redis: Servers, tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path)
    port = free_port()
    files = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate]
    private_redis("--tls-port", str(port), "--tls-auth-clients", "no", *files)
    async with opened(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}") as engine:
        assert await works(engine)
    async with opened(f"rediss://127.0.0.1:{port}?ssl_cert_reqs=none") as engine:
        await engine.ping()
    distrusted = await complaint(f"rediss://127.0.0.1:{port}")
    assert isinstance(distrusted, ConfigurationError), "no outage, over which a spool would help"
    assert "can't be trusted (self-signed certificate): name its CA by ssl_ca_certs" in str(distrusted)
    assert "whether it wants TLS (rediss://)" in str(await complaint(f"redis://127.0.0.1:{port}"))


async def test_tls_with_a_certificate_of_ours(private_redis: Servers, tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path)
    locked, port = lock_key(key, "s3cret"), free_port()
    files = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate]
    private_redis("--tls-port", str(port), *files)
    url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}"
    ours = f"{url}&ssl_certfile={certificate}&ssl_keyfile={locked}"
    async with opened(f"{ours}&ssl_password=s3cret") as engine:
        assert await works(engine)
    assert "can't be read" in str(await complaint(ours)), "nobody is asked at the terminal"
    assert "or a certificate of ours (ssl_certfile)" in str(await complaint(url))


def make_certificate(folder: Path) -> tuple[str, str]:
    openssl = required("openssl")
    key, certificate = str(folder / "key.pem"), str(folder / "cert.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    make = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return key, certificate


def lock_key(key: str, password: str) -> str:
    locked = f"{key}.locked"
    lock = [required("openssl"), "rsa", "-aes128", "-passout", f"pass:{password}", "-in", key, "-out", locked]
    subprocess.run(lock, check=True, capture_output=True)
    return locked


class Sentinel(Server):
    """Watches over one Redis."""

    name = "sentinel"

    def __init__(self, watched: Redis) -> None:
        super().__init__()
        self._watched = watched

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/main"

    def prepare(self) -> None:
        self.data.mkdir()
        (self.data / "sentinel.conf").write_text(f"sentinel monitor main 127.0.0.1 {self._watched.port} 1\n")

    def command(self) -> Sequence[str]:
        conf = str(self.data / "sentinel.conf")
        return [program("redis-server"), conf, "--sentinel", "--bind", "127.0.0.1", "--port", str(self.port)]

    def answers(self) -> bool:
        return ask(self.port, b"PING\r\n").startswith(b"+PONG")


async def test_sentinels_say_who_the_master_is(private_redis: Servers) -> None:
    sentinel = Sentinel(private_redis())
    try:
        sentinel.start()
        async with opened(sentinel.url) as engine:
            assert await works(engine)
        assert "does not know it" in str(await complaint(sentinel.url.replace("main", "other")))
    finally:
        sentinel.discard()


async def test_a_cluster(private_redis: Servers) -> None:
    bus = free_port()  # else it is a port that may be lent to a client
    redis = private_redis("--cluster-enabled", "yes", "--cluster-port", str(bus))
    other = private_redis("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    await _join(redis, bus, other)
    said = str(await complaint(f"redis://127.0.0.1:{redis.port}"))
    assert "add ?prefix={bull} to its URL" in said
    for port in (redis.port, other.port):
        async with opened(f"redis://127.0.0.1:{port}?prefix={{bull}}") as engine:
            assert await works(engine)
            assert await engine.queues() == ["mail"]
            assert await engine.remove("mail", ["a"]) == ["a"]


async def _join(redis: Redis, bus: int, other: Redis) -> None:
    """Two nodes, all keys on the first."""
    assert ask(redis.port, b"CLUSTER ADDSLOTSRANGE 0 16383\r\n").startswith(b"+OK")
    assert ask(other.port, b"CLUSTER MEET 127.0.0.1 %d %d\r\n" % (redis.port, bus)).startswith(b"+OK")
    for node in (redis, other):
        await eventually(lambda node=node: b"cluster_state:ok" in ask(node.port, b"CLUSTER INFO\r\n"))


@pytest.mark.parametrize("listens", [False, True])
async def test_events_of_all_are_read_only_where_somebody_listens(
    private_redis: Servers, tmp_path: Path, listens: bool
) -> None:
    """A feature's own listeners hear its own process: a worker does not read every event of the queue for them."""
    server = private_redis()
    app = Yamchi(Settings(home=tmp_path, default_queue_url=server.url, queue_fallback="off"))

    @app.job("mail")
    async def send() -> None: ...

    if listens:
        app.queue("mail").on("completed", lambda job, result: None)
    async with working(app):
        job = await app.queue("mail").add({})
        await eventually(lambda: in_state(job, "completed"))
        followed = [task for task in asyncio.all_tasks() if task.get_name() == "remote-events"]
        assert bool(followed) is listens
    await app.close()
