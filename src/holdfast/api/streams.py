"""Waiting over HTTP: a long poll for the end of one row, and server-sent events for what changes."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import psycopg
from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.api import auth, problems
from holdfast.api.answers import Event, Waited, WholeRow
from holdfast.api.auth import Here, Reader
from holdfast.api.caller import Caller
from holdfast.api.figures import Stat
from holdfast.api.ledgers import LedgerName
from holdfast.api.limits import Places
from holdfast.api.models import Text
from holdfast.api.problems import Unavailable
from holdfast.api.rows import Responses, RowId
from holdfast.api.site import Site
from holdfast.api.watch import WINDOW, Box, Full, Watch
from holdfast.engine import reading
from holdfast.engine.looks import BATCH
from holdfast.engine.store import Store
from holdfast.engine.values import Change
from holdfast.errors import HoldfastError, InvalidInput, NotFound

log = logging.getLogger("holdfast.api")
router = APIRouter(prefix="/api/ledgers/{ledger}", tags=["waiting"])
KEEP_ALIVE = 15.0  # seconds of silence until a stream says that it is still there
RECHECK = 30.0  # seconds until a stream looks again whether its caller may still read
LONGEST = 60.0  # seconds of one long poll
MOST = 100  # rows of one stream
EVENT_ID = re.compile(r"(\d{1,17})\.(\d{1,19})")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SENT = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["row", "gone", "end", "event", "stats"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
        "id": {"type": "string", "description": "Of an `event`: what `Last-Event-ID` takes."},
    },
    "required": ["event", "data"],
}
STREAM: Responses = {
    200: {
        "description": "Server-sent events.",
        "content": {"text/event-stream": {"schema": SENT}},
    }
}


@router.get("/rows/{id:path}/wait", summary="Wait until a row has ended")
async def wait(
    ledger: LedgerName,
    id: RowId,
    caller: Reader,
    site: Here,
    request: Request,
    seconds: Annotated[
        float, Query(ge=0, le=LONGEST, allow_inf_nan=False, description="How long to wait at most.")
    ] = 30,
) -> Waited:
    """Answers when the row has ended, or after so many seconds with `ended` false: then ask again."""
    store = site.store(caller, ledger)
    row = await _row(site, caller, store, id)
    if row.ended or seconds == 0:
        return Waited(ended=row.ended, row=row)
    watch: Watch = request.app.state.watch
    deadline = time.monotonic() + seconds
    with (
        request.app.state.limits.waits.one(caller.token_id or caller.who),
        watch.rows(store).box([reading.key_of(store.ledger, id)]) as box,
    ):
        while (left := deadline - time.monotonic()) > 0 and not row.ended:
            if await box.get(left):
                row = await _row(site, caller, store, id)
    return Waited(ended=row.ended, row=row)


class EventStream(StreamingResponse):
    """Server-sent events, in one of a process's places for streams."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncGenerator[bytes], places: Places, caller: Caller) -> None:
        super().__init__(content, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._generator, self._places, self._caller = content, places, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as place:
            try:
                place.enter_context(self._places.one(self._caller.token_id or self._caller.who))
            except Unavailable as error:
                await problems.of(error)(scope, receive, send)
                return
            try:
                await super().__call__(scope, receive, send)
            finally:
                await self._generator.aclose()


@router.get(
    "/stream", summary="Stream what changes", status_code=200, responses=STREAM, response_class=EventStream
)
async def stream(
    ledger: LedgerName,
    caller: Reader,
    site: Here,
    request: Request,
    id: Annotated[
        list[Text] | None, Query(max_length=MOST, description="Rows to follow; can be repeated.")
    ] = None,
    seconds: Annotated[
        float | None,
        Query(gt=0, le=86400, allow_inf_nan=False, description="How long at most; left out: until you go."),
    ] = None,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            pattern=r"^[0-9]{1,17}\.[0-9]{1,19}$",
            description="Goes on after this event. The last ten seconds before it may be told again.",
        ),
    ] = None,
) -> EventStream:
    """Server-sent events.

    With `id`: `row` for the state of each row and whenever it changes, `gone` for a row that was deleted,
    and `end` when all have ended. Without, on a ledger with a journal: `event` for everything that happens to
    any row from now on; on one without: `stats` whenever the counts change.
    """
    store = site.store(caller, ledger)
    reading.tenant_of(store.ledger, caller.tenant)
    followed = _Followed(request, caller, store, None if seconds is None else time.monotonic() + seconds)
    if id:
        keys = {reading.key_of(store.ledger, one): one for one in id}
        first = {key: await _row(site, caller, store, key) for key in keys}
        content = followed.rows(first)
    elif store.ledger.journal:
        content = followed.events(_moment(last_event_id))
    else:
        content = followed.counts()
    return EventStream(_guarded(content), request.app.state.limits.streams, caller)


class _Followed:
    """One stream: who reads it, and what it tells."""

    def __init__(self, request: Request, caller: Caller, store: Store, until: float | None) -> None:
        self._request, self._caller, self._store, self._until = request, caller, store, until
        self._site: Site = request.app.state.site
        self._watch: Watch = request.app.state.watch
        self._checked = time.monotonic()

    async def rows(self, known: dict[Any, WholeRow]) -> AsyncGenerator[bytes]:
        """The rows, each change of them, and the end."""
        for row in known.values():
            yield _told("row", row)
        with self._watch.rows(self._store).box(known) as box:
            while not all(row.ended for row in known.values()):
                message = await self._next(box)
                if message is None:
                    return
                for key in sorted(message or (), key=str):
                    row = await self._again(key)
                    if row is None:
                        yield _told("gone", {"id": known.pop(key).id}) if key in known else b""
                    elif row != known.get(key):
                        known[key] = row
                        yield _told("row", row)
                if not message:
                    yield b": still here\n\n"
        yield _told("end", {"rows": len(known)})

    async def _again(self, key: Any) -> WholeRow | None:
        try:
            return await _row(self._site, self._caller, self._store, key)
        except NotFound:
            return None

    async def events(self, since: datetime | None) -> AsyncGenerator[bytes]:
        """Everything that happens to any row."""
        feed = self._watch.events(self._store, self._caller.tenant)
        with feed.box() as box:
            await feed.ready()
            window, sent = feed.since, set[int]()  # what we tell first, and the feed may tell, too
            yield b": listening\n\n"
            async for change in self._before(since) if since else _nothing():
                if change.at >= window:
                    sent.add(change.seq)
                yield _event(change)
            while (change := await self._next(box)) is not None:
                if not change:
                    yield b": still here\n\n"
                elif change.seq not in sent:
                    yield _event(change)

    async def _before(self, since: datetime) -> AsyncGenerator[Change]:
        """What happened since then until now, page by page."""
        after = -1
        while True:
            async with self._site.confined(self._caller, self._store) as (conn, tenant):
                page = await self._store.changes(conn, since, after=after, tenant=tenant, limit=BATCH)
            for change in page:
                yield change
            if len(page) < BATCH:
                return
            since, after = page[-1].at, page[-1].seq

    async def counts(self) -> AsyncGenerator[bytes]:
        """The counts, whenever they change."""
        with self._watch.counts(self._store, self._caller.tenant).box() as box:
            while (stats := await self._next(box)) is not None:
                if not stats:
                    yield b": still here\n\n"
                    continue
                states = [Stat.model_validate(stat).model_dump(mode="json") for stat in stats]
                yield _told("stats", {"ledger": self._store.ledger.name, "states": states})

    async def _next(self, box: Box) -> Any:
        """The next message, nothing after some silence, and None when the stream must end."""
        now = time.monotonic()
        if self._until is not None and now >= self._until:
            return None
        if now - self._checked >= RECHECK:
            self._checked = now
            found = await auth.still_known(self._request)
            if found is None or auth.within(found, self._request.headers.get("x-tenant-id")) != self._caller:
                return None
        patience = min(KEEP_ALIVE, RECHECK - (now - self._checked))
        if self._until is not None:
            patience = min(patience, self._until - now)
        message = await box.get(patience)
        return () if message is None else message


async def _guarded(content: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Ends a stream quietly when it cannot go on: its reader comes back by itself."""
    try:
        async for chunk in content:
            yield chunk
    except Full:
        log.info("a stream's reader was too slow")
    except (psycopg.Error, HoldfastError) as error:
        log.warning("a stream ended: %s: %s", type(error).__name__, error)
    finally:
        await content.aclose()


async def _nothing() -> AsyncGenerator[Change]:
    for change in ():
        yield change


async def _row(site: Site, caller: Caller, store: Store, id: Any) -> WholeRow:
    async with site.confined(caller, store) as (conn, tenant):
        return WholeRow.of(store.ledger, await store.get(conn, id, tenant=tenant))


def _event(change: Change) -> bytes:
    moment = (change.at - EPOCH) // timedelta(microseconds=1)
    event = Event.model_validate(change).model_dump(mode="json")
    return _told("event", {"id": str(change.id), **event}, f"{moment}.{change.seq}")


def _told(name: str, data: BaseModel | dict[str, Any], id: str | None = None) -> bytes:
    text = data.model_dump_json() if isinstance(data, BaseModel) else json.dumps(data, ensure_ascii=False)
    number = f"id: {id}\n" if id else ""
    return f"{number}event: {name}\ndata: {text}\n\n".encode()


def _moment(last_event_id: str | None) -> datetime | None:
    """From when on to read again, so that nothing is missed."""
    if last_event_id is None:
        return None
    found = EVENT_ID.fullmatch(last_event_id)
    if found is None:
        raise InvalidInput(field="Last-Event-ID", message="is not one that a stream gave out")
    return EPOCH + timedelta(microseconds=int(found[1])) - WINDOW
