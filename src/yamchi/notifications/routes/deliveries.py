"""What became of notifications, and what decides about them: deliveries, rules, dead letters."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from yamchi.fields import Key, Name
from yamchi.http.access import TheCaller, seen_by
from yamchi.http.audit import changes
from yamchi.http.bodies import Done, Replay
from yamchi.http.paging import PageNumber, PageSize, Search
from yamchi.http.problems import documented
from yamchi.notifications.policy.rules import Rule
from yamchi.notifications.routes.dependencies import TheNotifications
from yamchi.notifications.sending.statuses import Status

router = APIRouter(tags=["notifications"], responses=documented(401, 403, 404, 422, 503))


class RuleOut(BaseModel):
    rule_id: str


@router.get("/notifications", summary="Deliveries, newest first")
async def list_deliveries(
    notifications: TheNotifications,
    caller: TheCaller,
    user_id: Key | None = None,
    status: Status | None = None,
    event_id: Key | None = None,
    campaign_id: Key | None = None,
    page: PageNumber = 1,
    size: PageSize = 50,
) -> list[dict[str, Any]]:
    found = await notifications.deliveries.find(
        offset=(page - 1) * size,
        limit=size,
        user_id=user_id,
        status=status,
        event_id=event_id,
        campaign_id=campaign_id,
    )
    return await seen_by(caller, found)


@router.get("/notifications/{job_id}", summary="One delivery: status, attempts, the provider's answers")
async def show_delivery(notifications: TheNotifications, caller: TheCaller, job_id: Key) -> dict[str, Any]:
    return await seen_by(caller, await notifications.deliveries.get(job_id))


@router.delete(
    "/notifications/{job_id}", status_code=204, summary="Cancel before it is sent", responses=documented(409)
)
async def cancel_delivery(notifications: TheNotifications, job_id: Key) -> None:
    await notifications.service.cancel(job_id)


@router.post(
    "/notifications/{job_id}/confirm",
    status_code=204,
    summary="An UNKNOWN one did arrive",
    responses=documented(409),
)
async def confirm_delivery(notifications: TheNotifications, job_id: Key) -> None:
    await notifications.unknown_deliveries.mark_sent(job_id)


@router.post(
    "/notifications/{job_id}/resend",
    status_code=204,
    summary="An UNKNOWN one did not arrive: send it again",
    responses=documented(409),
)
async def resend_delivery(notifications: TheNotifications, job_id: Key) -> None:
    await notifications.unknown_deliveries.send_again(job_id)


@router.get("/rules", summary="The rules in force, of the file and of the table")
async def list_rules(notifications: TheNotifications) -> dict[str, list[dict[str, Any]]]:
    return await notifications.rules.list()


@router.post("/rules", status_code=201, summary="Add a rule")
async def add_rule(notifications: TheNotifications, rule: Rule) -> RuleOut:
    return RuleOut(rule_id=await notifications.rules.put(rule))


@router.put("/rules/{rule_id}", summary="Replace a rule")
async def put_rule(request: Request, notifications: TheNotifications, rule_id: Name, rule: Rule) -> RuleOut:
    changes(request, before=await _kept_rule(notifications, rule_id))
    return RuleOut(rule_id=await notifications.rules.put(rule, rule_id))


@router.delete("/rules/{rule_id}", status_code=204, summary="Remove a rule of the table")
async def remove_rule(request: Request, notifications: TheNotifications, rule_id: Key) -> None:
    changes(request, before=await _kept_rule(notifications, rule_id))
    await notifications.rules.remove(rule_id)


@router.get("/dlq", summary="Dead letters of notifications, newest first")
async def list_letters(
    notifications: TheNotifications,
    caller: TheCaller,
    q: Search = "",
    page: PageNumber = 1,
    size: PageSize = 50,
) -> dict[str, Any]:
    """Of one with more than 32 KB, `preview` is its beginning: ask for it by its id."""
    found = await notifications.dead_letters.list(search=q, offset=(page - 1) * size, limit=size)
    return await seen_by(caller, found)


@router.get("/dlq/{letter_id}", summary="One dead letter")
async def show_letter(notifications: TheNotifications, caller: TheCaller, letter_id: Key) -> dict[str, Any]:
    return await seen_by(caller, await notifications.dead_letters.get(letter_id))


@router.post("/dlq/replay-all", summary="Put every letter that holds a job back")
async def replay_all(notifications: TheNotifications, q: Search = "") -> Done:
    return Done(count=await notifications.dead_letters.replay_all(search=q))


@router.post("/dlq/{letter_id}/replay", status_code=204, summary="Put it back, with other data if given")
async def replay_letter(
    notifications: TheNotifications, letter_id: Key, corrected: Replay | None = None
) -> None:
    await notifications.dead_letters.replay(letter_id, (corrected or Replay()).given)


async def _kept_rule(notifications: TheNotifications, rule_id: str) -> dict[str, Any] | None:
    """A rule as it is before it is changed."""
    known = (await notifications.rules.list())["table"]
    return next((one for one in known if one["rule_id"] == rule_id), None)
