"""What a file is, by its first bytes: nothing that its name or its sender says counts."""

from dataclasses import dataclass
from pathlib import Path

from yamchi.errors import Unrecoverable

HEAD = 64


class BadFile(Unrecoverable):
    """A file that can't be used, with one sentence for whoever sent it."""

    http_status = 422


class TooLarge(BadFile):
    """More bytes than an upload may have."""

    http_status = 413


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """A format that is read, by exactly one loader of libvips."""

    name: str
    type: str
    loader: str
    may_be_animated: bool = False


JPEG = ImageFormat("jpeg", "image/jpeg", "jpegload")
PNG = ImageFormat("png", "image/png", "pngload")
WEBP = ImageFormat("webp", "image/webp", "webpload", may_be_animated=True)
GIF = ImageFormat("gif", "image/gif", "gifload", may_be_animated=True)
READABLE = (JPEG, PNG, WEBP, GIF)


def sniff(head: bytes) -> ImageFormat:
    """The format of a file that begins so."""
    if head.startswith(b"\xff\xd8\xff"):
        return JPEG
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return PNG
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return WEBP
    if head.startswith((b"GIF87a", b"GIF89a")):
        return GIF
    raise BadFile(_refusal(head))


def sniff_file(path: Path) -> ImageFormat:
    try:
        with path.open("rb") as file:
            return sniff(file.read(HEAD))
    except FileNotFoundError:
        raise BadFile("The uploaded file is no longer there.") from None


def _refusal(head: bytes) -> str:
    if not head:
        return "The file is empty."
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<svg", b"<?xml", b"<!doctype svg")):
        return "SVG is not taken: it can carry scripts. Send JPEG, PNG, WebP or GIF."
    return "The file is not a picture that can be read: send JPEG, PNG, WebP or GIF."
