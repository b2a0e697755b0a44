"""Who looks: logging in and out, light or dark, the record of what was done, and tokens."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import cast

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from holdfast.api import audit, auth, tokens
from holdfast.api.auth import COOKIE, Admin, Here, Operator
from holdfast.api.caller import SCOPES, Caller, Scope
from holdfast.api.jwts import Jwts
from holdfast.api.problems import TooMany
from holdfast.dashboard import dress, forms
from holdfast.dashboard.dress import page, put, root, safe_path, say, url
from holdfast.db.settings import Settings
from holdfast.errors import InvalidInput

router = APIRouter(include_in_schema=False)
open_router = APIRouter(include_in_schema=False)  # for nobody in particular
SLOWLY = 0.4  # seconds that the answer to a wrong token takes at least
LONGEST = 8192  # characters of a token
AUDITED = 50  # entries of a page


# -- in and out ------------------------------------------------------------------------------------------


@open_router.get("/login")
async def ask(request: Request, next: str = "/") -> HTMLResponse:
    """The form that asks for a token."""
    return _login(request, next)


@open_router.post("/login")
async def login(request: Request, site: Here) -> Response:
    """Begins a session for whoever brings a good token."""
    form = await request.form()
    text, onward = str(form.get("token") or "").strip()[:LONGEST], str(form.get("next") or "/")
    try:
        caller = await auth.verify(request, text) if text else None
    except TooMany as error:
        return _login(request, onward, f"Too many wrong tokens: wait {error.wait:.0f} seconds.", 429)
    if caller is None or not caller.may("read"):
        await asyncio.sleep(SLOWLY)
        return _login(request, onward, "This token is not known, or no longer good.", 401)
    jwts: Jwts = request.app.state.jwts
    until = None if text.startswith("hf_") else await jwts.expiry(text)
    hours = site.settings.session_hours
    async with site.connection() as conn, conn.transaction():
        cookie = await tokens.open_session(conn, caller, hours, until=until)
        await audit.note(conn, caller, "login")
    response = RedirectResponse(f"{root(request)}{safe_path(onward)}", 303)
    put(request, response, COOKIE, cookie, seconds=hours * 3600)
    response.delete_cookie(dress.VISIT, path=root(request) or "/")
    return response


def _login(request: Request, onward: str, wrong: str | None = None, status: int = 200) -> HTMLResponse:
    settings: Settings = request.app.state.site.settings
    return page(
        request,
        "login.html",
        None,
        status=status,
        next=safe_path(onward),
        wrong=wrong,
        local=settings.profile == "local",
        jwts=bool(settings.jwt_secret or settings.jwt_jwks_url),
    )


@open_router.post("/logout")
async def logout(request: Request, site: Here) -> RedirectResponse:
    """Ends the session."""
    if cookie := request.cookies.get(COOKIE):
        async with site.connection() as conn, conn.transaction():
            if caller := await tokens.find_session(conn, cookie):
                await audit.note(conn, caller, "logout")
            await tokens.close_session(conn, cookie)
    response = RedirectResponse(url(request, "/login"), 303)
    response.delete_cookie(COOKIE, path=root(request) or "/")
    return response


@open_router.post("/theme")
async def theme(request: Request) -> RedirectResponse:
    """Chooses light, dark, or what the system says."""
    form = await request.form()
    response = RedirectResponse(f"{root(request)}{safe_path(str(form.get('back') or '/'))}", 303)
    chosen = str(form.get("theme"))
    if chosen in dress.THEMES:
        put(request, response, dress.THEME, chosen, seconds=dress.THEME_SECONDS)
    else:
        response.delete_cookie(dress.THEME, path=root(request) or "/")
    return response


# -- the record ------------------------------------------------------------------------------------------


@router.get("/audit")
async def record(request: Request, caller: Operator, site: Here, before: int | None = None) -> HTMLResponse:
    """What was done, and by whom."""
    async with site.connection() as conn:
        found = list(await audit.entries(conn, limit=AUDITED + 1, before=before))
    entries = found[:AUDITED]
    older = entries[-1].id if len(found) > AUDITED else None
    return page(
        request, "audit.html", caller, entries=entries, older=older, before=before, ledgers=site.stores
    )


# -- tokens ----------------------------------------------------------------------------------------------


@router.get("/tokens")
async def list_tokens(request: Request, caller: Admin) -> HTMLResponse:
    """The tokens that there are, and a form for another."""
    return await _tokens(request, caller)


@router.post("/tokens")
async def create_token(request: Request, caller: Admin, site: Here) -> HTMLResponse:
    """Makes a token, and shows its text: on this page and never again."""
    form = await request.form()
    try:
        name = forms.text(form, "name", 100) or ""
        tenant = forms.text(form, "tenant", 255)
        scope = cast("Scope", str(form.get("scope") or ""))
        expires = forms.moment(form, "expires")
        if expires is not None and expires <= datetime.now(UTC):
            raise InvalidInput(field="expires", message="lies in the past")
        async with site.connection() as conn, conn.transaction():
            token, text = await tokens.create(
                conn, name, scope, tenant=tenant, expires=expires, by=caller.who
            )
            detail = {"name": token.name, "scope": token.scope, "of": token.tenant}
            await audit.note(conn, caller, "token create", row_id=token.id, detail=detail)
    except InvalidInput as error:
        return await _tokens(request, caller, wrong=str(error), status=400)
    return await _tokens(request, caller, new=(token.name, text))


@router.post("/tokens/{id}/revoke")
async def revoke_token(request: Request, id: str, caller: Admin, site: Here) -> RedirectResponse:
    """Ends a token for good, and the sessions that it began."""
    async with site.connection() as conn, conn.transaction():
        changed = await tokens.revoke(conn, id)
        await audit.note(conn, caller, "token revoke", row_id=id, detail={"changed": changed})
    response = RedirectResponse(url(request, "/tokens"), 303)
    say(request, response, "The token is revoked." if changed else "The token was revoked already.")
    return response


async def _tokens(
    request: Request,
    caller: Caller,
    *,
    new: tuple[str, str] | None = None,
    wrong: str | None = None,
    status: int = 200,
) -> HTMLResponse:
    async with request.app.state.site.connection() as conn:
        found = await tokens.every(conn)
    return page(
        request,
        "tokens.html",
        caller,
        status=status,
        tokens=found,
        new=new,
        wrong=wrong,
        scopes=SCOPES,
        now=datetime.now(UTC),
    )
