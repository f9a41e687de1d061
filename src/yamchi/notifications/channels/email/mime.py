"""From a rendered message to the letter on the wire. Nothing a user typed can add a header or break the structure.

The bytes are put together here and not by the standard library, which takes ten times as long over a letter. What makes
that safe is little: a header has no control characters, text beyond ASCII is encoded, and boundaries are random.
"""

import re
from base64 import b64encode, encodebytes
from binascii import b2a_qp
from dataclasses import dataclass
from email.utils import format_datetime, parseaddr
from functools import lru_cache
from secrets import token_hex
from urllib.parse import quote

from email_validator import EmailNotValidError, validate_email

from yamchi.clock import Millis, as_datetime
from yamchi.errors import Unrecoverable
from yamchi.notifications.channels.base import Attachment, Message

LONGEST_LINE = 76
LONGEST_ADDRESS = 254
ENCODED_WORD_BYTES = 42
"""Bytes of text in one encoded word, which may have 75 characters in all."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN_ADDRESS = re.compile(r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]{2,63}")  # fmt: skip
_TYPE = re.compile(r"[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+")


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter ready to go; addresses as the envelope has them."""

    message_id: str
    sender: str
    recipient: str
    subject: str
    content: bytes


def compose(message: Message, sender: str, now: Millis) -> Letter:
    """A letter with a text part, an HTML part and the headers that mail providers ask for."""
    origin, sender_address = _origin(sender)
    to = check_address(message.to)
    subject = check_header("subject", message.rendered.subject or "")
    identity = message_id(message.job_id, sender_address)
    headers = [
        f"Message-ID: {identity}",
        f"Date: {_date(now // 1000)}",
        f"From: {origin}",
        f"To: {to}",
        f"Subject: {_encoded(subject)}",
        *_unsubscribing(message.unsubscribe_url),
        "MIME-Version: 1.0",
    ]
    content = "\r\n".join([*headers, ""]).encode() + _body(message)
    return Letter(identity, sender_address, to, subject, content)


# ── Headers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def check_address(address: str) -> str:
    """The address, with its domain in the form that mail servers know."""
    if (
        len(address) > LONGEST_ADDRESS
    ):  # before anything else looks at it: to validate takes the square of its length
        raise Unrecoverable(
            f"{address[:60]!r}… is not an e-mail address: it has more than {LONGEST_ADDRESS} characters"
        )
    if _PLAIN_ADDRESS.fullmatch(address):
        return address
    try:
        valid = validate_email(address, check_deliverability=False)
    except EmailNotValidError as error:
        raise Unrecoverable(f"{address!r} is not an e-mail address: {error}") from error
    return valid.ascii_email or f"{valid.local_part}@{valid.ascii_domain}"


def check_header(what: str, value: str) -> str:
    if _CONTROL.search(value):
        raise Unrecoverable(f"The {what} has a line break or control character: {value[:60]!r}")
    return value


def message_id(job_id: str, sender: str) -> str:
    """Derived from the job, so that a letter sent twice is recognized as the same one."""
    domain = sender.rpartition("@")[2] or "localhost"
    return f"<{job_id}@{domain}>"


@lru_cache(maxsize=100)
def _origin(sender: str) -> tuple[str, str]:
    """The header From, and the address in it."""
    name, address = parseaddr(sender)
    if not check_header("sender", name):
        return address, address
    quoted = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{quoted if name.isascii() else _encoded(name)} <{address}>", address


@lru_cache(maxsize=10)
def _date(second: int) -> str:
    """Letters of one second have the same."""
    return format_datetime(as_datetime(second * 1000))


def _encoded(value: str) -> str:
    """As it is if a header can carry it, else as encoded words (RFC 2047), a line each."""
    if value.isascii() and len(value) <= LONGEST_LINE and "=?" not in value:
        return value
    return "\r\n ".join(f"=?utf-8?b?{b64encode(word).decode()}?=" for word in _words(value))


def _words(value: str) -> list[bytes]:
    """Pieces that end between two characters."""
    words = [b""]
    for character in value:
        octets = character.encode()
        if len(words[-1]) + len(octets) > ENCODED_WORD_BYTES:
            words.append(b"")
        words[-1] += octets
    return words


def _unsubscribing(url: str | None) -> list[str]:
    if not url:
        return []
    return [
        f"List-Unsubscribe: <{check_header('unsubscribe link', url)}>",
        "List-Unsubscribe-Post: List-Unsubscribe=One-Click",
    ]


# ── Parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _body(message: Message) -> bytes:
    """Its headers, an empty line and the content, as every part has them."""
    parts = [_text("plain", message.rendered.text or "")]
    if message.rendered.html:
        parts.append(_text("html", message.rendered.html))
    body = parts[0] if len(parts) == 1 else _multipart("alternative", parts)
    if message.attachments:
        body = _multipart("mixed", [body, *map(_attached, message.attachments)])
    return body


def _multipart(kind: str, parts: list[bytes]) -> bytes:
    mark = token_hex(16)
    edge = f"\r\n--{mark}".encode()
    inside = b"".join(edge + b"\r\n" + part for part in parts)
    return f'Content-Type: multipart/{kind}; boundary="{mark}"\r\n'.encode() + inside + edge + b"--\r\n"


def _text(kind: str, text: str) -> bytes:
    """Quoted-printable keeps Latin text readable; where most is beyond ASCII, base64 is the shorter one."""
    octets = "\n".join(text.splitlines()).encode("utf-8", "replace") + b"\n"
    is_latin = len(octets) < len(text) * 7 // 6 + 2
    encoded = b2a_qp(octets, istext=True) if is_latin else encodebytes(octets.replace(b"\n", b"\r\n"))
    how = "quoted-printable" if is_latin else "base64"
    head = f'Content-Type: text/{kind}; charset="utf-8"\r\nContent-Transfer-Encoding: {how}\r\n\r\n'
    return head.encode() + encoded.replace(b"\n", b"\r\n")


def _attached(attachment: Attachment) -> bytes:
    name = check_header("attachment's name", attachment.filename)
    kind = attachment.type if _TYPE.fullmatch(attachment.type) else "application/octet-stream"
    head = (
        f"Content-Type: {kind}\r\nContent-Transfer-Encoding: base64\r\n"
        f"Content-Disposition: attachment; filename*=utf-8''{quote(name, safe='')}\r\n\r\n"
    )
    return head.encode() + encodebytes(attachment.content).replace(b"\n", b"\r\n")
