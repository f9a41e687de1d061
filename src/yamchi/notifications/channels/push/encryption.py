"""Encrypts a message so that only the browser can read it, and not the push service (RFC 8291, RFC 8188)."""

import os

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from yamchi.notifications.channels.push.vapid import CURVE, public_bytes

MAX_BODY_BYTES = 4096
"""Bytes that every push service takes."""

RECORD_BYTES = 4096
_HEADER = 16 + 4 + 1 + 65
_LAST_RECORD = b"\x02"
_TAG = 16
MAX_MESSAGE_BYTES = MAX_BODY_BYTES - _HEADER - len(_LAST_RECORD) - _TAG


def encrypt(
    message: bytes,
    browser_key: bytes,
    auth: bytes,
    *,
    ours: ec.EllipticCurvePrivateKey | None = None,
    salt: bytes | None = None,
) -> bytes:
    """The body of a push message. Our key and the salt are made anew for each."""
    ours, salt = ours or ec.generate_private_key(CURVE), salt or os.urandom(16)
    theirs = ec.EllipticCurvePublicKey.from_encoded_point(CURVE, browser_key)
    our_public = public_bytes(ours.public_key())
    shared = ours.exchange(ec.ECDH(), theirs)
    secret = _derive(shared, auth, b"WebPush: info\x00" + browser_key + our_public, 32)
    key = _derive(secret, salt, b"Content-Encoding: aes128gcm\x00", 16)
    nonce = _derive(secret, salt, b"Content-Encoding: nonce\x00", 12)
    header = salt + RECORD_BYTES.to_bytes(4, "big") + bytes([len(our_public)]) + our_public
    return header + AESGCM(key).encrypt(nonce, message + _LAST_RECORD, None)


def is_browser_key(raw: bytes) -> bool:
    """Whether these bytes are a point of the curve."""
    try:
        ec.EllipticCurvePublicKey.from_encoded_point(CURVE, raw)
    except ValueError:
        return False
    return len(raw) == 65


def _derive(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, info).derive(secret)
