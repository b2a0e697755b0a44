"""The log of system jobs over HTTP: what was written, and what is being written."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import psycopg
from fastapi import APIRouter, Header, Query, Request

from holdfast.api import auth
from holdfast.api.auth import Here
from holdfast.api.caller import Caller
from holdfast.api.streams import KEEP_ALIVE, RECHECK, EventStream, Responses
from holdfast.apps.system import actions
from holdfast.apps.system.answers import LogLine, Logs
from holdfast.apps.system.bench import Bench, bench_of
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.logreading import CURSOR
from holdfast.apps.system.routes.common import TAG, JobId, Reading
from holdfast.apps.system.types import read_id
from holdfast.errors import HoldfastError, NotFound

log = logging.getLogger("holdfast.api")
router = APIRouter(prefix="/system/jobs/{id}/logs", tags=[TAG])
EVERY = 0.5  # seconds between two looks at the file
MOST = 1000  # lines that are read at once
PATTERN = f"^{CURSOR.pattern.replace('(', '(?:')}$"
SENT = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["line", "end"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
        "id": {"type": "string", "description": "What `Last-Event-ID` takes."},
    },
    "required": ["event", "data"],
}
STREAM: Responses = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": SENT}}}
}
After = Annotated[
    str | None, Query(pattern=PATTERN, description="Only lines after this cursor, of an earlier answer.")
]


@router.get("", summary="Read what a system job has told")
async def get_logs(
    id: JobId,
    _: Reading,
    site: Here,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=MOST, description="How many lines at most.")] = MOST,
) -> Logs:
    """Its lines in jobs.log, the oldest first, out of the rotated files as well. The log is that of the
    machine that answers; it outlives the job's row.
    """
    bench, key = bench_of(site), read_id(id)
    reading = await asyncio.to_thread(bench.log.read, key, after=after, limit=limit)
    if not reading.lines:
        await actions.show(bench, key)
    return Logs(lines=[LogLine.of(line) for line in reading.lines], cursor=reading.cursor)


@router.get(
    "/stream",
    summary="Stream what a system job tells",
    status_code=200,
    responses=STREAM,
    response_class=EventStream,
)
async def stream_logs(
    id: JobId,
    caller: Reading,
    site: Here,
    request: Request,
    after: After = None,
    seconds: Annotated[
        float | None,
        Query(gt=0, le=86400, allow_inf_nan=False, description="How long at most; left out: to its end."),
    ] = None,
    last_event_id: Annotated[
        str | None,
        Header(alias="Last-Event-ID", pattern=PATTERN, description="Goes on after this line."),
    ] = None,
) -> EventStream:
    """Server-sent events: `line` for each line, from the first on, and `end` when the job has ended."""
    bench = bench_of(site)
    row = await actions.show(bench, id)
    until = None if seconds is None else time.monotonic() + seconds
    content = _lines(request, caller, bench, str(row.id), last_event_id or after, until)
    return EventStream(_guarded(content), request.app.state.limits.streams, caller)


async def _guarded(content: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Ends a stream quietly when it cannot go on: its reader comes back by itself."""
    try:
        async for chunk in content:
            yield chunk
    except (psycopg.Error, HoldfastError) as error:
        log.warning("a stream ended: %s: %s", type(error).__name__, error)
    finally:
        await content.aclose()


async def _lines(
    request: Request, caller: Caller, bench: Bench, id: str, after: str | None, until: float | None
) -> AsyncGenerator[bytes]:
    said = checked = time.monotonic()
    ended = False  # known before the look that finds nothing more
    while True:
        reading = await asyncio.to_thread(bench.log.read, id, after=after, limit=MOST)
        after = reading.cursor
        for place, line in enumerate(reading.lines, 1):
            told = LogLine.of(line).model_dump(mode="json")
            yield _event("line", told, after if place == len(reading.lines) else None)
        now = time.monotonic()
        if reading.lines:
            said = now
        elif ended:
            yield _event("end", {"id": id}, after)
            return
        else:
            ended = await _has_ended(bench, id)
            if not ended:
                if now - said >= KEEP_ALIVE:
                    said = now
                    yield b": still here\n\n"
                await asyncio.sleep(EVERY)
        if until is not None and time.monotonic() >= until:
            return
        if now - checked >= RECHECK:
            checked = now
            if await auth.still_known(request) != caller:
                return


async def _has_ended(bench: Bench, id: str) -> bool:
    try:
        row = await actions.show(bench, id)
    except NotFound:
        return True
    return row.state in bench.stores[NAME].ledger.ends


def _event(name: str, data: dict[str, Any], cursor: str | None) -> bytes:
    number = f"id: {cursor}\n" if cursor else ""
    return f"{number}event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
