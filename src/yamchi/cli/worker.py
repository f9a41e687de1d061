"""`yamchi worker`: runs jobs and nothing else; start as many as you like, on as many machines as the engine allows."""

import socket
from typing import Annotated

import structlog
import typer

from yamchi.app import Yamchi
from yamchi.cli.loading import load_app
from yamchi.cli.serving import (
    Server,
    address_of,
    listen,
    live,
    make_server,
    start_logging,
    warn_of_misspelled,
)
from yamchi.console.loading import AppOption, run_async

log = structlog.get_logger("yamchi.worker")


def run(
    app: AppOption = None,
    queues: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these queues; all with handlers by default.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve /metrics, /healthz and /readyz on this port.")
    ] = None,
) -> None:
    """Run jobs until stopped; running ones finish first.

    Example: [cyan]yamchi worker --app mymodule:app --queues thumbnails,reports[/]
    """
    yamchi = load_app(app)
    start_logging(yamchi.settings)
    warn_of_misspelled(yamchi)
    chosen = [name.strip() for name in queues.split(",") if name.strip()] if queues else None

    async def body() -> None:
        worker = yamchi.worker(chosen)
        server = None if metrics_port is None else _metrics_server(yamchi, metrics_port)
        await live(yamchi, worker=worker, server=server, on_start=lambda: _announce(yamchi))

    run_async(body())


def _announce(app: Yamchi) -> None:
    log.info("Queue Worker started")
    log.info(f"Interval: {app.settings.worker_interval_ms}ms")
    log.info(f"Max tasks per cycle: {app.settings.worker_max_tasks}")
    log.info("Starting queue processing cycle...")


def _metrics_server(app: Yamchi, port: int) -> tuple[Server, socket.socket]:
    from yamchi.web import check_address, create_health_app

    check_address(app.settings, app.settings.host)
    listener = listen(app.settings.host, port)
    log.info(f"Metrics on {address_of(listener)}/metrics")
    return make_server(create_health_app(app), app.settings), listener
