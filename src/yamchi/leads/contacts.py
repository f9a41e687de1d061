"""What a form says of a person: a name, an address, a number, each in the way others understand it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson
import phonenumbers
import structlog
from email_validator import EmailNotValidError, validate_email

from yamchi.clock import check_zone
from yamchi.errors import InvalidJob
from yamchi.leads.model import LARGEST_EXTRA

log = structlog.get_logger("yamchi.leads")

SPACE = UUID("0b8d2c1e-7a55-4c7e-9a44-6d5be2f1a1c3")
"""Ids of older leads were made within it, from their forms alone."""

NAME_FIELDS = ("name", "fullname", "full_name", "имя", "first_name")
EMAIL_FIELDS = ("email", "e-mail", "mail", "почта")
PHONE_FIELDS = ("phone", "tel", "telephone", "телефон")
OURS = frozenset({"secret", "test"})

MOST_FIELDS = 100
LONGEST_FIELD = 100
LONGEST_VALUE = 4_000
LONGEST_NAME = 255
LONGEST_PHONE = 64


@dataclass(frozen=True, slots=True)
class Contact:
    """Who filled in a form, and which one: the same form again has the same name."""

    form: str
    name: str | None = None
    email: str | None = None
    phone: str | None = None
    locale: str | None = None
    timezone: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


def read_form(form: Mapping[str, Any], region: str) -> Contact:
    """A submitted form. The same one again is known by its `tranid`, else by what it says."""
    given = _texts(form)
    by_name = {name.lower(): name for name in reversed(given)}

    def take(names: tuple[str, ...]) -> tuple[str, str]:
        for name in names:
            if (found := by_name.get(name)) and given[found].strip():
                return found, given[found].strip()
        return "", ""

    (_, name), (email_field, email), (phone_field, phone) = map(
        take, (NAME_FIELDS, EMAIL_FIELDS, PHONE_FIELDS)
    )
    good_email, good_phone = read_email(email), read_phone(phone, region)
    if not good_email and not good_phone:
        said = f" ({email or phone!r} is neither)" if email or phone else ""
        raise InvalidJob(f"The form has no e-mail address and no phone number that could be used{said}.")
    taken = {take(NAME_FIELDS)[0], email_field if good_email else "", phone_field if good_phone else ""}
    extra = _fitting({key: value for key, value in given.items() if key not in taken})
    locale, zone = take(("locale", "lang"))[1], take(("timezone", "time_zone"))[1]
    return Contact(
        _name_of(given, take(("tranid",))[1]),
        name[:LONGEST_NAME] or None,
        good_email,
        good_phone,
        locale[:2].lower() if locale[:2].isalpha() else None,
        _zone(zone),
        extra,
    )


def read_email(text: str) -> str | None:
    if not text or len(text) > 320:
        return None
    try:
        return validate_email(text, check_deliverability=False).normalized
    except EmailNotValidError:
        return None


def read_phone(text: str, region: str) -> str | None:
    """In the international form: +77010000000."""
    if not text or len(text) > LONGEST_PHONE:
        return None
    try:
        number = phonenumbers.parse(text, region)
    except phonenumbers.NumberParseException:
        return None
    if not phonenumbers.is_valid_number(number):
        return None
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)


def _zone(text: str) -> str | None:
    try:
        return check_zone(text[:64]) if text else None
    except InvalidJob:
        return None


def _texts(form: Mapping[str, Any]) -> dict[str, str]:
    """Every field as text that can be kept; no more than a form has."""
    if len(form) > MOST_FIELDS:
        raise InvalidJob(f"A form may have {MOST_FIELDS} fields, this one has {len(form):,}.")
    return {
        _clean(name)[:LONGEST_FIELD]: _clean(_text(value))[:LONGEST_VALUE]
        for name, value in form.items()
        if name.lower() not in OURS
    }


def _fitting(extra: Mapping[str, str]) -> dict[str, str]:
    """As many of the other fields as are kept: a lead is not lost because its form was long."""
    kept: dict[str, str] = {}
    left = LARGEST_EXTRA - 2
    for name, value in extra.items():
        left -= len(orjson.dumps({name: value}))
        if left < 0:
            log.warning(
                f"a form has too many fields for a lead: {len(extra) - len(kept)} of them are left out"
            )
            break
        kept[name] = value
    return kept


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _clean(text: str) -> str:
    return text[: LONGEST_VALUE * 2].replace("\0", "").encode("utf-8", "replace").decode()


def _name_of(given: Mapping[str, str], tranid: str) -> str:
    if tranid:
        return f"tilda:{tranid}"
    told = "\n".join(f"{name}={value}" for name, value in sorted(given.items()))
    return f"form:{hashlib.sha256(told.encode()).hexdigest()}"
