"""Plugins: the one seam between features and the rest.

A feature is a folder. Its plugin says what it contributes: settings, tables, queues, handlers, routes, commands, pages, metrics,
checks. The application, the server, the command line and `doctor` iterate over plugins and name none of them.
"""

import sys
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar, Unpack, overload

import structlog

from yamchi.clock import Clock, Span
from yamchi.errors import ConfigurationError, YamchiError
from yamchi.observe.logging import mask
from yamchi.observe.metrics import Metrics
from yamchi.queues.handlers import QueueDefinition, QueueOptions
from yamchi.queues.job import HandlerFunction
from yamchi.queues.queue import Queue
from yamchi.queues.services import ServiceFunction
from yamchi.settings import FeatureSettings, Settings
from yamchi.storage.revisions import Migrations

if TYPE_CHECKING:
    from fastapi import APIRouter
    from prometheus_client import Metric

    from yamchi.http.links import Links
    from yamchi.http.scopes import PageToken
    from yamchi.http.signing import Signer
    from yamchi.queues.runner import Observer
    from yamchi.storage.database import Database
    from yamchi.storage.keys import Keys

SHIPPED = {
    "leads": "yamchi.leads.plugin:Leads",
    "notifications": "yamchi.notifications.plugin:Notifications",
    "media": "yamchi.media.plugin:Media",
    "payments": "yamchi.payments.plugin:Payments",
    "reports": "yamchi.reports.plugin:Reports",
    "scenarios": "yamchi.scenarios.plugin:Scenarios",
}
"""The features that ship, by name: a feature adds its line here."""

ENTRY_POINTS = "yamchi.plugins"
"""The group in which an installed package offers its plugins."""

Access = str
"""Who may call a route, as `yamchi.http.access` reads it: "admin" (and to look, whoever may read); "send", "send:<queue>" or another
scope; "person", the one in its path, and the admin; "public". With "+test", test keys too."""

F = TypeVar("F", bound=HandlerFunction)
P = TypeVar("P", bound="Plugin")

log = structlog.get_logger("yamchi")


@dataclass(frozen=True, slots=True, eq=False)  # a router can't be compared
class Routes:
    """Routes with who may call them. Public ones below /api stand under a prefix of their own, such as /api/webhooks."""

    router: "APIRouter"
    prefix: str = "/api/v1"
    access: Access = "admin"


@dataclass(frozen=True, slots=True)
class BoardPage:
    """A page of the board.

    `module` is the address of an ES module whose `view` shows the page at `path` within the board. Without a module, `path` is the
    address of a separate page.
    """

    title: str
    path: str
    module: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `ok` None is a warning: something is missing, and the rest works."""

    what: str
    ok: bool | None
    found: str


class Application(Protocol):
    """What a plugin may use of its application."""

    settings: Settings
    clock: Clock
    metrics: Metrics
    observers: "list[Observer]"

    @property
    def database(self) -> "Database": ...

    @property
    def keys(self) -> "Keys": ...
    @property
    def signer(self) -> "Signer": ...
    @property
    def links(self) -> "Links": ...

    def define(self, queue: str, **options: Unpack[QueueOptions]) -> QueueDefinition:
        """Declare a queue, or say more about one."""

    def job(
        self, queue: str, *, name: str | None = None, **options: Unpack[QueueOptions]
    ) -> Callable[[F], F]:
        """Declare a function as a handler."""

    def cron(
        self, line: str, *, zone: str = "UTC", name: str | None = None, queue: str = "cron"
    ) -> Callable[[F], F]:
        """Run a function by the clock."""

    def queue(self, name: str) -> Queue:
        """A declared queue."""

    def service(self, name: str, run: ServiceFunction) -> None:
        """Run something for ever beside the jobs: started again when it fails, shown in /readyz."""

    @overload
    def plugin(self, wanted: type[P]) -> P: ...
    @overload
    def plugin(self, wanted: str) -> "Plugin": ...

    async def erase(self, user_id: str) -> Mapping[str, int]:
        """Forget a person in every plugin; how much was found, by kind."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *error: Any) -> None: ...


class Stage(Protocol):
    """The demo, as a feature sees it: it runs on the embedded default, and moves the application's clock."""

    def say(self, text: str) -> None:
        """Print what has just happened."""

    def look(self, path: str, what: str) -> None:
        """Name a page that shows it afterwards."""

    async def wait(self, span: Span) -> None:
        """Move the clock by this span, and run everything that becomes due; "0s" runs what is due now."""


class Plugin:
    """A feature, as the rest of Yamchi sees it. Everything but the name is optional.

    The object is also the feature's face: `app.media` is the plugin named `media`, `app.plugin(Media)` the same with its type.
    """

    name: ClassVar[str]
    """`app.<name>`, the name in PLUGINS, and the end of the name of its version table."""
    summary: ClassVar[str] = ""
    """One sentence for `yamchi plugins`."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Names of plugins that it needs."""
    settings_class: ClassVar[type[FeatureSettings] | None] = None
    migrations: ClassVar[Path | None] = None
    """Its folder of Alembic revisions."""
    version_table: ClassVar[str | None] = None
    """The table that says which of them a database has seen. Defaults to alembic_version_<name>."""
    routes: ClassVar[str | None] = None
    """Its groups of routes, as `module:attribute` of several `Routes`; imported when there is a server."""
    commands: ClassVar[Mapping[str, str]] = {}
    """Commands by name, each as `module:attribute` of a Typer group or a function; imported when they are used."""

    extras: ClassVar[Mapping[str, str]] = {}
    """Extras of our package that it can use, each with a module that is there when it is installed, for `doctor`."""

    demo: ClassVar[str | None] = None
    """Its part in `yamchi demo`: `module:attribute` of a coroutine function that takes the plugin and a `Stage`."""

    makes: ClassVar[Mapping[str, str]] = {}
    """Functions that print something new, such as a key, by their names for `doctor --make`."""

    def __init__(self, app: Application) -> None:
        """Called when the application is made. Opens nothing."""
        self.app = app
        kind = type(self).settings_class
        self.settings: Any = None if kind is None else app.settings.of(kind)

    def declare(self) -> None:
        """Declare queues and their limits, with `app.define`; called when the application is made."""

    def serve(self) -> None:
        """Add handlers, services and cron jobs, with `app.job`, `app.service`, `app.cron`; called once, before a worker is made."""

    def routers(self) -> Iterable[Routes]:
        """Its routes, each group with who may call it. Defaults to those that `routes` names."""
        found: Iterable[Routes] = load_attribute(self.routes) if self.routes else ()
        return found

    def tokens(self) -> "Iterable[PageToken]":
        """The kinds of tokens that it makes for people's pages."""
        return ()

    def static(self) -> Mapping[str, Path]:
        """Folders of files that the server offers, by their address prefix."""
        return {}

    def pages(self) -> Iterable[BoardPage]:
        """Its pages of the board."""
        return ()

    def body_limits(self) -> Mapping[str, int]:
        """Longest bodies of requests in bytes, where more than usual is allowed, by a regular expression of the path.

        Not for JSON, which is read whole before the route asks who calls: read such a body as a stream.
        """
        return {}

    def tips(self, url: str, command: str, options: str) -> Iterable[tuple[str, str]]:
        """What a newcomer may try, for the welcome of `yamchi up`: each a label and a line to copy."""
        return ()

    def metrics(self) -> "Iterable[Metric]":
        """Its metrics for a scrape; `app.metrics.counts` has the jobs of every queue by state at that moment."""
        return ()

    async def checks(self) -> Iterable[Check]:
        """Its state, for `/readyz` and `doctor`. May take no longer than a query of the database."""
        return ()

    async def probes(self) -> Iterable[Check]:
        """Checks for `doctor` only: whether the services that it depends on answer."""
        return ()

    async def erase(self, user_id: str) -> Mapping[str, int]:
        """Forget a person; how much was found, by kind. May be called again, and for people it never knew."""
        return {}

    async def close(self) -> None:
        """Close what it opened."""

    @classmethod
    def schema(cls) -> Migrations | None:
        """Its migrations, with their version table."""
        if cls.migrations is None:
            return None
        return Migrations(cls.migrations, cls.version_table or f"alembic_version_{cls.name}")


@dataclass(slots=True)
class Found:
    """The plugins of an application, each after those it needs, and why others were left out."""

    classes: list[type[Plugin]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def fail(self, name: str, why: str) -> None:
        self.failures[name] = why
        log.error(f"plugin {name} was left out: {why}")


def find_plugins(
    settings: Settings, own: Sequence[type[Plugin]] = (), taken: Container[str] = frozenset()
) -> Found:
    """The plugins that ship or are installed and that PLUGINS names, and the application's own. One that can't be loaded is left out.

    `taken` are names that no plugin may have, because the application uses them.
    """
    offered: dict[str, Callable[[], Any]] = {name: _loader(place) for name, place in SHIPPED.items()}
    offered |= {point.name: point.load for point in _installed(tuple(sys.path))}
    found = Found()
    loaded: dict[str, type[Plugin]] = {}
    for name in _chosen(settings, offered):
        try:
            kind = _checked(offered[name](), taken)
            loaded[kind.name] = kind  # a package may offer it by another name
        except ConfigurationError as error:
            found.fail(name, str(error))
        except Exception as error:
            found.fail(name, f"it can't be imported ({type(error).__name__}: {error})")
    loaded |= {kind.name: kind for kind in (_checked(kind, taken) for kind in own)}
    found.classes = _in_order(loaded, found)
    return found


@cache
def _installed(path: tuple[str, ...]) -> EntryPoints:
    """The plugins of other packages. Cached for each `sys.path`: the search opens a file of every installed package."""
    return entry_points(group=ENTRY_POINTS)


async def look_at(plugin: Plugin, *looks: Callable[[], Awaitable[Iterable[Check]]]) -> list[Check]:
    """Run checks of a plugin. An error is a failed check."""
    try:
        return [check for look in looks for check in await look()]
    except YamchiError as error:
        return [Check(f"plugin {plugin.name}", False, str(mask(str(error))))]
    except Exception as error:
        log.exception(f"the checks of the plugin {plugin.name} failed")
        return [Check(f"plugin {plugin.name}", False, str(mask(f"{type(error).__name__}: {error}")))]


async def ask(what: str, ping: Callable[[], Awaitable[str | None]]) -> list[Check]:
    """Whether something answers, and what it says. No check if it says nothing."""
    try:
        said = await ping()
    except YamchiError as error:
        return [Check(what, False, str(mask(str(error))))]
    return [Check(what, True, said)] if said else []


def shipped_plugins() -> list[type[Plugin]]:
    """The classes of all plugins that ship."""
    return [_checked(_loader(place)()) for place in SHIPPED.values()]


def load_attribute(place: str) -> Any:
    """What `module:attribute` names."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def of_request(kind: type[P]) -> Callable[..., Awaitable[P]]:
    """A dependency of routes that gives the application's plugin of this class."""
    from starlette.requests import HTTPConnection

    async def find(connection: HTTPConnection) -> P:
        app: Application = connection.app.state.yamchi
        return app.plugin(kind)

    return find


def _loader(place: str) -> Callable[[], Any]:
    return lambda: load_attribute(place)


def _chosen(settings: Settings, offered: Mapping[str, Any]) -> Sequence[str]:
    if settings.plugins is None:
        return list(offered)
    wanted = [name for name in settings.plugins if name != "none"]
    if unknown := [name for name in wanted if name not in offered]:
        known = ", ".join(sorted(offered))
        raise ConfigurationError(
            f"PLUGINS names {', '.join(unknown)}, which is not here; there are: {known}."
        )
    return wanted


def _checked(kind: Any, taken: Container[str] = frozenset()) -> type[Plugin]:
    if not (isinstance(kind, type) and issubclass(kind, Plugin) and getattr(kind, "name", None)):
        raise ConfigurationError(
            f"{kind!r} is not a plugin: it should be a subclass of yamchi.Plugin with a name."
        )
    if kind.name in taken:
        raise ConfigurationError(
            f"The plugin {kind.__name__} can't be named {kind.name!r}, for app.{kind.name} is the application's own: "
            "give it another name."
        )
    return kind


def _in_order(loaded: Mapping[str, type[Plugin]], found: Found) -> list[type[Plugin]]:
    """The plugins, each after those it needs. A plugin that needs one that is not here is left out, with a log line."""
    placed: dict[str, type[Plugin]] = {}

    def place(name: str, waiting: tuple[str, ...]) -> bool:
        if name in placed:
            return True
        if name in waiting or name not in loaded:
            return False
        for need in loaded[name].requires:
            if not place(need, (*waiting, name)):
                if name not in found.failures:
                    found.fail(name, f"it needs the plugin {need}, which is not here")
                return False
        placed[name] = loaded[name]
        return True

    for name in loaded:
        place(name, ())
    return list(placed.values())
