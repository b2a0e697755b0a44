"""The connections of the web server: how many there may be, and how long a client may keep one waiting.

uvicorn closes an idle connection only after its first response, and asyncio logs a traceback for every
waiting connection when file descriptors run out. Here a request must arrive as a whole in time. At the
limit the connection whose request has been arriving longest gives way to a new one, so that half-sent
requests cannot shut others out; and if there is none, the one that has not read its response for longest. A
connection for which there is no descriptor is closed at once. A request that has arrived is cut only if its
client reads nothing of the response: long polls and streams last as long as they want.

Needs the extra `server`.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import math
import os
import resource
import socket
import sys
import termios
import time
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.api import problems

log = logging.getLogger("holdfast.server")
ACCEPT_BURST = 16  # connections accepted in one pass of the event loop
ACCEPT_QUEUE = 1024  # connections that the kernel keeps for us
# Beside the connections of clients and of the pool. It takes some passes of the loop from the moment a
# connection is accepted until the one that gives way to it is closed.
RESERVED_DESCRIPTORS = 64 + 6 * ACCEPT_BURST
MIN_CONNECTIONS = 16
READ_CHECK_SECONDS = 1.0  # between two looks whether a client reads
STALLED_SECONDS = 5.0  # without reading, after which a connection gives way at the limit
CLOSE_SECONDS = 1.0  # for what was written last to reach a client whose connection is closed
REPORT_SECONDS = 60.0  # between two log lines about the same trouble
PHRASES = {408: b"Request Timeout", 503: b"Service Unavailable"}
CODES = {408: problems.CODES[408], 503: problems.Unavailable.code}

_reports: dict[str, tuple[float, int]] = {}  # when it was last logged, and how often it happened since


def _report(trouble: str) -> None:
    """Log a trouble that may come thousands of times: once in a while, and how often it was."""
    last, count = _reports.get(trouble, (-REPORT_SECONDS, 0))
    now = time.monotonic()
    if now - last >= REPORT_SECONDS:
        log.warning("%s (%d times since the last report)", trouble, count + 1)
        last, count = now, -1
    _reports[trouble] = (last, count + 1)


class Listener(socket.socket):
    """A listening socket that closes new connections at once while no file descriptor is left."""

    _spare: int | None = None  # a descriptor to accept with when there is no other

    def listen(self, _backlog: int = ACCEPT_QUEUE, /) -> None:
        """Listen. asyncio's backlog is also the number of connections that it accepts at once: not ours."""
        super().listen(ACCEPT_QUEUE)
        self._keep_spare()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; `BlockingIOError` when there is none, or when it had to be refused."""
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        _report("out of file descriptors; closed a new connection")
        self._refuse()
        raise BlockingIOError

    def _refuse(self) -> None:
        if self._spare is None:
            time.sleep(0.01)  # nothing can be done but to wait, and the loop would come back at once
        else:
            os.close(self._spare)
            self._spare = None
            with suppress(OSError):
                super().accept()[0].close()
        self._keep_spare()

    def _keep_spare(self) -> None:
        if self._spare is None:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close it, and the spare descriptor."""
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None


def connection_limit(wanted: int, pooled: int) -> int:
    """Return how many clients may be connected, after raising the soft limit of descriptors as needed."""
    needed = wanted + pooled + RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            soft = allowed
    if soft < 0 or soft >= needed:
        return wanted
    limit = max(MIN_CONNECTIONS, wanted - (needed - soft))
    log.warning(
        "open connections limited to %d instead of %d by the descriptor limit %d", limit, wanted, soft
    )
    return limit


class Connections:
    """The connections of one server that wait for their client, each kind oldest first, and their limits.

    Of `arriving` the request has not arrived yet. `unread` have more to send than is buffered for a client;
    with the time at which it last took something.
    """

    def __init__(self, limit: int, request_seconds: float) -> None:
        self.limit, self.request_seconds = limit, request_seconds
        self.arriving: dict[HttpConnection, None] = {}
        self.unread: dict[HttpConnection, float] = {}


class HttpConnection(H11Protocol):
    """One connection of a client."""

    def __init__(self, all_connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = all_connections
        self._deadline: asyncio.TimerHandle | None = None
        self._read_check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > self._all.limit:
            _report(f"connection limit of {self._all.limit} reached; closed the one that waited longest")
            oldest = next(iter(self._all.arriving))  # this one, if all others have brought their request
            stalled, since = next(iter(self._all.unread.items()), (self, math.inf))
            if oldest is self and time.monotonic() - since > STALLED_SECONDS:
                stalled.transport.abort()
            else:
                oldest.give_up(503, "too many connections: try again later")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._forget_unread()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Begin to wait for a request, or stop to, as the connection is now."""
        waits = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and self not in self._all.unread
        if self.transport.is_closing() or not waits:
            self._forget()
        elif self._deadline is None:
            self._all.arriving[self] = None
            self._deadline = self.loop.call_later(self._all.request_seconds, self._expire)

    def _forget(self) -> None:
        self._all.arriving.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _should_upgrade(self) -> bool:
        return False  # and no line in the log for each request that asks for it

    def pause_writing(self) -> None:
        super().pause_writing()
        self._forget()
        self._all.unread[self] = time.monotonic()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_unread()
        self._watch()

    def _expect_reading(self) -> None:
        self._read_check = self.loop.call_later(READ_CHECK_SECONDS, self._check_reading, self._unread_bytes())

    def _check_reading(self, before: int) -> None:
        """Note whether the client has read anything since so many bytes waited; close if not for too long."""
        now = time.monotonic()
        if self._unread_bytes() < before:
            del self._all.unread[self]  # to the end: it is the last of those that read nothing
            self._all.unread[self] = now
        if now - self._all.unread[self] < self._all.request_seconds:
            self._expect_reading()
        else:
            _report(f"closed a connection whose client read nothing for {self._all.request_seconds:g} s")
            self.transport.abort()

    def _unread_bytes(self) -> int:
        """The bytes that the client has not taken, here and in the system's buffer."""
        queued = fcntl.ioctl(self.transport.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def _forget_unread(self) -> None:
        self._all.unread.pop(self, None)
        if self._read_check is not None:
            self._read_check.cancel()
            self._read_check = None

    def _expire(self) -> None:
        seconds = self._all.request_seconds
        _report(f"closed a connection whose request did not arrive within {seconds:g} s")
        self.give_up(408, f"the request did not arrive within {seconds:g} seconds")

    def give_up(self, status: int, detail: str) -> None:
        """Close the connection, with a response if a request has begun and has none yet."""
        self._forget()
        body_awaited = self.conn.their_state is h11.SEND_BODY
        if not self.cycle.response_started if body_awaited else self.conn.trailing_data[0]:
            # Not by h11: the application may still send its own response, which must find nothing changed.
            body = problems.respond(status, CODES[status], detail).body
            head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            named = (status, PHRASES[status], problems.MEDIA_TYPE.encode(), len(body))
            self.transport.write(head % named + bytes(body))
        if body_awaited:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
        self.loop.call_later(CLOSE_SECONDS, self.transport.abort)  # its client may not read
