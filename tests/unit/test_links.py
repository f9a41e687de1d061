"""Signed links: what they say can't be changed, used for another purpose, after their time, or twice where once was meant."""

import asyncio

import pytest

from yamchi.errors import TokenRefused
from yamchi.testing import TestApp


async def test_a_link_says_what_it_was_made_of() -> None:
    async with TestApp() as app:
        token = await app.links.make("report", "отчёт/7?x=1", ttl="1h")
        assert await app.links.read("report", token) == "отчёт/7?x=1"
        assert await app.links.read("report", token) == "отчёт/7?x=1"


async def test_it_is_good_for_its_purpose_and_its_time_only() -> None:
    async with TestApp() as app:
        token = await app.links.make("report", "7", ttl="1h")
        with pytest.raises(TokenRefused, match="not made here"):
            await app.links.read("receipt", token)
        for changed in (f"8{token}", token[:-1], f"{token}0", "", ".", "a.b.c.d", "é" * 10, "x" * 5_000):
            with pytest.raises(TokenRefused, match="not made here"):
                await app.links.read("report", changed)
        await app.clock.advance(3600)
        with pytest.raises(TokenRefused, match="has expired"):
            await app.links.read("report", token)


async def test_one_that_is_good_once_is_used_by_one_of_many() -> None:
    async with TestApp() as app:
        token = await app.links.make("confirm", "42", ttl="1h", once=True)
        assert await app.links.read("confirm", token, use=False) == "42"
        answers = await asyncio.gather(
            *(app.links.read("confirm", token) for _ in range(10)), return_exceptions=True
        )
        assert [answer for answer in answers if answer == "42"] == ["42"]
        assert sum("used already" in str(answer) for answer in answers) == 9
        with pytest.raises(TokenRefused, match="used already"):
            await app.links.read("confirm", token, use=False)
        with pytest.raises(ValueError, match="needs a lifetime"):
            await app.links.make("confirm", "42", once=True)
