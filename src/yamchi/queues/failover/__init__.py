"""When the broker can't be reached, work goes on in a local spool; when it is back, the spool moves over, in order.

`sides` knows which of the two is in use, `moving` brings the spool to the broker, `pauses` and `rates` make a pause and a
rate limit mean the same on both, and `engine` is the engine contract over the two.
"""

from yamchi.queues.engines.base import Engine
from yamchi.queues.failover.engine import FailoverEngine
from yamchi.queues.failover.moving import Owns
from yamchi.queues.failover.sides import OnSwitch
from yamchi.queues.failover.spool import Spool

__all__ = ["Spool", "with_failover"]


def with_failover(primary: Engine, spool: Spool, on_switch: OnSwitch, owns: Owns) -> Engine:
    """The primary engine, with the spool in its place while it can't be reached.

    One spool may serve several engines: each moves the queues it owns, and leaves opening and closing
    of what they share to be done once.
    """
    return FailoverEngine(primary, spool, on_switch, owns)
