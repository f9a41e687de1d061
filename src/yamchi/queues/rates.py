"""Rates: at most a number in a period, evenly spaced."""

import re
from dataclasses import dataclass

from yamchi.clock import Millis, in_short, to_millis
from yamchi.errors import ConfigurationError

LONGEST_PERIOD: Millis = 366 * 86_400_000
_RATE = re.compile(r"\s*(?P<count>[0-9]{1,9})\s*/\s*(?P<period>[0-9a-z. ]{1,40})", re.ASCII)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `count` in any `period`, evenly spaced; `burst` of them may come at once."""

    count: int
    period: Millis
    burst: int = 1

    @classmethod
    def parse(cls, value: "RateLimit | str") -> "RateLimit":
        """Reads "30/s", "20/min", "100/15m"."""
        if isinstance(value, RateLimit):
            return value
        found = _RATE.fullmatch(value[:100])
        if found is None:
            raise ConfigurationError(
                f"{in_short(value)} is not a rate: write it as '30/s', '20/min' or '100/15m'."
            )
        count, period = int(found["count"]), found["period"]
        span = to_millis(period if period[0].isdigit() else f"1{period}")
        if not (count >= 1 and 1 <= span <= LONGEST_PERIOD):
            raise ConfigurationError(f"{value!r} is not a rate: give at least 1 in up to 366 days.")
        return cls(count, span, burst=max(1, count * 20 // span))

    @property
    def spacing(self) -> float:
        """Time between two permits: a burst and the permits after it stay within the limit."""
        return self.period / (self.count - self.burst + 1)

    @property
    def slack(self) -> float:
        """How far a key's next permit may lie behind the clock: a burst uses this time up."""
        return self.spacing * (self.burst - 1)

    def take(self, following: float, now: Millis) -> tuple[Millis, float]:
        """The moment of a key's next permit and of the one after it, given the moment that was noted as its next."""
        permit = max(following, now - self.slack)
        return max(round(permit), now), permit + self.spacing
