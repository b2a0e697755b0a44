"""Watches the event loop of a worker from the heartbeat thread, and finds the run that blocks it."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import traceback
from contextlib import suppress
from types import FrameType

from holdfast import logs


class Watchdog:
    """Measures for how many seconds a loop has run no callback. Made in the thread of that loop.

    `check` is called again and again from another thread. Time in which the whole process stood still is not
    counted against the loop: the caller says how much time has passed for it.
    """

    def __init__(self) -> None:
        self.silent = 0.0  # seconds
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._answered = True

    def check(self, passed: float) -> float:
        """Return for how long the loop has been silent; `passed` are the seconds since the last check."""
        if self._answered:
            self.silent = 0.0
            self._answered = False
            with suppress(RuntimeError):  # a closed loop stays silent
                self._loop.call_soon_threadsafe(self._answer)
        else:
            self.silent += passed
        return self.silent

    def _answer(self) -> None:
        self._answered = True

    def stack(self) -> str:
        """Format what the loop's thread is doing now, from the step of the loop on."""
        frames = self._frames()
        steps = [place for place, frame in enumerate(frames) if _context(frame)]
        shown = frames[steps[-1] + 1 :] if steps else frames
        return "".join(
            line for frame in shown for line in traceback.format_list(traceback.extract_stack(frame, limit=1))
        )

    def run(self) -> logs.Run | None:
        """Return the run in whose context the loop's current step runs, also in a task of its handler."""
        contexts = [context for frame in self._frames() if (context := _context(frame))]
        return logs.run_in(contexts[-1]) if contexts else None

    def task(self) -> asyncio.Task[object] | None:
        """Return the task that the loop is stepping now."""
        return asyncio.current_task(self._loop)

    def _frames(self) -> list[FrameType]:
        """The frames of the loop's thread, outermost first."""
        frame = sys._current_frames().get(self._thread)  # pyright: ignore[reportPrivateUsage]
        frames: list[FrameType] = []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        return frames[::-1]


def _context(frame: FrameType) -> contextvars.Context | None:
    """The context in which this frame runs a callback of the loop; None for any other frame."""
    if frame.f_code is not asyncio.Handle._run.__code__:
        return None
    context = getattr(frame.f_locals.get("self"), "_context", None)
    return context if isinstance(context, contextvars.Context) else None
