"""An application under test becomes the test's: one state for both, so that nothing it reaches is the real thing."""

from typing import Any

from yamchi.app import Yamchi
from yamchi.errors import ConfigurationError

REAL_DATABASE = (
    "This is the real database of an application that a test has adopted, taken from it before: "
    "reach it through the application instead (app.database, app.notifications), where it is used."
)


class Adoption:
    """Lets two applications share one state, the test's, until it ends."""

    def __init__(self, test: Yamchi, real: Yamchi) -> None:
        self._real = real
        self._before: dict[str, Any] = real.__dict__
        self._host = real._host
        self._refuse_one_in_use()
        self._add_plugins(test)
        self._take_declarations(test)
        self._move_queues(test)
        if database := self._before.get("database"):
            database.refuse(REAL_DATABASE)
        for name, value in self._before.items():
            test.__dict__.setdefault(name, value)  # what a user keeps on the application stays there
        real.__dict__ = test.__dict__

    def end(self) -> None:
        """The application is itself again."""
        self._real.__dict__ = self._before
        if database := self._before.get("database"):
            database.refuse(None)
        for name, queue in self._before["_queues"].items():
            queue.move_to(self._real._engines.of(name), self._real.clock)

    def _refuse_one_in_use(self) -> None:
        database, engines = self._before.get("database"), self._before["_engines"]
        if (database and database.is_open) or engines.is_open:
            raise ConfigurationError(
                "The application is in use already, so a test can't have it: adopt it before anything is added, "
                "or close it first."
            )

    def _add_plugins(self, test: Yamchi) -> None:
        """Features that only the application has; what the test declared so far stays."""
        theirs = [type(plugin) for name, plugin in self._host.plugins.items() if name not in test.plugins]
        test.database.add_migrations(schema for kind in theirs if (schema := kind.schema()))
        test._host.make_more(test, theirs)

    def _take_declarations(self, test: Yamchi) -> None:
        """A feature's queues are those of the test's own features."""
        features = {queue for plugin in test.plugins for queue in self._host.queues_of(plugin)}
        ours = {
            name: definition
            for name, definition in self._before["_definitions"].items()
            if name not in features
        }
        test._definitions.update(ours)
        test._crons.update(
            {name: cron for name, cron in self._before["_crons"].items() if cron[1] in test._definitions}
        )

    def _move_queues(self, test: Yamchi) -> None:
        """Queues that a module took from the application when it was imported are the test's as well."""
        for name, queue in self._before["_queues"].items():
            queue.move_to(test._engines.of(name), test.clock)
            if name in test._definitions and name not in test._queues:
                queue.on_listener = test._remote.want
                test._queues[name] = queue
