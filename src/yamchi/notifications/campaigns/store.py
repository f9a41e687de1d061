"""Campaigns: created once per id, paused, resumed, cancelled, shown with their progress.

A campaign is a draft until its list is complete, so a crash while it is created sends nothing: the same request again goes
on where the first one ended.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from io import StringIO
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, and_, desc, select, update

from yamchi.clock import Clock, isoformat_or_none
from yamchi.errors import InvalidJob, UnknownJob, WrongState
from yamchi.notifications.campaigns.audience import Audience
from yamchi.notifications.campaigns.enrollment import Enrollment, Guard
from yamchi.notifications.campaigns.limits import CampaignLimits
from yamchi.notifications.campaigns.lists import Report
from yamchi.notifications.campaigns.model import Campaign, CampaignIn, ShownState, State
from yamchi.notifications.campaigns.rehearsal import Rehearsal
from yamchi.notifications.channels.base import Channel
from yamchi.notifications.schemas.notification_job import DEFAULT_LOCALE, canonical_channel
from yamchi.notifications.sending.campaign_counts import CampaignCounts
from yamchi.notifications.tables import campaigns, notification_delivery
from yamchi.notifications.templates.locales import locale_chain
from yamchi.notifications.templates.model import TemplateStore, UnknownTemplate
from yamchi.storage.database import Database

table = campaigns

DATA_LIMIT = 65_536
"""Bytes of data: it is in every message."""

LOOK_AGAIN_SECONDS = 0.1
LOOKS = 100
"""How often a request looks whether another that is the same has filled the list, and how many times while nobody is added to it."""

WAITING = ("QUEUED", "RETRYING")

LONGEST_FAILURE = 500
UNKNOWN = "?"
"""What is shown of a campaign that can't be read."""


class _Overtaken(WrongState):
    """Another request fills the list now."""


class Campaigns:
    """`app.notifications.campaigns`: the table `campaigns`."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        channels: Mapping[str, Channel],
        templates: TemplateStore,
        counts: CampaignCounts,
        limits: CampaignLimits,
        rehearsal: Rehearsal,
    ) -> None:
        self._database = database
        self._clock = clock
        self._channels = channels
        self._templates = templates
        self._counts = counts
        self._limits = limits
        self._rehearsal = rehearsal
        self._enrollment = Enrollment(database, clock)
        self._new = database.insert(table).on_conflict_do_nothing()

    # ── Making ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, request: CampaignIn) -> dict[str, Any]:
        """Make a campaign and let it begin. The same again answers what has become of it."""
        known = await self._find(request.campaign_id)
        if known is None or known.state == "draft":
            await self._check(request)
            await self._draft(request, known)
            known = await self.get(request.campaign_id)
        if known.fingerprint != request.fingerprint:
            raise WrongState(
                f"There is a campaign {request.campaign_id!r} already, and it is another one: "
                "choose another campaign_id, or send exactly what was sent before."
            )
        if known.state == "draft" and not request.audience.is_list:
            await self._start(known)
        elif known.state == "draft" and not request.audience.upload:
            await self._fill(known, request)
        return await self.show(request.campaign_id)

    async def _draft(self, request: CampaignIn, known: Campaign | None) -> None:
        """Keep the request. One that has not begun yet, such as one with a broken list, gives way to another."""
        row = self._row(request)
        if known and known.fingerprint != request.fingerprint:
            change = update(table).where(_is_draft(known)).values(row)
            await self._database.execute(change)
        elif known is None:
            await self._database.write(lambda connection: connection.execute(self._new, row).rowcount)

    async def upload(self, campaign_id: str, lines: Iterable[str]) -> dict[str, Any]:
        """Take the list of a draft, in place of what it had, and let it begin."""
        campaign = await self.get(campaign_id)
        if campaign.state != "draft":
            raise WrongState(f"The campaign {campaign_id} has begun: its list can't be changed any more.")
        await self._enroll(campaign, lambda guard: self._enrollment.by_csv(campaign_id, lines, guard))
        return await self.show(campaign_id)

    async def _check(self, request: CampaignIn) -> None:
        channel = canonical_channel(request.channel)
        if channel not in self._channels:
            known = ", ".join(sorted(self._channels))
            raise InvalidJob(f"The channel {channel} is not set up here: set it up, or use one of {known}.")
        locales = locale_chain(request.locale or DEFAULT_LOCALE)
        for code in {request.template_code, *(one.template_code for one in request.variants)} - {None}:
            if await self._templates.find(str(code), channel, locales) is None:
                raise InvalidJob(str(UnknownTemplate(str(code), channel, locales)))
        size = sum(map(len, map(orjson.dumps, [request.data, *(one.data for one in request.variants)])))
        if size > DATA_LIMIT:
            raise InvalidJob(
                f"data is {size:,} bytes, more than the {DATA_LIMIT:,} allowed: it goes into every message."
            )
        if request.expires_at and request.expires_at.timestamp() * 1000 <= self._clock.now():
            raise InvalidJob("expires_at is in the past: nobody would ever get it.")
        Audience(
            self._database, request.campaign_id, request.audience.where
        )  # says what is wrong with the filter

    def _row(self, request: CampaignIn) -> dict[str, Any]:
        return {
            "campaign_id": request.campaign_id,
            "body": request.body(),
            "fingerprint": request.fingerprint,
            "state": "draft",
            "created_at": self._clock.now(),
        }

    async def _enroll(self, campaign: Campaign, fill: Callable[[Guard], Awaitable[Report]]) -> None:
        """Fill the list and begin. Of several requests that fill it at once the last one counts, and alone."""
        me = secrets.token_hex(8)
        claim = update(table).where(_is_draft(campaign)).values(holder=me)
        await self._database.execute(claim)

        def guard(connection: Connection) -> None:
            _check_mine(connection, campaign, me)

        try:
            await self._enrollment.empty(campaign.campaign_id, guard)
            report = await fill(guard)
            if report.people == 0:
                why = (
                    "; ".join(f"row {one.row}: {one.error}" for one in report.broken[:3]) or "it has no rows"
                )
                raise InvalidJob(f"The CSV names nobody who can be reached: {why}.")
            await self._start(campaign, report, me)
        except Exception:
            given_up = update(table).where(_is_draft(campaign), table.c.holder == me).values(holder=None)
            await self._database.execute(given_up)
            raise

    async def _fill(self, draft: Campaign, request: CampaignIn) -> None:
        """Enroll the people that the request names. Of the same request sent several times at once, all answer what one makes.

        Where that one gives up, each of them finds out for itself why.
        """
        while True:
            try:
                await self._enroll(draft, lambda guard: self._read_list(request, guard))
                return
            except _Overtaken:
                known = await self._after_other(draft)
                if known.fingerprint != draft.fingerprint or (known.state == "draft" and known.holder):
                    raise
                if known.state != "draft":
                    return

    async def _after_other(self, draft: Campaign) -> Campaign:
        """The campaign when another request has begun it, however long its list takes, or given up, or adds nobody any more."""
        audience, listed, looks = Audience.of(self._database, draft), -1, 0
        while True:
            known = await self.get(draft.campaign_id)
            is_awaited = known.fingerprint == draft.fingerprint and known.state == "draft" and known.holder
            if not is_awaited or looks == LOOKS:
                return known
            found = await audience.count()
            looks = looks + 1 if found == listed else 0
            listed = found
            await asyncio.sleep(LOOK_AGAIN_SECONDS)  # a real list takes real time

    def _read_list(self, request: CampaignIn, guard: Guard) -> Awaitable[Report]:
        if request.audience.user_ids is not None:
            return self._enrollment.by_ids(request.campaign_id, map(str, request.audience.user_ids), guard)
        lines = StringIO(request.audience.csv or "", newline="")
        return self._enrollment.by_csv(request.campaign_id, lines, guard)

    async def _start(self, campaign: Campaign, report: Report | None = None, me: str | None = None) -> None:
        audience = Audience.of(self._database, campaign)
        await self._rehearsal.run(campaign, audience)
        total = await audience.count()
        values = {"state": "running", "total": total, "report": report and report.shown(), "holder": None}

        def begin(connection: Connection) -> None:
            if me is not None:
                _check_mine(connection, campaign, me)
            connection.execute(update(table).where(_is_draft(campaign)).values(values))

        await self._database.write(begin)

    # ── Steering ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def pause(self, campaign_id: str) -> dict[str, Any]:
        """Send nothing more until it is resumed; what is being sent this moment still goes."""
        return await self._change_state(campaign_id, ("running",), "paused")

    async def resume(self, campaign_id: str) -> dict[str, Any]:
        return await self._change_state(campaign_id, ("paused",), "running")

    async def cancel(self, campaign_id: str) -> dict[str, Any]:
        """Send nothing more, ever. Those who have not got it yet never will."""
        return await self._change_state(campaign_id, ("draft", "running", "paused"), "cancelled")

    async def _change_state(self, campaign_id: str, before: Sequence[State], after: State) -> dict[str, Any]:
        if (await self.show(campaign_id))["state"] != "finished":
            change = update(table).where(table.c.campaign_id == campaign_id, table.c.state.in_(before))
            changed = change.values(state=after)
            if await self._database.execute(changed):
                self._limits.forget(campaign_id)
                return await self.show(campaign_id)
        state = (await self.show(campaign_id))["state"]  # of two who change it at once, one was first
        raise WrongState(f"The campaign {campaign_id} can't become {after}: it is {state}.")

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, campaign_id: str) -> Campaign:
        if campaign := await self._find(campaign_id):
            return campaign
        raise UnknownJob(f"There is no campaign {campaign_id!r}.")

    async def _find(self, campaign_id: str) -> Campaign | None:
        query = select(table).where(table.c.campaign_id == campaign_id)
        row = await self._database.read(lambda connection: connection.execute(query).mappings().first())
        return None if row is None else Campaign(**row)

    async def show(self, campaign_id: str) -> dict[str, Any]:
        """A campaign with its progress, for people and programs."""
        return await self._shown(await self.get(campaign_id))

    async def list(self, *, offset: int = 0, limit: int = 50) -> list[dict[str, Any]]:
        """Campaigns, newest first."""
        query = select(table).order_by(desc(table.c.created_at)).offset(offset).limit(limit)
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return list(await asyncio.gather(*(self._shown(Campaign(**row)) for row in rows)))

    async def _shown(self, campaign: Campaign) -> dict[str, Any]:
        """Each is shown: one that can't be read says so, and does not keep the others from being shown."""
        try:
            return await self._described(campaign)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            said = f"This campaign can't be shown: {type(error).__name__}: {error}"[:LONGEST_FAILURE]
            return {
                "campaign_id": campaign.campaign_id,
                "template_code": UNKNOWN,
                "channel": UNKNOWN,
                "state": campaign.state,
                "progress": {"total": campaign.total, **_progress(Counter())},
                "by_variant": {},
                "failure": said,
                "list": None,
                "created_at": isoformat_or_none(campaign.created_at),
            }

    async def _described(self, campaign: Campaign) -> dict[str, Any]:
        by_variant = await self._counts.of(campaign.campaign_id)
        whole: Counter[str] = sum(by_variant.values(), Counter())
        failure = await self._failure(campaign.campaign_id) if whole["FAILED"] else None
        moments = ("created_at", "fanned_out_at")
        return {
            **campaign.body,
            "state": self._state(campaign, whole),
            "progress": {"total": campaign.total, **_progress(whole)},
            "by_variant": {name: _progress(by_variant.get(name, Counter())) for name in _names(campaign)},
            "failure": failure,
            "list": campaign.report,
            **{name: isoformat_or_none(getattr(campaign, name)) for name in moments},
        }

    async def _failure(self, campaign_id: str) -> str | None:
        """What one of the messages failed of: nearly always it is the same for all of them."""
        delivery = notification_delivery.c
        of_campaign = (delivery.campaign_id == campaign_id) & (delivery.status == "FAILED")
        query = select(delivery.last_error).where(of_campaign).limit(1)
        said: str | None = await self._database.value(query)
        return said

    def _state(self, campaign: Campaign, counts: Counter[str]) -> ShownState:
        if campaign.state != "running":
            return campaign.state
        if campaign.send_after and campaign.send_after > self._clock.now():
            return "scheduled"
        is_over = campaign.fanned_out_at is not None and not any(counts[status] for status in WAITING)
        return "finished" if is_over else "running"


def _is_draft(campaign: Campaign) -> ColumnElement[bool]:
    """The campaign, while it is the draft that was seen."""
    return and_(
        table.c.campaign_id == campaign.campaign_id,
        table.c.fingerprint == campaign.fingerprint,
        table.c.state == "draft",
    )


def _check_mine(connection: Connection, campaign: Campaign, me: str) -> None:
    holder = select(table.c.holder).where(_is_draft(campaign)).with_for_update()
    if connection.execute(holder).scalar() != me:
        raise _Overtaken(f"Another request took the list of the campaign {campaign.campaign_id} meanwhile.")


def _names(campaign: Campaign) -> Sequence[str]:
    return [variant["name"] for variant in campaign.variants]


def _progress(counts: Counter[str]) -> dict[str, int]:
    named = ("SENT", "FAILED", "SUPPRESSED", "EXPIRED", "CANCELLED", "UNKNOWN")
    waiting = sum(counts[status] for status in WAITING)
    shown = {status.lower(): counts[status] for status in named}
    return {"fanned_out": counts.total(), "waiting": waiting, **shown}
