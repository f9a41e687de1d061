"""One SMTP connection after the login: commands are pipelined where the server allows it (RFC 2920), answers read in order.

aiosmtplib connects (TLS, greeting, login); this takes over its transport. An e-mail then costs two round trips instead of
four.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import aiosmtplib

from yamchi.notifications.channels.email.mime import Letter

MAX_ANSWER_BYTES = 65_536

LETTER_SECONDS = 120.0
SLOWEST = 128 * 1024
"""Seconds for a letter and the answer to it, and bytes a second beyond them for a large one. Servers look for viruses before they
answer (RFC 5321 allows ten minutes): a letter that is given up too early is sent again, though it has arrived."""


class Answer(NamedTuple):
    """What the server said to one command."""

    code: int
    text: str

    @property
    def is_yes(self) -> bool:
        return 200 <= self.code < 400


class ConnectionBroken(ConnectionError):
    """The server has closed the connection, or does not speak SMTP."""


class Refused(Exception):
    """The server does not take this letter; `is_recipient` says that it does not know the mailbox."""

    def __init__(self, answer: Answer, *, is_recipient: bool = False) -> None:
        super().__init__(f"{answer.code} {answer.text}")
        self.answer = answer
        self.is_recipient = is_recipient


class SmtpConnection(asyncio.Protocol):
    """Sends one e-mail after another; `timeout` is for its commands. `handed_over`: the server may have accepted the current one."""

    def __init__(self, client: aiosmtplib.SMTP, timeout: float) -> None:
        assert client.transport is not None
        self._client = client  # whose transport it is: it must live as long as this object
        self._transport = cast("asyncio.Transport", client.transport)
        self._timeout = timeout
        self._buffer = bytearray()
        self._answers: deque[Answer] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: OSError | None = None
        self._is_pipelined = client.supports_extension("pipelining")
        self.speaks_utf8 = client.supports_extension("smtputf8")
        self.handed_over = False
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        return self._error is None and not self._answers and not self._transport.is_closing()

    def close(self) -> None:
        self._transport.abort()

    def quit(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"QUIT\r\n")
            self._transport.close()

    # ── Letters ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def send(self, letter: Letter) -> str:
        """The server's answer to a letter it took; raises `Refused` or `ConnectionError`."""
        self.handed_over = False
        with self._within(self._timeout):
            await self._offer(letter)
        self.handed_over = True
        with self._within(LETTER_SECONDS + len(letter.content) / SLOWEST):
            (taken,) = await self._ask(_stuffed(letter.content), 1)
        self.handed_over = False
        if not taken.is_yes:
            raise Refused(taken)
        return taken.text

    async def offer_sender(self, sender: str) -> None:
        """Ask whether letters from this address are taken, and take the question back; raises `Refused`."""
        with self._within(self._timeout):
            (answer,) = await self._ask(f"MAIL FROM:<{sender}>\r\n".encode(), 1)
            await self._ask(b"RSET\r\n", 1)
        if not answer.is_yes:
            raise Refused(answer)

    async def _offer(self, letter: Letter) -> None:
        """Up to the point where the server waits for the letter itself."""
        is_ascii = letter.recipient.isascii() and letter.sender.isascii()
        sender = f"MAIL FROM:<{letter.sender}>{'' if is_ascii else ' SMTPUTF8'}"
        commands = [f"{line}\r\n".encode() for line in (sender, f"RCPT TO:<{letter.recipient}>", "DATA")]
        if self._is_pipelined:
            answers = await self._ask(b"".join(commands), len(commands))
        else:
            answers = []
            for command in commands:
                answers += await self._ask(command, 1)
                if not answers[-1].is_yes:
                    break
        await self._check(answers)

    async def _check(self, answers: list[Answer]) -> None:
        refusals = [place for place, answer in enumerate(answers) if not answer.is_yes]
        if not refusals:
            return
        if answers[-1].code == 354:
            await self._ask(b".\r\n", 1)  # it waits for a letter that it has refused: an empty one ends that
        if answers[refusals[0]].code != 421:  # it is closing
            await self._ask(b"RSET\r\n", 1)
        raise Refused(answers[refusals[0]], is_recipient=refusals[0] == 1)

    # ── Commands and answers ──────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Break the connection off if it takes longer than this."""
        timer = asyncio.get_running_loop().call_later(seconds, self._end, TimeoutError())
        try:
            yield
        finally:
            timer.cancel()

    async def _ask(self, commands: bytes, answers: int) -> list[Answer]:
        if self._error:
            raise self._error
        self._transport.write(commands)
        while len(self._answers) < answers:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return [self._answers.popleft() for _ in range(answers)]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while (answer := self._next_answer()) is not None:
                self._answers.append(answer)
        except ValueError:
            self._end(ConnectionBroken(f"its answer is not SMTP: {bytes(self._buffer[:60])!r}"))
            self._transport.abort()
        else:
            self._wake()

    def _next_answer(self) -> Answer | None:
        """The first whole answer in the buffer; one of several lines has a hyphen after the code of all but the last."""
        texts, start = [], 0
        while (end := self._buffer.find(b"\n", start)) >= 0:
            line = self._buffer[start:end].decode("utf-8", "backslashreplace").rstrip("\r")
            texts.append(line[4:].strip())
            start = end + 1
            if line[3:4] != "-":
                answer = Answer(int(line[:3]), "\n".join(texts))
                del self._buffer[:start]
                return answer
        if len(self._buffer) > MAX_ANSWER_BYTES:
            raise ValueError("no end of line")
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self._end(ConnectionBroken(str(error or "it closed the connection")))

    def _end(self, error: OSError) -> None:
        self._error = self._error or error
        self._wake(self._error)

    def _wake(self, error: Exception | None = None) -> None:
        if self._waiter and not self._waiter.done():
            if error:
                self._waiter.set_exception(error)
            else:
                self._waiter.set_result(None)


def _stuffed(content: bytes) -> bytes:
    """A line that begins with a dot gets another, and a lone dot ends the letter."""
    lines = content.replace(b"\r\n.", b"\r\n..")
    start = b"." if lines.startswith(b".") else b""
    end = b".\r\n" if lines.endswith(b"\r\n") else b"\r\n.\r\n"
    return start + lines + end
