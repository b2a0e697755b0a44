"""Jobs of the types full and incremental: one page of what has happened at the provider becomes signals.

One run is one page. When there is more, a follow-up job goes on where this one ended, in the same transaction
that ends it.
"""

from __future__ import annotations

import json

from holdfast.apps.connectors import connections, runs, signals, sync_state
from holdfast.apps.connectors.ledger import FULL
from holdfast.apps.connectors.protocol import Json, Page
from holdfast.apps.connectors.runs import Run
from holdfast.apps.connectors.service import Connectors
from holdfast.engine.outcomes import Cancel, Done, Outcome
from holdfast.engine.values import Item
from holdfast.runtime.context import Context


async def sync(service: Connectors, ctx: Context) -> Outcome:
    """Runs a full or an incremental job."""
    return await runs.run(service, ctx, _sync)


async def _sync(run: Run) -> Outcome:
    """Asks the provider for a page, with no transaction open, and keeps what it gave."""
    cursor = _first_cursor(run)
    async with run.service.connector(run.link.provider) as connector:
        page = await run.access.call(lambda account: connector.sync(account, cursor))
    return await _keep(run, cursor, page)


def _first_cursor(run: Run) -> Json:
    """Where the job begins: at its own cursor, else where the last one ended; a full one at the beginning."""
    text = run.ctx.job.payload
    own = None if text is None else json.loads(text)
    if own is None and run.ctx.job.kind != FULL:
        state, _ = sync_state.read(run.link.metadata, run.service.settings)
        own = state.cursor
    return unwrapped(own)


def unwrapped(cursor: Json) -> Json:
    """The cursor itself, of one that was written as {"value": …}.

    >>> unwrapped({"value": "t1"}), unwrapped({"value": 1, "page": 2})
    ('t1', {'value': 1, 'page': 2})
    """
    match cursor:
        case {"value": value, **others} if not others:
            return value
        case _:
            return cursor


async def _keep(run: Run, cursor: Json, page: Page) -> Outcome:
    """Signals, cursor, the job's end and its follow-up: all of it, or nothing when the claim is lost."""
    conn = await run.ctx.transaction(confined=False)
    link = await run.lock(conn)
    if isinstance(link, Cancel):
        return link
    stored = await signals.store(conn, link, page.signals)
    state, _ = sync_state.read(link.metadata, run.service.settings)
    if _is_to_move(run, cursor, unwrapped(state.cursor), page):
        await connections.merge_sync(conn, link.id, {"cursor": page.next_cursor})
    run.ctx.log.info("%d signals, %d of them new", len(page.signals), stored)
    return Done({"signals": stored}, then=_follow_up(run, cursor, page))


def _is_to_move(run: Run, began: Json, stored: Json, page: Page) -> bool:
    """Whether the connection's cursor becomes the page's.

    A full job moves it with its last page, unless it leaves out what came since the one that is there.
    An incremental one does while the cursor is the one that it began at: somebody who has reset it
    meanwhile, or a full job, knows better.
    """
    if page.next_cursor is None:
        return False
    if run.ctx.job.kind == FULL:
        tells_all = run.service.kind(run.link.provider).tells_all
        return not page.has_more and (tells_all or stored is None)
    return _spelled(stored) == _spelled(began)


def _follow_up(run: Run, began: Json, page: Page) -> tuple[Item, ...]:
    if not page.has_more or page.next_cursor is None:
        return ()
    if _spelled(unwrapped(page.next_cursor)) == _spelled(began):  # it would run for ever
        run.ctx.log.warning("the connector says that there is more, and stands still")
        return ()
    return (run.item(run.ctx.job.kind, cursor=page.next_cursor),)


def _spelled(cursor: Json) -> str:
    """A cursor as text, to compare: to Python, true is 1."""
    return json.dumps(cursor, sort_keys=True, default=str)
