"""Which of the channels that need settings are there: a channel whose settings are missing is not."""

from collections.abc import Iterator

from yamchi.clock import Clock
from yamchi.notifications.channels.base import Channel
from yamchi.notifications.channels.botapi import BotApi
from yamchi.notifications.channels.telegram import TelegramChannel
from yamchi.notifications.parts import Parts
from yamchi.notifications.turns import Turns
from yamchi.settings import Settings
from yamchi.storage.database import Database


def channels_of(settings: Settings, database: Database, clock: Clock) -> Iterator[Channel]:
    """The channels to outside providers that these settings allow."""
    parts = Parts(database, clock)
    if token := settings.telegram_bot_token:
        api = BotApi(settings.telegram_api_url, token.get_secret_value())
        yield TelegramChannel(
            api, Turns(database, clock), parts, clock, admin_group=settings.telegram_admin_group_id
        )
