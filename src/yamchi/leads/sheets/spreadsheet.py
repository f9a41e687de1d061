"""One Google spreadsheet, through gspread in a thread: a method is one request, its failure sorted by kind.

`Outage`: it was not done, and may be later. `Lost`: it may have been done. `Unrecoverable`: it was refused.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from yamchi.errors import ConfigurationError, MissingExtra, Outage, Unrecoverable
from yamchi.leads.outside import Lost
from yamchi.textfiles import UnreadableFile, read_text

T = TypeVar("T")

GOOGLE = "https://sheets.googleapis.com"
SCOPES = ("https://www.googleapis.com/auth/spreadsheets",)
CONNECT_WITHIN, ANSWER_WITHIN = 10.0, 60.0
"""Seconds. gspread itself would wait for ever."""

NEW_ROWS, NEW_COLUMNS = 1_000, 40
UNFORMATTED = {"valueRenderOption": "UNFORMATTED_VALUE", "dateTimeRenderOption": "FORMATTED_STRING"}
# A row of its own for each: the default would write over what follows an empty row.
APPENDED: dict[str, Any] = {"valueInputOption": "RAW", "insertDataOption": "INSERT_ROWS"}


class Spreadsheet:
    """What is done to the cells of a spreadsheet; RAW everywhere, so that no text becomes a formula."""

    def __init__(self, key: str, credentials: str, url: str) -> None:
        self._key = key
        self._http = _client(credentials, url.rstrip("/"))

    async def titles(self) -> list[str]:
        """The sheets that there are."""
        found = await self._call(lambda: self._http.fetch_sheet_metadata(self._key))
        return [str(sheet["properties"]["title"]) for sheet in found.get("sheets", ())]

    async def add_sheet(self, title: str) -> None:
        grid = {"rowCount": NEW_ROWS, "columnCount": NEW_COLUMNS, "frozenRowCount": 1}
        request = {"addSheet": {"properties": {"title": title, "gridProperties": grid}}}
        await self._call(lambda: self._http.batch_update(self._key, {"requests": [request]}))

    async def rows(self, sheet: str, cells: str = "") -> list[list[Any]]:
        """The rows of a sheet, or of a part of it such as A:A; empty cells at the end of a row are left out."""
        where = quoted(sheet, cells)
        found = await self._call(lambda: self._http.values_get(self._key, where, params=dict(UNFORMATTED)))
        return [list(row) for row in found.get("values", ())]

    async def append(self, sheet: str, rows: Sequence[Sequence[Any]]) -> None:
        """New rows below all others. It has no id at Google: look before you repeat it."""
        where, body = quoted(sheet, "A1"), {"values": [list(row) for row in rows]}
        await self._call(lambda: self._http.values_append(self._key, where, dict(APPENDED), body))

    async def write(self, sheet: str, cells: Mapping[str, Any]) -> None:
        """Set cells, by their names such as B7, all of them or none."""
        data = [{"range": quoted(sheet, name), "values": [[value]]} for name, value in cells.items()]
        body = {"valueInputOption": "RAW", "data": data}
        await self._call(lambda: self._http.values_batch_update(self._key, body))

    async def _call(self, work: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(_sorted, work)


def _client(credentials: str, url: str) -> Any:
    """gspread's own client, at the address that we were told."""
    try:
        from google.oauth2.service_account import Credentials
        from gspread.http_client import HTTPClient
    except ImportError as error:
        raise MissingExtra("sheets", "LEADS=sheets") from error

    class Account(Credentials):
        def _is_regional_access_boundary_lookup_required(self) -> bool:
            return False  # a spreadsheet has no region: no third host is asked for one

    class Client(HTTPClient):
        def request(self, method: str, endpoint: str, *given: Any, **options: Any) -> Any:
            return super().request(method, endpoint.replace(GOOGLE, url, 1), *given, **options)

    try:
        info = read_account(credentials)
        account = Account.from_service_account_info(info, scopes=SCOPES)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ConfigurationError(f"SHEETS_CREDENTIALS is no key of a service account: {error}.") from None
    client = Client(account)
    client.set_timeout((CONNECT_WITHIN, ANSWER_WITHIN))
    return client


def read_account(text: str) -> dict[str, Any]:
    """A service account's key: JSON, or the file that has it."""
    try:
        given = text if text.lstrip().startswith("{") else read_text(Path(text))
        found = json.loads(given)
    except UnreadableFile as error:
        raise ConfigurationError(
            f"SHEETS_CREDENTIALS: {text} can't be read ({error.reason}): it should be the JSON file of a service account."
        ) from None
    except ValueError:
        raise ConfigurationError(
            "SHEETS_CREDENTIALS is not JSON: give the file that Google made for the service account, or what is in it."
        ) from None
    if not isinstance(found, dict):
        raise ConfigurationError("SHEETS_CREDENTIALS should be a JSON object, the key of a service account.")
    return found


def quoted(sheet: str, cells: str = "") -> str:
    """A range as Google writes it: 'Sheet'!A1."""
    name = "'" + sheet.replace("'", "''") + "'"
    return f"{name}!{cells}" if cells else name


def column_name(number: int) -> str:
    """A for 0, Z for 25, AA for 26."""
    name = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


def _sorted(work: Callable[[], T]) -> T:
    """Do it; what goes wrong says whether it may have been done."""
    import requests
    from google.auth.exceptions import GoogleAuthError, TransportError
    from gspread.exceptions import APIError
    from urllib3.exceptions import ConnectTimeoutError

    try:
        return work()
    except APIError as error:
        raise _refusal(error) from error
    except TransportError as error:
        raise Outage(f"Google gives no token: {_why(error)}") from error
    except GoogleAuthError as error:
        said = str(error.args[0] if error.args else type(error).__name__)[:300]
        raise Outage(f"Google refuses the service account: {said}. Check SHEETS_CREDENTIALS") from error
    except (requests.exceptions.RequestException, ValueError) as error:
        if any(isinstance(one, ConnectTimeoutError) for one in _chain(error)):  # or it was refused one
            raise Outage(f"Google Sheets can't be reached: {_why(error)}") from error
        raise Lost(f"Google Sheets was asked, but its answer was lost: {_why(error)}") from error


def _refusal(error: Any) -> Exception:
    status = int(error.response.status_code)
    said = (
        f"Google Sheets answered {status}: {str(error.error.get('message', ''))[:300] or 'no reason given'}"
    )
    match status:
        case 429:
            wait = error.response.headers.get("Retry-After", "")
            return Outage(said, retry_after=timedelta(seconds=int(wait[:4])) if wait.isdecimal() else None)
        case 401 | 403:
            return Unrecoverable(f"{said}. Share the spreadsheet with the service account, as an editor")
        case 404:
            return Unrecoverable(f"{said}. Check SHEETS_ID")
        case status if status >= 500:
            return Lost(said)
    return Unrecoverable(said)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """What went wrong, and what was below it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _why(error: Exception) -> str:
    """The lowest of it in words, not what each layer of the client says around it."""
    chain = list(_chain(error))
    if any(isinstance(one, json.JSONDecodeError) for one in chain):
        return "it is not JSON"
    if isinstance(chain[-1], TimeoutError):
        return "no answer came in time"
    said = chain[-1].strerror if isinstance(chain[-1], OSError) else None
    return said or "the connection broke off"
