"""A psycopg connection whose calls end although the network is silent.

Through a half-open connection a call would wait until the kernel gives up, which takes minutes, or for ever
behind a proxy that is alive. Cancelling the call does not help: psycopg then asks the server, over the
network, to cancel the statement. Shutting the socket down frees the call at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

import psycopg
from psycopg.rows import TupleRow

log = logging.getLogger("holdfast.db")

CANCEL_SECONDS = 1.0  # how long the server has to confirm that it cancelled a statement


class Connection(psycopg.AsyncConnection[TupleRow]):
    """A connection with an optional `deadline`: the seconds after which a call on it fails.

    A call that took longer fails with `OperationalError`, and the connection is closed. A cancelled call ends
    within `CANCEL_SECONDS`, whether the server answers or not.
    """

    deadline: float | None = None
    _severed = False
    _interrupted = False

    def sever(self) -> None:
        """Shut the socket down: whatever waits on this connection fails now. For its own thread alone."""
        self._severed = True
        if not self.closed:
            with socket.socket(fileno=os.dup(self.fileno())) as wire:
                try:
                    wire.shutdown(socket.SHUT_RDWR)
                except OSError as error:  # the other side was quicker
                    log.debug("socket was shut down already: %s", error)

    async def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call to its end, or to the deadline."""
        timer = None
        if self.deadline is not None:
            timer = asyncio.get_running_loop().call_later(self.deadline, self._expire, self.deadline)
        self._interrupted = False
        try:
            return await super().wait(*args, **kwargs)
        except psycopg.Error:
            if self._interrupted:  # it was cancelled first, and severed because the server did not answer
                raise asyncio.CancelledError from None
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _expire(self, seconds: float) -> None:
        log.warning("database call not answered within %g s; closing its connection", seconds)
        self.sever()

    async def _try_cancel(self, *, timeout: float = CANCEL_SECONDS) -> None:
        """Called by psycopg when a call is cancelled while the server works on it."""
        self._interrupted = True
        if self._severed:
            return
        try:
            await self.cancel_safe(timeout=min(timeout, CANCEL_SECONDS))
        except Exception as error:
            log.warning("statement could not be cancelled (%s); closing its connection", error)
            self.sever()
