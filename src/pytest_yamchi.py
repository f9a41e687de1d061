"""Yamchi's plugin for pytest: an application in memory for each test that asks for one, its clock, and what it sent.

pytest loads this at each start, wherever Yamchi is installed. So it is no part of the package, whose import takes a while, and imports
nothing of it, nor anything else, before a test asks for a fixture.
"""

from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from yamchi import Yamchi
    from yamchi.notifications.channels.recording import SentMessage
    from yamchi.testing import MovableClock, TestApp

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "The application under test, as `yamchi up --app` takes it: module:app, or path/to/module.py"
    parser.getgroup("yamchi").addoption("--yamchi-app", metavar="MODULE:APP", help=about)
    parser.addini("yamchi_app", about)


@pytest.fixture
def yamchi_application(request: pytest.FixtureRequest) -> "Yamchi | None":
    """Your own application: the one that --yamchi-app or `yamchi_app` in the configuration names. Override it to give another."""
    named = request.config.getoption("--yamchi-app") or request.config.getini("yamchi_app")
    if not named:
        return None
    from yamchi.cli.loading import load_app
    from yamchi.errors import ConfigurationError

    try:
        return load_app(named)
    except ConfigurationError as error:
        raise pytest.UsageError(f"There is no application {named!r} to test: {error}") from None


@pytest.fixture
def yamchi_settings() -> dict[str, Any]:
    """Settings for the application under test, such as `{"default_timezone": "Asia/Almaty"}`. Override it to give some."""
    return {}


@pytest.fixture
def yamchi_run() -> Iterator[Run]:
    """Runs a coroutine in a test that is none itself: `yamchi_run(yamchi_clock.advance("48h"))`."""
    import asyncio

    # With a loop of its own, so that none of another plugin's is touched.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        yield runner.run


@pytest.fixture
def yamchi_app(
    yamchi_application: "Yamchi | None", yamchi_settings: dict[str, Any], yamchi_run: Run
) -> "Iterator[TestApp]":
    """A `TestApp`, which is your application until the test is over: in memory, with a clock that stands still, and nothing that it sends leaves."""
    from yamchi.testing import TestApp

    app = TestApp(**yamchi_settings)
    try:
        if yamchi_application is not None:
            app.adopt(yamchi_application)
        if "notifications" in app.plugins:
            app.notifications.record_sent()
        yield app
    finally:
        yamchi_run(app.close())


@pytest.fixture
def yamchi_clock(yamchi_app: "TestApp") -> "MovableClock":
    """Its clock: `await yamchi_clock.advance("48h")` runs everything that comes due, in order."""
    return yamchi_app.clock


@pytest.fixture
def yamchi_sent(yamchi_app: "TestApp") -> "list[SentMessage]":
    """The messages that it sent to people, over whatever channel, in order."""
    return yamchi_app.notifications.sent if "notifications" in yamchi_app.plugins else []
