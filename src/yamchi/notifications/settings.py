"""The settings of notifications: mail server, bot, push keys, SMS gateway."""

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from yamchi.settings import FeatureSettings
from yamchi.settingtypes import Span, check_positive, lower

SmtpSecurity = Literal["starttls", "tls", "none"]

_BOT_TOKEN = re.compile(r"\d+:[\w-]+")


def _check_bot_token(token: SecretStr) -> SecretStr:
    if not _BOT_TOKEN.fullmatch(token.get_secret_value()):
        raise ValueError("it should look like 123456789:AAE…, as @BotFather gives it")
    return token


def _check_sms_url(url: SecretStr) -> SecretStr:
    text = url.get_secret_value()
    if "://" not in text or "{to}" not in text:
        raise ValueError("it should be an Apprise URL with {to} where the number goes")
    return url


class NotificationSettings(FeatureSettings):
    """What the channels need."""

    smtp_host: str | None = Field(
        default=None, description="The mail server; without one, letters go to the mailbox at /mailbox."
    )
    smtp_port: int = Field(default=587, ge=1, le=65535, description="The port at SMTP_HOST.")
    smtp_user: str | None = Field(default=None, description="The user at SMTP_HOST, if it asks for one.")
    smtp_password: SecretStr | None = Field(default=None, description="The password of SMTP_USER.")
    smtp_from: str = Field(
        default="Yamchi <noreply@localhost>", description="Whom letters come from: Name <address>."
    )
    smtp_security: Annotated[SmtpSecurity, BeforeValidator(lower)] = Field(
        default="starttls", description="How the connection is protected: starttls, tls or none."
    )

    mailbox_keep: Annotated[Span, AfterValidator(check_positive)] = Field(
        default=timedelta(days=90),
        description="How long letters stay in the mailbox, those of test keys too.",
    )

    attachments_max_bytes: int = Field(
        default=10 * 1024 * 1024,
        ge=0,
        description="The most bytes of attachments that go with one message; larger files are linked instead.",
    )

    telegram_bot_token: Annotated[SecretStr, AfterValidator(_check_bot_token)] | None = Field(
        default=None, description="The token of the bot that writes to Telegram, from @BotFather."
    )
    telegram_admin_group_id: str | None = Field(
        default=None,
        description="The chat of those who run the product, which a message to admin_group goes to, for example -1001234567890.",
    )
    telegram_admin_locale: str | None = Field(
        default=None,
        max_length=35,
        pattern="^[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*$",
        description="The language of that chat, for example ru, en or kk; by default that of the person whom a message is about.",
    )
    telegram_api_url: str = Field(
        default="https://api.telegram.org",
        pattern="^https?://",
        description="Where the Bot API is; a server of your own, if you run one.",
    )
    vapid_private_key: SecretStr | None = Field(
        default=None,
        description="The key that signs Web Push messages; yamchi doctor --make-vapid makes one.",
    )
    vapid_subject: str | None = Field(
        default=None,
        pattern="^(mailto:.+@.+|https://.+)",
        description="Whom push services write to when something is wrong: mailto:you@example.com or https://example.com.",
    )
    push_allow_private: bool = Field(
        default=False,
        description="Whether push endpoints may be http and inside your network; only for tests and push services of your own.",
    )
    sms_url: Annotated[SecretStr, AfterValidator(_check_sms_url)] | None = Field(
        default=None,
        description="The SMS gateway as an Apprise URL, with {to} where the number goes, for example twilio://SID:TOKEN@FROM/{to}.",
    )
