"""A model in this process that speaks OpenAI's chat API, and says what it is told to."""

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.services.webserver import Response, WebService

KEY = "sk-of-tests"


@dataclass
class ChatServer(WebService):
    """`answers` are given in order, a text or a whole response; then it repeats what it heard."""

    answers: deque[str | Response] = field(default_factory=deque)
    asked: list[dict[str, Any]] = field(default_factory=list)

    def respond(self, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        if path != "/v1/chat/completions":
            return _said(404, {"error": {"message": "no such path"}})
        if headers.get("authorization") != f"Bearer {KEY}":
            return _said(401, {"error": {"message": "Incorrect API key provided"}})
        asked = json.loads(body)
        self.asked.append(asked)
        answer = self.answers.popleft() if self.answers else f"You said: {asked['messages'][-1]['content']}"
        if isinstance(answer, Response):
            return answer
        message = {"role": "assistant", "content": answer}
        return _said(
            200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {}}
        )


def _said(status: int, body: dict[str, Any]) -> Response:
    return Response(status, json.dumps(body).encode(), {"Content-Type": "application/json"})
