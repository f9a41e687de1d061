"""Named moments at which a test may kill the process: `YAMCHI_FAULT=event.stored` ends it there, as a power cut would.

In any other environment a fault point is one comparison.
"""

import os
import signal

_CHOSEN = os.environ.get("YAMCHI_FAULT")


def fault_point(name: str) -> None:
    if name == _CHOSEN:
        os.kill(os.getpid(), signal.SIGKILL)
