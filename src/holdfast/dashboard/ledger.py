"""A ledger: its lifecycle with live counts, its rows by a filter in its own words, and orders about all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from holdfast.api import actions
from holdfast.api.actions import Bulk, Order
from holdfast.api.auth import Actor, Here, Reader
from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.dashboard import diagram, forms, gather, phrases
from holdfast.dashboard.dress import page, reads, say, url
from holdfast.dashboard.live import Look, shown
from holdfast.engine.lifecycle import MEANING, PERSONAL
from holdfast.engine.roles import CodeError
from holdfast.engine.store import Store
from holdfast.engine.values import Filter, Page
from holdfast.errors import InvalidInput, NotFound
from holdfast.runtime.overview import LedgerView

router = APIRouter(include_in_schema=False)
NOTHING = Page((), None)


async def _fingerprint(look: Look) -> Any:
    store = look.site.store(look.caller, look.params["name"])
    view, _ = await look.reads.ledger(look.caller, store)
    found, _ = await _rows(look.site, look.caller, store, look.query)
    return [gather.of_view(view), gather.of_page(found)]


async def _rows(
    site: Site, caller: Caller, store: Store, query: Iterable[tuple[str, str]]
) -> tuple[Page, InvalidInput | None]:
    """The rows that a query means; none, and why, where it means nothing."""
    pairs = list(query)
    try:
        return await gather.rows(site, caller, store, forms.read(pairs), dict(pairs).get("cursor")), None
    except InvalidInput as error:
        return NOTHING, error


@router.get("/ledgers/{name}")
@shown(_fingerprint)
async def ledger(request: Request, name: str, caller: Reader, site: Here) -> HTMLResponse:
    """The page of a ledger."""
    store = site.store(caller, name)
    pairs = request.query_params.multi_items()
    view, now = await reads(request).ledger(caller, store)
    found, wrong = await _rows(site, caller, store, pairs)
    which = Filter() if wrong else forms.read(pairs)
    first, rest = forms.fields(
        store.ledger, pairs, tenant=caller.tenant is None, kinds=site.handlers.kinds(name)
    )
    return page(
        request,
        "ledger.html",
        caller,
        status=400 if wrong else 200,
        shown=[gather.of_view(view), gather.of_page(found)],
        ledger=store.ledger,
        view=view,
        now=now,
        picture=_picture(request, view),
        found=found,
        wrong=wrong,
        which=which,
        filter_pairs=forms.write(which),
        first=first,
        rest=rest,
        older=_older(pairs, found),
        newer=_newer(pairs),
        orders=_orders(store, which, found) if caller.may("act") else (),
        coded=isinstance(store.ledger.errors, CodeError),
        edges=MEANING,
    )


def _picture(request: Request, view: LedgerView) -> Any:
    name = view.ledger.name
    return diagram.draw(
        view.ledger.lifecycle,
        {stat.state: stat for stat in view.stats},
        lambda state: url(request, f"/ledgers/{name}", {"state": state}),
        name=name,
    )


def _older(pairs: list[tuple[str, str]], found: Page) -> list[tuple[str, str]] | None:
    """The query of the page after this one."""
    if found.cursor is None:
        return None
    kept = [(name, value) for name, value in pairs if name not in ("cursor", "before")]
    way = forms.trail(pairs) + [value for name, value in pairs if name == "cursor"]
    return [*kept, ("cursor", found.cursor), *(("before", one) for one in way[-forms.TRAIL :])]


def _newer(pairs: list[tuple[str, str]]) -> list[tuple[str, str]] | None:
    """The query of the page before this one; after many pages back to the newest."""
    if "cursor" not in dict(pairs):
        return None
    kept = [(name, value) for name, value in pairs if name not in ("cursor", "before")]
    *way, last = forms.trail(pairs) or [""]
    return [*kept, *((("cursor", last),) if last else ()), *(("before", one) for one in way)]


def _orders(store: Store, which: Filter, found: Page) -> tuple[str, ...]:
    """What can be said about the rows of a filter: what one of their states allows."""
    states = which.states or store.ledger.states
    allowed = store.ledger.lifecycle.allowed
    return tuple(verb for verb in PERSONAL if found.rows and set(states) & set(allowed(verb)))


# -- all rows of a filter --------------------------------------------------------------------------------


@router.get("/ledgers/{name}/bulk/{verb}")
async def preview(request: Request, name: str, verb: str, caller: Actor, site: Here) -> HTMLResponse:
    """How many rows it would be; nothing is changed yet."""
    which = forms.read(request.query_params.multi_items())
    bulk = await _order(site, caller, name, _known(verb), which, dry_run=True)
    store = site.store(caller, name)
    return page(
        request,
        "bulk.html",
        caller,
        ledger=store.ledger,
        verb=verb,
        done=phrases.VERBS_DONE[verb],
        meaning=MEANING[_known(verb)],
        to=store.ledger.to(_known(verb)) if store.ledger.lifecycle.of(_known(verb)) else "",
        allowed=store.ledger.lifecycle.allowed(_known(verb)),
        bulk=bulk,
        which=which,
        filter_pairs=forms.write(which),
        everything=which == Filter(),
    )


@router.post("/ledgers/{name}/bulk/{verb}")
async def order(request: Request, name: str, verb: str, caller: Actor, site: Here) -> RedirectResponse:
    """Says it about every row of the filter."""
    form = await request.form()
    which = forms.read(forms.pairs_of(form))
    bulk = await _order(
        site,
        caller,
        name,
        _known(verb),
        which,
        reason=forms.text(form, "reason"),
        everything=form.get("everything") == "yes",
    )
    response = _back(request, f"/ledgers/{name}", forms.write(which))
    say(request, response, f"{phrases.rows(bulk.rows)} {phrases.VERBS_DONE[verb]}.")
    return response


async def _order(site: Site, caller: Caller, name: str, verb: Order, which: Filter, **how: Any) -> Bulk:
    """The action; an empty filter is looked at, and acted on only where somebody has said so."""
    everything = how.pop("everything", False) or how.get("dry_run", False)
    do = actions.cancel_where if verb == "cancel" else actions.requeue_where
    return await do(site, caller, name, which, everything=everything, **how)


def _known(verb: str) -> Order:
    if verb not in PERSONAL:
        raise NotFound(what="action", id=verb[:50])
    return cast("Order", verb)


# -- pause and resume ------------------------------------------------------------------------------------


@router.post("/ledgers/{name}/pause")
async def pause(request: Request, name: str, caller: Actor, site: Here) -> RedirectResponse:
    """Lets nothing more be claimed."""
    form = await request.form()
    queue = forms.text(form, "queue", 255)
    changed = await actions.pause(site, caller, name, queue, reason=forms.text(form, "reason"))
    response = _back(request, f"/ledgers/{name}")
    what = f"The queue {queue} of {name}" if queue else name
    say(request, response, f"{what} is paused." if changed else f"{what} was paused already.")
    return response


@router.post("/ledgers/{name}/resume")
async def resume(request: Request, name: str, caller: Actor, site: Here) -> RedirectResponse:
    """Lets rows be claimed again."""
    form = await request.form()
    queue = forms.text(form, "queue", 255)
    changed = await actions.resume(site, caller, name, queue)
    response = _back(request, f"/ledgers/{name}")
    what = f"The queue {queue} of {name}" if queue else name
    say(request, response, f"{what} goes on." if changed else f"{what} was not paused.")
    return response


def _back(request: Request, path: str, query: Any = None) -> RedirectResponse:
    return RedirectResponse(url(request, path, query), 303)
