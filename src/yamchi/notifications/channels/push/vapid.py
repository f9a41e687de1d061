"""VAPID (RFC 8292): who sends, in a short signed token that push services check.

The key is one line of text: 32 bytes as base64url. Its public half goes to the browsers, which take messages from its
owner only; so whoever changes the key loses all subscriptions.
"""

from functools import cached_property
from typing import Self
from urllib.parse import urlsplit

import orjson
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from yamchi.clock import Clock, Millis
from yamchi.errors import ConfigurationError
from yamchi.http.base64url import as_base64url, from_base64url

CURVE = ec.SECP256R1()
LIFE: Millis = 12 * 3_600_000
"""A push service refuses tokens that live longer than a day."""

RENEW_BEFORE: Millis = 3_600_000
MOST_AUDIENCES = 1_000

_HEADER = {"typ": "JWT", "alg": "ES256"}


class VapidKey:
    """The key pair."""

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        self._private = private

    @classmethod
    def make(cls) -> Self:
        return cls(ec.generate_private_key(CURVE))

    @classmethod
    def read(cls, text: str) -> Self:
        """From base64url, as `--make-vapid` prints it, or from PEM."""
        try:
            if "BEGIN" in text:
                private = load_pem_private_key(text.replace("\\n", "\n").encode(), None)
                if not isinstance(private, ec.EllipticCurvePrivateKey) or private.curve.name != CURVE.name:
                    raise ValueError("not a key on the curve P-256")
                return cls(private)
            raw = from_base64url(text.strip())
            if len(raw) != 32:
                raise ValueError("not 32 bytes")
            return cls(ec.derive_private_key(int.from_bytes(raw, "big"), CURVE))
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"VAPID_PRIVATE_KEY has a value that can't be used ({error}): make one with yamchi doctor --make-vapid."
            ) from None

    @property
    def private_text(self) -> str:
        return as_base64url(self._private.private_numbers().private_value.to_bytes(32, "big"))

    @cached_property
    def public_text(self) -> str:
        """What browsers need to subscribe: the `applicationServerKey`."""
        return as_base64url(public_bytes(self._private.public_key()))

    def sign(self, text: bytes) -> bytes:
        """As JWT has it: both numbers, 32 bytes each."""
        r, s = decode_dss_signature(self._private.sign(text, ec.ECDSA(SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")


class Vapid:
    """Makes the `Authorization` of messages; one token serves a push service for hours."""

    def __init__(self, key: VapidKey, subject: str, clock: Clock) -> None:
        self.key = key
        self._subject = subject
        self._clock = clock
        self._tokens: dict[str, tuple[str, Millis]] = {}

    def authorization(self, endpoint: str) -> str:
        address = urlsplit(endpoint)
        audience, now = f"{address.scheme}://{address.netloc}", self._clock.now()
        token, expires_at = self._tokens.get(audience, ("", 0))
        if expires_at - RENEW_BEFORE <= now:
            if len(self._tokens) >= MOST_AUDIENCES:
                self._tokens.clear()
            token, expires_at = self._token(audience, now + LIFE), now + LIFE
            self._tokens[audience] = token, expires_at
        return f"vapid t={token}, k={self.key.public_text}"

    def _token(self, audience: str, expires_at: Millis) -> str:
        claims = {"aud": audience, "exp": expires_at // 1000, "sub": self._subject}
        content = f"{as_base64url(orjson.dumps(_HEADER))}.{as_base64url(orjson.dumps(claims))}"
        return f"{content}.{as_base64url(self.key.sign(content.encode()))}"


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
