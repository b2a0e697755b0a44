"""Everything that goes wrong, as application/problem+json: one shape, stable codes, and a trace id.

What an unexpected exception says stays in the log: it may quote what it was given.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from psycopg_pool import PoolClosed, PoolTimeout
from starlette.exceptions import HTTPException
from starlette.responses import Response

from holdfast import tracing
from holdfast.engine import intake
from holdfast.errors import DatabaseUnavailable, HoldfastError, InvalidInput

log = logging.getLogger("holdfast.api")
MEDIA_TYPE = "application/problem+json"
TITLES = {
    400: "The request is not right",
    401: "Nobody in particular asks",
    403: "The caller may not do this",
    404: "There is no such thing",
    405: "This cannot be done here",
    408: "Request timeout",
    409: "The row is in another state, or the key is taken",
    413: "The body is too large",
    429: "Too many requests",
    500: "Something unexpected went wrong",
    501: "This is not built",
    502: "Somebody else's service failed",
    503: "Not available at the moment",
}
CODES = {
    400: "INVALID_INPUT",
    401: "NOT_ALLOWED",
    403: "NOT_ALLOWED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    413: "TOO_LARGE",
}
ELSEWHERE = (501, 502)  # it is not built, or a provider's fault: nothing for our own log
MOST = 100  # faults of one request that are told


class TooMany(HoldfastError):
    """{message}

    A caller asks too often, or too often wrongly; `wait` is how many seconds to be quiet.
    """

    code = "TOO_MANY_REQUESTS"
    status = 429
    wait: float


class Unavailable(HoldfastError):
    """{message}

    Something that an answer needs does not answer itself.
    """

    code = "UNAVAILABLE"
    status = 503


def respond(
    status: int,
    code: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> Response:
    """A problem as a response. Its texts are cleaned: they may quote what nobody can encode."""
    problem = {
        "type": f"urn:holdfast:problem:{code.lower()}",
        "title": TITLES.get(status, "The request failed"),
        "status": status,
        "code": code,
        "detail": detail,
        "trace_id": tracing.trace_id(),
        **more,
    }
    body = json.dumps(_clean(problem), ensure_ascii=False).encode()
    return Response(body, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def of(error: HoldfastError) -> Response:
    """One of our own errors as a response."""
    headers: dict[str, str] = {}
    more: dict[str, Any] = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="holdfast"'
    if isinstance(error, TooMany):
        more["retry_after"] = max(1, math.ceil(error.wait))
        headers["Retry-After"] = str(more["retry_after"])
    if isinstance(error, InvalidInput):
        field = str(error.field)
        more |= {"field": field, "details": {field: error.fields["message"]}}
    if details := error.fields.get("details"):
        more["details"] = details
    return respond(error.status, error.code, str(error), headers=headers, **more)


def unexpected(error: BaseException, request: str) -> Response:
    """An exception that nobody foresaw: told to the log with its trace, and to nobody else."""
    log.error("%s failed: %s", request, type(error).__name__, exc_info=error)
    return respond(500, "INTERNAL", "the server's log tells more under this trace id")


def handle(app: FastAPI) -> None:
    """Makes every error of an application a problem."""
    app.add_exception_handler(HoldfastError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    for kind in (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout, PoolClosed):
        app.add_exception_handler(kind, _away)
    for kind in (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
        app.add_exception_handler(kind, _lacking)


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    if (
        error.status < 500
        or error.status in ELSEWHERE
        or isinstance(error, Unavailable | DatabaseUnavailable)
    ):
        return of(error)
    log.error("%s %s: %s", request.method, request.url.path, error)
    return of(error) if error.status == 503 else unexpected(error, f"{request.method} {request.url.path}")


async def _away(request: Request, error: Exception) -> Response:
    """The database is away, or ended a statement that took too long."""
    log.warning("%s %s: %s", request.method, request.url.path, error)
    return of(DatabaseUnavailable(message="the database did not answer in time: try again"))


async def _lacking(request: Request, error: Exception) -> Response:
    """A table or column is not there: migrations are pending, or a ledger's table is not what it says."""
    log.error("%s %s: %s", request.method, request.url.path, error)
    if trouble := await request.app.state.readiness.trouble():
        return respond(503, "NOT_READY", trouble)
    detail = "the database lacks a table or a column of this ledger: `holdfast doctor` tells which"
    return of(Unavailable(message=detail))


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [_fault(one) for one in error.errors()[:MOST]]
    first = faults[0] if faults else {"field": "body", "message": "is not right"}
    detail = f"{first['field']}: {first['message']}"
    details = {first["field"]: first["message"]}
    return respond(400, "INVALID_INPUT", detail, field=first["field"], details=details, errors=faults)


def _fault(found: Mapping[str, Any]) -> dict[str, str]:
    """What pydantic found, as a field and a message. What was given is not repeated."""
    where: Sequence[Any] = found.get("loc", ())
    parts = [part for n, part in enumerate(where) if n or part not in ("body", "query", "path", "header")]
    field = ""
    for part in parts:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    message = str(found.get("msg", "is not right")).removeprefix("Value error, ")
    if found.get("type") == "json_invalid":
        field, message = "body", f"is not JSON: {found.get('ctx', {}).get('error', '')}"
    return {"field": field or "body", "message": message}


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, detail, headers = error.status_code, error.detail, dict(error.headers or {})
    if status == 404 and detail == "Not Found":
        detail = "there is nothing at this address"
    elif status == 405:
        detail = f"{request.method} is not possible here"
        headers["Allow"] = ", ".join(request.app.state.routes.methods(request.scope))
    elif status == 400 and detail == "There was an error parsing the body":
        detail = "body: is not JSON that can be read: nested too deep, or a number of too many digits"
    more = {"field": "body"} if status == 400 and detail.startswith("body:") else {}
    return respond(status, CODES.get(status, f"HTTP_{status}"), detail, headers=headers, **more)


def _clean(value: Any) -> Any:
    match value:
        case str():
            return intake.absorb(value, 4096)
        case dict():
            return {_clean(name): _clean(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [_clean(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
