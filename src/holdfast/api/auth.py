"""Who asks, and whether they may: dependencies for routes.

    async def show(caller: Reader, site: Here) -> ...

A bearer token is ours or a JWT. The dashboard's cookie counts for its pages and for reading: whoever changes
something below /api brings a bearer, which no other site can make a browser send.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import Depends, Header, Request, Security
from fastapi.security import APIKeyCookie, HTTPBearer
from starlette.requests import HTTPConnection

from holdfast.api import tokens
from holdfast.api.actions import must, must_operate
from holdfast.api.caller import Caller
from holdfast.api.jwts import Jwts
from holdfast.api.limits import Limits
from holdfast.api.routes import address
from holdfast.api.site import Site
from holdfast.engine import intake
from holdfast.errors import NotAllowed

COOKIE = "holdfast_session"
SAFE = ("GET", "HEAD", "OPTIONS")
LONGEST = 255  # characters of a tenant

BEARER = HTTPBearer(
    auto_error=False, scheme_name="bearer", description="A token (`hf_…`) or a JSON Web Token."
)
SESSION = APIKeyCookie(
    name=COOKIE, auto_error=False, scheme_name="session", description="The dashboard's cookie: for GET only."
)


def here(request: Request) -> Site:
    """The site that is served."""
    return request.app.state.site


Here = Annotated[Site, Depends(here)]


# -- finding out -----------------------------------------------------------------------------------------


async def identify(request: HTTPConnection) -> Caller | None:
    """Who asks, by what they bring; None for nobody."""
    bearer = _bearer(request)
    if bearer is not None:
        return await verify(request, bearer)
    cookie = _cookie(request)
    if cookie is None:
        return None
    found = await _by_cookie(request, cookie)
    if found is None:
        _count_failure(request)
    return found


async def still_known(request: HTTPConnection) -> Caller | None:
    """Who asks, looked at again while a stream is open: somebody who was known once is no wrong guess."""
    bearer = _bearer(request)
    if bearer is not None:
        return await _by_text(request, bearer)
    cookie = _cookie(request)
    return None if cookie is None else await _by_cookie(request, cookie)


async def verify(request: HTTPConnection, text: str) -> Caller | None:
    """Whose token or JWT a text is. Wrong ones are counted: too many of one address are `TooMany`."""
    caller = await _by_text(request, text)
    if caller is None:
        _count_failure(request)
    return caller


def _count_failure(request: HTTPConnection) -> None:
    limits: Limits = request.app.state.limits
    limits.failed(request.client.host if request.client else "")


async def _by_text(request: HTTPConnection, text: str) -> Caller | None:
    if not text.startswith("hf_"):
        jwts: Jwts = request.app.state.jwts
        return await jwts.verify(text)
    site: Site = request.app.state.site
    async with site.connection() as conn:
        return await tokens.verify(conn, text)


async def _by_cookie(request: HTTPConnection, cookie: str) -> Caller | None:
    site: Site = request.app.state.site
    async with site.connection() as conn:
        return await tokens.find_session(conn, cookie)


def _bearer(request: HTTPConnection) -> str | None:
    """What the header Authorization brings; an empty text for a header that is no bearer's."""
    header = request.headers.get("authorization")
    if header is None:
        return None
    scheme, _, text = header.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _cookie(request: HTTPConnection) -> str | None:
    """The session's cookie, where it counts."""
    method = request.scope.get("method", "GET")
    if method not in SAFE and (_below_api(request) or _foreign(request)):
        return None
    return request.cookies.get(COOKIE)


def _below_api(request: HTTPConnection) -> bool:
    return f"{address(request.scope)}/".startswith("/api/")


def _foreign(request: HTTPConnection) -> bool:
    """Whether another site made the browser send this."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host")


# -- dependencies ----------------------------------------------------------------------------------------


async def caller(
    request: Request,
    tenant: Annotated[
        str | None,
        Header(
            alias="X-Tenant-Id",
            min_length=1,
            max_length=LONGEST,
            description="Whose rows are meant: for operators, for this request.",
        ),
    ] = None,
    _bearer: Annotated[object, Security(BEARER)] = None,
    _session: Annotated[object, Security(SESSION)] = None,
) -> Caller:
    """Somebody who is known, or 401."""
    found = await identify(request)
    if found is None:
        raise NotAllowed(message="bring a token: Authorization: Bearer hf_…", status=401)
    request.app.state.limits.call(found.token_id or found.who)
    return within(found, tenant)


def within(found: Caller, tenant: str | None) -> Caller:
    """The caller within the tenant that a request names: an operator's choice, and nobody else's."""
    if tenant is None or _same(tenant, found.tenant):
        return found
    if found.bound:
        raise NotAllowed(message="X-Tenant-Id names a tenant that is not yours")
    intake.clean_text("X-Tenant-Id", tenant)
    return replace(found, tenant=tenant)


def _same(one: str, other: str | None) -> bool:
    """Whether two texts name one tenant: a UUID has several spellings."""
    try:
        return one == other or UUID(one) == UUID(other or "")
    except ValueError:
        return False


Known = Annotated[Caller, Depends(caller)]


def reader(found: Known) -> Caller:
    """Somebody who may read."""
    must(found, "read")
    return found


def actor(found: Known) -> Caller:
    """Somebody who may act."""
    must(found, "act")
    return found


def operator(found: Known) -> Caller:
    """Somebody who may read everybody's."""
    must_operate(found, "read")
    return found


def acting_operator(found: Known) -> Caller:
    """Somebody who may act on what is everybody's."""
    must_operate(found, "act")
    return found


def admin(found: Known) -> Caller:
    """Somebody who may say who else may."""
    must_operate(found, "admin")
    return found


Reader = Annotated[Caller, Depends(reader)]
Actor = Annotated[Caller, Depends(actor)]
Operator = Annotated[Caller, Depends(operator)]
ActingOperator = Annotated[Caller, Depends(acting_operator)]
Admin = Annotated[Caller, Depends(admin)]
