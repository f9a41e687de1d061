"""Links to unsubscribe: each names a person, a channel and a category, and is signed, so that nobody need sign in.

A link never expires, since e-mails are kept for years; all it can do is stop messages and allow them again.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

from yamchi.http.signing import Signer
from yamchi.notifications.people.model import ANY
from yamchi.notifications.people.preferences import PreferenceStore

PURPOSE = "unsubscribe"
PATH = "/unsubscribe"
MAX_TOKEN_LENGTH = 1_000


@dataclass(frozen=True, slots=True)
class Link:
    """What a link stands for."""

    user_id: str
    channel: str
    category: str


class UnsubscribeLinks:
    """Makes the links and does what they say."""

    def __init__(self, signer: Signer, preferences: PreferenceStore, base: str | None) -> None:
        self._signer = signer
        self._preferences = preferences
        self.base = base

    @property
    def has_links(self) -> bool:
        """Whether messages can have a link: whether PUBLIC_URL is known."""
        return self.base is not None

    async def url_of(self, user_id: str, channel: str, category: str) -> str | None:
        """The link for a message; None where PUBLIC_URL is not known."""
        if self.base is None:
            return None
        token = await self.token(Link(user_id, channel, category))
        return f"{self.base}{PATH}/{token}"

    async def token(self, link: Link) -> str:
        payload = urlsafe_b64encode("\n".join((link.user_id, link.channel, link.category)).encode()).decode()
        return f"{payload}.{await self._signer.sign(PURPOSE, payload)}"

    async def read(self, token: str) -> Link | None:
        """What the link says, if it is one of ours."""
        payload, _, signature = token.partition(".")
        if len(token) > MAX_TOKEN_LENGTH or not await self._signer.is_genuine(PURPOSE, payload, signature):
            return None
        return Link(*urlsafe_b64decode(payload).decode().split("\n"))

    async def choose(self, link: Link, *, whole_channel: bool, is_allowed: bool) -> None:
        """Stop the category on the channel, or all of the channel; or let them come again. Whoever was erased stays so."""
        category = ANY if whole_channel else link.category
        await self._preferences.choose(link.user_id, link.channel, category, is_allowed, if_known=True)
