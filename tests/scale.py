"""How large a run is: everyday, or with FAULTS=full as large as what is promised."""

import os

FULL = os.environ.get("FAULTS") == "full"


def scaled(usual: int, full: int) -> int:
    """A size for everyday runs, and the one of FAULTS=full."""
    return full if FULL else usual
