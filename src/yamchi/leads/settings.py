"""The settings of leads: the form on the site."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from yamchi.settings import FeatureSettings


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _check_secret(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().strip():
        raise ValueError("it is empty: write a long random text, or leave it out")
    return value


Secret = Annotated[SecretStr, AfterValidator(_check_secret)]


class LeadSettings(FeatureSettings):
    """Where leads come from."""

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
        pattern=r"^@?\w{5,32}$",
        description="The bot's name at Telegram, for links in letters, for example lesson_bot.",
    )
