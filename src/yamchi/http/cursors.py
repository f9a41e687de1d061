"""Places in a list that only ever grows, as callers carry them from one page to the next."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

from yamchi.clock import Millis
from yamchi.errors import InvalidJob


def make_cursor(moment: Millis, *names: str) -> str:
    """After the row of this moment, and of these names where several have it."""
    return urlsafe_b64encode("\n".join((str(moment), *names)).encode()).decode().rstrip("=")


def read_cursor(cursor: str, names: int = 1) -> tuple[Millis, list[str]]:
    """The moment and the names; refused in a sentence if it is not one that was given out."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        moment, *rest = urlsafe_b64decode(padded.encode("ascii")).decode().split("\n")
        if len(rest) != names or not 0 <= int(moment) < 10**14 or any("\0" in name for name in rest):
            raise ValueError
    except ValueError:
        raise InvalidJob("cursor: it is not one of ours; leave it out to begin at the start.") from None
    return int(moment), rest
