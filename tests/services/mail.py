"""A real SMTP server in this process, which keeps every letter and can be told to refuse, to vanish and to come back."""

import asyncio
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any
from weakref import WeakSet

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from tests.services.server import Startable, free_port


@dataclass
class MailServer(Startable):
    """Letters by recipient. `answers` are given to the next letters instead of 250, in order; each takes `seconds`.

    `refusals` are answers to addresses, of recipients and of senders. With `login`, nobody writes without that name and password.
    """

    port: int = field(default_factory=free_port)
    answers: deque[str] = field(default_factory=deque)
    hang_up_after_data: int = 0
    seconds: float = 0
    login: tuple[str, str] | None = None
    speaks_utf8: bool = True
    letters: list[tuple[str, EmailMessage]] = field(default_factory=list)
    connections: int = 0
    refusals: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _controller: "_Controller | None" = None

    host = "127.0.0.1"

    def start(self) -> None:
        self._controller = _Controller(self, hostname=self.host, port=self.port)
        self._controller.start()

    def stop(self) -> None:
        """Vanish: nobody listens any more, and whoever was talking is cut off."""
        if self._controller:
            self._controller.hang_up()
            self._controller.stop()
            self._controller = None

    def by_recipient(self) -> Counter[str]:
        with self._lock:
            return Counter(recipient for recipient, _ in self.letters)

    def message_ids(self, recipient: str) -> set[str]:
        with self._lock:
            return {str(letter["Message-ID"]) for to, letter in self.letters if to == recipient}

    # ── aiosmtpd's hooks ──────────────────────────────────────────────────────────────────────────────────────────

    async def handle_MAIL(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refusals:
            return self.refusals[address]
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refusals:
            return self.refusals[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if self.answers:
            return self.answers.popleft()
        await asyncio.sleep(self.seconds)
        letter = message_from_bytes(envelope.content or b"", policy=policy.default)
        with self._lock:
            self.letters += [(recipient, letter) for recipient in envelope.rcpt_tos]
        if self.hang_up_after_data:
            self.hang_up_after_data -= 1
            assert server.transport is not None
            server.transport.abort()
        return "250 Message accepted"


class _Controller(Controller):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._conversations: WeakSet[SMTP] = WeakSet()

    def factory(self) -> Any:
        self.handler.connections += 1
        conversation = SMTP(
            self.handler,
            enable_SMTPUTF8=self.handler.speaks_utf8,
            authenticator=self._check if self.handler.login else None,
            auth_required=self.handler.login is not None,
            auth_require_tls=False,
        )
        self._conversations.add(conversation)
        return conversation

    def _check(self, server: SMTP, session: Session, envelope: Envelope, how: str, data: Any) -> AuthResult:
        given = (data.login.decode(), data.password.decode())
        return AuthResult(success=given == self.handler.login, handled=False)

    def hang_up(self) -> None:
        self.loop.call_soon_threadsafe(self._abort_all)

    def _abort_all(self) -> None:
        self.server.close()
        for conversation in list(self._conversations):
            if conversation.transport is not None:
                conversation.transport.abort()
