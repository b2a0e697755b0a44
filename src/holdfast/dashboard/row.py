"""A row: its life drawn to scale, all that it holds, why it is where it is, and what can be done to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from holdfast.api import actions
from holdfast.api.auth import Actor, Here, Reader
from holdfast.dashboard import forms, gather, phrases, timeline
from holdfast.dashboard.dress import page, reads, say, url
from holdfast.dashboard.live import Look, shown
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import MEANING, PERSONAL
from holdfast.engine.roles import CodeError, JsonError, TraceError
from holdfast.engine.values import Json, Row
from holdfast.errors import InvalidInput

router = APIRouter(include_in_schema=False)
LISTED = 200  # events that the list shows, the newest


async def _fingerprint(look: Look) -> Any:
    store = look.site.store(look.caller, look.params["name"])
    return await gather.glance(look.site, look.reads, look.caller, store, look.params["id"])


@router.get("/ledgers/{name}/rows/{id:path}")
@shown(_fingerprint)
async def row(request: Request, name: str, id: str, caller: Reader, site: Here) -> HTMLResponse:
    """The page of a row."""
    store = site.store(caller, name)
    whole = await gather.row(site, reads(request), caller, store, id)
    ledger, found = store.ledger, whole.row
    story = (
        timeline.told_by_events(ledger, found, whole.events, whole.now)
        if whole.events
        else timeline.told_by_row(ledger, found, whole.now)
    )
    return page(
        request,
        "row.html",
        caller,
        shown=gather.of_row(whole),
        ledger=ledger,
        whole=whole,
        row=found,
        story=story,
        picture=timeline.draw(ledger, story, name=f"{ledger.name} {found.id}"),
        told=timeline.told(story),
        facts=facts(ledger, found),
        fault=fault(ledger, found),
        listed=(whole.events or ())[-LISTED:],
        unlisted=max(0, len(whole.events or ()) - LISTED),
        orders=orders(ledger, found) if caller.may("act") else (),
        edges=MEANING,
        here=address(name, found.id),
    )


@router.post("/ledgers/{name}/rows/{id:path}")
async def order(request: Request, name: str, id: str, caller: Actor, site: Here) -> RedirectResponse:
    """Cancels the row or requeues it."""
    form = await request.form()
    verb, reason = form.get("verb"), forms.text(form, "reason")
    match verb:
        case "cancel":
            await actions.cancel(site, caller, name, id, reason=reason)
        case "requeue":
            await actions.requeue(site, caller, name, id, reason=reason)
        case _:
            raise InvalidInput(field="verb", message="must be cancel or requeue")
    response = RedirectResponse(url(request, address(name, id)), 303)
    say(request, response, f"The row is {phrases.VERBS_DONE[verb]}.")
    return response


def address(name: str, id: Any) -> str:
    """The path of a row's page."""
    return f"/ledgers/{name}/rows/{quote(str(id), safe='')}"


def orders(ledger: Ledger, row: Row) -> tuple[str, ...]:
    """What a person may say about this row now."""
    return tuple(verb for verb in ledger.lifecycle.verbs(row.state) if verb in PERSONAL)


def facts(ledger: Ledger, row: Row) -> list[tuple[str, Any]]:
    """Names and values worth seeing, in the ledger's words; what is empty is left out."""
    columns = row.columns
    named = (
        ledger.tenant and ledger.tenant.name,
        ledger.queue,
        ledger.priority,
        ledger.requester,
        ledger.policy,
    )
    found: list[tuple[str, Any]] = [
        (ledger.key.column, row.id),
        *((name, columns.get(name)) for name in named if name),
        *((extra.name, columns.get(extra.name)) for extra in ledger.extras),
    ]
    if ledger.idempotency and ledger.idempotency.column != ledger.key.column:
        found.append((ledger.idempotency.column, columns.get(ledger.idempotency.column)))
    if row.trace:
        found.append((ledger.trace or "trace", row.trace))
    return [(name, value) for name, value in found if value not in (None, "")]


def fault(ledger: Ledger, row: Row) -> Mapping[str, Any] | None:
    """The last error: its class where there is one, its text, and its trace where one was kept."""
    if not row.error:
        return None
    columns, code, trace = row.columns, None, None
    match ledger.errors:
        case CodeError(code=column):
            code = columns.get(column)
        case JsonError(column=column):
            code = _part(columns.get(column), "code")
        case TraceError(trace=column):
            trace = columns.get(column)
        case _:
            pass
    head, _, rest = row.error.partition("\n")
    return {"code": code, "head": head, "rest": rest.strip("\n"), "trace": trace}


def _part(value: Json, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
