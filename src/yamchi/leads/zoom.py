"""Zoom's API, as far as a lesson needs it: server-to-server OAuth, and meetings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from yamchi.clock import Millis, isoformat
from yamchi.leads.outside import OutsideApi
from yamchi.outgoing import Answer
from yamchi.storage.keys import Keys

TOKEN = "zoom_token"
TOKEN_LIVES = "50m"
"""Less than the hour that Zoom gives it."""

TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Meeting:
    id: str
    link: str


class Zoom:
    """One account at Zoom."""

    def __init__(
        self, keys: Keys, *, api_url: str, oauth_url: str, account: str, client: str, secret: str
    ) -> None:
        self._keys = keys
        self._api = OutsideApi("Zoom", TIMEOUT)
        self._url = api_url.rstrip("/")
        self._oauth_url = oauth_url.rstrip("/")
        self._account = account
        self._login = (client, secret)

    async def create(self, lead_id: str, topic: str, starts_at: Millis, minutes: int) -> Meeting:
        asked = {
            "topic": topic[:200],
            "agenda": _agenda(lead_id),
            "type": 2,
            "start_time": isoformat(starts_at),
            "duration": minutes,
        }
        body = (await self._call("POST", "/users/me/meetings", json=asked)).body
        return Meeting(str(body["id"]), str(body["join_url"]))

    async def find(self, lead_id: str) -> Meeting | None:
        """The meeting that we made for a lead, if there is one: for when its answer got lost."""
        page = ""
        while True:
            params = {"type": "upcoming", "page_size": "300", **({"next_page_token": page} if page else {})}
            body = (await self._call("GET", "/users/me/meetings", params=params)).body
            for one in body.get("meetings", ()):
                if await self._agenda_of(one) == _agenda(lead_id):
                    return Meeting(str(one["id"]), str(one["join_url"]))
            if not (page := str(body.get("next_page_token") or "")):
                return None

    async def _agenda_of(self, listed: Mapping[str, Any]) -> str:
        """Zoom's list need not tell the agenda; then the meeting itself is asked."""
        if "agenda" in listed:
            return str(listed["agenda"])
        reply = await self._call("GET", f"/meetings/{listed['id']}", may_be_gone=True)
        return str(reply.body.get("agenda") or "")

    async def move(self, meeting_id: str, starts_at: Millis, minutes: int) -> bool:
        """False if Zoom no longer has it."""
        asked = {"start_time": isoformat(starts_at), "duration": minutes}
        reply = await self._call("PATCH", f"/meetings/{meeting_id}", json=asked, may_be_gone=True)
        return reply.status != HTTPStatus.NOT_FOUND

    async def delete(self, meeting_id: str) -> None:
        await self._call("DELETE", f"/meetings/{meeting_id}", may_be_gone=True)

    async def close(self) -> None:
        await self._api.close()

    async def _call(self, method: str, path: str, *, may_be_gone: bool = False, **request: Any) -> Answer:
        """One call; with a new token once, if Zoom no longer takes the one that we have."""
        reply = await self._ask(method, path, await self._token(), request)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            await self._keys.delete(TOKEN)
            reply = await self._ask(method, path, await self._token(), request)
        is_gone = may_be_gone and reply.status == HTTPStatus.NOT_FOUND
        if not (reply.is_success or is_gone):
            raise self._api.failure(reply, str(reply.body.get("message") or ""))
        return reply

    async def _ask(self, method: str, path: str, token: str, request: Mapping[str, Any]) -> Answer:
        headers = {"Authorization": f"Bearer {token}"}
        return await self._api.call(method, f"{self._url}{path}", headers=headers, **request)

    async def _token(self) -> str:
        if kept := await self._keys.get(TOKEN):
            return kept
        form = {"grant_type": "account_credentials", "account_id": self._account}
        reply = await self._api.call("POST", f"{self._oauth_url}/oauth/token", data=form, auth=self._login)
        token = reply.body.get("access_token")
        if reply.status != HTTPStatus.OK or not isinstance(token, str):
            why = str(reply.body.get("reason") or reply.body.get("error") or "")
            # a login that Zoom refuses comes as 400: it is the account's trouble, not the lesson's
            status = HTTPStatus.UNAUTHORIZED if reply.status == HTTPStatus.BAD_REQUEST else reply.status
            raise self._api.failure(replace(reply, status=status), why)
        await self._keys.set(TOKEN, token, TOKEN_LIVES)
        return token


def _agenda(lead_id: str) -> str:
    return f"lead {lead_id}"
