"""What a person wishes, as loaded together with the person: choices, quiet hours, addresses that reach nobody."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from yamchi.notifications.quiet import QuietHours

ANY = "*"


@dataclass(frozen=True, slots=True)
class Wishes:
    """Where nothing is said, everything is welcome.

    What is said of one category on one channel counts first; then a no to the channel or to the category; then what is
    said of everything.
    """

    choices: Mapping[tuple[str, str], bool] = field(default_factory=dict)
    """By channel and category, either of which may be `*`."""

    quiet: QuietHours | None = None
    suppressed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Why nothing goes to an address, by channel and address."""

    def allow(self, channel: str, category: str) -> bool:
        if not self.choices:
            return True
        exact = self.choices.get((channel, category))
        if exact is not None:
            return exact
        halves = [self.choices.get(pair) for pair in ((channel, ANY), (ANY, category))]
        said = [choice for choice in halves if choice is not None]
        return all(said) if said else self.choices.get((ANY, ANY), True)


NONE = Wishes()
