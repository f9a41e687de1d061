"""Queues that this application does not declare but that are there: another program's, on the same engines.

An operator sees and handles them like any other. A queue whose name begins with `_` is Yamchi's own scratch paper.
"""

from yamchi.app import Yamchi
from yamchi.errors import UnknownQueue, some_of
from yamchi.queues.overview import kept_names
from yamchi.queues.queue import Queue


async def find_queue(app: Yamchi, name: str) -> Queue:
    """A queue by name, declared here or not."""
    if name not in {queue.name for queue in app.queues} and name in await _kept_names(app):
        app.define(name).is_foreign = True
    try:
        return app.queue(name)
    except UnknownQueue:
        known = some_of(queue.name for queue in app.queues)
        raise UnknownQueue(f"There is no queue {name!r}; there are: {known}.") from None


async def all_queues(app: Yamchi) -> list[Queue]:
    """Every queue, declared ones first and in their order."""
    declared = {queue.name for queue in app.queues}
    for name in sorted(await _kept_names(app) - declared):
        app.define(name).is_foreign = True
    return app.queues


async def _kept_names(app: Yamchi) -> set[str]:
    return {name for name in await kept_names(app.queues) if not name.startswith("_")}
