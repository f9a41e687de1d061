"""The plugins of one application: made in the order of their needs, asked for what they contribute, isolated from each other's failures."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import structlog

from yamchi.errors import ConfigurationError, MissingEngine, MissingExtra
from yamchi.plugins import Application, Found, Plugin

T = TypeVar("T")

log = structlog.get_logger("yamchi")


class PluginHost:
    """Makes an application's plugins and knows which of them declared which queue and service.

    A wrong setting of a plugin stops the application, as any wrong setting does. A plugin that fails otherwise is left out
    or contributes nothing, and `failures` says why.
    """

    def __init__(self, found: Found) -> None:
        self.classes = found.classes
        self.failures = found.failures
        self.plugins: dict[str, Plugin] = {}
        self.acting: str | None = None
        """The plugin that runs now: queues and services that are declared meanwhile belong to it."""
        self._found = found
        self._served: set[str] = set()
        self._queues: defaultdict[str, list[str]] = defaultdict(list)
        self._services: defaultdict[str, list[str]] = defaultdict(list)

    # ── Making ────────────────────────────────────────────────────────────────────────────────────────────────────

    def make(self, app: Application) -> None:
        self._make(app, self.classes)

    def make_more(self, app: Application, kinds: Iterable[type[Plugin]]) -> None:
        """Make further plugins after the first ones."""
        self.classes = [*self.classes, *kinds]
        self._make(app, kinds)

    def _make(self, app: Application, kinds: Iterable[type[Plugin]]) -> None:
        for kind in kinds:
            if away := [need for need in kind.requires if need not in self.plugins]:
                self._found.fail(kind.name, f"it needs the plugin {away[0]}, which is not here")
                continue
            with self._on_behalf_of(kind.name):
                plugin = kind(app)
                plugin.declare()
                self.plugins[kind.name] = plugin
        if not self.failures:
            app.settings.check_given(kind.settings_class for kind in self.classes if kind.settings_class)

    def serve(self) -> None:
        """Let each plugin add its handlers and services, once."""
        for name, plugin in self.plugins.items():
            if name not in self._served:
                self._served.add(name)
                with self._on_behalf_of(name):
                    plugin.serve()

    @contextmanager
    def _on_behalf_of(self, name: str) -> Iterator[None]:
        self.acting = name
        try:
            yield
        except Exception as error:
            is_its_own = isinstance(error, MissingExtra) and not isinstance(error, MissingEngine)
            if isinstance(error, ConfigurationError) and not is_its_own:
                raise
            why = str(error) if is_its_own else f"{type(error).__name__}: {error}"
            self._found.fail(name, why)
        finally:
            self.acting = None

    # ── Whose is what ─────────────────────────────────────────────────────────────────────────────────────────────

    def own_queue(self, queue: str) -> None:
        """A new queue belongs to the plugin that declares it, if one does."""
        if self.acting is not None:
            self._queues[self.acting].append(queue)

    def own_service(self, service: str) -> list[str]:
        """A new service belongs to the plugin that declares it, if one does; the queues of that plugin."""
        if self.acting is None:
            return []
        self._services[self.acting].append(service)
        return self.queues_of(self.acting)

    def queues_of(self, plugin: str) -> list[str]:
        return list(self._queues.get(plugin, ()))

    def services_of(self, plugin: str) -> list[str]:
        return list(self._services.get(plugin, ()))

    # ── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────

    def find(self, name: str) -> Plugin:
        try:
            return self.plugins[name]
        except KeyError:
            why = self.failures.get(name, "PLUGINS leaves it out, or nothing offers it")
            raise ConfigurationError(f"This application has no plugin {name}: {why}.") from None

    def brought(self, what: Callable[[Plugin], Iterable[T]], by: Iterable[Plugin] | None) -> list[T]:
        found: list[T] = []
        for plugin in self.plugins.values() if by is None else by:
            with self._on_behalf_of(plugin.name):
                found += list(what(plugin))
        return found

    async def erase(self, user_id: str) -> dict[str, int]:
        found: Counter[str] = Counter()
        failure: Exception | None = None
        for plugin in self.plugins.values():
            try:
                found.update(await plugin.erase(user_id))
            except Exception as error:
                log.error(f"the plugin {plugin.name} could not erase a person: {error}")
                failure = failure or error
        if failure:
            raise failure
        return dict(found)

    async def close(self) -> None:
        """Close plugins before those they need. One that fails must not keep the others open."""
        for plugin in reversed(self.plugins.values()):
            try:
                await plugin.close()
            except Exception:
                log.exception(f"closing the plugin {plugin.name} failed")
