"""Rows over HTTP: enqueue, list, get, timeline, explain, cancel, requeue, and bulks of both."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Path, Query, Request, Response
from starlette.convertors import Convertor, register_url_convertor

from holdfast.api import actions
from holdfast.api.answers import (
    Counted,
    Event,
    Explanation,
    Page,
    Receipt,
    Receipts,
    Row,
    Timeline,
    WholeRow,
)
from holdfast.api.auth import Actor, Here, Reader
from holdfast.api.caller import Caller
from holdfast.api.ledgers import LedgerName
from holdfast.api.models import Batch, Bulk, Enqueue, RowsQuery, Text, Why
from holdfast.api.site import Site
from holdfast.engine import reading
from holdfast.engine.intake import INT8
from holdfast.errors import InvalidInput

router = APIRouter(prefix="/api/ledgers/{ledger}", tags=["rows"])
orders = APIRouter(prefix="/api/ledgers/{ledger}", tags=["orders"])


class _Id(Convertor[str]):
    """An id as a part of an address. It may have any character, but does not end like what is asked of it."""

    regex = r"(?!.*/(?:timeline|explain|wait|cancel|requeue|resend)$).+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("row", _Id())
RowId = Annotated[str, Path(description="The row's id.", min_length=1, max_length=1024)]
Responses = dict[int | str, dict[str, Any]]
LOCATION = {"Location": {"description": "The row's address.", "schema": {"type": "string"}}}
EXISTED: Responses = {
    201: {"description": "The row was added.", "headers": LOCATION},
    200: {"description": "The key was taken, by this row.", "model": Receipt, "headers": LOCATION},
}
KNOWN: Responses = {200: {"description": "All keys were taken: nothing was added.", "model": Receipts}}


@router.get("/rows", summary="List rows")
async def listing(
    ledger: LedgerName, caller: Reader, site: Here, query: Annotated[RowsQuery, Query()]
) -> Page:
    """Rows, the newest first. `state` can be repeated. `cursor` of the answer is for the next page."""
    store = site.store(caller, ledger)
    which = reading.within(store.ledger, query.filter(), caller.tenant)
    async with site.confined(caller, store) as (conn, _):
        page = await store.find(conn, which, limit=query.limit, cursor=query.cursor)
    return Page(rows=[Row.of(store.ledger, row) for row in page.rows], cursor=page.cursor)


@router.post("/rows", summary="Enqueue a row", status_code=201, responses=EXISTED)
async def enqueue(
    ledger: LedgerName,
    caller: Actor,
    site: Here,
    body: Enqueue,
    request: Request,
    response: Response,
    idempotency_key: Annotated[
        Text | None, Header(alias="Idempotency-Key", description="Another way to give `key`.")
    ] = None,
) -> Receipt:
    """Adds one row. With a key that is taken already, nothing is added and the answer is 200."""
    if None not in (body.key, idempotency_key) and body.key != idempotency_key:
        raise InvalidInput(field="key", message="is not what the header Idempotency-Key says")
    receipt = await actions.enqueue(site, caller, ledger, body.item(body.key or idempotency_key))
    response.status_code = 201 if receipt.created else 200
    if receipt.id is not None:
        root = quote(request.scope.get("root_path", ""))
        response.headers["Location"] = f"{root}/api/ledgers/{ledger}/rows/{quote(str(receipt.id), safe='')}"
    return Receipt.of(receipt)


@router.post("/rows/batch", summary="Enqueue many rows", status_code=201, responses=KNOWN)
async def batch(ledger: LedgerName, caller: Actor, site: Here, body: Batch, response: Response) -> Receipts:
    """Adds up to 1000 rows, all or none. The answers are in the order of the items."""
    items = [one.item(one.key) for one in body.items]
    receipts = await actions.enqueue_many(site, caller, ledger, items)
    response.status_code = 201 if any(receipt.created for receipt in receipts) else 200
    return Receipts(receipts=[Receipt.of(receipt) for receipt in receipts])


@router.get("/rows/{id:row}", summary="Get a row")
async def get(ledger: LedgerName, id: RowId, caller: Reader, site: Here, request: Request) -> WholeRow:
    """One row, with its result and how far it has come where the ledger's journal tells it."""
    store = site.store(caller, ledger)
    return WholeRow.of(store.ledger, await request.app.state.reads.row(caller, store, id))


@router.get("/rows/{id:path}/timeline", summary="What happened to a row")
async def timeline(
    ledger: LedgerName,
    id: RowId,
    caller: Reader,
    site: Here,
    after: Annotated[int, Query(ge=0, lt=INT8.stop, description="The events after this one.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 1000,
) -> Timeline:
    """The row's events in their order. Ledgers without a journal have none."""
    store = site.store(caller, ledger)
    async with site.confined(caller, store) as (conn, tenant):
        found = await store.timeline(conn, id, tenant=tenant, after=after, limit=limit)
    more = found[-1].seq if len(found) == limit else None
    return Timeline(events=[Event.model_validate(event) for event in found], after=more)


@router.get("/rows/{id:path}/explain", summary="Why is this row not running?")
async def explain(ledger: LedgerName, id: RowId, caller: Reader, site: Here, request: Request) -> Explanation:
    """One sentence, a code for programs, and the facts that it follows from."""
    found = await request.app.state.reads.explain(caller, site.store(caller, ledger), id)
    return Explanation(code=found.code, sentence=found.sentence, facts=dict(found.facts))


@orders.post("/rows/{id:path}/cancel", summary="Cancel a row")
async def cancel(
    ledger: LedgerName, id: RowId, caller: Actor, site: Here, body: Why | None = None
) -> WholeRow:
    """Calls a row off, at once, whoever holds it. Answers with the row as it is then."""
    row = await actions.cancel(site, caller, ledger, id, reason=body and body.reason)
    return WholeRow.of(site.store(caller, ledger).ledger, row)


@orders.post("/rows/{id:path}/requeue", summary="Requeue a row")
async def requeue(
    ledger: LedgerName, id: RowId, caller: Actor, site: Here, body: Why | None = None
) -> WholeRow:
    """Lets a row that ended badly run again, with all its attempts. Answers with the row as it is then."""
    row = await actions.requeue(site, caller, ledger, id, reason=body and body.reason)
    return WholeRow.of(site.store(caller, ledger).ledger, row)


@orders.post("/cancel", summary="Cancel all rows that a filter means")
async def cancel_where(ledger: LedgerName, caller: Actor, site: Here, body: Bulk) -> Counted:
    """Calls off every row that the filter means and whose state allows it. A dry run counts them only."""
    return await _bulk(actions.cancel_where, site, caller, ledger, body)


@orders.post("/requeue", summary="Requeue all rows that a filter means")
async def requeue_where(ledger: LedgerName, caller: Actor, site: Here, body: Bulk) -> Counted:
    """Lets every row that the filter means and whose state allows it run again. A dry run counts only."""
    return await _bulk(actions.requeue_where, site, caller, ledger, body)


async def _bulk(do: actions.BulkOrder, site: Site, caller: Caller, ledger: str, body: Bulk) -> Counted:
    which = body.filter.filter()
    done = await do(
        site, caller, ledger, which, reason=body.reason, dry_run=body.dry_run, everything=body.all
    )
    return Counted(rows=done.rows, dry_run=body.dry_run, exact=done.exact)
