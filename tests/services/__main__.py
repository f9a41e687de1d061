"""`python -m tests.services [install]`: the test servers by hand."""

import argparse
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from tests import services
from tests.services.install import install
from tests.services.server import ServerFailed, ServerMissing
from tests.services.shared import KINDS, VARIABLES, OwnedServers


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.services", description=services.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("command", nargs="?", choices=["run", "install"], default="run")
    return {"run": run, "install": install_all}[parser.parse_args().command]()


def install_all() -> int:
    """What is missing is only said, for the tests skip without it; with CI=true it is an error."""
    problems = install()
    for problem in problems:
        print(f"tests.services: {problem}", file=sys.stderr)
    return 1 if problems and os.environ.get("CI") == "true" else 0


def run() -> int:
    """Start every server, print where it is, and keep them all until Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts background jobs with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    servers = OwnedServers()
    try:
        with ThreadPoolExecutor() as pool:
            started = list(pool.map(lambda name: _start(servers, name), KINDS))
        if not any(started):
            return 1
        print("Running; Ctrl-C stops them and removes their data.", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        print("\nStopping.", flush=True)
    finally:
        servers.discard()
    return 0


def _start(servers: OwnedServers, name: str) -> bool:
    try:
        print(f"export {VARIABLES[name]}={servers.url(name)}", flush=True)
    except (ServerMissing, ServerFailed) as error:
        print(f"# {name}: {error}", file=sys.stderr, flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
