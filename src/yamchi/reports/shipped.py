"""The kinds that ship: what was sent, how far leads came, and a person's results."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    and_,
    column,
    func,
    inspect,
    or_,
    select,
    table,
)

from yamchi.clock import Clock, Millis, as_datetime, isoformat, to_moment
from yamchi.errors import Unrecoverable
from yamchi.notifications.tables import notification_delivery as deliveries
from yamchi.reports.charts import funnel, stacked_bars
from yamchi.reports.kinds import TEMPLATES, Content, Kinds, ReportKind, Rows
from yamchi.reports.texts import TEXTS, Texts
from yamchi.storage.database import Database

Locale = Literal["ru", "en", "kk"]
BATCH = 1_000
DAY = timedelta(days=1)
STATUS_COLORS = {
    "SENT": "#2f6fde",
    "FAILED": "#d5533f",
    "UNKNOWN": "#8458c8",
    "SUPPRESSED": "#a9b3bf",
    "EXPIRED": "#6b7785",
    "CANCELLED": "#c9ced6",
    "RETRYING": "#e0a030",
    "QUEUED": "#27a172",
}
STATUSES = tuple(STATUS_COLORS)
COLUMNS = (
    "job_id",
    "channel",
    "template_code",
    "user_id",
    "status",
    "attempts",
    "last_error",
    "created_at",
    "updated_at",
    "sent_at",
)
LONGEST = 400
"""Days that one report may cover."""


Day = Annotated[date, Field(ge=date(2000, 1, 1), le=date(2200, 1, 1))]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Period(BaseModel):
    """From the first day to the last, both included; the last seven days if nothing is said."""

    model_config = ConfigDict(extra="forbid")

    since: Day | None = None
    until: Day | None = None
    locale: Locale = "ru"

    @model_validator(mode="after")
    def _in_order(self) -> "Period":
        if self.since and self.until:
            _check_span(self.since, self.until)
        return self

    def days(self, today: date) -> list[date]:
        """Without `until` up to today: how long that is depends on when it is asked."""
        last = self.until or today
        first = self.since or last - DAY * 6
        try:
            _check_span(first, last)
        except ValueError as error:
            raise Unrecoverable(f"From {first} to {last}: {error}.") from error
        return [first + DAY * place for place in range((last - first).days + 1)]


def _check_span(first: date, last: date) -> None:
    if not timedelta(0) <= last - first <= DAY * LONGEST:
        raise ValueError(f"until should be 0 to {LONGEST} days after since")


class Measurement(BaseModel):
    """One value of a person's results, with its norm."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=200)
    value: Number
    unit: str = Field(default="", max_length=32)
    low: Number | None = None
    high: Number | None = None


class CheckupParams(BaseModel):
    """A person's results."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=200)
    date: str = Field(default="", max_length=64)
    results: list[Measurement] = Field(min_length=1, max_length=500)
    conclusion: str = Field(default="", max_length=20_000)
    locale: Locale = "ru"


def add_shipped(kinds: Kinds, database: Database, clock: Clock) -> None:
    made = Shipped(database, clock)
    kinds.add(
        ReportKind(
            "deliveries",
            made.deliveries,
            Period,
            TEMPLATES / "deliveries.typ",
            "What was sent, by day, channel and status.",
        )
    )
    kinds.add(ReportKind("leads", made.leads, Period, TEMPLATES / "leads.typ", "How far leads came."))
    kinds.add(
        ReportKind(
            "checkup",
            made.checkup,
            CheckupParams,
            TEMPLATES / "checkup.typ",
            "A person's results, with norms.",
        )
    )


class Shipped:
    """Gathers the data of the kinds that ship."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    # ── Deliveries ────────────────────────────────────────────────────────────────────────────────────────────────

    async def deliveries(self, params: Period) -> Content:
        texts = TEXTS[params.locale]
        days = params.days(self._today)
        counted = await self._count_deliveries(days)
        by_status: Counter[str] = Counter()
        by_day: dict[str, Counter[str]] = defaultdict(Counter)
        by_channel: dict[str, Counter[str]] = defaultdict(Counter)
        for day, channel, status, count in counted:
            by_status[status] += count
            by_day[day][status] += count
            by_channel[channel][status] += count
        statuses = [status for status, _ in by_status.most_common()]
        series = {status: [by_day[str(day)][status] for day in days] for status in statuses}
        data = {
            "locale": params.locale,
            "subtitle": _span(days),
            "labels": texts.deliveries,
            "facts": [
                [texts.total, _number(sum(by_status.values()))],
                [texts.sent, _number(by_status["SENT"])],
                [texts.failed, _number(by_status["FAILED"])],
            ],
            "chart": stacked_bars(
                [f"{day:%d.%m}" for day in days], series, [STATUS_COLORS[one] for one in statuses] or ["#fff"]
            ),
            "columns": [texts.channel, *statuses],
            "rows": [
                [channel, *(_number(counts[status]) for status in statuses)]
                for channel, counts in sorted(by_channel.items())
            ],
            "errors": await self._errors(days),
            "error_columns": [texts.error, texts.count],
        }
        return Content(
            texts.deliveries["title"], data, self._delivery_rows(days, sum(by_status.values())), _span(days)
        )

    async def _count_deliveries(self, days: Sequence[date]) -> list[tuple[str, str, str, int]]:
        """A query a day, each a few short walks along the index of statuses and times."""
        found: list[tuple[str, str, str, int]] = []
        for day in days:
            query = (
                select(deliveries.c.channel, deliveries.c.status, func.count())
                .where(deliveries.c.status.in_(STATUSES), _within(*_bounds(day)))
                .group_by(deliveries.c.channel, deliveries.c.status)
            )
            rows = await self._database.rows(query)
            found += [(str(day), row[0], row[1], row[2]) for row in rows]
        return found

    async def _errors(self, days: Sequence[date]) -> list[list[str]]:
        query = (
            select(func.substr(deliveries.c.last_error, 1, 120).label("said"), func.count().label("times"))
            .where(deliveries.c.status == "FAILED", deliveries.c.last_error.is_not(None))
            .where(_within(_bounds(days[0])[0], _bounds(days[-1])[1]))
            .group_by("said")
            .order_by(func.count().desc())
            .limit(10)
        )
        return [[row.said, _number(row.times)] for row in await self._database.rows(query)]

    def _delivery_rows(self, days: Sequence[date], count: int) -> Rows:
        since, until = _bounds(days[0])[0], _bounds(days[-1])[1]

        async def batches() -> AsyncIterator[Sequence[Sequence[Any]]]:
            for status in STATUSES:
                moment, job_id = since, ""
                while rows := await self._database.rows(_after(status, moment, job_id, until)):
                    yield [_row(row) for row in rows]
                    moment, job_id = rows[-1].updated_at, rows[-1].job_id

        return Rows(COLUMNS, batches, count)

    # ── Leads ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def leads(self, params: Period) -> Content:
        """Read from the table `leads` by name: the feature that keeps it may be switched off."""
        texts = TEXTS[params.locale]
        days = params.days(self._today)
        counts = await self._count_leads(days)
        statuses = counts.pop("statuses")
        stages = [(texts.stages[name], counts[name]) for name in texts.stages]
        data = {
            "locale": params.locale,
            "subtitle": _span(days),
            "labels": texts.leads,
            "facts": [[name, _number(count)] for name, count in (stages[0], stages[-1])],
            "chart": funnel(stages),
            "columns": [texts.status, texts.count],
            "rows": [[status or "—", _number(count)] for status, count in statuses],
        }
        return Content(texts.leads["title"], data, period=_span(days))

    async def _count_leads(self, days: Sequence[date]) -> dict[str, Any]:
        since, until = _bounds(days[0])[0], _bounds(days[-1])[1]
        columns: list[Any] = [
            column(name) for name in ("created_at", "status", "bot_activated", "lesson_datetime", "confirmed")
        ]
        leads = table("leads", *columns)
        created = leads.c.created_at
        low, high = as_datetime(since), as_datetime(until)
        if self._database.is_embedded:  # moments are text that sorts by time
            within = (created >= _as_text(low)) & (created < _as_text(high))
        else:
            within = (created >= low) & (created < high)

        def count(connection: Any) -> dict[str, Any]:
            if not inspect(connection).has_table("leads"):
                raise Unrecoverable("There are no leads here: the plugin leads is not on.")
            stages = select(
                func.count().label("created"),
                func.count().filter(leads.c.bot_activated).label("activated"),
                func.count().filter(leads.c.lesson_datetime.is_not(None)).label("booked"),
                func.count().filter(leads.c.confirmed).label("confirmed"),
            ).where(within)
            statuses = select(leads.c.status, func.count()).where(within).group_by(leads.c.status)
            return {
                **connection.execute(stages).one()._mapping,
                "statuses": sorted(tuple(row) for row in connection.execute(statuses)),
            }

        return await self._database.read(count)

    # ── Checkup ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def checkup(self, params: CheckupParams) -> Content:
        texts = TEXTS[params.locale]
        results = [_shown_measurement(one, texts) for one in params.results]
        normal = sum(one["is_normal"] for one in results)
        data = {
            "locale": params.locale,
            "subtitle": " · ".join(filter(None, (params.name, params.date))),
            "labels": texts.checkup,
            "facts": [[texts.in_norm, str(normal)], [texts.out_of_norm, str(len(results) - normal)]],
            "columns": [texts.parameter, texts.value, texts.norm, ""],
            "results": results,
            "conclusion": params.conclusion,
        }
        columns = (texts.parameter, texts.value, texts.unit, texts.norm)

        async def batches() -> AsyncIterator[Sequence[Sequence[Any]]]:
            yield [(one.name, one.value, one.unit, _norm(one, texts)) for one in params.results]

        return Content(
            texts.checkup["title"], data, Rows(columns, batches, len(results)), params.date or None
        )

    @property
    def _today(self) -> date:
        return as_datetime(self._clock.now()).date()


def _within(since: Millis, until: Millis) -> ColumnElement[bool]:
    return and_(deliveries.c.updated_at >= since, deliveries.c.updated_at < until)


def _after(status: str, moment: Millis, job_id: str, until: Millis) -> Select[Any]:
    """The next rows of a status, by the index of statuses and times."""
    updated = deliveries.c.updated_at
    is_later = or_(updated > moment, and_(updated == moment, deliveries.c.job_id > job_id))
    return (
        select(*(deliveries.c[name] for name in COLUMNS))
        .where(deliveries.c.status == status, _within(moment, until), is_later)
        .order_by(updated, deliveries.c.job_id)
        .limit(BATCH)
    )


def _shown_measurement(one: Measurement, texts: Texts) -> dict[str, Any]:
    is_low = one.low is not None and one.value < one.low
    is_high = one.high is not None and one.value > one.high
    return {
        "name": one.name,
        "value": f"{_figure(one.value)} {one.unit}".strip(),
        "norm": _norm(one, texts),
        "is_normal": not (is_low or is_high),
        "place": _place(one),
    }


def _place(one: Measurement) -> float:
    """Where it stands on a scale whose middle two fifths are the norm."""
    low = one.low if one.low is not None else (0.0 if one.high is not None else one.value - 1)
    high = one.high if one.high is not None else max(low * 2, low + 1, one.value)
    share = (one.value - low) / ((high - low) or 1)
    return min(max(0.3 + 0.4 * share, 0.02), 0.98)


def _norm(one: Measurement, texts: Texts) -> str:
    if one.low is not None and one.high is not None:
        return f"{_figure(one.low)}–{_figure(one.high)}"
    if one.low is not None:
        return f"{texts.at_least} {_figure(one.low)}"
    return f"{texts.at_most} {_figure(one.high)}" if one.high is not None else "—"


def _figure(value: float) -> str:
    """As it was written: a count of millions in all its digits, and no exponent, which few people read."""
    return f"{Decimal(f'{value:.15g}'):f}"


def _bounds(day: date) -> tuple[Millis, Millis]:
    begin = datetime.combine(day, time(), UTC)
    return to_moment(begin), to_moment(begin + DAY)


def _as_text(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(" ", "microseconds")


def _row(found: Row[Any]) -> list[Any]:
    moments = ("created_at", "updated_at", "sent_at")
    return [
        isoformat(value) if name in moments and value is not None else value
        for name, value in found._mapping.items()
    ]


def _span(days: Sequence[date]) -> str:
    return f"{days[0]:%d.%m.%Y} – {days[-1]:%d.%m.%Y}"


def _number(count: int) -> str:
    return f"{count:,}".replace(",", " ")
