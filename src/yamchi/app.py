"""The composition root: settings become engines, queues and workers here, and nowhere else."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import structlog

from yamchi.clock import LATEST, Clock, Millis, Span, SystemClock, in_short, to_millis
from yamchi.errors import ConfigurationError, InvalidJob, MissingExtra, UnknownQueue
from yamchi.observe.logging import configure_unless_done
from yamchi.observe.metrics import Metrics
from yamchi.plugins import Plugin, find_plugins
from yamchi.queues.blocking import Sync
from yamchi.queues.composing import Engines
from yamchi.queues.cron import CronLine, Schedule, run_id
from yamchi.queues.engines.base import Engine, RateLimit
from yamchi.queues.forking import begin_anew_after_fork
from yamchi.queues.handlers import Handler, KeyOf, QueueDefinition
from yamchi.queues.processes.limits import ProcessLimits, check_importable
from yamchi.queues.queue import Queue
from yamchi.queues.records import Backoff, BackoffLike, JobOptions, check_name, check_timeout
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

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P", bound=Plugin)
T = TypeVar("T")

log = structlog.get_logger("yamchi")

CRON_QUEUE = "cron"


class Yamchi:
    """An application: its queues, its handlers, and the engines they live on.

    Settings come from the environment and `.env` unless given. Nothing is opened before it is used. `plugins` are classes
    of features of your own, beside those that ship; `app.<name>` is a feature by its name.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        engine: Engine | None = None,
        plugins: Sequence[type[Plugin]] = (),
    ) -> None:
        self.settings = settings or Settings()
        self.clock = clock or SystemClock()
        self.metrics = Metrics()
        self.observers: list[Observer] = [self.metrics.observe]
        self.services = Services(self.clock, self.metrics.count_service_failure)
        """What runs beside the jobs of every worker, supervised."""
        self.services.add("job events", self._hear_while_working)
        self.plugins: dict[str, Plugin] = {}
        self._acting: str | None = None
        self._owners: dict[str, str] = {}
        self._services_of: defaultdict[str, list[str]] = defaultdict(list)
        self._served: set[str] = set()
        self._definitions: dict[str, QueueDefinition] = {}
        self._queues: dict[str, Queue] = {}
        self._engines = Engines(self.settings, self.clock, self.metrics, self._topic_of, engine)
        self._crons: dict[str, tuple[CronLine, str, str]] = {}
        self._remote: RemoteEvents | None = None
        self._wants_remote = False
        self._found = find_plugins(self.settings, plugins)
        self._add_plugins(self._found.classes)

    # ── Declaring ─────────────────────────────────────────────────────────────────────────────────────────────────

    def define(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        attempts: int | None = None,
        backoff: BackoffLike | None = None,
        timeout: Span | None = None,
        keep_completed: int | None = None,
        keep_failed: int | None = None,
        rate: RateLimit | str | None = None,
        key_rate: RateLimit | str | None = None,
        key: KeyOf | None = None,
        topic: str | None = None,
    ) -> QueueDefinition:
        """Declare a queue, or say more about one. A process that only adds jobs needs no handlers, just this."""
        if self._acting and queue != CRON_QUEUE and queue not in self._definitions:
            self._owners[queue] = self._acting
        fresh = QueueDefinition(queue, timeout=self._default_timeout, is_own=self._acting is not None)
        known = self._definitions.setdefault(queue, fresh)
        if concurrency is not None and concurrency < 1:
            raise ConfigurationError(f"Queue {queue} has a concurrency of {concurrency}: give at least 1.")
        known.concurrency = self.settings.concurrency(queue, concurrency or known.concurrency)
        known.options = _with(
            known.options,
            attempts=attempts,
            backoff=None if backoff is None else Backoff.parse(backoff),
            timeout=None if timeout is None else check_timeout(timeout),
            keep_completed=keep_completed,
            keep_failed=keep_failed,
        )
        known.timeout = known.timeout if timeout is None else known.options.timeout
        known.rate = known.rate if rate is None else RateLimit.parse(rate)
        known.key_rate = known.key_rate if key_rate is None else RateLimit.parse(key_rate)
        known.key = known.key if key is None else key
        known.topic = known.topic if topic is None else topic
        if known.key_rate and not known.key:
            raise ConfigurationError(
                f"Queue {queue} has a key_rate but no key: name the field of the data to go by."
            )
        return known

    def job(
        self,
        queue: str,
        *,
        name: str | None = None,
        processes: int | None = None,
        memory: int | str | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """Declare the function below as a handler. Takes the options of `define`; the first handler of a queue is its default.

        `processes=2, memory="512MB"` runs it in two child processes of that size: one that crashes, hangs or grows too
        large costs its own job and nothing else. The queue's concurrency defaults to their number.
        """
        limits = _process_limits(queue, processes, memory)
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

    @property
    def _default_timeout(self) -> Millis | None:
        return to_millis(self.settings.job_timeout) or None

    def service(self, name: str, run: ServiceFunction) -> None:
        """Run something for ever beside the jobs: started again when it fails, shown in /readyz.

        A feature's services run in the workers that work on one of its queues, if it has any.
        """
        theirs = [] if self._acting is None else self.queues_of(self._acting)
        self.services.add(name, run, queues=theirs)
        if self._acting is not None:
            self._services_of[self._acting].append(name)

    def queues_of(self, plugin: str) -> list[str]:
        """Names of the queues that a plugin declared."""
        return [queue for queue, owner in self._owners.items() if owner == plugin]

    def services_of(self, plugin: str) -> list[str]:
        """Names of the services that a plugin runs."""
        return list(self._services_of[plugin])

    # ── Plugins ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _add_plugins(self, kinds: Iterable[type[Plugin]]) -> None:
        """One whose settings are wrong stops the application, as any wrong setting does; one that fails is left out."""
        for kind in kinds:
            if away := [need for need in kind.requires if need not in self.plugins]:
                self._found.fail(kind.name, f"it needs the plugin {away[0]}, which is not here")
                continue
            with self._on_behalf_of(kind.name):
                plugin = kind(self)
                plugin.declare()
                self.plugins[kind.name] = plugin
        if not self._found.failures:
            self.settings.check_given(
                kind.settings_class for kind in self._found.classes if kind.settings_class
            )

    @property
    def failed_plugins(self) -> Mapping[str, str]:
        """Plugins that were left out, each with why."""
        return self._found.failures

    @overload
    def plugin(self, wanted: type[P]) -> P: ...
    @overload
    def plugin(self, wanted: str) -> Plugin: ...
    def plugin(self, wanted: Any) -> Any:
        """A feature, by its class or its name."""
        name = wanted if isinstance(wanted, str) else wanted.name
        plugin = self.plugins.get(name)
        if plugin is None:
            why = self._found.failures.get(name, "PLUGINS leaves it out, or nothing offers it")
            raise ConfigurationError(f"This application has no plugin {name}: {why}.")
        return plugin

    def __getattr__(self, name: str) -> Any:
        """`app.notifications` is the plugin of this name."""
        if "_found" in self.__dict__ and (name in self.plugins or name in self._found.failures):
            return self.plugin(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def serve(self) -> None:
        """Let the workers of this application do the features' work. Workers see to it themselves; again does nothing."""
        for name, plugin in self.plugins.items():
            if name not in self._served:
                self._served.add(name)
                with self._on_behalf_of(name):
                    plugin.serve()

    def brought(self, what: Callable[[Plugin], Iterable[T]], by: Iterable[Plugin] | None = None) -> list[T]:
        """What the plugins bring of a kind. One that fails of it brings nothing, and is in `failed_plugins`."""
        found: list[T] = []
        for plugin in self.plugins.values() if by is None else by:
            with self._on_behalf_of(plugin.name):
                found += list(what(plugin))
        return found

    @contextmanager
    def _on_behalf_of(self, name: str) -> Iterator[None]:
        """What is declared meanwhile belongs to the plugin of this name, and what goes wrong is its own trouble."""
        self._acting = name
        try:
            yield
        except Exception as error:
            if isinstance(error, ConfigurationError) and not isinstance(error, MissingExtra):
                raise
            why = str(error) if isinstance(error, MissingExtra) else f"{type(error).__name__}: {error}"
            self._found.fail(name, why)
        finally:
            self._acting = None

    async def erase(self, user_id: str) -> dict[str, int]:
        """Forget a person in every feature; what was found, by kind. One that fails keeps no other from it; then call again."""
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

    @cached_property
    def database(self) -> "Database":
        """The tables of Yamchi and of its features: DATABASE_URL, or SQLite beside the queues."""
        from yamchi.storage.database import Database

        close_folder(self.settings.var)
        schemas = (kind.schema() for kind in self._found.classes)
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
        """Signs what comes back through strangers' hands, with SECRET_KEY or a key that all processes share."""
        from yamchi.http.signing import Signer

        return Signer(self.database, self.settings.secret_key, self.settings.secret_key_previous)

    @cached_property
    def links(self) -> "Links":
        """Signed links: for one purpose, for a while, and if wanted only once."""
        from yamchi.http.links import Links

        return Links(self.signer, self.keys, self.clock, self.settings.public_url)

    # ── Using ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> Queue:
        """A declared queue."""
        if name not in self._definitions:
            known = ", ".join(sorted(self._definitions)) or "none"
            raise UnknownQueue(
                f"There is no queue {name!r}; declared are: {known}. "
                f"Declare it with @app.job({name!r}) or app.define({name!r})."
            )
        if name not in self._queues:
            queue = Queue(self._definitions[name], self._engines.of(name), self.clock)
            queue.on_listener = self._hear
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
        """A worker for these queues, or for all that have handlers. Features' services run where their queues are worked on."""
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
        """Run a worker until cancelled. It logs as the settings say, unless the program has set up logging itself."""
        configure_unless_done(self.settings.log_format, self.settings.log_level)
        await self._settle()
        await self.worker(queues).run()

    def listen(self) -> None:
        """Let `queue.on` hear of other processes too. `on` and workers do this by themselves where an event loop runs."""
        if self._remote is None:
            self._remote = RemoteEvents(self._queues, self.services)
        self._remote.start()

    def _hear(self) -> None:
        self._wants_remote = True
        with suppress(RuntimeError):  # no event loop runs yet: the worker will listen
            asyncio.get_running_loop()
            self.listen()

    async def _hear_while_working(self) -> None:
        """Only where somebody called `queue.on`: reading the events of all costs a worker on Redis a third more."""
        if self._wants_remote:
            self.listen()

    async def _settle(self) -> None:
        """The event loop that runs here is where the application is used, unless another one is: what `app.sync` began comes here."""
        if self._engines.is_settled:
            return
        remote, self._remote = self._remote, None
        if remote:
            await remote.stop()
        await self._engines.settle_here()
        if remote:
            self.listen()

    async def close(self) -> None:
        """Finish what was begun and let go of the engines."""
        if self._remote:
            await self._remote.stop()
            self._remote = None
        for plugin in reversed(self.plugins.values()):
            await _close(plugin)
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


async def _close(plugin: Plugin) -> None:
    """One that fails must not leave open what the others and the application hold."""
    try:
        await plugin.close()
    except Exception:
        log.exception(f"closing the plugin {plugin.name} failed")


def _schedule_name(name: str) -> str:
    """The name, if the runs of a schedule can be named by it on every engine."""
    try:
        run_id(check_name(name), LATEST)
    except InvalidJob as error:
        raise ConfigurationError(f"A schedule can't be named {in_short(name)}: {error}") from error
    return name


def _process_limits(queue: str, processes: int | None, memory: int | str | None) -> ProcessLimits | None:
    if processes is not None:
        return ProcessLimits.parse(processes, memory)
    if memory is not None:
        raise ConfigurationError(
            f"Queue {queue} has a memory limit but no processes: only a child process can be limited."
        )
    return None


def _with(options: JobOptions, **changes: Any) -> JobOptions:
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(options, **given) if given else options
