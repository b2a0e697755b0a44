"""What the tests of schedules share: days as captured, an extractor that is told what to read, and workers.

`Script` is the extractor: it answers with the day that was put down for a session, or does a step. A step may
stop at a `Stop`, which tells that it was reached and waits until the test lets it go on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from holdfast import Holdfast, Settings
from holdfast.apps.schedules import intake
from holdfast.apps.schedules.app import app as schedules_app
from holdfast.apps.schedules.intake import Picture
from holdfast.apps.schedules.ledger import NOTICES, SESSIONS, sessions
from holdfast.apps.schedules.senders import Sender
from holdfast.apps.schedules.values import Image, Session
from holdfast.db.pool import Connection
from holdfast.engine.store import Store
from holdfast.runtime.worker import Worker
from runtime.support import PATIENCE, until

DAY = "2026-03-02"
USER = 42
# Whoever waits in this database, and not in that of a test beside: for any lock, or at the gate of a trigger.
WAITING = (
    "select pid from pg_locks join pg_stat_activity using (pid)"
    " where not granted and datname = current_database()"
)
AT_THE_GATE = f"{WAITING} and locktype = 'advisory' and objid = 7 limit 1"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def entry(
    start: str = "09:00",
    end: str = "18:00",
    title: str = "Marie Sjöberg Städservice",
    location: str = "Billdal",
    address: str | None = "Valebergsvägen 316",
) -> dict[str, str]:
    """One line of a day."""
    told = {"start": start, "end": end, "title": title, "location": location}
    return told if address is None else told | {"address": address}


def day(*entries: Mapping[str, str], date: str = DAY) -> dict[str, Any]:
    """A day as an extractor reads it."""
    return {"schedule_date": date, "entries": list(entries)}


class Stop:
    """Where a step waits: `await stop.reached()` in the test, then `stop.go()`."""

    def __init__(self) -> None:
        self._here, self._go = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        self._here.set()
        await self._go.wait()

    async def reached(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._here.wait()

    def go(self) -> None:
        self._go.set()

    def then(self, answer: Any) -> Callable[..., Any]:
        """A step that waits here before it answers."""

        async def step(*_: Any) -> Any:
            await self.wait()
            return answer

        return step


@dataclass
class Script:
    """The extractor of the tests: what it reads, by session, else `usual`; and what it was asked."""

    usual: Any = field(default_factory=lambda: day(entry()))
    steps: dict[UUID, Any] = field(default_factory=dict[UUID, Any])
    asked: list[tuple[UUID, tuple[str, ...]]] = field(default_factory=list[tuple[UUID, tuple[str, ...]]])
    needs_images: bool = False

    async def extract(self, session: Session, images: Sequence[Image]) -> Any:
        self.asked.append((session.id, tuple(image.r2_key for image in images)))
        step = self.steps.get(session.id, self.usual)
        if isinstance(step, list):
            step = step.pop(0)
        if isinstance(step, BaseException):
            raise step
        answer = step(session, images) if callable(step) else step
        return await answer if inspect.isawaitable(answer) else answer


@dataclass
class Stage:
    """An application with the script as its extractor, and what tests ask of it."""

    app: Holdfast
    script: Script

    @property
    def sessions(self) -> Store:
        return self.app.stores[SESSIONS]

    @property
    def hasty(self) -> dict[str, Store]:
        """What takes any pending session, however young."""
        return {SESSIONS: Store(sessions(self.app.settings, hasty=True))}

    @property
    def notices(self) -> Store:
        return self.app.stores[NOTICES]

    async def capture(
        self, user: int = USER, read: Any = None, *, keys: Sequence[str] = (), conn: Connection | None = None
    ) -> UUID:
        """Adds a session, and puts down what is read in it."""
        pictures = [Picture(r2_key=key) for key in keys]
        if conn is not None:
            session = await intake.add(conn, self.sessions, user, pictures)
        else:
            async with self.app.database.connection() as own:
                session = await intake.add(own, self.sessions, user, pictures)
        if read is not None:
            self.script.steps[session] = read
        return session

    async def work(self, **options: Any) -> None:
        """Runs a worker until nothing is left to do."""
        await self.worker(**options).run(until_idle=True)

    async def take_over(self, session: UUID) -> None:
        """Takes a session from a worker whose lease ends now, and does it.

        That one may renew the lease once more: it looks after its rows when its doorbell is there.
        """
        ends = "update schedule_ingest.capture_session set locked_at = null where id = %s"
        async with asyncio.timeout(PATIENCE):
            while (await self.session(session))["state"] != "done":
                await self.do(ends, session)
                await self.work()

    def worker(self, **options: Any) -> Worker:
        return self.app.worker(**{"ledgers": [SESSIONS], **options})

    async def observe(self, *reads: Any, user: int = USER) -> list[UUID]:
        """Captures one day after the other, each processed before the next comes."""
        ids: list[UUID] = []
        for read in reads:
            ids.append(await self.capture(user, read))
            await self.work()
        return ids

    async def rows(self, query: str, *params: Any) -> list[dict[str, Any]]:
        async with self.app.database.connection() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(query, params)  # type: ignore[arg-type]
            return await cursor.fetchall()

    async def do(self, query: str, *params: Any) -> int:
        async with self.app.database.connection() as conn:
            return (await conn.execute(query, params)).rowcount  # type: ignore[arg-type]

    async def session(self, session: UUID) -> dict[str, Any]:
        (row,) = await self.rows("select * from schedule_ingest.capture_session where id = %s", session)
        return row

    async def attempts(self, session: UUID) -> list[dict[str, Any]]:
        return await self.rows(
            "select * from schedule_ingest.capture_attempt where session_id = %s order by attempt", session
        )

    async def reaches(self, id: UUID, state: str) -> None:
        """Waits until a session has this state."""
        query = "select true from schedule_ingest.capture_session where id = %s and state = %s::text::{}"
        async with self.app.database.connection() as conn:
            await until(conn, query.format("schedule_ingest.capture_session_state"), id, state)

    async def outcomes(self, session: UUID) -> list[str | None]:
        return [row["outcome"] for row in await self.attempts(session)]

    async def versions(self, user: int = USER, date: str = DAY) -> list[dict[str, Any]]:
        return await self.rows(
            "select * from schedule_ingest.schedule_version where user_id = %s and schedule_date = %s"
            " order by version",
            user,
            date,
        )

    async def events(self, user: int = USER, date: str = DAY) -> list[dict[str, Any]]:
        return await self.rows(
            "select * from schedule_ingest.schedule_event where user_id = %s and schedule_date = %s"
            " order by detected_at, event_type, event_id",
            user,
            date,
        )

    async def snapshot(self, user: int = USER, date: str = DAY) -> dict[str, Any] | None:
        rows = await self.rows(
            "select * from schedule_ingest.day_snapshot where user_id = %s and schedule_date = %s", user, date
        )
        return rows[0] if rows else None

    async def messages(self, user: int = USER) -> list[dict[str, Any]]:
        return await self.rows(
            "select * from schedule_ingest.schedule_notification where user_id = %s"
            " order by created_at, notification_id",
            user,
        )


def fitted(settings: Settings, **changes: Any) -> Settings:
    """Settings under which nothing waits: sessions are ready at once."""
    names = {
        "idle_timeout_seconds": 0,
        "poll_seconds": 0.05,
        "delivery_poll_seconds": 1.0,
        "extractor": "script",
    }
    told = {f"schedules_{name}": value for name, value in (names | changes).items()}
    # On a busy machine a worker may be silent for long, and must not be given up for it: leases count here.
    return replace(settings, worker_timeout=60.0, **told)


@asynccontextmanager
async def stage(
    settings: Settings, script: Script | None = None, *, sender: Sender | None = None, **changes: Any
) -> AsyncIterator[Stage]:
    """An open application whose extractor follows the script."""
    script = script or Script()
    told = {"delivery": "own"} if sender else {}

    class Named:
        needs_images = script.needs_images

        def __call__(self, _: Settings) -> Script:
            return script

    app = Holdfast(
        fitted(settings, **(told | changes)),
        apps=[schedules_app(extractors={"script": Named()}, sender=sender)],
    )
    async with app:
        yield Stage(app, script)
