"""One connection: how it does, its last jobs, signals and webhooks, and what can be done about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.datastructures import FormData
from starlette.responses import Response

from holdfast.api.auth import Actor, Here, Reader
from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.apps.connectors import actions, listing
from holdfast.apps.connectors import signals as told
from holdfast.apps.connectors.inbox import Stored
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.connectors.listing import Job
from holdfast.apps.connectors.pages import common, views
from holdfast.apps.connectors.pages.connections import mark, viewed
from holdfast.apps.connectors.pages.views import View
from holdfast.apps.connectors.protocol import Provider
from holdfast.apps.connectors.routes.common import Service
from holdfast.apps.connectors.service import Connectors, clock
from holdfast.apps.connectors.signals import StoredSignal
from holdfast.dashboard import forms
from holdfast.dashboard.dress import page, say, url
from holdfast.dashboard.lists import uuid_of
from holdfast.dashboard.live import Look, shown
from holdfast.engine.store import Connection
from holdfast.engine.values import Json
from holdfast.errors import Conflict, InvalidInput, NotFound

router = APIRouter(include_in_schema=False)
JOBS, SIGNALS, DELIVERIES = 10, 8, 8  # the last ones that the page shows
LONGEST_CURSOR = 100_000  # characters that are typed

# What is asked about before it is done: the question, and what would become of it.
CONFIRMED: Mapping[str, tuple[str, str]] = {
    "full": (
        "Sync everything once more?",
        "The account is read from its beginning, which may take long, and counts towards the limits of the"
        " provider. What is known already is not told twice.",
    ),
    "reset": (
        "Forget the cursor?",
        "The next sync begins at the beginning of the account. What is known already is not told twice.",
    ),
    "disconnect": (
        "Disconnect the account?",
        "Its tokens are removed for good, its jobs are cancelled, and the provider is told if it listens."
        " What it has brought stays. Connecting the same account again revives it.",
    ),
}
WORDS: Mapping[str, str] = {
    "sync": "Sync now",
    "full": "Full re-sync",
    "pause": "Pause",
    "resume": "Resume",
    "disconnect": "Disconnect",
    "reset": "Reset the cursor",
}


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A connection and what has lately happened around it."""

    now: datetime
    view: View
    provider: Provider | None
    jobs: tuple[Job, ...]
    signals: tuple[StoredSignal, ...]
    deliveries: tuple[Stored, ...]

    @property
    def mark(self) -> list[Any]:
        """What the page shows."""
        return [
            mark(self.view),
            [(job.id, job.status, job.attempts, job.retry_after) for job in self.jobs],
            [signal.id for signal in self.signals],
            [(one.delivery_id, views.delivery_state(one), one.attempts) for one in self.deliveries],
        ]


async def _fingerprint(look: Look) -> Any:
    return (await _gather(look.site, Connectors.of(look.site), look.caller, look.params["id"])).mark


@router.get("/connectors/connections/{id}")
@shown(_fingerprint)
async def show(request: Request, id: str, caller: Reader, site: Here, service: Service) -> HTMLResponse:
    """The page of a connection."""
    return await _page(request, caller, site, service, id)


async def _page(
    request: Request,
    caller: Caller,
    site: Site,
    service: Connectors,
    id: str,
    wrong: InvalidInput | None = None,
    typed: Mapping[str, str] | None = None,
) -> HTMLResponse:
    whole = await _gather(site, service, caller, id)
    return page(
        request,
        "connectors/connection.html",
        caller,
        status=400 if wrong else 200,
        shown=whole.mark,
        whole=whole,
        seen=whole.view,
        link=whole.view.link,
        told=views.sentence(whole.view, whole.now),
        ledger=SYNC_JOBS,
        words=WORDS,
        confirmed=CONFIRMED,
        fault=views.fault(whole.view.health.last_error),
        fault_of=views.fault,
        wrong=wrong,
        typed=typed or {},
        least=60,
        most=service.settings.sync_max_interval_seconds,
        address=common.address,
        state_of=views.delivery_state,
        moods=views.DELIVERIES,
    )


async def _gather(site: Site, service: Connectors, caller: Caller, id: str) -> Whole:
    async with site.connection() as conn:
        link = await actions.find(conn, common.whose(caller), uuid_of("id", id))
        tenant, now = link.tenant_id, await clock(conn)
        (seen,) = await viewed(conn, service, (link,), now)
        jobs = await listing.jobs(conn, tenant, connection_id=link.id, limit=JOBS)
        signals = await told.find(conn, tenant, connection_id=link.id, limit=SIGNALS, payload=False)
        deliveries = await listing.deliveries(conn, tenant, connection_id=link.id, limit=DELIVERIES)
    return Whole(
        now=now,
        view=seen,
        provider=_provider(service, link.provider),
        jobs=jobs.items,
        signals=signals.items,
        deliveries=deliveries.items,
    )


def _provider(service: Connectors, slug: str) -> Provider | None:
    try:
        return service.provider(slug)
    except NotFound:  # one of the user's own, in another application
        return None


# -- what can be done ------------------------------------------------------------------------------------


@router.get("/connectors/connections/{id}/{verb}")
async def ask(
    request: Request, id: str, verb: str, caller: Actor, site: Here, service: Service
) -> HTMLResponse:
    """Asks whether it is meant; nothing is changed yet."""
    if verb not in CONFIRMED:
        raise NotFound(what="action", id=verb[:50])
    whole = await _gather(site, service, caller, id)
    if verb != "reset" and verb not in whole.view.orders:
        raise Conflict(what="connection", message=f"it is {whole.view.link.status}: this cannot be done")
    question, meaning = CONFIRMED[verb]
    return page(
        request,
        "connectors/confirm.html",
        caller,
        seen=whole.view,
        verb=verb,
        word=WORDS[verb],
        question=question,
        meaning=meaning,
        address=common.address,
    )


@router.post("/connectors/connections/{id}")
async def order(request: Request, id: str, caller: Actor, site: Here, service: Service) -> Response:
    """Does what a button says; what was typed wrongly is shown again."""
    form = await request.form()
    try:
        async with site.connection() as conn:
            said = await _do(service, conn, caller, id, form)
    except InvalidInput as error:
        texts = {name: value for name, value in forms.pairs_of(form) if name in ("cursor", "interval")}
        if not texts:
            raise
        return await _page(request, caller, site, service, id, error, texts)
    response = RedirectResponse(url(request, common.address("connections", id)), 303)
    say(request, response, said)
    return response


async def _do(service: Connectors, conn: Connection, caller: Caller, id: str, form: FormData) -> str:
    """Does it, and answers with what the next page says."""
    which = caller, common.whose(caller), uuid_of("id", id)
    match form.get("verb"):
        case "sync":
            asked = await actions.sync_now(service, conn, *which)
            return "A sync is asked for." if asked.created else "One was waiting or running already."
        case "full":
            asked = await actions.full_resync(service, conn, *which)
            return "A full re-sync is asked for." if asked.created else "One was waiting or running already."
        case "pause":
            await actions.pause(conn, *which)
            return "The connection is paused."
        case "resume":
            await actions.resume(service, conn, *which)
            return "The connection goes on."
        case "disconnect":
            await actions.disconnect(service, conn, *which)
            return "The account is disconnected."
        case "reset":
            await actions.reset_cursor(conn, *which)
            return "The cursor is forgotten: the next sync begins at the beginning."
        case "cursor":
            await actions.set_cursor(conn, *which, _json(form))
            return "The cursor is set."
        case "interval":
            link = await actions.set_interval(service, conn, *which, _seconds(form))
            return f"It is synced every {link.metadata['sync']['interval_seconds']} seconds."
        case _:
            raise InvalidInput(field="verb", message=f"must be one of {', '.join(WORDS)}, cursor, interval")


def _json(form: FormData) -> Json:
    text = forms.text(form, "cursor", LONGEST_CURSOR)
    if text is None:
        raise InvalidInput(field="cursor", message="is empty: reset it, if the beginning is meant")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(field="cursor", message=f"is no JSON: {error}") from None


def _seconds(form: FormData) -> Json:
    text = forms.text(form, "interval", 20) or ""
    return int(text) if text.isascii() and text.isdigit() else text
