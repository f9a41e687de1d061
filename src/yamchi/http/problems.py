"""Errors over HTTP: RFC 9457 `application/problem+json`, one clear sentence, the field named."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from yamchi.errors import (
    ConfigurationError,
    EngineUnavailable,
    InvalidJob,
    Outage,
    UnknownJob,
    UnknownQueue,
    WrongState,
    YamchiError,
)
from yamchi.fields import faults_of
from yamchi.observe.logging import mask

log = structlog.get_logger("yamchi.web")

STATUS_OF: Mapping[type[YamchiError], HTTPStatus] = {
    UnknownQueue: HTTPStatus.NOT_FOUND,
    UnknownJob: HTTPStatus.NOT_FOUND,
    WrongState: HTTPStatus.CONFLICT,
    InvalidJob: HTTPStatus.UNPROCESSABLE_ENTITY,
    ConfigurationError: HTTPStatus.UNPROCESSABLE_ENTITY,
    EngineUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    Outage: HTTPStatus.SERVICE_UNAVAILABLE,
}


MOST_NAMED = 50
"""Fields that a problem names: a list of thousands may be wrong in every one of them."""


class FieldProblem(BaseModel):
    """What is wrong with one field."""

    field: str = Field(examples=["delay"])
    message: str


class Problem(BaseModel):
    """Why a request was not done (RFC 9457)."""

    type: str = "about:blank"
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(
        examples=["Queue thumbnails has no job '42': it never had one, or it is no longer kept."]
    )
    errors: list[FieldProblem] = []


UNREADABLE = "There was an error parsing the body"
"""What FastAPI says of bytes that are no text; to a caller that is one more way of not being JSON."""


def problem(
    status: int,
    detail: str,
    errors: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem as a response."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": mask(detail),
    }
    if errors:
        body["errors"] = [error.model_dump() for error in errors]
    return Response(orjson.dumps(body), status, dict(headers or {}), media_type="application/problem+json")


WHEN: dict[int, str] = {
    400: "The request can't be read.",
    401: "No token was given, or one that is not known.",
    403: "The token is known, and may not do this.",
    404: "There is no such thing.",
    409: "As things stand now it can't be done, or something else has this id.",
    410: "It was there, and is no longer kept, or its link has ended.",
    412: "The version of the protocol is another one.",
    413: "It is more than is taken at once.",
    415: "The content is of a kind that is not taken.",
    422: "A field or a parameter is missing or wrong: `errors` names each, with what is wrong with it.",
    429: "Too many requests: `Retry-After` says when to come again.",
    502: "A provider answered in a way that can't be understood, or refused.",
    503: "The engine, the database or a provider can't be reached: try again later.",
}
"""What a status says to whoever gets it; `detail` of the answer says more."""


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These problems, for the `responses=` of a route. Whoever may be unknown may also come too often."""
    if HTTPStatus.UNAUTHORIZED in statuses:
        statuses = (*statuses, HTTPStatus.TOO_MANY_REQUESTS)
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {
        status: {
            "description": WHEN.get(status, HTTPStatus(status).phrase),
            "content": {"application/problem+json": schema},
        }
        for status in statuses
    }


def install_problems(web: FastAPI) -> None:
    """Let every error leave as a problem."""
    web.add_exception_handler(YamchiError, _on_yamchi_error)
    web.add_exception_handler(RequestValidationError, _on_bad_request)
    web.add_exception_handler(HTTPException, on_http_error)
    web.add_exception_handler(ClientDisconnect, _on_disconnect)
    web.add_exception_handler(Exception, _on_surprise)


async def _on_yamchi_error(_request: Request, error: Exception) -> Response:
    status = _status_of(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning(f"answered {status}: {error}")
    faults = getattr(error, "faults", ())[:MOST_NAMED]
    return problem(status, str(error), [FieldProblem(field=place, message=said) for place, said in faults])


def _status_of(error: Exception) -> int:
    """The error's own status (`http_status`, for errors of features), or that of its kind."""
    said: int | None = getattr(error, "http_status", None)
    kinds = (status for kind, status in STATUS_OF.items() if isinstance(error, kind))
    return said or next(kinds, HTTPStatus.INTERNAL_SERVER_ERROR)


async def _on_bad_request(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    parts: defaultdict[str, list[Any]] = defaultdict(list)
    for one in error.errors()[:MOST_NAMED]:
        parts[str(one["loc"][0])].append({**one, "loc": _inside(one["loc"])})
    fields = [
        FieldProblem(field=fault.place or part, message=fault.message)
        for part, errors in parts.items()
        for fault in faults_of(errors, error.body if part == "body" else ...)
    ]
    sentence = "; ".join(f"{fault.field}: {fault.message}" for fault in fields[:5])
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"The request can't be understood: {sentence}.", fields)


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.detail == UNREADABLE:
        return problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, "The body can't be read: it is neither JSON nor a form."
        )
    detail = error.detail
    if error.status_code == HTTPStatus.NOT_FOUND and detail == HTTPStatus.NOT_FOUND.phrase:
        detail = f"There is nothing at {request.url.path}; /docs lists what there is."
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another method")
        detail = f"{request.method} does nothing at {request.url.path}; use {allowed}."
    return problem(error.status_code, detail, headers=error.headers)


async def _on_disconnect(request: Request, _error: Exception) -> Response:
    """The body broke off: the client is gone, and there is nothing to fix here."""
    log.debug(f"{request.method} {request.url.path}: the caller left before all of the body had come")
    return Response(status_code=HTTPStatus.BAD_REQUEST)


async def _on_surprise(request: Request, error: Exception) -> Response:
    """A bug of ours: the log gets the traceback, the caller a sentence."""
    log.error(f"{request.method} {request.url.path} failed: {error}", exc_info=error)
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, "Something went wrong here; the server's log has the details."
    )


def _inside(loc: Sequence[int | str]) -> Sequence[int | str]:
    return loc[1:] if loc and loc[0] in ("body", "query", "path") else loc
