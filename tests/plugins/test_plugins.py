"""Which plugins an application has: what ships, what is installed, its own; one that fails costs only itself."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from yamchi import Plugin, Yamchi, plugins
from yamchi.cli import cli
from yamchi.cli.up import _what_to_try
from yamchi.errors import ConfigurationError, MissingExtra, WrongState
from yamchi.installation import install_command
from yamchi.notifications.plugin import Notifications
from yamchi.settings import Settings
from yamchi.testing import TestApp
from yamchi.web import create_app


class Greeter(Plugin):
    name = "greeter"
    summary = "Says hello."

    def greet(self) -> str:
        return "hello"


class Needy(Plugin):
    name = "needy"
    requires = ("greeter",)


class Unlucky(Plugin):
    name = "unlucky"

    def __init__(self, app: Any) -> None:
        raise RuntimeError("the stars are wrong")


MEDIA_IS_MISSING = f"Media needs an extra package: {install_command('media')}"


class Extra(Plugin):
    name = "extra"

    def declare(self) -> None:
        raise MissingExtra("media", "Media")


def make(*own: type[Plugin], **settings: Any) -> Yamchi:
    return Yamchi(Settings(**settings), plugins=own)


def test_what_ships_is_on_and_reached_by_name_and_by_class() -> None:
    app = make(Greeter)
    assert app.greeter.greet() == "hello"
    assert {"greeter", "notifications", "queue"} <= set(dir(app))
    assert app.plugin(Greeter) is app.greeter
    assert app.plugin(Notifications) is app.notifications
    with pytest.raises(AttributeError, match="no attribute 'gretter'"):
        _ = app.gretter


def test_plugins_chooses_among_what_ships_and_leaves_ones_own() -> None:
    app = make(Greeter, plugins=())
    assert list(app.plugins) == ["greeter"]
    with pytest.raises(ConfigurationError, match="no plugin notifications: PLUGINS leaves it out"):
        app.plugin(Notifications)
    with pytest.raises(
        ConfigurationError, match="PLUGINS names notfications, which is not here; there are: "
    ):
        make(plugins=("notfications",))


def test_the_variable_is_read_as_people_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUGINS", " notifications ,")
    assert list(Yamchi().plugins) == ["notifications"]
    monkeypatch.setenv("PLUGINS", "none")
    assert list(Yamchi().plugins) == []


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Unlucky, "RuntimeError: the stars are wrong"),
        (Extra, MEDIA_IS_MISSING),
        (Needy, "it needs the plugin greeter, which is not here"),
    ],
)
def test_one_that_fails_is_one_sentence_and_the_rest_starts(kind: type[Plugin], why: str) -> None:
    with capture_logs() as lines:
        app = make(kind)
    assert app.failed_plugins == {kind.name: why}
    assert [line["event"] for line in lines] == [f"plugin {kind.name} was left out: {why}"]
    assert "notifications" in app.plugins
    with pytest.raises(ConfigurationError, match=f"no plugin {kind.name}: "):
        getattr(app, kind.name)


@pytest.mark.parametrize("taken", ["queues", "sync", "close", "database", "settings", "metrics"])
def test_a_name_that_the_application_has_already_is_refused(taken: str) -> None:
    kind = type("Taken", (Plugin,), {"name": taken})
    why = f"The plugin Taken can't be named '{taken}', for app.{taken} is the application's own: give it another name."
    with pytest.raises(ConfigurationError) as refused:
        make(kind)
    assert str(refused.value) == why


def test_one_that_ships_and_can_not_be_imported_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins.SHIPPED, "ghost", "yamchi.ghost.plugin:Ghost")
    app = make()
    assert "No module named 'yamchi.ghost'" in app.failed_plugins["ghost"]


def test_each_comes_after_what_it_needs() -> None:
    names = list(make(Needy, Greeter).plugins)
    assert names.index("greeter") < names.index("needy")


def install(folder: Path, module: str, entry_point: str, code: str) -> None:
    """A package in this folder, with its metadata."""
    (folder / f"{module}.py").write_text(f"from yamchi import Plugin\n\n{code}")
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[yamchi.plugins]\n{entry_point}\n")


def test_an_installed_package_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "shopkeeping", "shop = shopkeeping:Shop", "class Shop(Plugin):\n    name = 'shop'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert make().shop.name == "shop"
    assert "shop" not in make(plugins=("notifications",)).plugins


def test_a_package_whose_plugin_has_a_name_of_the_application_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "clocks", "sync = clocks:Sync", "class Sync(Plugin):\n    name = 'sync'\n")
    monkeypatch.syspath_prepend(tmp_path)
    app = make()
    assert "can't be named 'sync'" in app.failed_plugins["sync"]
    assert "notifications" in app.plugins
    assert callable(app.sync.queue)


def test_a_package_may_offer_its_plugin_by_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "class Cups(Plugin):\n    name = 'cups'\n    made = 0\n    def declare(self):\n        Cups.made += 1\n"
    install(tmp_path, "porcelain", "porcelain = porcelain:Cups", code)
    monkeypatch.syspath_prepend(tmp_path)
    cups = import_module("porcelain").Cups

    class Saucers(Plugin):
        name = "saucers"
        requires = ("cups",)

    assert "saucers" in make(Saucers).plugins
    make(cups)
    assert cups.made == 2, "once for each application"


def test_serving_twice_changes_nothing() -> None:
    app = make()
    for _ in range(2):
        app.serve()
        app.notifications.serve()
    assert list(app.queue("notifications").definition.handlers) == ["send"]
    assert app.services_of("notifications").count("event sweeper") == 1


async def test_a_worker_of_other_queues_leaves_a_features_services_alone() -> None:
    app = make()
    app.job("orders")(lambda job: None)
    services = app.services.declared
    app.serve()
    assert "event sweeper" in services(["notifications", "orders"])
    assert "event sweeper" not in services(["orders"])
    await app.close()


async def test_a_wrong_setting_of_a_feature_stops_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMTP_PORT", "high")
    with pytest.raises(ConfigurationError, match=r"^SMTP_PORT has a value that can't be used"):
        Yamchi()
    with pytest.raises(TypeError, match="Settings has no field smtp_prot"):
        TestApp(smtp_prot=25, smtp_port=25)


async def test_a_job_added_before_there_are_handlers_goes_to_the_default_one() -> None:
    """As in a process that only takes requests: a feature's handlers are declared where a worker is."""
    ran: list[str] = []

    class Late(Plugin):
        name = "late"

        def declare(self) -> None:
            self.app.define("late")

        def serve(self) -> None:
            self.app.job("late", name="run")(lambda job: ran.append(job.data))

    async with TestApp(plugins=[Late]) as app:
        await app.queue("late").add("early")
        await app.drain()
        await app.queue("late").add("on time")
        await app.drain()
    assert ran == ["early", "on time"]


class Broken(Plugin):
    """Starts, and then can do nothing right."""

    name = "broken"

    def serve(self) -> None:
        raise MissingExtra("media", "Media")

    def metrics(self) -> Any:
        raise ZeroDivisionError("numbers")

    async def checks(self) -> Any:
        raise KeyError("where was it")


def test_an_engine_whose_extra_is_missing_is_no_fault_of_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hiredis.py").write_text("raise ImportError('not installed')")
    command = [sys.executable, "-c", "from yamchi.cli import main; main()", "queues"]
    known = {**os.environ, "PYTHONPATH": str(tmp_path), "QUEUE_URL": "redis://localhost:1", "COLUMNS": "200"}
    ended = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    said = (ended.stdout + ended.stderr).splitlines()
    assert said == [f"✘ Redis needs an extra package: {install_command('redis')}"]


async def test_one_in_trouble_later_on_costs_only_itself() -> None:
    async with TestApp(plugins=[Broken]) as app:
        app.serve()
        assert app.failed_plugins == {"broken": MEDIA_IS_MISSING}
        assert list(app.queue("notifications").definition.handlers) == ["send"]
        transport = httpx2.ASGITransport(app=create_app(app))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
            ready = (await client.get("/readyz")).json()
            page = (await client.get("/metrics")).text
    assert ready["ready"] is True
    found = [one["found"] for one in ready["checks"] if one["what"] == "plugin broken"]
    assert found == [MEDIA_IS_MISSING, "KeyError: 'where was it'"]
    assert "yamchi_deliveries" in page


@pytest.mark.parametrize("part", ["routers", "tokens", "static", "body_limits", "pages", "tips", "close"])
async def test_one_that_can_not_say_what_it_brings_leaves_the_others_theirs(part: str) -> None:
    def fail(self: Plugin, *given: str) -> None:
        raise ModuleNotFoundError(f"no {part}")

    closed: list[str] = []

    class First(Plugin):
        name = "first"

        async def close(self) -> None:
            closed.append(self.name)

    broken = type("Faulty", (Plugin,), {"name": "faulty", part: fail})
    async with TestApp(plugins=[First, broken]) as app:
        transport = httpx2.ASGITransport(app=create_app(app))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:3030") as client:
            assert (await client.get("/api/v1/rules")).status_code == 200
            assert (await client.get("/api/board/pages")).status_code == 200
        assert "Look " in _what_to_try(app, "http://localhost:3030", None)
        expected = {} if part == "close" else {"faulty": f"ModuleNotFoundError: no {part}"}
        assert app.failed_plugins == expected
    assert closed == ["first"]


def test_one_whose_routes_can_not_be_imported_is_listed_with_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pottery.py").write_text(
        "from yamchi import Plugin, Yamchi\nclass Pots(Plugin):\n    name = 'pots'\n    routes = 'nowhere:ROUTES'\n"
        "app = Yamchi(plugins=[Pots])\n"
    )
    monkeypatch.chdir(tmp_path)
    listed = CliRunner().invoke(cli, ["plugins", "--app", "pottery:app"])
    assert listed.exit_code == 0
    assert "pots  left out: ModuleNotFoundError: No module named 'nowhere'" in listed.output


async def test_a_plugin_that_can_not_erase_keeps_no_other_from_it() -> None:
    asked: list[str] = []

    class Stubborn(Plugin):
        name = "stubborn"

        async def erase(self, user_id: str) -> dict[str, int]:
            raise WrongState("it is being sent")

    class Tidy(Plugin):
        name = "tidy"

        async def erase(self, user_id: str) -> dict[str, int]:
            asked.append(user_id)
            return {"shelves": 1}

    app = make(Stubborn, Tidy, plugins=())
    with pytest.raises(WrongState, match="it is being sent"):
        await app.erase("somebody")
    assert asked == ["somebody"]
