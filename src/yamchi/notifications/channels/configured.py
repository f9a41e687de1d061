"""The channels to outside providers: each is there if its settings are."""

from collections.abc import Iterator

from yamchi.clock import Clock
from yamchi.errors import MissingExtra
from yamchi.notifications.channels.apprise import SmsChannel
from yamchi.notifications.channels.base import Channel
from yamchi.notifications.channels.circuits import Circuits
from yamchi.notifications.channels.parts import Parts
from yamchi.notifications.channels.send_limits import SendLimits
from yamchi.notifications.channels.telegram.bot_api import BotApi
from yamchi.notifications.channels.telegram.channel import TelegramChannel
from yamchi.notifications.settings import NotificationSettings
from yamchi.storage.database import Database


def channels_of(
    settings: NotificationSettings, database: Database, circuits: Circuits, clock: Clock
) -> Iterator[Channel]:
    """The channels to outside providers that these settings allow."""
    if settings.telegram_bot_token:
        yield _telegram(settings, database, clock)
    if settings.vapid_private_key:
        yield _push(settings, database, circuits, clock)
    if settings.sms_url:
        yield SmsChannel(settings.required("SMS_URL"))


def _telegram(settings: NotificationSettings, database: Database, clock: Clock) -> Channel:
    api = BotApi(settings.telegram_api_url, settings.required("TELEGRAM_BOT_TOKEN"))
    limits, parts = SendLimits(database, clock), Parts(database, clock)
    return TelegramChannel(api, limits, parts, clock, admin_group=settings.telegram_admin_group_id)


def _push(settings: NotificationSettings, database: Database, circuits: Circuits, clock: Clock) -> Channel:
    try:
        from yamchi.notifications.channels.push.channel import WebPushChannel
        from yamchi.notifications.channels.push.client import PushClient
        from yamchi.notifications.channels.push.subscriptions import Subscriptions
        from yamchi.notifications.channels.push.vapid import Vapid, VapidKey
    except ImportError as error:
        raise MissingExtra("push", "Web Push") from error
    allows_private = settings.push_allow_private
    key = VapidKey.read(settings.required("VAPID_PRIVATE_KEY"))
    return WebPushChannel(
        Subscriptions(database, clock),
        Vapid(key, settings.required("VAPID_SUBJECT"), clock),
        PushClient(clock, allows_private=allows_private),
        Parts(database, clock),
        circuits,
        clock,
        allows_private=allows_private,
    )
