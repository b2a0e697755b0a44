"""What was put away: the archived tables, and the backups with what can be done to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from holdfast.api.auth import Here
from holdfast.apps.system import backups
from holdfast.apps.system.answers import ShownBackup
from holdfast.apps.system.archive_query import Archived, archived
from holdfast.apps.system.bench import bench_of
from holdfast.apps.system.pages import views
from holdfast.apps.system.routes.common import Acting, Reading
from holdfast.dashboard import forms
from holdfast.dashboard.dress import page, say, url
from holdfast.db.system_settings import archive_url, backup_roots
from holdfast.errors import HoldfastError, InvalidBackup, InvalidInput
from holdfast.runtime.overview import clock

router = APIRouter(include_in_schema=False)
LONGEST = 1024  # characters of a location


@router.get("/system/archive")
async def show_archive(request: Request, caller: Reading, site: Here) -> HTMLResponse:
    """The page of what is archived."""
    found: Sequence[Archived] = ()
    wrong: str | None = None
    try:
        found = await archived(bench_of(site).archive)
    except HoldfastError as error:
        wrong = str(error)
    except OSError as error:
        wrong = f"the archive does not answer: {error.strerror or type(error).__name__}"
    async with site.connection() as conn:
        now = await clock(conn)
    return page(
        request,
        "system/archive.html",
        caller,
        status=503 if wrong else 200,
        tables=found,
        wrong=wrong,
        place=archive_url(site.settings).partition("?")[0],
        now=now,
        **views.HELPERS,
    )


@router.get("/system/backups")
async def show_backups(request: Request, caller: Reading, site: Here) -> HTMLResponse:
    """The page of all backups."""
    found = await asyncio.to_thread(backups.list_backups, site.settings)
    async with site.connection() as conn:
        now = await clock(conn)
    return page(
        request,
        "system/backups.html",
        caller,
        backups=[ShownBackup.of(info) for info in found],
        roots=backup_roots(site.settings),
        now=now,
        admin=caller.may("admin"),
        **views.HELPERS,
    )


@router.post("/system/backups")
async def verify(request: Request, caller: Acting, site: Here) -> RedirectResponse:
    """Reads every byte of a backup, and says whether it is what was written."""
    del caller
    name = forms.text(await request.form(), "name", LONGEST)
    if name is None:
        raise InvalidInput(field="name", message="is needed")
    place = backups.resolve_location(site.settings, name)
    try:
        manifest = await asyncio.to_thread(backups.verify_backup, place)
        told = f"{name} is whole: {views.size(manifest.bytes)}, {manifest.rows:,} rows."
    except InvalidBackup as error:
        told = f"{name} cannot be used: {error}"
    response = RedirectResponse(url(request, views.address("backups")), 303)
    say(request, response, told)
    return response
