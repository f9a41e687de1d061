"""Zoom in this process: tokens for one account, and its meetings. As strict as Zoom about who asks and what for."""

import base64
import json
import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.services.webserver import Response, WebService

ACCOUNT, CLIENT, SECRET = "account-1", "client-1", "secret-1"


def said(status: int, body: dict[str, Any] | None = None) -> Response:
    return Response(status, json.dumps(body or {}).encode(), {"Content-Type": "application/json"})


@dataclass
class ZoomServer(WebService):
    """`answers` are given to the next calls about meetings; `lost` answers are not sent, though it was done.

    `lists_agenda`: whether its list tells the agenda, of which it then has 250 characters.
    """

    meetings: dict[str, dict[str, Any]] = field(default_factory=dict)
    created: int = 0
    tokens: int = 0
    calls: list[tuple[str, str]] = field(default_factory=list)
    answers: deque[Response] = field(default_factory=deque)
    lost: int = 0
    lists_agenda: bool = True
    page: int = 300
    _numbers: Any = field(default_factory=lambda: count(8_500_000_001))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        with self._lock:
            parts = urlsplit(path)
            if parts.path == "/oauth/token":
                return self._token(headers, parse_qs(body.decode()))
            if headers.get("authorization") != f"Bearer token-{self.tokens}":
                return said(401, {"code": 124, "message": "Invalid access token."})
            self.calls.append((method, parts.path))
            if self.answers:
                return self.answers.popleft()
            query = {name: value for name, (value,) in parse_qs(parts.query).items()}
            done = self._do(method, parts.path, query, json.loads(body) if body else {})
            if self.lost:
                self.lost -= 1
                return None
            return done

    def _token(self, headers: dict[str, str], form: dict[str, list[str]]) -> Response:
        login = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        wanted = {"grant_type": ["account_credentials"], "account_id": [ACCOUNT]}
        if headers.get("authorization") != f"Basic {login}" or form != wanted:
            return said(400, {"reason": "Invalid client_id or client_secret", "error": "invalid_client"})
        self.tokens += 1
        return said(200, {"access_token": f"token-{self.tokens}", "token_type": "bearer", "expires_in": 3600})

    def _do(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Response:
        if path == "/v2/users/me/meetings":
            return self._create(body) if method == "POST" else self._list(query)
        meeting_id = path.removeprefix("/v2/meetings/")
        if meeting_id not in self.meetings:
            return said(404, {"code": 3001, "message": f"Meeting does not exist: {meeting_id}."})
        if method == "GET":
            return said(200, self.meetings[meeting_id])
        if method == "PATCH":
            self.meetings[meeting_id] |= body
        elif method == "DELETE":
            del self.meetings[meeting_id]
        return Response(204)

    def _list(self, query: dict[str, str]) -> Response:
        size = min(int(query.get("page_size", 30)), self.page)
        start = int(query.get("next_page_token") or 0)
        listed = [self._listed(one) for one in list(self.meetings.values())[start : start + size]]
        end = start + size
        token = str(end) if end < len(self.meetings) else ""
        return said(200, {"meetings": listed, "page_size": size, "next_page_token": token})

    def _listed(self, meeting: dict[str, Any]) -> dict[str, Any]:
        shown = {"agenda": meeting["agenda"][:250]} if self.lists_agenda else {}
        return {name: meeting[name] for name in ("id", "topic", "type", "start_time", "join_url")} | shown

    def _create(self, body: dict[str, Any]) -> Response:
        if body.get("type") != 2 or "start_time" not in body or len(body.get("topic", "")) > 200:
            return said(400, {"code": 300, "message": "Validation Failed."})
        number = str(next(self._numbers))
        made = {**body, "id": int(number), "join_url": f"https://zoom.us/j/{number}"}
        self.meetings[number] = made
        self.created += 1
        return said(201, made)
