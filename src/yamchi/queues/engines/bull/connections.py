"""The connections an engine has, by what they are for: each event loop its own, made when first needed.

A lost connection is replaced at the next call. Where sentinels watch over Redis they are asked anew each time,
so a failover is followed; in a cluster the node that holds our keys is found by asking any of them.
"""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any

from yamchi.errors import ConfigurationError, EngineError, EngineUnavailable, YamchiError
from yamchi.perloop import PerLoop
from yamchi.queues.engines.bull.address import Address
from yamchi.queues.engines.bull.connection import (
    ANSWER_SECONDS,
    Connection,
    ConnectionLost,
    ReplyError,
    explain,
    pack,
)
from yamchi.queues.engines.bull.scripts import Script

CONNECT_SECONDS = 5.0
_REFUSED = ("WRONGPASS", "NOAUTH", "NOPERM")


class Refused(EngineUnavailable):
    """Redis is there, but does not let us in."""


class Connections:
    """Connections by role: "work", "keep", "wake:<queue>", …"""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._by_role: PerLoop[dict[str, asyncio.Task[Connection]]] = PerLoop(dict)

    # ── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, script: Script, *args: Any, keys: int = 1, role: str = "keep") -> Any:
        """One script, its answer."""
        (reply,) = await self.run_many([(script, script.call(*args, keys=keys))], role)
        return reply

    async def run_many(self, calls: Sequence[tuple[Script, bytes]], role: str = "keep") -> list[Any]:
        """Packed script calls in one round trip, and their answers."""
        replies = await self.try_many(calls, role)
        for reply in replies:
            if isinstance(reply, EngineError):
                raise reply
        return replies

    async def try_many(self, calls: Sequence[tuple[Script, bytes]], role: str) -> list[Any]:
        """The same, with the errors of those that failed among the answers. Scripts that Redis does not know are loaded."""
        connection = await self.get(role)
        replies = await connection.send([command for _, command in calls])
        unknown = [n for n, reply in enumerate(replies) if is_unknown(reply)]
        if unknown:
            # Nothing of these was run, so sending them again is safe.
            loads = [script.load() for script in {calls[n][0].name: calls[n][0] for n in unknown}.values()]
            again = await connection.send([*loads, *(calls[n][1] for n in unknown)])
            for n, reply in zip(unknown, again[len(loads) :], strict=True):
                replies[n] = reply
        return [self._explained(connection, reply) for reply in replies]

    async def ask(self, *commands: bytes, role: str = "keep", timeout: float = ANSWER_SECONDS) -> list[Any]:
        """Packed plain commands in one round trip."""
        connection = await self.get(role)
        replies = await connection.send(commands, timeout)
        return [self.checked(connection, reply) for reply in replies]

    def checked(self, connection: Connection, reply: Any) -> Any:
        """The reply, unless it is an error."""
        answer = self._explained(connection, reply)
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def _explained(self, connection: Connection, reply: Any) -> Any:
        """The reply; an error as what it means to a caller."""
        if not isinstance(reply, ReplyError):
            return reply
        if str(reply).startswith(("READONLY", "MOVED")):
            connection.abort()  # somebody else is the master now
        return explain(reply, connection.where)

    # ── Connections ───────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, role: str, name: str = "yamchi") -> Connection:
        """The connection of a role, made if there is none or the last one was lost."""
        connections = self._by_role.get()
        task = connections.get(role)
        if task is None or _is_over(task):
            task = connections[role] = asyncio.create_task(self._connect(name), name=f"redis-{role}")
        return await asyncio.shield(task)

    def ready(self, role: str) -> Connection | None:
        """The connection of a role, if it is there now."""
        task = self._by_role.get().get(role)
        return task.result() if task and _is_usable(task) else None

    def idlest(self, *roles: str) -> str:
        """The role whose connection has least to do."""
        connections = self._by_role.get()
        return min(roles, key=lambda role: _pending(connections.get(role)))

    def is_open(self, role: str) -> bool:
        """Whether the role has a connection, or is about to have one."""
        task = self._by_role.get().get(role)
        return task is not None and not _is_over(task)

    def drop(self, role: str) -> None:
        """Close the connection of a role, so that Redis forgets what it asked for."""
        if task := self._by_role.get().pop(role, None):
            _close(task)

    async def close(self) -> None:
        """Close the connections of this event loop."""
        tasks = list(self._by_role.get().values())
        for task in tasks:
            _close(task)
        self._by_role.get().clear()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close

    async def _connect(self, name: str) -> Connection:
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._greet(await self._reach(), name)
        except TimeoutError as error:
            raise EngineUnavailable(
                f"Redis at {address} does not answer within {CONNECT_SECONDS:g} s: check host, port, and whether it uses TLS."
            ) from error
        except ssl.SSLCertVerificationError as error:
            raise Refused(
                f"Redis at {address} has a certificate that can't be trusted ({error.verify_message.rstrip('.')}): name its "
                "CA by ssl_ca_certs in the URL, and the host as the certificate does."
            ) from error
        except OSError as error:
            raise EngineUnavailable(
                f"Redis at {address} can't be reached ({error.strerror or error}): is it running, and are host and port right?"
            ) from error

    async def _reach(self) -> Connection:
        if self._address.service:
            return await self._open(*await self._ask_sentinels(self._address.service))
        failure: OSError | None = None
        for host, port in self._address.hosts:
            try:
                return await self._open(host, port)
            except OSError as error:
                failure = error
        raise failure or ConfigurationError("The Redis URL names no host.")

    async def _open(self, host: str, port: int) -> Connection:
        where = f"{host}:{port}"
        loop, tls = asyncio.get_running_loop(), self._address.tls
        _, connection = await loop.create_connection(lambda: Connection(where), host, port, ssl=tls)
        return connection

    async def _greet(self, connection: Connection, name: str) -> Connection:
        """Say who we are, and go where our keys are."""
        try:
            replies = await self._first_replies(connection, name)
            errors = [
                reply for reply in replies if isinstance(reply, ReplyError) and not _is_unsupported(reply)
            ]
            if not errors:
                return connection
            if not (said := str(errors[0])).startswith("MOVED"):
                raise self._refusal(connection.where, errors[0])
        except BaseException:
            connection.abort()
            raise
        connection.abort()
        host, _, port = said.split()[2].rpartition(":")
        return await self._greet(
            await self._open(host or connection.where.rpartition(":")[0], int(port)), name
        )

    async def _first_replies(self, connection: Connection, name: str) -> list[Any]:
        try:
            return await connection.send(self._hello(name))
        except ConnectionLost as error:
            raise EngineUnavailable(
                f"Redis at {connection.where} closed the connection before it answered: check that it runs, and whether "
                "it wants TLS (rediss://) or a certificate of ours (ssl_certfile)."
            ) from error

    def _hello(self, name: str) -> list[bytes]:
        address = self._address
        hello = [pack("CLIENT", "SETNAME", name), pack("EXISTS", f"{address.prefix}:ym:probe")]
        if address.database:
            hello.insert(0, pack("SELECT", address.database))
        if address.password or address.username:
            hello.insert(0, _login(address.username, address.password))
        return hello

    def _refusal(self, where: str, error: ReplyError) -> YamchiError:
        said = str(error)
        if said.startswith(_REFUSED) or "invalid password" in said or "AUTH" in said:
            return Refused(
                f"Redis at {where} refuses the user name or password ({said}): correct them in the URL."
            )
        if "DB index" in said or "SELECT" in said:
            return ConfigurationError(f"Redis at {where} has no database {self._address.database}: {said}")
        return explain(error, where)

    async def _ask_sentinels(self, service: str) -> tuple[str, int]:
        """Who the master of a service is now, by the first sentinel that knows."""
        reasons = []
        for host, port in self._address.hosts:
            try:
                if found := await self._ask_sentinel(host, port, service):
                    return found
                reasons.append(f"{host}:{port} does not know it")
            except (OSError, YamchiError) as error:
                reasons.append(f"{host}:{port}: {error}")
        raise EngineUnavailable(
            f"No sentinel knows the master of {service} ({'; '.join(reasons)}): check their addresses and the service's name."
        )

    async def _ask_sentinel(self, host: str, port: int, service: str) -> tuple[str, int] | None:
        sentinel = await self._open(host, port)
        try:
            if self._address.sentinel_password:
                await sentinel.call("AUTH", self._address.sentinel_password)
            found = await sentinel.call("SENTINEL", "get-master-addr-by-name", service)
        finally:
            sentinel.abort()
        return (found[0].decode(), int(found[1])) if found else None


def _login(username: str | None, password: str | None) -> bytes:
    return pack("AUTH", username, password or "") if username else pack("AUTH", password or "")


def _is_unsupported(error: ReplyError) -> bool:
    """Some hosted Redis have no CLIENT SETNAME; that only means that Bull Board does not list our workers."""
    return str(error).startswith("ERR unknown")


def is_unknown(reply: Any) -> bool:
    """Whether Redis does not know the script: then nothing of it was run."""
    return isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT")


def _is_usable(task: "asyncio.Task[Connection]") -> bool:
    """Whether a connection was made, and lives."""
    return task.done() and not task.cancelled() and task.exception() is None and task.result().is_open


def _is_over(task: "asyncio.Task[Connection]") -> bool:
    """Whether a connection could not be made, or was lost."""
    return task.done() and not _is_usable(task)


def _pending(task: "asyncio.Task[Connection] | None") -> int:
    return task.result().pending if task and _is_usable(task) else 0


def _close(task: "asyncio.Task[Connection]") -> None:
    if not task.done():
        task.cancel()
    elif _is_usable(task):
        task.result().abort()
