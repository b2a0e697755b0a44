"""What the tests of `job` share: its rows and its record as plain SQL sees them, and whether both agree."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from holdfast import HoldfastError
from holdfast.db.pool import Connection
from runtime.support import PATIENCE, one, until

ONE, TWO = UUID(int=1), UUID(int=2)  # two organisations

ERRORS = ("retry", "exhaust", "reject", "lose")
JOBS = "select * from job order by id"
EVENTS = "select *, detail_json ->> 'verb' as verb from job_event order by job_id, seq"

# Who wrote the newest version of a row: rows that one statement wrote have the same answer.
JOB_WRITER = "select (xmin::text, cmin::text)::text from job where id = %s"
EVENT_WRITERS = "select (xmin::text, cmin::text)::text from job_event where job_id = %s order by seq"


async def rows(conn: Connection, query: str, *params: Any) -> list[dict[str, Any]]:
    """The answer of a query by its names."""
    return await (await conn.cursor(row_factory=dict_row).execute(query, params)).fetchall()


async def job(conn: Connection, id: UUID) -> dict[str, Any]:
    """A row of `job` by its names."""
    (row,) = await rows(conn, "select * from job where id = %s", id)
    return row


async def until_job(conn: Connection, id: UUID, status: str) -> dict[str, Any]:
    """Waits until the job has this status."""
    await until(conn, "select true from job where id = %s and status = %s::job_status", id, status)
    return await job(conn, id)


async def told(conn: Connection, id: UUID) -> list[dict[str, Any]]:
    """The events of a job in their order."""
    query = "select *, detail_json ->> 'verb' as verb from job_event where job_id = %s order by seq"
    return await rows(conn, query, id)


async def hops(conn: Connection, id: UUID) -> list[tuple[str | None, str]]:
    """The same as (prev, next)."""
    return [(event["prev_status"], event["next_status"]) for event in await told(conn, id)]


async def verbs(conn: Connection, id: UUID) -> list[str]:
    """The same as verbs."""
    return [event["verb"] for event in await told(conn, id)]


async def everything(conn: Connection) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All jobs and all events, to see that nothing at all has changed."""
    return await rows(conn, JOBS), await rows(conn, EVENTS)


async def answer(asked: Any) -> Any:
    """What an awaitable answers, also if it is one of our errors."""
    try:
        return await asked
    except HoldfastError as error:
        return error


async def until_blocked(watcher: Connection, by: Connection) -> None:
    """Waits until somebody waits for a lock that `by` holds."""
    query = "select count(*) > 0 from pg_stat_activity where %s = any(pg_blocking_pids(pid))"
    await until(watcher, query, by.info.backend_pid)


async def agree(conn: Connection) -> None:
    """Every job is what its events tell: J-32, J-34 and J-35, judged independently of the engine."""
    events = itertools.groupby(await rows(conn, EVENTS), key=lambda event: event["job_id"])
    history = {key: list(part) for key, part in events}
    for row in await rows(conn, JOBS):
        _follows(row, history.pop(row["id"], []))
    assert history == {}


def _follows(row: dict[str, Any], events: list[dict[str, Any]]) -> None:
    assert events, f"nothing was told of {row}"
    error: tuple[str | None, str | None] = (None, None)
    before = None
    for event in events:
        assert event["prev_status"] == before
        before = event["next_status"]
        if event["verb"] in ERRORS:
            error = (event["detail_json"]["error"]["code"], event["detail_json"]["error"]["message"])
        elif event["verb"] == "finish":
            error = (None, None)
    last = events[-1]
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    detail = last["detail_json"]
    assert (last["next_status"], detail["attempt"], detail["fence"]) == (
        row["status"],
        row["attempt"],
        row["fence"],
    )
    assert (row["last_error_code"], row["last_error_message"]) == error
    assert (row["worker_id"] is not None) == (row["status"] == "running")
    ended = row["status"] in ("succeeded", "canceled", "dead_letter")
    assert row["finished_at"] == (last["ts"] if ended else None)
    assert row["updated_at"] == last["ts"]


async def wait_for(event: asyncio.Event) -> None:
    """Waits for a signal of a handler, but not for ever."""
    async with asyncio.timeout(PATIENCE):
        await event.wait()


async def runs_of(conn: Connection, id: UUID) -> int:
    """How often a job was claimed."""
    query = "select count(*) from job_event where job_id = %s and next_status = 'running'"
    return await one(conn, query + " and prev_status = 'queued'", id)
