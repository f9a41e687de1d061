"""The chaos proxy does what it says, between a plain client and a real Redis."""

import socket
import time

import pytest

from tests.faults.proxy import ChaosProxy

TIMEOUT_SECONDS = 0.3


def connect(proxy: ChaosProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def ping(connection: socket.socket) -> bytes:
    connection.sendall(b"PING\r\n")
    return connection.recv(100)


@pytest.fixture
def proxy(redis_url):
    with ChaosProxy(redis_url) as proxy:
        yield proxy


def test_passes_both_ways(proxy):
    with connect(proxy) as connection:
        assert ping(connection) == b"+PONG\r\n"
    assert proxy.accepted == 1


def test_cut_resets_connections_and_refuses_new_ones_until_healed(proxy):
    with connect(proxy) as connection:
        assert ping(connection) == b"+PONG\r\n"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(100)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    with connect(proxy) as connection:
        assert ping(connection) == b"+PONG\r\n"


def test_stall_takes_connections_but_passes_nothing_until_healed(proxy):
    proxy.stall()
    with connect(proxy) as connection:
        connection.settimeout(TIMEOUT_SECONDS)
        with pytest.raises(TimeoutError):
            ping(connection)
        proxy.heal()
        connection.settimeout(10)
        assert connection.recv(100) == b"+PONG\r\n"


def test_delay_holds_back_each_direction(proxy):
    with connect(proxy) as connection:
        proxy.delay(TIMEOUT_SECONDS)
        begin = time.monotonic()
        assert ping(connection) == b"+PONG\r\n"
        assert time.monotonic() - begin >= 2 * TIMEOUT_SECONDS


def test_a_stalled_connection_can_be_cut(proxy):
    with connect(proxy) as connection:
        proxy.stall()
        connection.sendall(b"PING\r\n")
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(100)


def test_a_dead_target_resets_the_client(private_redis):
    redis = private_redis()
    with ChaosProxy(redis.url) as proxy:
        redis.kill()
        with (
            pytest.raises(ConnectionResetError),
            connect(proxy) as connection,
        ):  # at once, or at the first word
            ping(connection)
        redis.start()
        with connect(proxy) as connection:
            assert ping(connection) == b"+PONG\r\n"


def test_keeps_login_and_path_of_the_url(redis_url):
    with ChaosProxy(redis_url) as proxy:
        assert (
            proxy.through("redis://:secret@localhost:6379/3") == f"redis://:secret@127.0.0.1:{proxy.port}/3"
        )
        assert proxy.through("localhost:9092") == f"127.0.0.1:{proxy.port}"
