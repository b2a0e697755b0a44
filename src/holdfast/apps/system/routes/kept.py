"""What was put away, over HTTP: the archive and the backups; and the console."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from holdfast.api.auth import Here
from holdfast.api.description import problems
from holdfast.apps.system import orders
from holdfast.apps.system.answers import Answered, Backups, Said, ShownArchive, ShownBackup
from holdfast.apps.system.archive_query import archived
from holdfast.apps.system.backups import list_backups
from holdfast.apps.system.bench import bench_of
from holdfast.apps.system.places import answering
from holdfast.apps.system.routes.common import TAG, WORDS, Administering, Reading, detailed
from holdfast.db.system_settings import archive_url

router = APIRouter(prefix="/system", tags=[TAG])


@router.get("/archive", summary="What is archived", responses=problems(WORDS, 409))
async def get_archive(_: Reading, site: Here) -> ShownArchive:
    """The archived tables with their files, rows and bytes, as the manifests tell it."""
    place = archive_url(site.settings).partition("?")[0]
    with answering():
        return ShownArchive.of(place, await archived(bench_of(site).archive))


@router.get("/backups", summary="List backups")
async def get_backups(_: Reading, site: Here) -> Backups:
    """The backups below the folders for them, the newest first. Their files are not looked at: a restore
    does that before it begins.
    """
    found = await asyncio.to_thread(list_backups, site.settings)
    return Backups(backups=[ShownBackup.of(info) for info in found])


@router.post("/sql", summary="Say a statement of the console", responses=problems(WORDS, 404, 409))
async def say_statement(caller: Administering, site: Here, body: Said) -> Answered:
    """Does what one statement of the console says, and answers with columns, rows and a message.

    The console knows KILL JOB, STORAGE FLUSH, STORAGE COMPACT, BACKUP, RESTORE, SHOW JOBS, and SELECT from
    `system.jobs`. For administrators. A refused statement tells the position of what is wrong in `details`.
    """
    with detailed():
        return Answered.of(await orders.say(site, caller, body.statement))
