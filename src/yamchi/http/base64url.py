"""Bytes as text that may stand in an address: base64 with other letters, without padding."""

from base64 import urlsafe_b64decode, urlsafe_b64encode


def as_base64url(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """Padded or not; a `ValueError` for what is neither."""
    bare = text.rstrip("=")
    if not all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in bare):
        raise ValueError("not base64url")
    return urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
