"""The life of a long-running command: start, work, stop gracefully.

The first Ctrl+C or SIGTERM stops claiming and lets running jobs finish; the second ends the process at once. A thread
that never ends, or a handler that blocks the event loop for ever, can't keep the process alive.
"""

import asyncio
import atexit
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import structlog
import uvicorn
from starlette.types import ASGIApp

from yamchi.app import Yamchi
from yamchi.errors import ConfigurationError
from yamchi.http.connections import LimitedConfig
from yamchi.misspelled import Misspelled, misspelled
from yamchi.observe import logging as yamchi_logging
from yamchi.observe.watchdog import LoopWatchdog
from yamchi.queues.worker import Worker, collecting_less
from yamchi.settings import Settings

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

log = structlog.get_logger("yamchi")

GRACE_SECONDS = 5.0
"""Seconds after SHUTDOWN_TIMEOUT at which a stop that hangs is ended."""
FORCED_EXIT_CODE = 130

DEAD_AFTER_MS = 60_000
"""A connection whose other end accepts nothing for so long is closed; else it would stay open for ever."""

LARGEST_FRAME_BYTES = 64 * 1024
"""Largest message over `/ws` from a page, in bytes."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE_BYTES = 256 * 1024
"""Bytes from which on a block is the system's own, and is given back when it is free."""
ARENAS = 2

OPEN_FILES = 65_536
"""Each open page is one; the usual limit of 1,024 would be met by a thousand pages."""


def start_logging(settings: Settings) -> None:
    yamchi_logging.configure(settings.log_format, settings.log_level, sys.stdout)


def misspelled_in(app: Yamchi) -> list[Misspelled]:
    """Variables that are nearly settings of the core or of this application's features."""
    features = (plugin.settings_class for plugin in app.plugins.values())
    return misspelled(app.settings.home, [Settings, *(kind for kind in features if kind)])


def warn_of_misspelled(app: Yamchi) -> None:
    if wrong := misspelled_in(app):
        log.warning("; ".join(map(str, wrong)))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises with one sentence if that fails."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        if isinstance(error, socket.gaierror):
            raise ConfigurationError(
                f"{host} is not an address of this machine ({error.strerror})."
            ) from error
        raise ConfigurationError(
            f"Port {port} on {host} can't be used ({(error.strerror or str(error)).lower()}): "
            "stop what listens there, or choose another with --port."
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """The address for a browser."""
    return url_of(*listener.getsockname()[:2])


def url_of(host: str, port: int) -> str:
    """The same for what listens, or will listen, there."""
    if host in ("127.0.0.1", "0.0.0.0", "::", "::1"):
        host = "localhost"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Stopper:
    """Turns signals into one asyncio event, and a second signal into the end."""

    def __init__(self, stop_seconds: float) -> None:
        self.requested = asyncio.Event()
        self._is_second = False
        self._stop_seconds = stop_seconds
        self._loop = asyncio.get_running_loop()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch Ctrl+C and SIGTERM for a while, even when a handler blocks the event loop."""
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_second:
            leave_now(FORCED_EXIT_CODE)
        self._is_second = True
        self._loop.call_soon_threadsafe(self.requested.set)
        self.limit()

    def limit(self) -> None:
        """End the process if it has not stopped within the time that running jobs have."""
        watchdog = threading.Timer(self._stop_seconds + GRACE_SECONDS, _end_what_hangs)
        watchdog.daemon = True
        watchdog.start()
        # Where a library keeps Python's lock, no thread of Python's ends anything.
        faulthandler.dump_traceback_later(self._stop_seconds + GRACE_SECONDS + 1, exit=True)


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(web: ASGIApp, settings: Settings) -> Server:
    _lift_limit_of_files()
    is_debug, proxies = settings.log_level == "debug", settings.forwarded_allow_ips
    return Server(
        LimitedConfig(
            web,
            log_config=None,
            log_level="debug" if is_debug else "warning",
            access_log=is_debug,
            lifespan="off",
            server_header=False,
            forwarded_allow_ips="*" if "*" in proxies else list(proxies),
            timeout_graceful_shutdown=2,
            ws_max_size=LARGEST_FRAME_BYTES,
            ws_ping_interval=20,  # a page that answers no ping is closed
            ws_ping_timeout=20,
            ws_per_message_deflate=False,  # frames are small, and a window for each connection is not
        )
    )


def give_memory_back() -> None:
    """Let what a large request took go back to the system when it is over.

    glibc learns from every large block to keep more of them, and each thread has an arena of its own: after a few
    thousand large bodies a fifth of the memory would be nobody's. Does nothing where there is no glibc.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    for option, value in (
        (M_TRIM_THRESHOLD, LARGE_BYTES),
        (M_MMAP_THRESHOLD, LARGE_BYTES),
        (M_ARENA_MAX, ARENAS),
    ):
        mallopt(option, value)


def _lift_limit_of_files() -> None:
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def live(
    app: Yamchi,
    *,
    worker: Worker | None = None,
    server: tuple[Server, socket.socket] | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Run a worker, a server or both until a signal, then stop them: the worker first, so that the board can show it."""
    give_memory_back()
    stopper = Stopper(app.settings.shutdown_timeout.total_seconds())
    with stopper.listening(), collecting_less():
        async with app:
            works = [asyncio.create_task(worker.run(), name="worker")] if worker else []
            serves = [asyncio.create_task(server[0].serve([server[1]]), name="server")] if server else []
            asked = asyncio.create_task(stopper.requested.wait())
            watchdog = LoopWatchdog(app.metrics.observe_loop)
            watches = asyncio.create_task(app.services.keep("event loop watchdog", watchdog.run))
            on_start()
            await asyncio.wait([*works, *serves, asked], return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            stopper.limit()
            if worker:
                worker.stop()
                _say_stopping(worker)
            ended = await asyncio.gather(*works, return_exceptions=True)
            if server:
                server[0].should_exit = True
            ended += await asyncio.gather(*serves, return_exceptions=True)
            watches.cancel()
    for outcome in ended:
        if isinstance(outcome, BaseException):
            raise outcome
    log.info("Stopped")
    leave_now(0)


def _say_stopping(worker: Worker) -> None:
    running = sum(len(runner.jobs.tasks) for runner in worker.runners)
    if running:
        jobs = "1 job" if running == 1 else f"{running} jobs"
        log.info(f"Stopping: waiting for {jobs} to finish; Ctrl+C again ends at once")


def _end_what_hangs() -> NoReturn:
    log.error(
        f"Ended: the stop took {GRACE_SECONDS:g} s longer than SHUTDOWN_TIMEOUT; "
        "jobs that were still running run again when their leases end"
    )
    leave_now(1)


def leave_now(code: int) -> NoReturn:
    """End the process without waiting for anybody.

    The interpreter would wait for handlers in threads, which can't be stopped, and then take apart every module,
    which takes longer than the stop itself.
    """
    if code == 0:
        atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
