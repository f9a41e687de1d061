"""What Chromium asks of its maker to subscribe to Web Push and to receive: check-in, registration, and an open line.

With it, a real browser subscribes and receives offline: `flags()` are the arguments that lead it here. The messages are
Protocol Buffers, few enough to be written by hand.
"""

import datetime
import socket
import ssl
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import parse_qsl

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.services.webserver import Response, WebService

VERSION = b"\x29"
LOGIN_REQUEST, LOGIN_RESPONSE, DATA = 2, 3, 8
DEVICE = 123456789


@dataclass(kw_only=True)
class CloudMessaging(WebService):
    """`push(body)` hands a sealed message to the browser that registered last, again if it hung up before it had it."""

    home: Path
    registration: dict[str, str] = field(default_factory=dict)
    logged_in: threading.Event = field(default_factory=threading.Event)
    _line: ssl.SSLSocket | None = None
    _sent: dict[bytes, bytes] = field(
        default_factory=dict
    )  # by the id under which the browser says it has it
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        super().start()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(_certificate(self.home))
        threading.Thread(target=self._serve_lines, daemon=True).start()

    def stop(self) -> None:
        super().stop()
        self._listener.close()

    def flags(self) -> list[str]:
        return [
            f"--gcm-checkin-url={self.origin}/checkin",
            f"--gcm-registration-url={self.origin}/register",
            f"--gcm-mcs-endpoint=https://127.0.0.1:{self._listener.getsockname()[1]}",
            "--ignore-certificate-errors",
        ]

    def respond(self, path: str, headers: dict[str, str], body: bytes) -> Response:
        if path == "/checkin":
            answer = _number(1, 1) + _fixed(7, DEVICE) + _fixed(8, 42)
            return Response(200, answer, {"Content-Type": "application/x-protobuf"})
        form = dict(parse_qsl(body.decode()))
        if "X-subtype" in form:
            self.registration = form
        return Response(200, b"token=a-token:for-this-browser", {"Content-Type": "text/plain"})

    def push(self, body: bytes) -> None:
        app_data = {"subtype": self.registration["X-subtype"], "content-encoding": "aes128gcm"}
        message = _text(2, "1") + _text(3, self.registration["sender"]) + _text(5, self.registration["app"])
        for key, value in app_data.items():
            message += _bytes(7, _text(1, key) + _text(2, value))
        with self._lock:
            assert self._line is not None
            message_id = b"message-%d" % len(self._sent)
            message += _bytes(9, message_id) + _bytes(21, body)
            self._sent[message_id] = bytes([DATA]) + _varint(len(message)) + message
            with suppress(OSError):  # it has hung up, and gets the message when it calls again
                self._line.sendall(self._sent[message_id])

    def _serve_lines(self) -> None:
        with suppress(OSError):  # closed: the test is over
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(plain,), daemon=True).start()

    def _talk(self, plain: socket.socket) -> None:
        with suppress(OSError), self._context.wrap_socket(plain, server_side=True) as line:
            opening = _read(line, 2)
            assert opening == VERSION + bytes([LOGIN_REQUEST]), opening
            login = _read(line, _read_varint(line))
            answer = _text(1, "login-1")
            with self._lock:
                line.sendall(VERSION + bytes([LOGIN_RESPONSE]) + _varint(len(answer)) + answer)
                for message_id, message in self._sent.items():
                    if message_id not in login:
                        line.sendall(message)
                self._line = line
            self.logged_in.set()
            while line.recv(4096):
                continue  # heartbeats: what it has received it says at the next login


# ── Protocol Buffers, as far as needed ────────────────────────────────────────────────────────────────────────────


def _varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def _read(line: ssl.SSLSocket, size: int) -> bytes:
    out = b""
    while len(out) < size:
        part = line.recv(size - len(out))
        if not part:
            raise ConnectionResetError("hung up in the middle of a message")
        out += part
    return out


def _read_varint(line: ssl.SSLSocket) -> int:
    number = shift = 0
    while (byte := _read(line, 1)[0]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
    return number | byte << shift


def _number(place: int, value: int) -> bytes:
    return _varint(place << 3) + _varint(value)


def _fixed(place: int, value: int) -> bytes:
    return _varint(place << 3 | 1) + struct.pack("<Q", value)


def _bytes(place: int, value: bytes) -> bytes:
    return _varint(place << 3 | 2) + _varint(len(value)) + value


def _text(place: int, value: str) -> bytes:
    return _bytes(place, value.encode())


def _certificate(home: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, SHA256())
    )
    path = home / "cloud.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + made.public_bytes(Encoding.PEM))
    return path
