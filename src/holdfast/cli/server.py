"""The web server of `holdfast serve` and `holdfast up`: uvicorn, with our way of listening, logging, ending.

Needs the extra `server`: imported only by who serves.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn

from holdfast.cli.connections import (
    ACCEPT_BURST,
    Connections,
    HttpConnection,
    Listener,
    connection_limit,
)
from holdfast.errors import HoldfastError
from holdfast.platform import Holdfast

GRACE = 2.0  # seconds that answers get to end once we stop; streams end at once
LAST = 3.0  # seconds after which uvicorn cuts off what has not ended even so
WHY = {
    errno.EADDRINUSE: "is taken by another process: stop that one, or say --port 0 for a free port",
    errno.EADDRNOTAVAIL: "is no address of this machine",
    errno.EACCES: "may not be used by you: ports below 1024 need more rights",
}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; 0 takes a free port. What stands in the way is told in one sentence."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):  # a name that DNS does not allow is refused by Python's codec
        raise OSError(errno.EADDRNOTAVAIL, WHY[errno.EADDRNOTAVAIL], host) from None
    bound = Listener(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()
    except OSError as error:
        bound.close()
        number = error.errno or 0
        raise OSError(number, WHY.get(number, os.strerror(number)), f"{host}:{port}") from None
    bound.setblocking(False)
    return bound


def address(bound: socket.socket) -> str:
    """The URL that leads to a socket from this machine."""
    host, port = bound.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "[::1]" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"http://{host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def _without_query(line: logging.LogRecord) -> bool:
    """What stands behind the question mark may be a secret, like the code of an authorisation."""
    if isinstance(line.args, tuple) and len(line.args) == 5:
        client, method, target, version, status = line.args
        line.args = (client, method, str(target).partition("?")[0], version, status)
    return True


class Server(uvicorn.Server):
    """One server on one socket. Signals are not its business: whoever runs it calls `stop`."""

    def __init__(self, app: Holdfast, bound: socket.socket) -> None:
        self.ending = Ending(app.web())
        self.bound = bound
        chatty = logging.getLogger().isEnabledFor(logging.DEBUG)
        logging.getLogger("uvicorn.access").addFilter(_without_query)
        limit = connection_limit(app.settings.api_connections, app.settings.db_max_connections)
        connections = Connections(limit, app.settings.api_request_seconds)
        super().__init__(
            uvicorn.Config(
                self.ending,
                log_config=None,  # its loggers pass everything on to ours
                log_level="debug" if chatty else "warning",
                access_log=chatty,
                http=cast("Any", partial(HttpConnection, connections)),
                ws="none",
                backlog=ACCEPT_BURST,
                server_header=False,
                forwarded_allow_ips=list(app.settings.trusted_proxies),
                timeout_graceful_shutdown=round(LAST),
            )
        )

    async def run_here(self) -> None:
        """Serves until `stop`; whatever else ends it is an error."""
        try:
            await self.serve(sockets=[self.bound])
        except SystemExit:
            raise HoldfastError(message="the web server could not start") from None
        if not self.should_exit:
            raise HoldfastError(message="the web server ended by itself")

    def stop(self) -> None:
        """Ends in good order: no new requests, streams are closed, answers are finished."""
        self.should_exit = True
        self.ending.begin()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leaves them alone."""
        yield


class Ending:
    """Passes everything on to an application, and ends what would not end by itself when the server stops.

    A stream of events is closed at once; its reader comes again. Any other answer gets `GRACE` seconds.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.closing = asyncio.Event()

    def begin(self) -> None:
        """From now on everything comes to its end."""
        self.closing.set()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = Answer(send)
        answering = asyncio.ensure_future(self.app(scope, receive, answer))
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            await asyncio.wait({answering, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and not answer.streams:
                await asyncio.wait({answering}, timeout=GRACE)
        finally:
            closing.cancel()
            cut_off = answering.cancel()
        await asyncio.wait({answering})
        if cut_off:
            await answer.end()
        if not answering.cancelled():
            answering.result()


class Answer:
    """What an application sends: whether it has begun, whether it streams, and whether it is complete."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.begun = self.streams = self.complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
            kinds = [value for name, value in headers if name.lower() == b"content-type"]
            self.streams = any(kind.startswith(b"text/event-stream") for kind in kinds)
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self.send(message)

    async def end(self) -> None:
        """Completes an answer that was cut off."""
        if not self.begun:
            headers = [(b"retry-after", b"1"), (b"content-length", b"0")]
            await self.send({"type": "http.response.start", "status": 503, "headers": headers})
        if not self.complete:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})
