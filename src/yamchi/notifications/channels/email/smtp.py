"""Connections to an SMTP server, kept open and shared. Answers are sorted into the kinds of failure that jobs know.

A refusal of one letter is that letter's problem: 4xx is worth another attempt, 5xx is not. Everything about the server
itself (unreachable, closing, wrong credentials) is an outage. A connection that dies after the letter was handed over
is `AnswerLost`.
"""

import asyncio
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import aiosmtplib
from aiosmtplib import SMTPAuthenticationError, SMTPException, SMTPHeloError

from yamchi.errors import Outage, Retryable, Unrecoverable
from yamchi.notifications.channels.base import AnswerLost, Unreachable
from yamchi.notifications.channels.email.mime import Letter
from yamchi.notifications.channels.email.smtp_connection import Refused, SmtpConnection
from yamchi.perloop import PerLoop

Security = Literal["starttls", "tls", "none"]
TIMEOUT_SECONDS = 30.0
SERVICE_TROUBLE = (421, 454)
"""Answers that speak of the server, not of the letter."""

NO_SUCH_MAILBOX = (550, 551, 553)
_ENHANCED = re.compile(r"5\.\d{1,3}\.\d{1,3}")


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """Where and how to connect."""

    host: str
    port: int
    user: str | None = None
    password: str | None = None
    security: Security = "starttls"
    connections: int = 10

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


class SmtpPool:
    """At most `connections` at once, each reused for as long as the server likes, by the event loop it was made on."""

    def __init__(self, server: SmtpServer) -> None:
        self._server = server
        self._slots = PerLoop(lambda: asyncio.Semaphore(server.connections))
        self._idle_connections: PerLoop[list[SmtpConnection]] = PerLoop(list)

    @property
    def _idle(self) -> list[SmtpConnection]:
        return self._idle_connections.get()

    async def send(self, letter: Letter) -> str:
        """The server's answer. A connection that failed is not used again."""
        async with self._slots.get():
            connection = await self._connected()
            try:
                _check_writable(letter, connection)
                answer = await connection.send(letter)
            except Unrecoverable:
                self._idle.append(connection)  # nothing was said on it
                raise
            except Refused as refusal:
                self._idle.append(connection)
                raise _refused(refusal) from refusal
            except OSError as error:  # a timeout is one too
                connection.close()
                raise await self._broken(connection, error) from error
            except BaseException:
                connection.close()  # interrupted in the middle
                raise
            self._idle.append(connection)
            return answer

    async def try_sender(self, sender: str) -> str:
        """Log in and name the sender, without a letter; what the server makes of it."""
        name, user = self._server.name, self._server.user
        connection = await self._connect()
        try:
            await connection.offer_sender(sender)
        except Refused as refusal:
            raise Unrecoverable(
                f"{name} lets us in but takes no letters from {sender} ({refusal}): "
                "does that mailbox exist, and may SMTP_USER send as SMTP_FROM?"
            ) from refusal
        except OSError as error:
            raise await self._broken(connection, error) from error
        finally:
            connection.quit()
        return f"{name} {f'knows {user} and ' if user else ''}takes letters from {sender}"

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().quit()

    async def _connected(self) -> SmtpConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.close()
        return await self._connect()

    async def _connect(self) -> SmtpConnection:
        server = self._server
        client = aiosmtplib.SMTP(
            hostname=server.host,
            port=server.port,
            timeout=TIMEOUT_SECONDS,
            use_tls=server.security == "tls",
            start_tls=server.security == "starttls",
            username=server.user,
            password=server.password,
        )
        try:
            await client.connect()
            await _greet(client)
        except SMTPAuthenticationError as error:
            client.close()
            raise Outage(
                f"{server.name} refused SMTP_USER and SMTP_PASSWORD: {error.code} {error.message}"
            ) from error
        except (SMTPException, OSError) as error:
            client.close()
            raise Outage(f"The mail server {server.name} can't be reached: {error}") from error
        return SmtpConnection(client, TIMEOUT_SECONDS)

    async def _broken(self, connection: SmtpConnection, error: OSError) -> Exception:
        why = str(error) or "it did not answer in time"
        if connection.handed_over:
            said = f"{self._server.name} took the letter, but its answer was lost: {why}"
            return AnswerLost(said, outage=await self._gone())
        return Outage(f"The mail server {self._server.name} broke off: {why}")

    async def _gone(self) -> Outage | None:
        """An `Outage` if the server can't be reached now; None if only the one connection broke."""
        try:
            self._idle.append(await self._connect())
        except Outage as outage:
            return outage
        return None


async def _greet(client: aiosmtplib.SMTP) -> None:
    """Learn what the server can do, if connecting has not shown it already."""
    if client.is_ehlo_or_helo_needed:
        try:
            await client.ehlo()
        except SMTPHeloError:
            await client.helo()  # a very old server


def _check_writable(letter: Letter, connection: SmtpConnection) -> None:
    is_ascii = letter.recipient.isascii() and letter.sender.isascii()
    if not is_ascii and not connection.speaks_utf8:
        raise Unrecoverable(
            f"The mail server can't write to {letter.recipient}: it knows only addresses in ASCII (no SMTPUTF8)."
        )


def _refused(refusal: Refused) -> Exception:
    code, text = refusal.answer
    said = f"{code} {' '.join(text.split())}"
    if code in SERVICE_TROUBLE:
        return Outage(f"The mail server asks to wait: {said}", retry_after=timedelta(seconds=5))
    if refusal.is_recipient and _is_mailbox(code, text):
        return Unreachable(said)
    return Unrecoverable(said) if code >= 500 else Retryable(said)


def _is_mailbox(code: int, text: str) -> bool:
    """A 55x before the letter itself was seen is about the mailbox, unless it says that it is about us (5.7.x)."""
    status = _ENHANCED.match(text)
    return code in NO_SUCH_MAILBOX and (status is None or status[0].startswith(("5.1.", "5.2.1")))
