"""Processes for handlers that compute: each runs one call at a time and can be killed alone.

A pool from the standard library breaks as a whole when one of its processes dies; here a call that runs
over its time, is called off, or takes its process down with it, costs that one process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import psycopg

from holdfast.engine.outcomes import Crashed

_spawn = multiprocessing.get_context("spawn")


class ProcessDied(Exception):
    """The process of a handler ended before it answered."""


def serve(pipe: Connection) -> None:
    """The life of one process: read a call, make it, answer, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which stops its processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        try:
            call = pipe.recv_bytes()
        except EOFError:
            return
        pipe.send_bytes(_answer(call))


def _answer(call: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(call)  # noqa: S301  from our own worker, over our own pipe
        return pickle.dumps(function(*arguments))
    except Exception as error:
        return pickle.dumps(crash_of(error))


def crash_of(error: BaseException) -> Crashed:
    """An exception as an ordinary bad run."""
    name = type(error).__name__
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    try:
        return Crashed(name, f"{name}: {error}", "".join(traceback.format_exception(error)), state)
    except Exception:  # an error that cannot even be told
        return Crashed(name, name)


class Processes:
    """Processes on demand, kept for the next call, and killed when their call is dropped."""

    def __init__(self) -> None:
        self._idle: list[tuple[Any, Connection]] = []

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls the function in a process. Cancelling this kills that process."""
        call = pickle.dumps((function, arguments))
        process, pipe = self._kept() or await asyncio.to_thread(self._start)
        try:
            pipe.send_bytes(call)
            await _readable(pipe)
            answer = pickle.loads(pipe.recv_bytes())  # noqa: S301
        except (EOFError, OSError):
            await asyncio.to_thread(process.join, 5)
            pipe.close()
            raise ProcessDied(f"its process ended with exit code {process.exitcode}") from None
        except asyncio.CancelledError:
            process.kill()
            pipe.close()
            raise
        self._idle.append((process, pipe))
        return answer

    def _kept(self) -> tuple[Any, Connection] | None:
        while self._idle:
            process, pipe = self._idle.pop()
            if process.is_alive():
                return process, pipe
            pipe.close()  # killed while it waited, which is no fault of the next call
        return None

    def _start(self) -> tuple[Any, Connection]:
        ours, theirs = _spawn.Pipe()
        process = _spawn.Process(target=serve, args=(theirs,), daemon=True, name="holdfast handler")
        process.start()
        theirs.close()
        return process, ours

    async def close(self) -> None:
        """Ends the idle processes."""
        idle, self._idle = self._idle, []
        for _, pipe in idle:
            pipe.close()
        for process, _ in idle:
            await asyncio.to_thread(process.join, 5)


async def _readable(pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(pipe.fileno(), lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(pipe.fileno())
