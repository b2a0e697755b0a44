"""What surrounds every answer: its trace, its headers, the size of its body, and the last net for errors.

Pure ASGI: nothing here reads a body that it was not asked for, or holds a stream back.
"""

from __future__ import annotations

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import tracing
from holdfast.api import problems
from holdfast.api.routes import Routes, address

CACHED = ("/static",)  # below these a browser may keep what it was given


class Around:
    """Begins the trace of a request, and sees that whatever comes is answered, with our headers."""

    def __init__(self, app: ASGIApp, routes: Routes) -> None:
        self._app, self._routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = self._routes.name(scope)
        parent = Headers(scope=scope).get("traceparent")
        with tracing.span(f"{scope['method']} {route}", parent=parent, kind="server") as span:
            span.note(**{"http.request.method": scope["method"], "http.route": route})
            await self._answer(scope, receive, send, span)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, span: tracing.Span) -> None:
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                span.note(**{"http.response.status_code": message["status"]})
                _add_headers(message, scope)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:  # before its body had arrived: there is nothing to answer, and no mistake
            span.fail("ClientDisconnect", "the client closed the connection")
        except Exception as error:
            response = problems.unexpected(error, f"{scope['method']} {self._routes.name(scope)}")
            span.fail(type(error).__name__, "unexpected")
            if begun:
                raise  # half an answer is out: the connection must not look as if it were whole
            await response(scope, receive, sending)


def _add_headers(message: Message, scope: Scope) -> None:
    headers = MutableHeaders(scope=message)
    headers["X-Trace-Id"] = tracing.trace_id() or ""
    headers.setdefault("X-Content-Type-Options", "nosniff")
    if not address(scope).startswith(CACHED):
        headers.setdefault("Cache-Control", "no-store")


class Bodies:
    """Refuses a body that is too large: by what it says of itself, and by counting what comes."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = Headers(scope=scope).get("content-length", "0")
        if told.isdigit() and int(told[:20]) > self._most:
            response = problems.respond(413, problems.CODES[413], self._words())
            await response(scope, receive, send)
            return
        come = 0

        async def receiving() -> Message:
            nonlocal come
            message = await receive()
            come += len(message.get("body", b""))
            if come > self._most:
                raise HTTPException(413, self._words())  # the one error that passes through whoever reads
            return message

        await self._app(scope, receiving, send)

    def _words(self) -> str:
        return f"the body has more than {self._most} bytes"
