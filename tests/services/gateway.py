"""An SMS gateway in this process, as Apprise's `json://` speaks to one: keeps what it took, and answers as it is told."""

import json
from collections import deque
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.services.webserver import Response, WebService

SECRET = "gateway-password"


@dataclass
class Gateway(WebService):
    """Messages by number. `answers` are statuses for the next messages, 0 to hang up after taking one."""

    answers: deque[int] = field(default_factory=deque)
    taken: list[tuple[str, str]] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"json://sender:{SECRET}@127.0.0.1:{self.port}/{{to}}"

    def respond(self, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        status = self.answers.popleft() if self.answers else 200
        if status in (0, 200):
            said = json.loads(body)
            self.taken.append((unquote(path).strip("/"), said["message"]))
            self.titles.append(said["title"])
        return Response(status) if status else None
