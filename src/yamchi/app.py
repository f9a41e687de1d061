"""The composition root: settings become engines, queues and workers here, and nowhere else."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

import structlog

from yamchi.clock import LATEST, Clock, SystemClock, in_short, to_millis
from yamchi.errors import ConfigurationError, InvalidJob, UnknownQueue, some_of
from yamchi.hosting import PluginHost
from yamchi.observe.logging import configure_unless_done
from yamchi.observe.metrics import Metrics
from yamchi.plugins import Plugin, find_plugins
from yamchi.queues.blocking import Sync
from yamchi.queues.composing import Engines
from yamchi.queues.cron import CronLine, Schedule, run_id
from yamchi.queues.engines.base import Engine
from yamchi.queues.forking import begin_anew_after_fork
from yamchi.queues.handlers import Handler, QueueDefinition, QueueOptions
from yamchi.queues.job import HandlerFunction
from yamchi.queues.processes.limits import check_importable, limits_of
from yamchi.queues.queue import Queue
from yamchi.queues.records import check_name
from yamchi.queues.remote import RemoteEvents
from yamchi.queues.runner import Observer
from yamchi.queues.services import ServiceFunction, Services
from yamchi.queues.worker import Worker
from yamchi.settings import Settings
from yamchi.storage.private import close_folder

if TYPE_CHECKING:
    from yamchi.http.links import Links
    from yamchi.http.signing import Signer
    from yamchi.storage.database import Database
    from yamchi.storage.keys import Keys

F = TypeVar("F", bound=HandlerFunction)
P = TypeVar("P", bound=Plugin)
T = TypeVar("T")

log = structlog.get_logger("yamchi")

CRON_QUEUE = "cron"


class Yamchi:
    """An application: its queues, its handlers, and the engines they live on.

    Settings come from the environment and `.env` unless given. Nothing is opened before it is used. `plugins` are the classes
    of your own features, in addition to those that ship; `app.<name>` is the feature of that name.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        engine: Engine | None = None,
        plugins: Sequence[type[Plugin]] = (),
    ) -> None:
        if not isinstance(settings, Settings | None):
            raise ConfigurationError(
                f"Yamchi takes Settings, not a {type(settings).__name__}: "
                "set QUEUE_URL, or give Yamchi(Settings(default_queue_url=…))."
            )
        self.settings = settings or Settings()
        self.clock = clock or SystemClock()
        self.metrics = Metrics()
        self.observers: list[Observer] = [self.metrics.observe]
        self.services = Services(self.clock, self.metrics.count_service_failure)
        """What runs beside the jobs of every worker, supervised."""
        self._definitions: dict[str, QueueDefinition] = {}
        self._queues: dict[str, Queue] = {}
        self._remote = RemoteEvents(self._queues, self.services)
        self._engines = Engines(self.settings, self.clock, self.metrics, self._topic_of, engine)
        self._crons: dict[str, tuple[CronLine, str, str]] = {}
        self._host = PluginHost(find_plugins(self.settings, plugins, taken={*dir(type(self)), *vars(self)}))
        self._host.make(self)

    # ── Declaring ─────────────────────────────────────────────────────────────────────────────────────────────────

    def define(self, queue: str, **options: Unpack[QueueOptions]) -> QueueDefinition:
        """Declare a queue, or say more about one. A process that only adds jobs needs no handlers, just this."""
        known = self._definitions.get(queue) or self._declare(queue)
        known.refine(**options)
        known.concurrency = self.settings.concurrency(queue, known.concurrency)
        return known

    def _declare(self, queue: str) -> QueueDefinition:
        timeout = to_millis(self.settings.job_timeout) or None
        self._definitions[queue] = QueueDefinition(
            queue, timeout=timeout, is_own=self._host.acting is not None
        )
        if queue != CRON_QUEUE:
            self._host.own_queue(queue)
        return self._definitions[queue]

    def job(
        self,
        queue: str,
        *,
        name: str | None = None,
        processes: int | None = None,
        memory: int | str | None = None,
        **options: Unpack[QueueOptions],
    ) -> Callable[[F], F]:
        """Declare the function below as a handler. Takes the options of `define`; the first handler of a queue is its default.

        `processes=2, memory="512MB"` runs it in two child processes of that size: one that crashes, hangs or grows too
        large costs its own job and nothing else. The queue's concurrency defaults to their number.
        """
        _check_has_argument("job", queue, "its queue", "thumbnails")
        limits = limits_of(queue, processes, memory)
        if limits:
            options.setdefault("concurrency", limits.processes)

        def declare(function: F) -> F:
            if limits:
                check_importable(queue, function)
            definition = self.define(queue, **options)
            job_name = name or function.__name__
            if job_name in definition.handlers:
                raise ConfigurationError(
                    f"Queue {queue} has a job {job_name!r} already: give this one another name."
                )
            definition.handlers[job_name] = Handler(job_name, function, limits)
            return function

        return declare

    def cron(
        self, line: str, *, zone: str = "UTC", name: str | None = None, queue: str = CRON_QUEUE
    ) -> Callable[[F], F]:
        """Run the function below by the clock: `@app.cron("0 3 * * *", zone="Asia/Almaty")`."""
        _check_has_argument("cron", line, "its times", "0 3 * * *")
        expression = CronLine(line, zone)

        def declare(function: F) -> F:
            schedule = _schedule_name(name or function.__name__)
            if schedule in self._crons:
                raise ConfigurationError(
                    f"There is a schedule {schedule!r} already, of queue {self._crons[schedule][1]}: give this one another name."
                )
            self.job(queue, name=schedule)(function)
            self._crons[schedule] = (expression, queue, schedule)
            self._definitions[queue].is_own |= queue == CRON_QUEUE
            return function

        return declare

    def _topic_of(self, queue: str) -> str | None:
        return self._definitions[queue].topic if queue in self._definitions else None

    def service(self, name: str, run: ServiceFunction) -> None:
        """Run something for ever beside the jobs: started again when it fails, shown in /readyz.

        A feature's services run in the workers that work on one of its queues, if it has any.
        """
        self.services.add(name, run, queues=self._host.own_service(name))

    # ── Plugins ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def plugins(self) -> Mapping[str, Plugin]:
        """The features, by name."""
        return self._host.plugins

    @property
    def failed_plugins(self) -> Mapping[str, str]:
        """Plugins that were left out, each with why."""
        return self._host.failures

    @overload
    def plugin(self, wanted: type[P]) -> P: ...
    @overload
    def plugin(self, wanted: str) -> Plugin: ...
    def plugin(self, wanted: Any) -> Any:
        """A feature, by its class or its name."""
        return self._host.find(wanted if isinstance(wanted, str) else wanted.name)

    def __getattr__(self, name: str) -> Any:
        """`app.notifications` is the plugin of this name."""
        host = self.__dict__.get("_host")
        if host is not None and (name in host.plugins or name in host.failures):
            return host.find(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._host.plugins]

    def queues_of(self, plugin: str) -> list[str]:
        """Names of the queues that a plugin declared."""
        return self._host.queues_of(plugin)

    def services_of(self, plugin: str) -> list[str]:
        """Names of the services that a plugin runs."""
        return self._host.services_of(plugin)

    def brought(self, what: Callable[[Plugin], Iterable[T]], by: Iterable[Plugin] | None = None) -> list[T]:
        """Ask every plugin, or some, and collect the answers. A plugin that fails adds nothing and is in `failed_plugins`."""
        return self._host.brought(what, by)

    def serve(self) -> None:
        """Add the features' handlers, services and cron jobs, once. `worker` calls this."""
        self._host.serve()

    async def erase(self, user_id: str) -> dict[str, int]:
        """Forget a person in every feature; how much was found, by kind. After an error call it again."""
        return await self._host.erase(user_id)

    @cached_property
    def database(self) -> "Database":
        """The tables of Yamchi and of its features: DATABASE_URL, or SQLite beside the queues."""
        from yamchi.storage.database import Database

        close_folder(self.settings.var)
        schemas = (kind.schema() for kind in self._host.classes)
        database = Database(self.settings.tables_url, [schema for schema in schemas if schema])
        begin_anew_after_fork(database)
        return database

    @cached_property
    def keys(self) -> "Keys":
        """Keys with a lifetime: in Redis where that is the engine, else in the database."""
        from yamchi.storage.keys import TableKeys

        return self._engines.keys() or TableKeys(self.database, self.clock)

    @cached_property
    def signer(self) -> "Signer":
        """Signs links and tokens, with SECRET_KEY or a key that all processes share."""
        from yamchi.http.signing import Signer

        return Signer(self.database, self.settings.secret_key, self.settings.secret_key_previous)

    @cached_property
    def links(self) -> "Links":
        """Signed links: each has one purpose and a lifetime, and may work only once."""
        from yamchi.http.links import Links

        return Links(self.signer, self.keys, self.clock, self.settings.public_url)

    # ── Using ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> Queue:
        """A declared queue."""
        if name not in self._definitions:
            raise UnknownQueue(
                f"There is no queue {name!r}; declared are: {some_of(self._definitions)}. "
                f"Declare it with @app.job({name!r}) or app.define({name!r})."
            )
        if name not in self._queues:
            queue = Queue(self._definitions[name], self._engines.of(name), self.clock)
            queue.on_listener = self._remote.want
            self._queues[name] = queue
        return self._queues[name]

    @cached_property
    def sync(self) -> Sync:
        """The same queues for code without an event loop: `app.sync.queue("mail").add(…)` returns when it is done."""
        return Sync(self.queue, self.close, lambda: self._engines.home)

    @property
    def queues(self) -> list[Queue]:
        return [self.queue(name) for name in self._definitions]

    def schedules(self) -> list[Schedule]:
        return [
            Schedule(name, line, self.queue(queue), job) for name, (line, queue, job) in self._crons.items()
        ]

    def worker(self, queues: Iterable[str] | None = None) -> Worker:
        """A worker for these queues, or for all that have handlers. It runs the services of features whose queues it works on."""
        self.serve()
        chosen = (
            [self.queue(name) for name in queues]
            if queues
            else [q for q in self.queues if q.definition.handlers]
        )
        for queue in chosen:
            if not queue.definition.handlers:
                raise ConfigurationError(
                    f"Queue {queue.name} has no handlers in this application, so nothing can run its jobs."
                )
        return Worker(
            chosen,
            clock=self.clock,
            schedules=[schedule for schedule in self.schedules() if schedule.queue in chosen],
            lease=self.settings.lease,
            stop_timeout=self.settings.shutdown_timeout,
            observers=self.observers,
            services=self.services,
        )

    async def work(self, queues: Sequence[str] | None = None) -> None:
        """Run a worker until cancelled, which gives running jobs back; `worker()` has a `stop` that lets them finish.

        It logs as the settings say, unless the program has set up logging itself.
        """
        configure_unless_done(self.settings.log_format, self.settings.log_level)
        await self._settle()
        await self.worker(queues).run()

    def listen(self) -> None:
        """Pass events of other processes to the listeners of `queue.on`. `on` and workers call this where an event loop runs."""
        self._remote.start()

    async def _settle(self) -> None:
        """Use the application on this event loop, unless it runs on another one: engines that `app.sync` opened move here."""
        if self._engines.is_settled:
            return
        was_listening = await self._remote.stop()
        await self._engines.settle_here()
        if was_listening:
            self.listen()

    async def close(self) -> None:
        """Finish what was begun and let go of the engines."""
        await self._remote.stop()
        await self._host.close()
        await asyncio.gather(*(queue.listeners.settle() for queue in self._queues.values()))
        await self._engines.close()
        if "keys" in self.__dict__:
            await self.keys.close()
        if "database" in self.__dict__:
            await self.database.close()

    async def __aenter__(self) -> Self:
        await self._settle()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _check_has_argument(decorator: str, given: object, what: str, example: str) -> None:
    """Without parentheses a decorator gets the function as its argument, and would declare nothing."""
    if not isinstance(given, str):
        named = getattr(given, "__name__", repr(given))
        raise ConfigurationError(
            f'@app.{decorator} needs {what}, not {named}: write @app.{decorator}("{example}").'
        )


def _schedule_name(name: str) -> str:
    """The name, if the runs of a schedule can be named by it on every engine."""
    try:
        run_id(check_name(name), LATEST)
    except InvalidJob as error:
        raise ConfigurationError(f"A schedule can't be named {in_short(name)}: {error}") from error
    return name
