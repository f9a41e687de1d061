"""Keys with a lifetime in Redis, under the very names given: other programs read and write them too. Redis counts the time."""

from yamchi.clock import Span
from yamchi.queues.engines.bull.address import read_address
from yamchi.queues.engines.bull.connection import pack
from yamchi.queues.engines.bull.connections import Connections
from yamchi.storage.keys import check_name, lifetime

DELETE_THIS = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0"
"""Delete a key if it has this value."""


class RedisKeys:
    """Keys as plain strings, on a connection of their own."""

    def __init__(self, url: str) -> None:
        self._connections = Connections(read_address(url))

    async def get(self, name: str) -> str | None:
        (value,) = await self._connections.ask(pack("GET", name))
        return None if value is None else value.decode("utf-8", "replace")

    async def set(self, name: str, value: str, ttl: Span | None = None) -> None:
        until = () if ttl is None else ("PX", lifetime(ttl))
        await self._connections.ask(pack("SET", check_name(name), value, *until))

    async def delete(self, name: str, value: str | None = None) -> bool:
        asked = pack("DEL", name) if value is None else pack("EVAL", DELETE_THIS, 1, name, value)
        (gone,) = await self._connections.ask(asked)
        return bool(gone)

    async def incr(self, name: str, ttl: Span | None = None, by: int = 1) -> int:
        """The lifetime is set before the count, so that no crash between the two leaves a counter for ever."""
        first = [] if ttl is None else [pack("SET", check_name(name), 0, "PX", lifetime(ttl), "NX")]
        *_, number = await self._connections.ask(*first, pack("INCRBY", check_name(name), by))
        return int(number)

    async def close(self) -> None:
        await self._connections.close()
