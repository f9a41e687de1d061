"""Amounts of money: decimals with their currency's digits, never floats."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache

from babel.numbers import list_currencies

from yamchi.errors import InvalidJob

LARGEST = Decimal(10) ** 12
"""Beyond this an amount is a mistake."""

USUAL_DIGITS = 2
_DIGITS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
"""ISO 4217's own: CLDR, which says how people write amounts, has no digits for RSD or ALL, whose units have two."""


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

    def must_be_positive(self) -> "Money":
        """This amount, for what can't be done with nothing."""
        if self.amount <= 0:
            raise InvalidAmount(f"{self} is nothing: the amount should be above 0.")
        return self

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
    return next((count for count, codes in _DIGITS.items() if currency in codes.split()), USUAL_DIGITS)
