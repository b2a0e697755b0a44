"""A provider on loopback: a real HTTP server that speaks its documented API, remembers what it was asked,
and fails when it is told to.

    class Example(Server):
        @route("GET", "/things/{id}")
        def thing(self, request: Asked, id: str) -> Reply:
            return Reply({"id": id})

    with Example() as server:
        server.fail_next(429, {"Retry-After": "7"})
        ... server.url, server.requests ...

Handlers run one at a time in the server's thread; a test may change the server's data between requests.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, ClassVar, Self
from urllib.parse import parse_qsl, unquote

import uvicorn

Handler = Callable[..., "Reply"]
PATIENCE = 30.0


@dataclass(frozen=True)
class Asked:
    """One request, as it came; header names are lower case, the path is without its query."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))

    @property
    def token(self) -> str | None:
        """What stands behind `Bearer`."""
        kind, _, text = self.headers.get("authorization", "").partition(" ")
        return text if kind.lower() == "bearer" else None


@dataclass(frozen=True)
class Reply:
    """One answer: `data` becomes JSON unless it is bytes already; None is an empty body."""

    data: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        if self.data is None:
            return b""
        return self.data if isinstance(self.data, bytes) else json.dumps(self.data).encode()


@dataclass
class Fault:
    """An answer that stands before the real one, for the next `times` requests to paths that match."""

    reply: Reply
    path: str | None
    times: int
    skip: int


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    """Marks a method as what answers `method` on `path`; `{name}` in it is one part, `{name*}` the rest."""

    def mark(handler: Handler) -> Handler:
        marks = handler.__dict__.setdefault("routes", [])
        pattern = re.sub(r"\\\{(\w+)\\\*\\\}", r"(?P<\1>.+)", re.escape(path))
        marks.append((method, re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", pattern))))
        return handler

    return mark


class _Uvicorn(uvicorn.Server):
    """Uvicorn that says when it listens, and stops at once: its own loops look for that every 100 ms."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = threading.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        self.listens.set()
        await self.over.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections:  # noqa: ASYNC110 (uvicorn tells nobody when the last is gone)
            await asyncio.sleep(0.001)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.over.set)


class Server:
    """The part that every provider's server has: start, stop, faults and the record of requests."""

    prefix: ClassVar[str] = ""  # what stands before every path, when the provider's API has such a thing

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        self.faults: list[Fault] = []
        self.errors: list[Exception] = []
        self.url = ""
        self._routes = [
            (method, pattern, getattr(self, name))
            for name in dir(type(self))
            for method, pattern in getattr(getattr(type(self), name), "routes", ())
        ]
        self._running: tuple[_Uvicorn, threading.Thread] | None = None

    def start(self) -> Self:
        config = uvicorn.Config(
            self._application,
            host="127.0.0.1",
            port=0,
            log_level="warning",
            lifespan="off",
            interface="asgi3",
            ws="none",
            date_header=False,
            timeout_graceful_shutdown=2,
        )
        server = _Uvicorn(config)
        thread = threading.Thread(target=server.run, name=type(self).__name__)
        thread.start()
        self._running = server, thread
        assert server.listens.wait(PATIENCE), "the server did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}{self.prefix}"
        return self

    def stop(self) -> None:
        """Stops; the test fails when a handler of the server itself has failed."""
        running, self._running = self._running, None
        if running is not None:
            server, thread = running
            server.end()
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the server did not stop"
        if self.errors:
            raise self.errors[0]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def fail_next(
        self,
        status: int = 500,
        headers: Mapping[str, str] | None = None,
        body: Any = b"",
        *,
        path: str | None = None,
        times: int = 1,
        skip: int = 0,
    ) -> None:
        """Answers so instead, the next `times` times; `path`: only there, `skip`: after so many good answers.

        `body`: bytes as they are (b"{oops" is malformed JSON), anything else as JSON.
        """
        self.faults.append(Fault(Reply(body, status, headers or {}), path, times, skip))

    def asked(self, path: str | None = None) -> list[Asked]:
        """The requests so far; `path`: those to one path."""
        return [one for one in self.requests if path is None or one.path == path]

    def forget(self) -> None:
        """Forgets requests and faults."""
        self.requests.clear()
        self.faults.clear()

    def before(self, request: Asked) -> Reply | None:
        """For a provider to override: what answers before any route does, like a refused token."""
        return None

    def answer(self, request: Asked) -> Reply:
        """What this request gets."""
        self.requests.append(request)
        for fault in self.faults:
            if fault.times and fault.path in (None, request.path):
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault.reply
        early = self.before(request)
        if early is not None:
            return early
        for method, pattern, handler in self._routes:
            found = pattern.fullmatch(request.path)
            if found and method == request.method:
                return handler(request, **{name: unquote(part) for name, part in found.groupdict().items()})
        return Reply({"message": "Not Found"}, 404)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["raw_path"].decode().removeprefix(self.prefix)
        query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            reply = self.answer(Asked(scope["method"], path, query, headers, body))
        except Exception as error:  # told to the test by stop()
            self.errors.append(error)
            reply = Reply({"message": "the test's server is broken"}, 599)
        sent = {
            "date": format_datetime(datetime.now(UTC), usegmt=True),
            "content-type": "application/json",
            "content-length": str(len(reply.body)),
            **{name.lower(): value for name, value in reply.headers.items()},
        }
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": pairs})
        await send({"type": "http.response.body", "body": reply.body})
