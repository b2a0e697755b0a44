"""Ledgers over HTTP: which there are, how their rows live, how they do; and pause and resume."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from holdfast.api import actions
from holdfast.api.answers import Brief, Described, Ledgers
from holdfast.api.auth import ActingOperator, Here, Reader
from holdfast.api.figures import Paused, Statistics
from holdfast.api.models import REASON, STORABLE, Text

router = APIRouter(prefix="/api/ledgers", tags=["ledgers"])

LedgerName = Annotated[str, Path(description="The ledger's name.", examples=["job"])]
Queue = Annotated[Text | None, Query(description="One queue; left out: the whole ledger.")]


@router.get("", summary="List the ledgers")
async def every(caller: Reader, site: Here) -> Ledgers:
    """The ledgers that there are for the caller: within a tenant, only those whose rows have tenants."""
    seen = site.seen_by(caller).values()
    return Ledgers(ledgers=[Brief.of(one.ledger, site.handlers.kinds(one.ledger.name)) for one in seen])


@router.get("/{ledger}", summary="Describe a ledger")
async def describe(ledger: LedgerName, caller: Reader, site: Here) -> Described:
    """Its columns by what they are for, its states and what may be ordered in each, and its lifecycle."""
    store = site.store(caller, ledger)
    return Described.of(store.ledger, site.handlers.kinds(ledger))


@router.get("/{ledger}/stats", summary="How a ledger does")
async def stats(ledger: LedgerName, caller: Reader, site: Here, request: Request) -> Statistics:
    """Counts by state, the oldest that waits, throughput, and percentiles of latency and run time.

    On a large table, states of many rows are told by the planner's estimate: `exact` says so.
    """
    view, now = await request.app.state.reads.ledger(caller, site.store(caller, ledger))
    return Statistics.of(view, now)


@router.put("/{ledger}/pause", summary="Pause a ledger or a queue")
async def pause(
    ledger: LedgerName,
    caller: ActingOperator,
    site: Here,
    queue: Queue = None,
    reason: Annotated[
        str | None, Query(max_length=REASON, pattern=STORABLE, description="Why, for the record.")
    ] = None,
) -> Paused:
    """Nothing more is claimed from it; what runs already goes on. For operators."""
    changed = await actions.pause(site, caller, ledger, queue, reason=reason)
    return Paused(ledger=ledger, queue=queue, paused=True, changed=changed)


@router.delete("/{ledger}/pause", summary="Resume a ledger or a queue")
async def resume(ledger: LedgerName, caller: ActingOperator, site: Here, queue: Queue = None) -> Paused:
    """Rows are claimed from it again. A queue that was paused by itself stays paused. For operators."""
    changed = await actions.resume(site, caller, ledger, queue)
    return Paused(ledger=ledger, queue=queue, paused=False, changed=changed)
