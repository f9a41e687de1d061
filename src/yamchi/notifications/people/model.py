"""A person as the rest of notifications sees one, and the preferences that are loaded in the same query."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from yamchi.notifications.people.quiet_hours import QuietHours

ANY = "*"


@dataclass(frozen=True, slots=True)
class RecipientPreferences:
    """What a person chose. Everything is allowed by default.

    A choice about one category on one channel counts first; then a no to the channel or to the category; then the choice
    about everything.
    """

    choices: Mapping[tuple[str, str], bool] = field(default_factory=dict)
    """By channel and category, either of which may be `*`."""

    quiet_hours: QuietHours | None = None
    suppressed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Why nothing goes to an address, by channel and address."""

    def allow(self, channel: str, category: str) -> bool:
        if not self.choices:
            return True
        exact = self.choices.get((channel, category))
        if exact is not None:
            return exact
        halves = [self.choices.get(pair) for pair in ((channel, ANY), (ANY, category))]
        given = [choice for choice in halves if choice is not None]
        return all(given) if given else self.choices.get((ANY, ANY), True)


NO_PREFERENCES = RecipientPreferences()


@dataclass(frozen=True, slots=True)
class Recipient:
    """A person: addresses, language, time zone, attributes for templates, preferences."""

    user_id: str | None = None
    email: str | None = None
    phone: str | None = None
    telegram_id: str | None = None
    locale: str | None = None
    timezone: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    preferences: RecipientPreferences = NO_PREFERENCES
