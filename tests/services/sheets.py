"""Google Sheets in this process: tokens for one service account, and one spreadsheet. Answers as Google's REST API does."""

import base64
import json
import re
import threading
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.services.webserver import Response, WebService

KEY = "spreadsheet-of-tests_1"
EMAIL = "yamchi@tests.iam.gserviceaccount.com"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_RANGE = re.compile(r"'((?:[^']|'')+)'(?:!([A-Z]*)(\d*)(?::([A-Z]*)(\d*))?)?")


def refusal(code: int, status: str, message: str) -> Response:
    return _said(code, {"error": {"code": code, "message": message, "status": status}})


def used_up(after: str | None = None) -> Response:
    """What Google says when a minute's requests are used up."""
    message = (
        "Quota exceeded for quota metric 'Write requests' and limit 'Write requests per minute per user'"
    )
    answer = refusal(429, "RESOURCE_EXHAUSTED", message)
    return answer if after is None else answer._replace(headers={**answer.headers, "Retry-After": after})


def _said(status: int, body: dict[str, Any]) -> Response:
    return Response(status, json.dumps(body).encode(), {"Content-Type": "application/json; charset=UTF-8"})


@cache
def _private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass
class SheetsServer(WebService):
    """`answers` are given to the next requests; of those in `late`, by the end of their path, the answer is 500 though it was done."""

    sheets: dict[str, list[list[Any]]] = field(default_factory=lambda: {"Sheet1": []})
    requests: list[tuple[str, str]] = field(default_factory=list)
    tokens: int = 0
    answers: deque[Response] = field(default_factory=deque)
    late: list[str] = field(default_factory=list)
    refused: dict[str, Response] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def account(self) -> dict[str, str]:
        """The JSON that Google gives for a service account."""
        secret = _private_key().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {
            "type": "service_account",
            "project_id": "tests",
            "private_key_id": "1",
            "private_key": secret.decode(),
            "client_email": EMAIL,
            "client_id": "1",
            "token_uri": f"{self.origin}/token",
        }

    @property
    def settings(self) -> dict[str, Any]:
        """What an application needs to write here."""
        return {
            "leads": "sheets",
            "sheets_id": KEY,
            "sheets_credentials": json.dumps(self.account),
            "sheets_url": self.origin,
        }

    # ── For tests: what a person sees and does ────────────────────────────────────────────────────────────────────

    def table(self, title: str) -> list[dict[str, Any]]:
        """The rows of a sheet by the names of its columns."""
        with self._lock:
            header, *rows = self.sheets[title]
            return [
                dict(zip(header, [*row, *[""] * (len(header) - len(row))], strict=True))
                for row in rows
                if any(cell != "" for cell in row)
            ]

    def edit(self, title: str, lead_id: str, column: str, value: Any) -> None:
        with self._lock:
            rows = self.sheets[title]
            place = rows[0].index(column)
            row = next(row for row in rows[1:] if row[rows[0].index("id")] == lead_id)
            row.extend([""] * (place + 1 - len(row)))
            row[place] = value

    def sort(self, title: str) -> None:
        """The other way round, below the header."""
        with self._lock:
            rows = self.sheets[title]
            rows[1:] = rows[:0:-1]

    # ── The protocol ──────────────────────────────────────────────────────────────────────────────────────────────

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Response | None:
        with self._lock:
            parts = urlsplit(path)
            if parts.path == "/token":
                return self._token(parse_qs(body.decode()))
            if headers.get("authorization") != f"Bearer token-{self.tokens}":
                return refusal(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
            name = unquote(parts.path).removeprefix("/v4/spreadsheets/")
            self.requests.append((method, name))
            for end, answer in self.refused.items():
                if name.endswith(end):
                    return answer
            if self.answers:
                return self.answers.popleft()
            if not name.startswith(KEY):
                return refusal(404, "NOT_FOUND", "Requested entity was not found.")
            done = self._do(method, name.removeprefix(KEY), parse_qs(parts.query), body)
            for end in self.late:
                if name.endswith(end):
                    self.late.remove(end)
                    return refusal(500, "INTERNAL", "Internal error encountered.")
            return done

    def _token(self, form: dict[str, list[str]]) -> Response:
        if form.get("grant_type") != [GRANT]:
            return _said(400, {"error": "unsupported_grant_type"})
        signed, _, signature = form["assertion"][0].rpartition(".")
        public = _private_key().public_key()
        public.verify(_decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        claims = json.loads(_decoded(signed.partition(".")[2]))
        if claims["iss"] != EMAIL or "spreadsheets" not in claims["scope"]:
            return _said(400, {"error": "invalid_grant", "error_description": "Invalid JWT."})
        self.tokens += 1
        return _said(
            200, {"access_token": f"token-{self.tokens}", "expires_in": 3599, "token_type": "Bearer"}
        )

    def _do(self, method: str, name: str, query: dict[str, list[str]], body: bytes) -> Response:
        given = json.loads(body) if body else {}
        match method, name:
            case "GET", "":
                shown = [{"properties": {"sheetId": n, "title": one}} for n, one in enumerate(self.sheets)]
                return _said(200, {"spreadsheetId": KEY, "sheets": shown})
            case "POST", ":batchUpdate":
                return self._add_sheets(given["requests"])
            case "POST", "/values:batchUpdate":
                return self._update(given)
            case "POST", _ if name.startswith("/values/") and name.endswith(":append"):
                return self._append(name.removeprefix("/values/").removesuffix(":append"), query, given)
            case "GET", _ if name.startswith("/values/"):
                return self._get(name.removeprefix("/values/"), query)
        return refusal(404, "NOT_FOUND", f"{method} {name} is no method of Google Sheets.")

    def _add_sheets(self, requests: list[dict[str, Any]]) -> Response:
        for request in requests:
            title = request["addSheet"]["properties"]["title"]
            if title in self.sheets:
                said = f'Invalid requests[0].addSheet: A sheet with the name "{title}" already exists.'
                return refusal(400, "INVALID_ARGUMENT", said)
            self.sheets[title] = []
        return _said(200, {"spreadsheetId": KEY, "replies": [{}]})

    def _get(self, where: str, query: dict[str, list[str]]) -> Response:
        if (found := self._range(where)) is None:
            return refusal(400, "INVALID_ARGUMENT", f"Unable to parse range: {where}")
        title, (left, top), (right, bottom) = found
        is_plain = query.get("valueRenderOption") == ["UNFORMATTED_VALUE"]
        rows = [
            _without_end([_shown(cell, is_plain) for cell in row[left:right]])
            for row in self.sheets[title][top:bottom]
        ]
        while rows and not rows[-1]:
            rows.pop()
        answer: dict[str, Any] = {"range": where, "majorDimension": "ROWS"}
        return _said(200, {**answer, "values": rows} if rows else answer)

    def _append(self, where: str, query: dict[str, list[str]], given: dict[str, Any]) -> Response:
        if query.get("valueInputOption") != ["RAW"]:
            return refusal(400, "INVALID_ARGUMENT", "'valueInputOption' is required but not specified")
        if (found := self._range(where)) is None:
            return refusal(400, "INVALID_ARGUMENT", f"Unable to parse range: {where}")
        rows = self.sheets[found[0]]
        # The table at A1 ends where a row is empty; what follows is written over, unless rows are inserted.
        end = next((number for number, row in enumerate(rows) if not any(row)), len(rows))
        until = end if query.get("insertDataOption") == ["INSERT_ROWS"] else end + len(given["values"])
        rows[end:until] = [list(row) for row in given["values"]]
        return _said(200, {"spreadsheetId": KEY, "updates": {"updatedRows": len(given["values"])}})

    def _update(self, given: dict[str, Any]) -> Response:
        if given.get("valueInputOption") != "RAW":
            return refusal(400, "INVALID_ARGUMENT", "'valueInputOption' is required but not specified")
        places = [self._range(one["range"]) for one in given["data"]]
        if None in places:
            return refusal(400, "INVALID_ARGUMENT", "Unable to parse range")
        for place, one in zip(places, given["data"], strict=True):
            assert place is not None
            title, (left, top), _ = place
            ((value,),) = one["values"]
            rows = self.sheets[title]
            rows.extend([] for _ in range(top + 1 - len(rows)))
            rows[top].extend([""] * (left + 1 - len(rows[top])))
            rows[top][left] = value
        return _said(200, {"spreadsheetId": KEY, "totalUpdatedCells": len(places)})

    def _range(self, text: str) -> tuple[str, tuple[int, int], tuple[int | None, int | None]] | None:
        """'Sheet', 'Sheet'!B7, 'Sheet'!A:B, 'Sheet'!1:1."""
        found = _RANGE.fullmatch(text)
        if found is None or (title := found[1].replace("''", "'")) not in self.sheets:
            return None
        _, left, top, right, bottom = found.groups()
        if right is None and bottom is None and left:
            right, bottom = left, top
        start = (_number(left) - 1 if left else 0, int(top) - 1 if top else 0)
        return title, start, (_number(right) if right else None, int(bottom) if bottom else None)


def _number(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def _shown(cell: Any, is_plain: bool) -> Any:
    return str(cell).upper() if isinstance(cell, bool) and not is_plain else cell


def _without_end(row: list[Any]) -> list[Any]:
    while row and row[-1] == "":
        row.pop()
    return row


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
