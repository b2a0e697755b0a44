"""What is told while sessions are processed: one line an event, with its facts as fields."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

log = logging.getLogger("holdfast.schedules")
SERVICE = "holdfast.schedules"


def tell(
    event: str,
    *,
    session: UUID | None = None,
    user: int | None = None,
    level: int = logging.INFO,
    **facts: Any,
) -> None:
    """Logs an event: for people as its name and facts, for collectors as fields."""
    if not log.isEnabledFor(level):
        return
    told: dict[str, Any] = {name.replace("__", "."): fact for name, fact in facts.items() if fact is not None}
    fields: dict[str, Any] = {
        "timestamp": datetime.now(UTC).isoformat(),
        "service": SERVICE,
        "event": event,
        **told,
    }
    if session is not None:
        fields |= {"session_id": str(session), "user_id": user, "correlation_id": str(session)}
    shown = " ".join(f"{name}={fact}" for name, fact in told.items())
    log.log(level, "%s", f"{event} {shown}".rstrip(), extra=fields)


class Iterations:
    """Tells of a worker's rounds when they begin and end; of idle ones the first, then one of `every`."""

    def __init__(self, every: int, passed_over: Callable[[], Awaitable[Sequence[tuple[UUID, int]]]]) -> None:
        self.every = every
        self.number = 0
        self._passed_over = passed_over
        self._looking: asyncio.Task[None] | None = None
        self._open = False
        self._sessions = self._running = self._idle = 0

    def heard(self, claimed: int | Exception) -> None:
        """A poll for sessions is over: so many were found, or this is why it failed."""
        if isinstance(claimed, Exception):
            tell(
                "iteration.error",
                level=logging.WARNING,
                iteration=self.number,
                error__type=type(claimed).__name__,
                error__message=" ".join(str(claimed).split()),
                error__stage="db",
            )
            return
        if claimed:
            self._begin()
            self._idle = 0
            self._sessions += claimed
            self._running += claimed
        elif not self._open:
            if self._idle % self.every == 0:
                self._begin()
                self._end()
                self._looking = asyncio.create_task(self._look())
            self._idle += 1

    async def _look(self) -> None:
        """Tells of sessions that wait although there is time for them: their pictures may still be coming."""
        for session, user in await self._passed_over():
            tell("session.skipped_idle", session=session, user=user)

    def ended(self) -> None:
        """A session's run is over."""
        self._running -= 1
        if self._open and self._running <= 0:
            self._end()

    def _begin(self) -> None:
        if not self._open:
            self.number += 1
            self._open = True
            tell("iteration.start", iteration=self.number)

    def _end(self) -> None:
        tell("iteration.end", iteration=self.number, sessions=self._sessions)
        self._open, self._sessions, self._running = False, 0, 0
