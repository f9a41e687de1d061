"""Audits the command line: every command that is not known to only look or send."""

import getpass
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from yamchi.errors import YamchiError
from yamchi.plugins import Application

LOOKS = frozenset(
    {"queues", "list", "show", "preview", "lint", "top", "bench", "doctor", "audit", "plugins", "status"}
)
SENDS = frozenset({"add", "send"})


def who_types() -> str:
    """The user of the command line, as the audit names them."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        name = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return f"command line {name}"


@dataclass(frozen=True, slots=True)
class Typed:
    """The command that runs: its name, such as `queues pause`, and the rest of the line."""

    command: str
    arguments: str

    @property
    def may_change(self) -> bool:
        return self.command.rpartition(" ")[2] not in LOOKS | SENDS


TYPED: ContextVar[Typed | None] = ContextVar("typed", default=None)


@asynccontextmanager
async def audited(app: Application) -> AsyncIterator[None]:
    """Audit the present command, if it may change something."""
    typed = TYPED.get()
    if typed is None or not typed.may_change:
        yield
        return
    from yamchi.http.audit import AuditLog, Entry  # with the tables: those who only look need them not

    audit = AuditLog(app.database, app.clock, app.settings.audit_keep)
    entry = Entry(who_types(), f"yamchi {typed.command}", typed.arguments or None, socket.gethostname())
    await audit.begin(entry)
    try:
        yield
    except YamchiError as error:
        await audit.finish(entry, f"failed: {error}")
        raise
    await audit.finish(entry, "done")
