"""Amounts of money: decimals with their currency's digits, never floats."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache

from babel.numbers import UnknownCurrencyError, get_currency_precision, list_currencies

from yamchi.errors import InvalidJob

LARGEST = Decimal(10) ** 12
"""Beyond this an amount is a mistake."""


class InvalidAmount(InvalidJob):
    """This is no amount of this currency."""


@dataclass(frozen=True, slots=True)
class Money:
    """An amount and its ISO 4217 code. 100.00 RUB, 5000 JPY, 1.000 KWD."""

    amount: Decimal
    currency: str

    @classmethod
    def parse(cls, amount: str | int | Decimal, currency: str) -> "Money":
        """Refuses what can't be written in this currency exactly: nothing is rounded here."""
        code = currency.upper()
        try:
            value = Decimal(amount)
        except InvalidOperation:
            raise InvalidAmount(f"{amount!r} is not an amount: write it as 100.00.") from None
        if not value.is_finite() or not 0 <= value <= LARGEST:
            raise InvalidAmount(f"{amount} is not an amount of money: it should be from 0 to {LARGEST:f}.")
        exact = value.quantize(Decimal(1).scaleb(-digits(code)))
        if exact != value:
            raise InvalidAmount(f"{amount} {code} has more than {digits(code)} digits after the point.")
        return cls(exact, code)

    @classmethod
    def of_minor(cls, units: int, currency: str) -> "Money":
        """From the smallest units of the currency: 10000 kopecks are 100.00 RUB."""
        code = currency.upper()
        return cls(Decimal(units).scaleb(-digits(code)), code)

    @property
    def minor(self) -> int:
        return int(self.amount.scaleb(digits(self.currency)))

    @property
    def value(self) -> str:
        """The amount as providers and people write it."""
        return f"{self.amount:.{digits(self.currency)}f}"

    def __str__(self) -> str:
        return f"{self.value} {self.currency}"


@lru_cache(maxsize=256)
def digits(currency: str) -> int:
    """How many digits after the point this currency has."""
    if currency not in list_currencies():
        raise InvalidAmount(f"{currency!r} is not a currency: write its three letters, such as RUB or KZT.")
    try:
        return get_currency_precision(currency)
    except UnknownCurrencyError:
        raise InvalidAmount(f"{currency!r} is not a currency.") from None
