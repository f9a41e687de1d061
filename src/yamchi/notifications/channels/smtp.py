"""Connections to an SMTP server, kept open and shared. Answers are sorted into the kinds of failure that jobs know.

A refusal of one letter is that letter's problem: 4xx is worth another attempt, 5xx is not. Everything about the server
itself (unreachable, closing, wrong credentials) is an outage. A connection that dies after the letter was handed over
leaves its fate unknown.
"""

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import aiosmtplib
from aiosmtplib import (
    SMTPAuthenticationError,
    SMTPException,
    SMTPNotSupported,
    SMTPRecipientsRefused,
    SMTPResponseException,
)

from yamchi.errors import Outage, Retryable, Unrecoverable
from yamchi.notifications.channels.base import AnswerLost, Unreachable
from yamchi.notifications.channels.mime import Letter

Security = Literal["starttls", "tls", "none"]
TIMEOUT = 30.0
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


class _Connection(aiosmtplib.SMTP):
    """Knows whether the letter at hand has been handed over."""

    handed_over = False

    async def data(self, *arguments: Any, **options: Any) -> Any:
        self.handed_over = True
        answer = await super().data(*arguments, **options)
        self.handed_over = False
        return answer


class SmtpPool:
    """At most `connections` at once, each reused for as long as the server likes."""

    def __init__(self, server: SmtpServer) -> None:
        self._server = server
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(server.connections)

    async def send(self, letter: Letter) -> str:
        """The server's answer. A connection that failed is not used again."""
        async with self._slots:
            connection = await self._connected()
            try:
                _, answer = await connection.sendmail(
                    letter.sender, letter.recipient, letter.content, mail_options=_options(letter)
                )
            except SMTPRecipientsRefused as error:
                self._idle.append(connection)
                refusal = error.recipients[0]
                raise _recipient_refused(refusal.code, refusal.message) from error
            except SMTPNotSupported as error:
                self._idle.append(connection)
                raise Unrecoverable(f"The mail server can't write to {letter.recipient}: {error}") from error
            except SMTPResponseException as error:
                self._keep_or_drop(connection)
                raise _refused(error.code, error.message) from error
            except (SMTPException, OSError) as error:
                connection.close()
                raise await self._broken(connection, error) from error
            except BaseException:
                connection.close()  # interrupted in the middle of a conversation
                raise
            self._idle.append(connection)
            return answer

    async def close(self) -> None:
        while self._idle:
            with suppress(SMTPException, OSError):
                await self._idle.pop().quit()

    async def _connected(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_connected:
                return connection
        return await self._connect()

    async def _connect(self) -> _Connection:
        server = self._server
        connection = _Connection(
            hostname=server.host,
            port=server.port,
            timeout=TIMEOUT,
            use_tls=server.security == "tls",
            start_tls=server.security == "starttls",
            username=server.user,
            password=server.password,
        )
        try:
            await connection.connect()
        except SMTPAuthenticationError as error:
            connection.close()
            raise Outage(
                f"{server.name} refused SMTP_USER and SMTP_PASSWORD: {error.code} {error.message}"
            ) from error
        except (SMTPException, OSError) as error:
            connection.close()
            raise Outage(f"The mail server {server.name} can't be reached: {error}") from error
        return connection

    def _keep_or_drop(self, connection: _Connection) -> None:
        connection.handed_over = False
        if connection.is_connected:
            self._idle.append(connection)

    async def _broken(self, connection: _Connection, error: Exception) -> Exception:
        if connection.handed_over:
            said = f"{self._server.name} took the letter, but its answer was lost: {error}"
            return AnswerLost(said, outage=await self._gone())
        return Outage(f"The mail server {self._server.name} broke off: {error}")

    async def _gone(self) -> Outage | None:
        """Whether the server has gone, or only broke off over one letter."""
        try:
            self._idle.append(await self._connect())
        except Outage as outage:
            return outage
        return None


def _options(letter: Letter) -> list[str]:
    is_ascii = letter.recipient.isascii() and letter.sender.isascii()
    return [] if is_ascii else ["SMTPUTF8"]


def _recipient_refused(code: int, text: str) -> Exception:
    """A 55x before the letter itself was seen is about the mailbox, unless it says that it is about us (5.7.x)."""
    status = _ENHANCED.match(text)
    is_mailbox = code in NO_SUCH_MAILBOX and (status is None or status[0].startswith(("5.1.", "5.2.1")))
    return Unreachable(_said(code, text)) if is_mailbox else _refused(code, text)


def _said(code: int, text: str) -> str:
    return f"{code} {' '.join(text.split())}"


def _refused(code: int, text: str) -> Exception:
    said = _said(code, text)
    if code in SERVICE_TROUBLE:
        return Outage(f"The mail server asks to wait: {said}", retry_after=timedelta(seconds=5))
    return Unrecoverable(said) if code >= 500 else Retryable(said)
