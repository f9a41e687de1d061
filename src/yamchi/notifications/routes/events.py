"""Events and notifications from products; callers need the permission to send."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Body, Request, Response
from pydantic import Field, TypeAdapter, ValidationError

from yamchi.errors import InvalidJob
from yamchi.fields import MOST_KEYS
from yamchi.http.access import TheCaller
from yamchi.http.limits import check_values, is_json, off_loop, read_json
from yamchi.http.problems import documented
from yamchi.notifications.routes.dependencies import TheNotifications
from yamchi.notifications.schemas.event import Event, EventAnswer, PlannedJob
from yamchi.notifications.schemas.notification_job import NotificationJob
from yamchi.notifications.sending.http_input import event_of_test
from yamchi.queues.handlers import describe, faults_in

senders = APIRouter(tags=["events"], responses=documented(401, 403, 409, 413, 422, 503))

MAX_EVENTS = 10_000
"""Events in one call."""

_events = TypeAdapter(Annotated[list[Event], Field(fail_fast=True)])
_answers = TypeAdapter(list[EventAnswer])


@senders.post(
    "/events",
    status_code=202,
    response_model=EventAnswer,
    summary="Tell of an event; the same event_id again changes nothing",
)
async def accept_event(request: Request, event: Event, notifications: TheNotifications) -> Response:
    told = event_of_test(event) if request.state.caller.is_test else event  # no dependency: this is hot
    answer = await notifications.service.handle_event(told)
    return _accepted(answer.model_dump_json())


@senders.post(
    "/events/batch",
    status_code=202,
    response_model=list[EventAnswer],
    summary="Tell of many events: a JSON array, or an event a line (NDJSON)",
    openapi_extra={
        "requestBody": {
            "content": {
                "application/json": {
                    "schema": {"type": "array", "items": {"$ref": "#/components/schemas/Event"}}
                },
                "application/x-ndjson": {"schema": {"type": "string"}},
            }
        }
    },
)
async def accept_events(request: Request, caller: TheCaller, notifications: TheNotifications) -> Response:
    read = partial(_read_batch, is_checked=is_json(request.scope))
    events = await off_loop(read, await request.body())
    told = [event_of_test(event) for event in events] if caller.is_test else events
    answers = await notifications.service.handle_events(told)
    return _accepted(_answers.dump_json(answers))


def _accepted(answer: bytes | str) -> Response:
    """An answer that was made by the model is not checked against it again: this is the hottest way in."""
    return Response(answer, status_code=202, media_type="application/json")


def _read_batch(body: bytes, *, is_checked: bool) -> Sequence[Event]:
    text = body.strip()
    if not text.startswith(b"["):
        values = _read_lines(text)
    else:
        values = orjson.loads(text) if is_checked else read_json(text)
    _check_count(len(values))
    for number, value in enumerate(values, 1):
        if type(value) is dict and len(value) > MOST_KEYS:
            raise InvalidJob(f"Event {number} of the batch has {len(value):,} fields.")
    try:
        return _events.validate_python(values)
    except ValidationError as error:
        raise InvalidJob(
            f"The batch has an event that can't be used, and nothing of it was taken: {describe(error)}.",
            faults_in(error),
        ) from error


def _read_lines(text: bytes) -> list[Any]:
    """An event a line; how many there are is known before any of them is read."""
    _check_count(text.count(b"\n"))
    lines = [line for line in text.split(b"\n") if line.strip()]
    check_values(text)
    values = []
    for number, line in enumerate(lines, 1):
        try:
            values.append(read_json(line))
        except InvalidJob as error:
            raise InvalidJob(f"Event {number} of the batch: {error}") from error
    return values


def _check_count(count: int) -> None:
    if count > MAX_EVENTS:
        raise InvalidJob(f"A batch may have {MAX_EVENTS:,} events, this one has {count:,}: send it in parts.")


@senders.post("/notifications", status_code=202, summary="Queue a NotificationJob as it is")
async def send_notification(
    given: Annotated[NotificationJob, Body()], caller: TheCaller, notifications: TheNotifications
) -> PlannedJob:
    job = await notifications.http_input.job(given, is_test=caller.is_test)
    await notifications.service.send([job])
    status = await notifications.deliveries.status(job.delivery_id)
    return PlannedJob(
        job_id=job.delivery_id,
        channel=job.channel,
        template_code=job.template_code,
        status=status or "QUEUED",
    )
