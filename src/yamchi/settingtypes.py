"""The kinds of values that settings have: how each is read from text, and what is refused, with a sentence that says why."""

import re
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, SecretStr

from yamchi.clock import Millis, to_millis
from yamchi.errors import InvalidJob

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]
Fallback = Literal["sqlite", "memory", "off"]

KEPT = "kept"
"""In SECRET_KEY_PREVIOUS: the key that was made once and is kept in the database."""

_WITHOUT_HOST = re.compile(r"sqlite:|memory:|supabase$")
_PLACE = re.compile(r"[a-z][a-z0-9+.-]*://(?P<netloc>[^/?#\s]*)", re.IGNORECASE)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[^:\[\]]*)(:\d{1,5})?")
_ORIGIN = re.compile(r"https?://[^/\s?#@*]+", re.IGNORECASE)
_PUBLIC_URL = re.compile(r"https?://[^/\s?#@]+[^\s?#]*", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(\.\d+)?")
_QUEUE_URL = re.compile(r"(?!sqlite:)[a-z][a-z0-9+.-]*://|sqlite:///|supabase$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Quota:
    """So many in a period: all of them at once, or spread over it."""

    count: int
    period: Millis

    def __str__(self) -> str:
        return f"{self.count}/{'s' if self.period == 1_000 else f'{self.period}ms'}"


def _read_quota(value: object) -> object:
    """Text such as "5000/s" or "100/15m"; off is None."""
    if not isinstance(value, str):
        return value
    if value.strip().lower() == "off":
        return None
    count, _, period = value.strip().partition("/")
    if not count.isascii() or not count.isdigit() or not 0 < int(count) <= 10**9 or not period:
        raise ValueError("write it as 5000/s, 20/min or 100/15m, or off")
    try:
        span = to_millis(period if period[0].isdigit() else f"1{period}")
    except InvalidJob as error:
        raise ValueError(str(error)) from None
    if span < 1:
        raise ValueError("its period is no time at all")
    return Quota(int(count), span)


def read_span(value: object) -> object:
    """Text such as "30s" or "1m30s"; a bare number is seconds."""
    if not isinstance(value, str):
        return value
    try:
        return timedelta(milliseconds=to_millis(float(value) if _NUMBER.fullmatch(value) else value))
    except InvalidJob as error:
        raise ValueError(str(error)) from None


def check_positive(span: timedelta) -> timedelta:
    if span <= timedelta(0):
        raise ValueError("it should be greater than 0")
    return span


def _check_readable(url: str) -> str:
    """Refuse a URL that programs may read in different ways, without showing it: part of a password may stand where a host should."""
    if _WITHOUT_HOST.match(url):
        return url
    place = _PLACE.match(url)
    login, _, hosts = place["netloc"].rpartition("@") if place else ("", "", "")
    after = url[place.end() :] if place else "@"
    if (
        set("[]") & set(login)
        or "@" in login + after
        or not all(_HOST.fullmatch(one) for one in hosts.split(","))
    ):
        raise ValueError(
            "it can't be read as a URL; in a password, write @ : / ? # [ ] and spaces percent-encoded, such as %40 for @"
        )
    return url


def _check_queue_url(url: str) -> str:
    if not _QUEUE_URL.match(url):
        raise ValueError(
            "begin it with sqlite:///, memory://, redis://, rediss://, postgresql:// or kafka://, or write supabase"
        )
    return url


def check_public_url(url: str) -> str:
    if not _PUBLIC_URL.fullmatch(url):
        raise ValueError("write it as https://notify.example.com, with nothing after a ? or #")
    return url.rstrip("/")


def _check_origin(origin: str) -> str:
    if not _ORIGIN.fullmatch(origin):
        raise ValueError(f"{origin!r} is not an origin: write it as https://shop.example, with no path")
    return origin.lower()


def check_previous_keys(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if any(key.get_secret_value() != KEPT and len(key.get_secret_value()) < 16 for key in keys):
        raise ValueError("each should have at least 16 characters, or be the word kept")
    return keys


def reveal(secret: SecretStr | None) -> str | None:
    """The text of a secret that may not be set."""
    return None if secret is None else secret.get_secret_value()


def split(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def read_level(value: object) -> object:
    name = lower(value)
    return "warning" if name == "warn" else name


def _check_proxy(value: str) -> str:
    """An address, a network, or * for everybody; a name would never be the address of a connection."""
    if value != "*":
        try:
            ip_network(value)
        except ValueError:
            raise ValueError(f"{value[:64]!r} is no address and no network such as 10.0.0.0/8") from None
    return value


Span = Annotated[timedelta, BeforeValidator(read_span)]
Names = Annotated[tuple[str, ...], BeforeValidator(split)]
QueueUrl = Annotated[str, AfterValidator(_check_queue_url), AfterValidator(_check_readable)]
ServerUrl = Annotated[str, AfterValidator(_check_readable)]
Tokens = Annotated[tuple[SecretStr, ...], BeforeValidator(split)]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_check_origin)], ...], BeforeValidator(split)]
Proxies = Annotated[tuple[Annotated[str, AfterValidator(_check_proxy)], ...], BeforeValidator(split)]
RateOrOff = Annotated[Quota | None, BeforeValidator(_read_quota)]
Home = Annotated[Path, AfterValidator(lambda path: path.expanduser().resolve())]
PublicUrl = Annotated[str, AfterValidator(check_public_url)]
