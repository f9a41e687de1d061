"""The settings of leads: where they are kept, the form on the site, the bot, lessons, meetings and answers."""

import re
from datetime import time, timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from yamchi.fields import Timezone
from yamchi.settings import FeatureSettings
from yamchi.settingtypes import lower, read_span, split

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _check_secret(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().strip():
        raise ValueError("it is empty: write a long random text, or leave it out")
    return value


def _check_token(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,256}", value.get_secret_value()):
        raise ValueError("it should be 1 to 256 letters, digits, _ and -")
    return value


def _read_days(names: tuple[str, ...]) -> tuple[str, ...]:
    found = tuple(name.lower()[:3] for name in names)
    if not found or any(name not in DAYS for name in found):
        raise ValueError("it should be days separated by commas, such as mon,tue,wed,thu,fri")
    return found


def _check_hours(value: str) -> str:
    read_hours(value)
    return value


def read_hours(value: str) -> tuple[time, time]:
    """From when to when lessons are given."""
    found = _HOURS.fullmatch(value.strip())
    try:
        hours = [int(part) for part in found.groups()] if found else []
        first, last = time(hours[0], hours[1]), time(hours[2], hours[3])
    except (ValueError, IndexError):
        raise ValueError("it should be two times of a day, such as 10:00-20:00") from None
    if first >= last:
        raise ValueError("it should begin before it ends, such as 10:00-20:00")
    return first, last


def _check_length(span: timedelta) -> timedelta:
    if not timedelta(minutes=5) <= span <= timedelta(hours=12):
        raise ValueError("it should be between 5m and 12h")
    return span


def _check_pace(span: timedelta) -> timedelta:
    if not timedelta(seconds=1) <= span <= timedelta(hours=1):
        raise ValueError("it should be between 1s and 1h")
    return span


Title = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\[\]*?:/\\]+$")]
Days = Annotated[tuple[str, ...], BeforeValidator(split), AfterValidator(_read_days)]
Length = Annotated[timedelta, BeforeValidator(read_span), AfterValidator(_check_length)]
Span = Annotated[timedelta, BeforeValidator(read_span)]
BotMode = Literal["off", "webhook", "polling"]
Secret = Annotated[SecretStr, AfterValidator(_check_secret)]


class LeadSettings(FeatureSettings):
    """Where leads come from."""

    leads: Annotated[Literal["table", "sheets"], BeforeValidator(lower)] = Field(
        default="table",
        description="Where leads are kept: table (in DATABASE_URL), or sheets (there, and in a Google spreadsheet that people may edit).",
    )
    sheets_id: str | None = Field(
        default=None,
        max_length=200,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="The spreadsheet for LEADS=sheets: the long part of its address, after /d/.",
    )
    sheets_credentials: Secret | None = Field(
        default=None,
        description="The key of a service account that may edit the spreadsheet: its JSON file, or what is in it.",
    )
    sheets_leads: Title = Field(default="Leads", description="The sheet with one row per lead.")
    sheets_log: Title = Field(default="Log", description="The sheet with what happened to leads.")
    sheets_every: Annotated[timedelta, BeforeValidator(read_span), AfterValidator(_check_pace)] = Field(
        default=timedelta(seconds=6),
        description="How often the spreadsheet is looked at. Google allows 60 reads and 60 writes a minute.",
    )
    sheets_url: str = Field(
        default="https://sheets.googleapis.com",
        pattern="^https?://",
        description="Where Google Sheets' API is.",
    )
    tilda_secret: Secret | None = Field(
        default=None,
        description="What Tilda's webhook has to know: ?secret=… in its address, a field or a header named secret. Without one the webhook takes nothing.",
    )
    lead_phone_region: Annotated[str, BeforeValidator(_upper)] = Field(
        default="KZ",
        pattern="^[A-Z]{2}$",
        description="The country whose phone numbers may be written without its code, for example KZ.",
    )
    lead_locale: str = Field(
        default="ru",
        max_length=35,
        pattern="^[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*$",
        description="The language in which leads are written to, unless the form says one in a field named locale.",
    )
    telegram_bot_name: str | None = Field(
        default=None,
        max_length=33,
        pattern=r"^@?\w{5}\w*$",
        description="The bot's name at Telegram, for links in letters, for example lesson_bot.",
    )
    telegram_bot: Annotated[BotMode, BeforeValidator(lower)] = Field(
        default="off",
        description="How the bot hears people: webhook (at /api/webhooks/telegram), polling, or off.",
    )
    telegram_webhook_secret: Annotated[SecretStr, AfterValidator(_check_token)] | None = Field(
        default=None,
        description="What Telegram shows with every update when TELEGRAM_BOT=webhook: 1 to 256 letters, digits, _ and -.",
    )
    lesson_days: Days = Field(
        default=("mon", "tue", "wed", "thu", "fri"), description="The days on which lessons are given."
    )
    lesson_hours: Annotated[str, AfterValidator(_check_hours)] = Field(
        default="10:00-20:00", description="From when to when lessons are given on those days."
    )
    lesson_timezone: Timezone | None = Field(
        default=None,
        description="On whose clock, which is also that of leads who named none; by default that of DEFAULT_TIMEZONE.",
    )
    lesson_duration: Length = Field(default=timedelta(hours=1), description="How long a lesson is.")
    lesson_notice: Span = Field(
        default=timedelta(hours=2), description="How long before it a lesson can still be booked."
    )
    lesson_ahead: int = Field(default=14, ge=1, le=90, description="How many days ahead the bot offers.")

    zoom_account_id: str | None = Field(
        default=None, max_length=200, description="The account at Zoom that lessons' meetings are made in."
    )
    zoom_client_id: str | None = Field(
        default=None, max_length=200, description="The client id of the server-to-server app at Zoom."
    )
    zoom_client_secret: Secret | None = Field(default=None, description="Its secret.")
    zoom_url: str = Field(
        default="https://api.zoom.us/v2", pattern="^https?://", description="Where Zoom's API is."
    )
    zoom_oauth_url: str = Field(
        default="https://zoom.us", pattern="^https?://", description="Where Zoom gives tokens."
    )

    ai_url: str | None = Field(
        default=None,
        pattern="^https?://",
        description="An endpoint that speaks OpenAI's chat API, for what people write to the bot, for example https://api.openai.com/v1. Without one they get a polite fixed answer.",
    )
    ai_key: Secret | None = Field(default=None, description="The key for AI_URL, if it asks for one.")
    ai_model: str = Field(default="gpt-4o-mini", max_length=200, description="The model at AI_URL.")
    ai_prompt: str = Field(
        default="You answer people who want a trial lesson at our school: briefly, kindly, in their language. Say honestly what you don't know. To choose a time they send /start.",
        max_length=8_000,
        description="What the model is told of its task.",
    )
    ai_hourly_limit: int = Field(
        default=20, ge=1, le=10_000, description="How many questions a person may ask in an hour."
    )
