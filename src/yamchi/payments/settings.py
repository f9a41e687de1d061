"""The settings of payments: the account at each provider."""

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from yamchi.settings import FeatureSettings
from yamchi.settingtypes import split

YOOKASSA_NETWORKS = (
    "185.71.76.0/27",
    "185.71.77.0/27",
    "77.75.153.0/25",
    "77.75.156.11/32",
    "77.75.156.35/32",
    "77.75.154.128/25",
    "2a02:5180::/32",
)


def _networks(names: tuple[str, ...]) -> tuple[str, ...]:
    found = [one for name in names for one in (YOOKASSA_NETWORKS if name == "yookassa" else (name,))]
    for name in found:
        try:
            ipaddress.ip_network(name)
        except ValueError:
            raise ValueError(
                f"{name!r} is not a network: write it as 185.71.76.0/27, or yookassa for all of theirs"
            ) from None
    return tuple(found)


Networks = Annotated[tuple[str, ...], BeforeValidator(split), AfterValidator(_networks)]


class PaymentSettings(FeatureSettings):
    """Who takes the money."""

    yookassa_shop_id: str | None = Field(
        default=None, pattern=r"^\d+$", description="The shop's number at YooKassa."
    )
    yookassa_secret_key: SecretStr | None = Field(
        default=None, description="The secret key of the shop at YooKassa."
    )
    yookassa_url: str = Field(
        default="https://api.yookassa.ru/v3", pattern="^https?://", description="Where YooKassa's API is."
    )
    yookassa_webhook_from: Networks = Field(
        default=(),
        description="Networks that YooKassa's webhooks may come from, separated by commas; yookassa means those it names. By default any: a webhook is never believed, only looked up.",
    )
    stripe_secret_key: SecretStr | None = Field(
        default=None, description="The secret key of the Stripe account."
    )
    stripe_webhook_secret: SecretStr | None = Field(
        default=None, description="The signing secret of the webhook endpoint at Stripe (whsec_…)."
    )
    stripe_url: str = Field(
        default="https://api.stripe.com/v1", pattern="^https?://", description="Where Stripe's API is."
    )
    payments_reconcile_days: int = Field(
        default=3, ge=1, le=90, description="How many days of payments the nightly comparison looks at."
    )
