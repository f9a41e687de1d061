"""Installs what the test servers need and is not here yet: Debian's packages, Kafka's jars, Node's packages.

Nothing is done twice, so it is quick where all is there. What can't be had is said in one line each.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.services.kafka import CLASSES, FORMATTED, JARS, prepare_starts
from tests.services.kafka import VERSION as KAFKA_VERSION
from tests.services.postgres import POSTGRES_BIN
from tests.services.server import ServerFailed, ServerMissing, program

PACKAGES = {
    "redis-server": "redis-server",
    "initdb": "postgresql",
    "pgbouncer": "pgbouncer",
    "kcat": "kcat",
    "java": "default-jre-headless",
    "mvn": "maven",
    "node": "nodejs",
    "npm": "npm",
    "chromium": "chromium",
    "pdftotext": "poppler-utils",
    "openssl": "openssl",
}
POM = Path(__file__).with_name("kafka-pom.xml")
INTEROP = Path(__file__).parents[1] / "interop"
REASON_CHARACTERS = 400
COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


class InstallFailed(Exception):
    """One part could not be installed; the message says which and what to do."""


def install(more: Mapping[str, str] | None = None) -> Sequence[str]:
    """Install everything missing, with the Debian packages of `more` programs, and say what could not be had."""
    packages = partial(_debian_packages, PACKAGES | dict(more or {}))
    return [
        problem
        for step in (packages, _kafka_jars, _kafka_starts, _node_packages)
        if (problem := _attempt(step))
    ]


def _attempt(step: Callable[[], None]) -> str | None:
    try:
        step()
    except InstallFailed as failure:
        return str(failure)
    return None


def _debian_packages(packages: Mapping[str, str]) -> None:
    missing = [package for name, package in packages.items() if not _is_here(name)]
    if not missing:
        return
    wish = f"apt-get install --no-install-recommends {' '.join(missing)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise InstallFailed(f"not installed here: {', '.join(missing)}; as root on Debian: {wish}")
    with _daemons_left_off():
        _run(["apt-get", "update", "-qq"])
        _run([*wish.split(), "-y", "-qq"], DEBIAN_FRONTEND="noninteractive")


def _kafka_jars() -> None:
    if JARS.exists():
        return
    if not _is_here("mvn"):
        raise InstallFailed("Kafka's jars are not here, and Maven (mvn), which gets them, is not installed")
    JARS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=JARS.parent) as folder:
        where = [
            f"-DoutputDirectory={folder}/jars",
            "-DincludeScope=runtime",
            f"-Dkafka.version={KAFKA_VERSION}",
        ]
        _run(["mvn", "-q", "-B", "-f", str(POM), COPY_JARS, *where])
        Path(folder, "jars").rename(JARS)  # whole or not at all


def _kafka_starts() -> None:
    if not JARS.exists() or (CLASSES.exists() and FORMATTED.exists()):
        return
    print("  starting Kafka once, so that it starts sooner later", flush=True)
    try:
        prepare_starts()
    except (ServerFailed, ServerMissing) as error:
        raise InstallFailed(f"Kafka could not be started: {error}") from error


def _node_packages() -> None:
    wanted, installed = INTEROP / "package-lock.json", INTEROP / "node_modules" / ".package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= wanted.stat().st_mtime:
        return
    if not _is_here("npm"):
        raise InstallFailed("Node's packages are not here, and npm, which gets them, is not installed")
    _run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(INTEROP)])


def _run(command: Sequence[str], **environment: str) -> None:
    print("  " + " ".join(command), flush=True)
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " · ".join(
            line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()
        )
        raise InstallFailed(f"`{' '.join(command)}` failed: {reason[:REASON_CHARACTERS]}")


def _is_here(name: str) -> bool:
    try:
        program(name, *POSTGRES_BIN)
    except ServerMissing:
        return False
    return True


@contextmanager
def _daemons_left_off() -> Iterator[None]:
    """Debian starts a daemon on its usual port right after installing it, unless this file forbids it."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()
