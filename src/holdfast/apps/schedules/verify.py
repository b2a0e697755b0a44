"""Reads the record day by day and has it judged. Each page is of one moment: nobody needs to stop working.

Neither memory nor the length of a transaction grows with the number of days.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from holdfast.apps.schedules import looks, verify_queries
from holdfast.apps.schedules.looks import StoredEvent
from holdfast.apps.schedules.record import Problem, Report, Version
from holdfast.apps.schedules.truth import Kept, Origin, Snapshot, Told, problems
from holdfast.engine.store import Connection
from holdfast.errors import InvalidInput, NotFound

PAGE = 100  # days that are read at one moment
MOST_PROBLEMS = 100  # that a report lists; it counts all
FIRST_USER = -(2**63)

Tell = Callable[[int, int], None]  # days and events so far


@dataclass(frozen=True, kw_only=True)
class Key:
    """Whose day, and which."""

    user_id: int
    schedule_date: date


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """Which version is current."""

    user_id: int
    schedule_date: date
    version: int


async def verify(
    conn: Connection, *, user_id: int | None = None, day: date | None = None, tell: Tell | None = None
) -> Report:
    """Compares the events with the snapshots, and versions and messages with what they must be.

    Of all days, of one user's, or of one day, which is `NotFound` if it was never seen. `tell` hears now and
    then how far it has come.
    """
    reader = Reader(conn, tell)
    if day is not None:
        if user_id is None:
            raise InvalidInput(field="user_id", message="must be given with a day: every user has that day")
        key = Key(user_id=looks.user(user_id), schedule_date=day)
        async with looks.one_moment(conn):
            kept = await reader.read([key])
        if all(one.empty for one in kept):
            raise NotFound(what=f"day of user {key.user_id}", id=day)
        reader.judge(kept)
    else:
        await reader.all(None if user_id is None else looks.user(user_id))
    return reader.report()


class Reader:
    """One verification on its way: how far it has come, and what it has found."""

    def __init__(self, conn: Connection, tell: Tell | None) -> None:
        self.conn, self.tell = conn, tell
        self.days = self.versions = self.events = self.notices = self.found = 0
        self.problems: list[Problem] = []

    async def all(self, user_id: int | None) -> None:
        """Page after page."""
        params: dict[str, Any] = {"user_id": user_id, "limit": PAGE}
        params |= {"after_user": FIRST_USER, "after_day": verify_queries.BEGINNING}
        query = verify_queries.keys(of_user=user_id is not None)
        while True:
            async with looks.one_moment(self.conn):
                keys = await looks.rows(self.conn, Key, query, params)
                kept = await self.read(keys)
            self.judge(kept)
            if self.tell:
                self.tell(self.days, self.events)
            if len(keys) < PAGE:
                return
            params |= {"after_user": keys[-1].user_id, "after_day": keys[-1].schedule_date}

    async def read(self, keys: Sequence[Key]) -> list[Kept]:
        """All that is recorded of some days."""
        days = {(key.user_id, key.schedule_date): Kept(**vars(key)) for key in keys}
        these = {"users": [key.user_id for key in keys], "days": [key.schedule_date for key in keys]}
        for pointer in await looks.rows(self.conn, Pointer, verify_queries.POINTERS, these):
            days[pointer.user_id, pointer.schedule_date].pointer = pointer.version
        for snapshot in await looks.rows(self.conn, Snapshot, verify_queries.SNAPSHOTS, these):
            days[snapshot.user_id, snapshot.schedule_date].snapshot = snapshot
        for origin in await looks.rows(self.conn, Origin, verify_queries.ORIGINS, these):
            days[origin.user_id, origin.schedule_date].origin = origin
        for version in await looks.rows(self.conn, Version, verify_queries.VERSIONS, these):
            days[version.user_id, version.schedule_date].versions.append(version)
        for event in await looks.rows(self.conn, StoredEvent, verify_queries.EVENTS, these):
            days[event.user_id, event.schedule_date].events.append(event)
        for notice in await looks.rows(self.conn, Told, verify_queries.NOTICES, these):
            days[notice.user_id, notice.schedule_date].notices.append(notice)
        return list(days.values())

    def judge(self, kept: Sequence[Kept]) -> None:
        """Notes what is not true."""
        for one in kept:
            self.days += 1
            self.versions += len(one.versions)
            self.events += len(one.events)
            self.notices += len(one.notices)
            for what in problems(one):
                self.found += 1
                if self.found <= MOST_PROBLEMS:
                    self.problems.append(
                        Problem(user_id=one.user_id, schedule_date=one.schedule_date, what=what)
                    )

    def report(self) -> Report:
        """What was found."""
        return Report(
            days=self.days,
            versions=self.versions,
            events=self.events,
            notifications=self.notices,
            found=self.found,
            problems=tuple(self.problems),
        )
