"""Telegram, and the bot that people write to there."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.leads.messenger import Messenger, a_bot
from tests.services.telegram import BotServer


@pytest.fixture
def server() -> Iterator[BotServer]:
    with BotServer() as server:
        yield server


@pytest.fixture
async def telegram(tmp_path: Path, server: BotServer) -> AsyncIterator[Messenger]:
    async with a_bot(tmp_path, server) as messenger:
        yield messenger
