"""Web Push: a message to every browser of a person, through the push service of each.

A browser that has unsubscribed is removed. One that accepted the message is recorded, so that a retry goes to the others
only. Each push service has its own circuit: one that is down does not stop the others. End users choose the services, so
a failing endpoint stops only its own browser until several browsers of the service fail.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from http import HTTPStatus
from urllib.parse import urlsplit

import structlog

from yamchi.clock import Clock, Millis
from yamchi.errors import InvalidJob, Outage, Snooze, Unrecoverable
from yamchi.http.base64url import from_base64url
from yamchi.notifications.channels.base import AnswerLost, Channel, Message, NoAddress, Recipient
from yamchi.notifications.channels.circuits import Circuits
from yamchi.notifications.channels.parts import Parts
from yamchi.notifications.channels.push.client import BadEndpoint, PushClient, Reply
from yamchi.notifications.channels.push.encryption import encrypt, is_browser_key
from yamchi.notifications.channels.push.endpoints import Lookups, check_endpoint
from yamchi.notifications.channels.push.payload import payload_of, topic_of
from yamchi.notifications.channels.push.subscriptions import (
    BrowserSubscription,
    Subscription,
    Subscriptions,
    id_of,
)
from yamchi.notifications.channels.push.vapid import Vapid

log = structlog.get_logger("yamchi.notifications")

MAX_TTL: Millis = 28 * 86_400_000
"""How long push services keep a message for a browser that is away, at most."""

MAX_SERVICE_NAME_LENGTH = 50
LOOKUP_THREADS = 4
"""For those who subscribe, apart from those of what is sent."""

_OUR_TOKEN = ("BadJwtToken", "ExpiredJwt", "BadAuthorizationHeader", "Unauthorized")


class WebPushChannel(Channel):
    """Messages to browsers. A repeat replaces what it repeats, so when in doubt a message is sent again."""

    name = "push"
    provider = "webpush"
    resends_unknown = True

    def __init__(
        self,
        subscriptions: Subscriptions,
        vapid: Vapid,
        client: PushClient,
        parts: Parts,
        circuits: Circuits,
        clock: Clock,
        *,
        allows_private: bool = False,
    ) -> None:
        self.subscriptions = subscriptions
        self._vapid = vapid
        self._client = client
        self._parts = parts
        self._circuits = circuits
        self._clock = clock
        self._allows_private = allows_private
        self._lookups = Lookups(LOOKUP_THREADS, "push-subscribe")

    @property
    def public_key(self) -> str:
        return self._vapid.key.public_text

    async def subscribe(self, user_id: str, browser: BrowserSubscription) -> Subscription:
        """Store a subscription, if messages can be encrypted for it and we may connect to its endpoint."""
        keys = browser.keys
        if not is_browser_key(from_base64url(keys.p256dh)):
            raise InvalidJob("keys.p256dh is not a public key on the curve P-256, as a browser makes it.")
        if len(from_base64url(keys.auth)) != 16:
            raise InvalidJob("keys.auth must be 16 bytes, as a browser makes them.")
        await check_endpoint(browser.endpoint, user_id, self._lookups, allows_private=self._allows_private)
        return await self.subscriptions.add(user_id, browser)

    def address(self, recipient: Recipient) -> str | None:
        return recipient.user_id

    async def send(self, message: Message) -> str | None:
        browsers = await self.subscriptions.of(message.to)
        if not browsers:
            raise NoAddress("User has no push")
        arrived = await self._parts.arrived(message.job_id) if len(browsers) > 1 else {}
        waiting = [browser for browser in browsers if browser.subscription_id not in arrived]
        payload = payload_of(message)
        sends = (self._send(message, payload.content, browser, len(browsers)) for browser in waiting)
        results = await asyncio.gather(*sends, return_exceptions=True)
        accepted = len(arrived) + _count_accepted(results, any_before=bool(arrived))
        return f"{accepted} of {len(browsers)} browsers{', text shortened' if payload.is_shortened else ''}"

    async def close(self) -> None:
        await self._client.close()
        self._lookups.close()

    async def _send(self, message: Message, payload: bytes, browser: Subscription, of: int) -> None:
        """To one browser."""
        service, source = service_of(browser), browser.subscription_id
        await self._enter(service, source)
        body = encrypt(payload, from_base64url(browser.p256dh), from_base64url(browser.auth))
        headers = self._headers(message, browser)
        try:
            reply = await self._client.send(browser.endpoint, headers, body, service, source, browser.user_id)
        except BadEndpoint as error:
            await self._remove(browser, str(error))
            raise NoAddress(str(error)) from error
        await self._check(reply, browser, service)
        await self._circuits.succeeded(f"{self.name}:{service}", source)
        if of > 1:
            await self._parts.note(message.job_id, browser.subscription_id, reply.says[:255])

    async def _enter(self, service: str, source: str) -> None:
        try:
            await self._circuits.enter(f"{self.name}:{service}", source)
        except Outage as outage:
            raise Snooze(outage.retry_after or timedelta(seconds=1), str(outage)) from outage

    def _headers(self, message: Message, browser: Subscription) -> dict[str, str]:
        left = MAX_TTL if message.expires_at is None else message.expires_at - self._clock.now()
        return {
            "Authorization": self._vapid.authorization(browser.endpoint),
            "Content-Encoding": "aes128gcm",
            "Content-Type": "application/octet-stream",
            "TTL": str(max(min(left, MAX_TTL) // 1000, 0)),
            "Urgency": "high" if message.is_urgent else "normal",
            "Topic": topic_of(message),
        }

    async def _check(self, reply: Reply, browser: Subscription, service: str) -> None:
        match reply.status:
            case status if 200 <= status < 300:
                return
            case HTTPStatus.NOT_FOUND | HTTPStatus.GONE:
                await self._remove(browser, reply.says)
                raise NoAddress(f"{service} says that the browser has unsubscribed: {reply.says}")
            case HTTPStatus.TOO_MANY_REQUESTS | HTTPStatus.REQUEST_TIMEOUT:
                raise _outage(f"{service} asks to wait", reply, browser)
            case status if status >= 500:
                raise _outage(f"{service} is in trouble", reply, browser)
            case HTTPStatus.UNAUTHORIZED:
                raise _our_mistake(reply, browser)
            case HTTPStatus.FORBIDDEN if any(word in reply.text for word in _OUR_TOKEN):
                raise _our_mistake(reply, browser)
            case HTTPStatus.FORBIDDEN:
                raise Unrecoverable(
                    f"{service} takes no messages from us for this browser ({reply.says}): it subscribed with another "
                    "VAPID_PRIVATE_KEY, and has to subscribe again."
                )
        raise Unrecoverable(f"{service} refused the message: {reply.says}")

    async def _remove(self, browser: Subscription, why: str) -> None:
        log.info("removed a push subscription", user=browser.user_id, service=service_of(browser), why=why)
        await self.subscriptions.remove(browser.subscription_id)


def service_of(browser: Subscription) -> str:
    """The host of its push service, with the port unless it is 443: each has a circuit of its own."""
    address = urlsplit(browser.endpoint)
    host = address.hostname or "nowhere"
    service = host if address.port in (None, 443) else f"{host}:{address.port}"
    return service if len(service) <= MAX_SERVICE_NAME_LENGTH else f"{service[:33]}…{id_of(service)[:16]}"


def _count_accepted(results: Sequence[BaseException | None], *, any_before: bool) -> int:
    """How many browsers accepted it. Failures that may pass are raised; final ones only if no browser accepted it."""
    for kind in (AnswerLost, Outage, Snooze, BaseException):
        for result in results:
            if isinstance(result, kind) and not isinstance(result, Unrecoverable):
                raise result
    final = [result for result in results if isinstance(result, Unrecoverable)]
    if len(final) == len(results) and not any_before:
        raise next((error for error in final if not isinstance(error, NoAddress)), final[0])
    return len(results) - len(final)


def _outage(what: str, reply: Reply, browser: Subscription) -> Outage:
    return Outage(
        f"{what}: {reply.says}",
        retry_after=reply.retry_after,
        provider=service_of(browser),
        source=browser.subscription_id,
    )


def _our_mistake(reply: Reply, browser: Subscription) -> Outage:
    service = service_of(browser)
    return Outage(
        f"{service} refused our VAPID token ({reply.says}): check VAPID_PRIVATE_KEY, VAPID_SUBJECT and this machine's clock.",
        provider=service,
        source=browser.subscription_id,
    )
