"""Job schedulers that Node made: whoever takes one run of a schedule adds the next, as BullMQ's own worker does.

Yamchi's own cron (`fire`) needs none of this; it is for queues that are shared with Node.
"""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import structlog
from cronsim import CronSim

from yamchi.clock import Millis, as_datetime, to_moment
from yamchi.queues import foreign
from yamchi.queues.engines.bull.codec import Hash, packed
from yamchi.queues.engines.bull.connection import Arg

log = structlog.get_logger("yamchi.bull")


def next_run(queue: str, job_id: bytes, fields: Hash, now: Millis) -> tuple[Arg, ...] | None:
    """The arguments of the script `next_run` for a claimed job of a schedule; None if this run is the last."""
    scheduler = foreign.text(fields[b"rjk"], foreign.LONGEST_ID)
    try:
        return _next_run(scheduler, job_id, fields, now)
    except Exception as error:  # whatever somebody wrote there
        shown = foreign.text(job_id, foreign.LONGEST_ID)
        log.error(
            f"[{queue}:bull] the next run of the schedule {scheduler} can't be added after job {shown}: {error!r}"
        )
        return None


def _next_run(scheduler: str, job_id: bytes, fields: Hash, now: Millis) -> tuple[Arg, ...] | None:
    opts = orjson.loads(fields.get(b"opts", b"{}"))
    repeat: dict[str, Any] = opts["repeat"]
    made = int(repeat.get("count") or 0) + 1
    if _is_over(repeat, made, now):
        return None
    moment = now if repeat.get("every") else _after(repeat, max(now, int(opts.get("prevMillis") or 0)))
    next_opts = {
        **opts,
        "jobId": f"repeat:{scheduler}:{moment}",
        "timestamp": now,
        "prevMillis": moment,
        "repeatJobKey": scheduler,
        "repeat": {**repeat, "count": made},
    }
    return moment, scheduler, fields.get(b"data", b"{}"), packed(next_opts), now, job_id


def _is_over(repeat: dict[str, Any], made: int, now: Millis) -> bool:
    limit, end = repeat.get("limit"), repeat.get("endDate")
    return (limit is not None and made > limit) or (end is not None and now > _moment(end))


def _moment(date: Any) -> Millis:
    return int(date) if isinstance(date, int | float) else to_moment(datetime.fromisoformat(date))


def _after(repeat: dict[str, Any], moment: Millis) -> Millis:
    """The pattern's first moment after this one, in the schedule's time zone or, as in Node, the machine's."""
    if start := repeat.get("startDate"):
        moment = max(moment, _moment(start))
    zone = ZoneInfo(repeat["tz"]) if repeat.get("tz") else None
    return to_moment(next(CronSim(repeat["pattern"], as_datetime(moment).astimezone(zone))))
