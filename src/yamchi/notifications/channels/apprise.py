"""SMS, and anything else that Apprise has a URL for: `{to}` in the URL is where the address goes.

Apprise returns whether it sent; the reason of a failure is only in its log. The log lines of the message's thread are read
here, to tell a refusal from an outage, and both from an answer that never came.
"""

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from urllib.parse import quote

from yamchi.errors import MissingExtra, Outage, Snooze, Unrecoverable, YamchiError
from yamchi.notifications.channels.base import AnswerLost, Channel, Message, Recipient
from yamchi.notifications.channels.bounded_requests import bounded_answers
from yamchi.notifications.channels.sms_parts import size_of
from yamchi.observe.logging import MASK, mask
from yamchi.perloop import PerLoop

READ_TIMEOUT_SECONDS = 30.0
"""How long to wait for an answer, where the URL does not say `rto`."""

DEADLINE_SECONDS = 60.0
"""For the whole request."""

SAMPLE_NUMBER = "+77010000000"
MAX_CONCURRENT = 10
LONGEST_REASON = 300

_STATUS = re.compile(r"error[=: ]+\(?(\d{3})\b")
_NEVER_SENT = re.compile(
    r"NewConnectionError|ConnectTimeout|NameResolutionError|Connection refused|getaddrinfo|SSLError",
    re.IGNORECASE,
)
_CONNECTION = re.compile(r"connection error|socket exception", re.IGNORECASE)
_PHONE = re.compile(r"\+?\d{5,15}")
_SEPARATORS = re.compile(r"[\s().-]")


class AppriseChannel(Channel):
    """A channel by URL. `address` says where a person is reached.

    app.notifications.register(AppriseChannel("pager", "ntfy://ntfy.example.com/{to}", lambda who: who.attributes.get("ntfy")))
    """

    resends_unknown = False

    def __init__(self, name: str, url: str, address: Callable[[Recipient], str | None]) -> None:
        self.name = name
        self.provider = url.partition("://")[0][:40]
        self._url = url
        self._address = address
        self._slots = PerLoop(lambda: asyncio.Semaphore(MAX_CONCURRENT))
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix=f"apprise-{name}")

    def address(self, recipient: Recipient) -> str | None:
        return self._address(recipient)

    async def send(self, message: Message) -> str | None:
        await self._notify(
            message.to, message.rendered.text, message.rendered.title or message.rendered.subject
        )
        return None

    async def _notify(self, to: str, text: str, title: str | None = None) -> None:
        if not text.strip():
            raise Unrecoverable("The message is empty.")
        is_sent, said = await self._in_thread(to, text.strip(), title)
        if not is_sent:
            raise _failure(self.provider, said, self._censor(said))

    async def _in_thread(self, to: str, text: str, title: str | None) -> tuple[bool, str]:
        """A thread can't be stopped: one whose headers come byte by byte keeps its slot until it ends; its message does not wait."""
        slots = self._slots.get()
        try:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                await slots.acquire()
        except TimeoutError as error:
            said = f"{MAX_CONCURRENT} requests to {self.provider} wait for its answer already"
            raise Snooze(timedelta(seconds=READ_TIMEOUT_SECONDS), said) from error
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._threads, _notify, self._url, to, text, title)
        answer.add_done_callback(partial(_release_slot, slots))
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await asyncio.shield(answer)
        except TimeoutError as error:
            said = f"{self.provider} took longer than {DEADLINE_SECONDS:g} s to answer, and may have taken the message"
            raise AnswerLost(said) from error

    def _censor(self, said: str) -> str:
        """What was said, without anything of the URL that might be a secret."""
        for secret in sorted(re.split(r"[:/@?&=]+|\{to\}", self._url)[1:], key=len, reverse=True):
            if len(secret) >= 4:
                said = said.replace(secret, MASK)
        return str(mask(" ".join(said.split())))[:LONGEST_REASON]


class SmsChannel(AppriseChannel):
    """SMS. Each costs money, so after a lost answer a person decides whether to send it again."""

    def __init__(self, url: str) -> None:
        super().__init__("sms", url, lambda recipient: recipient.phone)

    async def send(self, message: Message) -> str | None:
        number = _SEPARATORS.sub("", message.to)
        if not _PHONE.fullmatch(number):
            raise Unrecoverable(f"{message.to!r} is not a phone number: write it as +77010000000.")
        await self._notify(number, message.rendered.text)
        return str(size_of(message.rendered.text.strip()))


def _release_slot(slots: asyncio.Semaphore, answer: "asyncio.Future[tuple[bool, str]]") -> None:
    slots.release()
    if not answer.cancelled():
        answer.exception()  # mark it as seen: its message may not wait for it any more


# ── In a thread ───────────────────────────────────────────────────────────────────────────────────────────────────


def _notify(url: str, to: str, text: str, title: str | None) -> tuple[bool, str]:
    """Whether it was sent, and what Apprise said about it."""
    try:
        from apprise import Apprise
    except ImportError as error:
        raise MissingExtra("sms", "SMS") from error
    with _captured_log() as lines, bounded_answers():
        service = Apprise.instantiate(_filled(url, to))
        if service is None:
            raise _unusable(url, to, is_readable=Apprise.instantiate(_filled(url, SAMPLE_NUMBER)) is not None)
        if "rto=" not in url:
            service.socket_read_timeout = READ_TIMEOUT_SECONDS
        is_sent = bool(service.notify(body=text.strip(), title=title or "", body_format="text"))
    return is_sent, "\n".join(lines)


def _filled(url: str, to: str) -> str:
    return url.replace("{to}", quote(to, safe=""))


def _unusable(url: str, to: str, *, is_readable: bool) -> YamchiError:
    scheme = url.partition("://")[0]
    if is_readable:
        return Unrecoverable(f"{to!r} is no address that {scheme} can write to.")
    return Outage(
        f"Apprise can't read the {scheme}:// URL that is set: see its documentation of that service."
    )


@contextmanager
def _captured_log() -> Iterator[list[str]]:
    """The lines that Apprise logs in this thread. They become part of the error of their message, and go nowhere else."""
    logger = logging.getLogger("apprise")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    lines: list[str] = []
    handler = _LogCapture(lines)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


class _LogCapture(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._lines = lines
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        is_relevant = record.levelno >= logging.WARNING or "Exception" in str(record.msg)
        if record.thread == self._thread and is_relevant:
            self._lines.append(record.getMessage())


def _failure(provider: str, said: str, censored: str) -> YamchiError:
    found = _STATUS.search(said)
    status = int(found[1]) if found else None
    reason = censored or "no reason was given"
    match status:
        case None if _CONNECTION.search(said) and not _NEVER_SENT.search(said):
            return AnswerLost(f"{provider} may have taken the message, but its answer was lost: {reason}")
        case None if _CONNECTION.search(said):
            return Outage(f"{provider} can't be reached: {reason}")
        case 401 | 403:
            return Outage(f"{provider} refused the credentials in its URL: {reason}")
        case 408 | 429:
            return Outage(f"{provider} asks to wait: {reason}")
        case int() if status >= 500:
            return Outage(f"{provider} is in trouble: {reason}")
    return Unrecoverable(f"{provider} refused the message: {reason}")
