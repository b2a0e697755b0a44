"""What the tests of the API share: a real server on loopback, workers in a thread, and everybody's tokens."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, TypeVar

import httpx
import uvicorn

from holdfast import Holdfast, Settings
from holdfast.api import tokens
from holdfast.api.app import build
from holdfast.api.caller import Scope
from holdfast.db import pool
from holdfast.db.pool import Connection

T = TypeVar("T")
A = "aaaaaaaa-0000-4000-8000-00000000000a"
B = "bbbbbbbb-0000-4000-8000-00000000000b"
PATIENCE = 30.0
TLS = ssl.create_default_context()  # which takes long to make, and nobody here needs

# Everybody who may come: scope, tenant, and since when their token is not good any more.
PEOPLE: dict[str, tuple[Scope, str | None]] = {
    "reader": ("read", None),
    "actor": ("act", None),
    "admin": ("admin", None),
    "tenant reader": ("read", A),
    "tenant": ("act", A),
    "other tenant": ("act", B),
    "expired": ("admin", None),
    "revoked": ("admin", None),
}


@contextmanager
def serving(app: Any, **options: Any) -> Iterator[str]:
    """An ASGI application on a port of loopback, in a thread, for the length of a `with`; gives its URL."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="warning", ws="none", timeout_graceful_shutdown=2, **options
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="test server")
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline, "the server did not start in time"
            time.sleep(0.01)
        listening: socket.socket = server.servers[0].sockets[0]
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not stop"


def api_of(app: Holdfast) -> Any:
    """The API of an application, without the dashboard."""
    webs = [import_module(one.web).WEB for one in app.apps if one.web]
    return build(app.site, webs, lifespan=app._lifespan)


@contextmanager
def working(app: Holdfast, **options: Any) -> Iterator[None]:
    """A worker of that application, in a thread, for the length of a `with`."""
    started, loops, workers = threading.Event(), list[asyncio.AbstractEventLoop](), list[Any]()

    async def work() -> None:
        async with app:
            worker = app.worker(**options)
            loops.append(asyncio.get_running_loop())
            workers.append(worker)
            started.set()
            await worker.run()

    thread = threading.Thread(target=lambda: asyncio.run(work()), name="test worker")
    thread.start()
    try:
        assert started.wait(PATIENCE)
        yield
    finally:
        loops[0].call_soon_threadsafe(workers[0].stop)
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the worker did not stop"


def on(settings: Settings, do: Callable[[Connection], Awaitable[T]]) -> T:
    """Does something on a connection of its own, in a thread of its own: a loop may run in this one."""

    async def there() -> T:
        assert settings.database_url
        async with await pool.connect(settings, settings.database_url, purpose="test") as conn:
            return await do(conn)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, there()).result()


async def make_tokens(conn: Connection) -> dict[str, str]:
    """A token for everybody."""
    texts: dict[str, str] = {}
    for who, (scope, tenant) in PEOPLE.items():
        expires = datetime.now(UTC) - timedelta(seconds=1) if who == "expired" else None
        made, texts[who] = await tokens.create(conn, who, scope, tenant=tenant, expires=expires)
        if who == "revoked":
            await tokens.revoke(conn, made.id)
    return texts


@dataclass
class Served:
    """A server with its database, and everybody's tokens."""

    url: str
    settings: Settings
    tokens: dict[str, str]
    clients: list[httpx.Client] = field(default_factory=list)

    def client(self, who: str | None = "admin", **headers: str) -> httpx.Client:
        """A client that brings this token; None for none."""
        if who is not None:
            headers["Authorization"] = f"Bearer {self.tokens[who]}"
        client = httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, verify=TLS)
        self.clients.append(client)
        return client

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """What the database itself says."""

        async def ask(conn: Connection) -> list[tuple[Any, ...]]:
            cursor = await conn.execute(text.encode(), values or None)
            return await cursor.fetchall() if cursor.description else []

        return on(self.settings, ask)

    def enqueue(self, ledger: str = "tasks", kind: str = "demo", **more: Any) -> str:
        """Adds a row, and answers with its id."""
        if ledger == "job":
            more.setdefault("tenant", A)
        response = self.client("admin").post(f"/api/ledgers/{ledger}/rows", json={"kind": kind, **more})
        assert response.status_code in (200, 201), response.text
        return response.json()["id"]

    def session(self, who: str) -> str:
        """The cookie's text of a session that somebody has begun."""

        async def begin(conn: Connection) -> str:
            caller = await tokens.verify(conn, self.tokens[who])
            assert caller
            return await tokens.open_session(conn, caller, 1)

        return on(self.settings, begin)

    def bury(self, id: str) -> str:
        """Makes a job a dead letter, as if its last run had failed."""
        self.query("update job set status = 'running' where id = %s and status = 'queued'", id)
        self.query(
            "update job set status = 'dead_letter', finished_at = now(), last_error_code = 'BOOM',"
            " last_error_message = 'BOOM: it broke' where id = %s",
            id,
        )
        return id

    def close(self) -> None:
        for client in self.clients:
            client.close()


@dataclass(frozen=True)
class Sent:
    """One server-sent event, or a comment."""

    event: str
    data: Any = None
    id: str | None = None


class Stream:
    """A stream of server-sent events that is being read."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def next(self) -> Sent | None:
        """The next event, or comment; None at the end."""
        found: dict[str, str] = {}
        for line in self._lines:
            if not line:
                return Sent(found.get("event", ""), json.loads(found["data"]), found.get("id"))
            if line.startswith(":"):
                next(self._lines)
                return Sent(":", line[1:].strip())
            name, _, value = line.partition(": ")
            found[name] = value
        return None

    def until(self, event: str) -> Sent:
        """The next event of that name."""
        while (sent := self.next()) is not None:
            if sent.event == event:
                return sent
        raise AssertionError(f"the stream has ended without {event!r}")

    def rest(self) -> list[Sent]:
        """All events until the end, without comments."""
        sent: list[Sent] = []
        while (one := self.next()) is not None:
            sent += [one] if one.event != ":" else []
        return sent


@contextmanager
def streaming(client: httpx.Client, url: str, **options: Any) -> Iterator[Stream]:
    """An open stream."""
    with client.stream("GET", url, **options) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response)


@contextmanager
def served_app(settings: Settings, app: Any) -> Iterator[Served]:
    """A server of an application, with tokens."""
    texts = on(settings, make_tokens)
    with serving(app) as url:
        served = Served(url, settings, texts)
        try:
            yield served
        finally:
            served.close()
