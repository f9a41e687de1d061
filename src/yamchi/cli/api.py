"""`yamchi api`: board and API without workers, for a machine that only takes jobs in."""

from yamchi.cli.up import HostOption, PortOption, load_at, serve
from yamchi.console.loading import AppOption


def run(app: AppOption = None, host: HostOption = None, port: PortOption = None) -> None:
    """Start board and API without workers; `yamchi worker` runs the jobs elsewhere.

    Example: [cyan]yamchi api --host 0.0.0.0[/] (with ADMIN_TOKEN set)
    """
    serve(load_at(app, port), app, host, port, works=False)
