"""Puts the dashboard into the API's application: its pages, those of the apps, and errors in their dress."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api import problems
from holdfast.api.auth import COOKIE, SAFE, reader
from holdfast.api.routes import address
from holdfast.api.site import Site
from holdfast.api.web import Web
from holdfast.dashboard import dress, ledger, live, overview, people, reference, row
from holdfast.dashboard.dress import Wardrobe, guard, page, url
from holdfast.dashboard.live import Scenes

log = logging.getLogger("holdfast.dashboard")
MACHINES = ("/api/", "/metrics/", "/healthz/", "/readyz/", "/openapi.json/", "/static/", "/live/")
PAGES = (overview.router, ledger.router, row.router, people.router)
OPEN_PAGES = (people.open_router, reference.open_router)


def add(api: FastAPI, site: Site, webs: Sequence[Web]) -> None:
    """Adds all pages to an application that serves the API already."""
    own = [router for web in webs for router in web.pages]
    folders = [web.templates for web in webs if web.templates]
    links = [link for web in webs for link in web.links]
    api.state.wardrobe = Wardrobe(site, folders, links)
    api.state.scenes = Scenes((*PAGES, *own))
    for router in (*PAGES, *own, *OPEN_PAGES):
        _answer_heads(router)
    for router in (*PAGES, *own):
        api.include_router(router, dependencies=[Depends(reader), Depends(guard)], include_in_schema=False)
    for router in OPEN_PAGES:
        api.include_router(router, dependencies=[Depends(guard)], include_in_schema=False)
    api.include_router(live.router)
    api.mount("/static", Files(directory=dress.STATIC), name="static")
    api.add_middleware(Dressed)


def _answer_heads(router: APIRouter) -> None:
    """Lets HEAD ask for whatever GET does: monitors and previews of links do. The server drops the body."""
    for route in router.routes:
        methods: set[str] = getattr(route, "methods", None) or set()
        if "GET" in methods:
            methods.add("HEAD")
        # Newer versions keep an included router as it is, older ones have its routes here.
        if (inner := getattr(route, "original_router", None)) is not None:
            _answer_heads(inner)


class Files(StaticFiles):
    """Our own files. Their addresses change with their content, so that a browser may keep them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (method := scope["method"]) not in ("GET", "HEAD"):
            # Only we know what may be done to a file: in the table of routes a mount has no methods.
            response = problems.respond(
                405, problems.CODES[405], f"{method} is not possible here", headers={"Allow": "GET, HEAD"}
            )
            await response(scope, receive, send)
            return
        await super().__call__(scope, receive, send)

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


class Dressed:
    """Shows people what went wrong as a page; programs get their problem as it is.

    Whoever is not known is led to the login. The outermost layer: it sees what every other one answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _for_people(scope):
            await self._app(scope, receive, send)
            return
        held: list[Message] = []  # a problem, while it comes

        async def sending(message: Message) -> None:
            if held or _is_problem(message):
                held.append(message)
            else:
                await send(message)

        await self._app(scope, receive, sending)
        if not held:
            return
        try:
            body = b"".join(message.get("body", b"") for message in held[1:])
            response = await _dressed(Request(scope), held[0], json.loads(body))
        except Exception:
            log.exception("a problem could not be shown as a page")
            for message in held:
                await send(message)
            return
        await response(scope, receive, send)


def _for_people(scope: Scope) -> bool:
    wants = Headers(scope=scope).get("accept", "")
    return "text/html" in wants and not f"{address(scope)}/".startswith(MACHINES)


def _is_problem(message: Message) -> bool:
    if message["type"] != "http.response.start":
        return False
    return Headers(raw=message["headers"]).get("content-type", "").startswith(problems.MEDIA_TYPE)


async def _dressed(request: Request, start: Message, problem: dict[str, Any]) -> Response:
    """A problem as a page, or the way to the login."""
    status = start["status"]
    if status == 401:
        return _to_login(request)
    caller = await reference.known(request) if status < 500 and status != 429 else None
    response = page(request, "problem.html", caller, status=status, problem=problem)
    for name in ("retry-after", "allow", "x-trace-id"):
        if (value := Headers(raw=start["headers"]).get(name)) is not None:
            response.headers[name] = value
    return response


def _to_login(request: Request) -> Response:
    """To the login, and back afterwards.

    A link on another site brings no cookie of ours, as it is strict: then the browser is asked to come again
    from a page of our own, and only if it still brings none, to log in.
    """
    brought = COOKIE in request.cookies
    foreign = request.headers.get("sec-fetch-site") == "cross-site"
    if foreign and request.method in SAFE and not brought:
        return page(request, "again.html", None, back=f"{dress.root(request)}{dress.local(request)}")
    onward = dress.local(request) if request.method in SAFE else "/"
    response = RedirectResponse(url(request, "/login", {"next": onward} if onward != "/" else None), 303)
    # Only one that was looked at and is no good: another site must not end a session by a form that brings
    # none, or one that did not count.
    if brought and request.method in SAFE and "authorization" not in request.headers:
        response.delete_cookie(COOKIE, path=dress.root(request) or "/")
    return response
