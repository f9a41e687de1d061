"""While a child process imports the program to find its handler, nothing may begin: it would be the whole program once more."""

from collections.abc import Iterator
from contextlib import contextmanager

from yamchi.errors import ConfigurationError, Unrecoverable

_is_importing = False


class BegunAtImport(ConfigurationError, Unrecoverable):
    """The program does at import what only its main process should do; no retry mends that."""


@contextmanager
def importing() -> Iterator[None]:
    """This process is a child, which imports its function meanwhile."""
    global _is_importing
    _is_importing = True
    try:
        yield
    finally:
        _is_importing = False


def check_not_importing(what: str) -> None:
    """Refuse to do this in a child that is not ready yet."""
    if _is_importing:
        raise BegunAtImport(
            f"The program {what} when it is imported, as each child process does to find its handler: "
            'put that below `if __name__ == "__main__":`.'
        )
