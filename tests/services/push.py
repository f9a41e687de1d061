"""A push service in this process: it checks who sends, and reads what is sealed with the keys of its browsers.

It does both by the RFCs (8292, 8291, 8188) and not with Yamchi's code.
"""

import json
import os
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.services.webserver import Response, WebService

CURVE = ec.SECP256R1()
DAY = 86_400


def encode(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass
class Browser:
    """A browser that subscribed: its endpoint at the service, and its keys."""

    endpoint: str
    server_key: str
    private: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(CURVE))
    auth: bytes = field(default_factory=lambda: os.urandom(16))
    is_gone: bool = False

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def as_json(self) -> dict[str, Any]:
        """What `PushSubscription.toJSON()` gives."""
        keys = {"p256dh": encode(self.public), "auth": encode(self.auth)}
        return {"endpoint": self.endpoint, "expirationTime": None, "keys": keys}

    def open(self, body: bytes) -> bytes:
        """RFC 8291, the receiver's side."""
        salt, size, length = body[:16], int.from_bytes(body[16:20], "big"), body[20]
        sender, record = body[21 : 21 + length], body[21 + length :]
        assert len(record) <= size
        shared = self.private.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(CURVE, sender))
        prk_key = _hmac(self.auth, shared)
        secret = _hmac(prk_key, b"WebPush: info\x00" + self.public + sender + b"\x01")
        prk = _hmac(salt, secret)
        key = _hmac(prk, b"Content-Encoding: aes128gcm\x00\x01")[:16]
        nonce = _hmac(prk, b"Content-Encoding: nonce\x00\x01")[:12]
        padded = AESGCM(key).decrypt(nonce, record, None).rstrip(b"\x00")
        assert padded[-1:] == b"\x02", "not the last record"
        return padded[:-1]


def _hmac(key: bytes, message: bytes) -> bytes:
    mac = HMAC(key, SHA256())
    mac.update(message)
    return mac.finalize()


@dataclass(frozen=True)
class Pushed:
    """A message that a browser can read."""

    endpoint: str
    message: dict[str, Any]
    headers: dict[str, str]
    claims: dict[str, Any]
    size: int


@dataclass
class PushService(WebService):
    """`answers` are given to the next messages instead of 201, in order; with `hang_ups` it says nothing at all."""

    answers: deque[Response] = field(default_factory=deque)
    hang_ups: int = 0
    browsers: dict[str, Browser] = field(default_factory=dict)
    log: list[Pushed] = field(default_factory=list)
    asked: int = 0
    clock: Callable[[], float] = time.time
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def subscribe(self, server_key: str, host: str = "127.0.0.1") -> Browser:
        """A browser asks for messages of the owner of this key."""
        path = f"/push/{encode(os.urandom(12))}"
        browser = self.browsers[path] = Browser(f"http://{host}:{self.port}{path}", server_key)
        return browser

    def to(self, browser: Browser) -> list[Pushed]:
        with self._lock:
            return [pushed for pushed in self.log if pushed.endpoint == browser.endpoint]

    def respond(self, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        with self._lock:
            self.asked += 1
            if self.answers:
                return self.answers.popleft()
            browser = self.browsers.get(path)
            if browser is None or browser.is_gone:
                return Response(410, b"push subscription has unsubscribed or expired.")
            try:
                claims = self._check_sender(headers, browser)
            except (AssertionError, InvalidSignature) as error:
                return Response(403, json.dumps({"reason": "BadJwtToken", "detail": repr(error)}).encode())
            if wrong := _wrong(headers, body):
                return Response(400, wrong.encode())
            message = json.loads(browser.open(body))
            self.log.append(Pushed(browser.endpoint, message, headers, claims, len(body)))
            if self.hang_ups:
                self.hang_ups -= 1
                return None
        return Response(201, headers={"Location": f"{self.origin}/message/{len(self.log)}"})

    def _check_sender(self, headers: dict[str, str], browser: Browser) -> dict[str, Any]:
        """RFC 8292: the token is signed by the key that the browser subscribed with, for us, and not for long."""
        scheme, _, rest = headers["authorization"].partition(" ")
        given = dict(part.strip().split("=", 1) for part in rest.split(","))
        assert scheme == "vapid"
        assert given["k"] == browser.server_key, "another key"
        content, _, signature = given["t"].rpartition(".")
        head, _, claims_text = content.partition(".")
        assert json.loads(decode(head)) == {"typ": "JWT", "alg": "ES256"}
        raw = decode(signature)
        assert len(raw) == 64
        r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
        key = ec.EllipticCurvePublicKey.from_encoded_point(CURVE, decode(given["k"]))
        key.verify(encode_dss_signature(r, s), content.encode(), ec.ECDSA(SHA256()))
        claims: dict[str, Any] = json.loads(decode(claims_text))
        assert claims["aud"] == browser.endpoint.partition("/push/")[0]
        assert self.clock() < claims["exp"] <= self.clock() + DAY
        assert claims["sub"].startswith(("mailto:", "https://"))
        return claims


def _wrong(headers: dict[str, str], body: bytes) -> str | None:
    topic = headers.get("topic", "")
    if headers.get("content-encoding") != "aes128gcm":
        return "unknown encoding"
    if not headers.get("ttl", "").isdecimal():
        return "TTL is missing"
    if headers.get("urgency") not in ("very-low", "low", "normal", "high"):
        return "unknown urgency"
    if len(topic) > 32 or not topic.replace("-", "").replace("_", "").isalnum():
        return "topic is not base64url of at most 32 letters"
    return "payload is too large" if len(body) > 4096 else None
