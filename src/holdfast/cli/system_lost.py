"""`holdfast system restore --without-job`: where the very tables are lost that a job would need."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.cli import application, output
from holdfast.errors import InvalidInput, MigrationError, SchemaOutdated

if TYPE_CHECKING:
    from holdfast.apps.system.bench import Bench
    from holdfast.db.database import Database
    from holdfast.db.settings import Settings
    from holdfast.engine.store import Store
    from holdfast.platform import Holdfast
    from holdfast.runtime.app import App


@dataclass(frozen=True, kw_only=True)
class Bare:
    """An application on an open database, whatever is left of its tables there."""

    settings: Settings
    stores: Mapping[str, Store]
    apps: tuple[App, ...]
    database: Database


@asynccontextmanager
async def _opened(app: Holdfast) -> AsyncGenerator[Bench]:
    """Its bench; nothing is upgraded or refused, as an application does that opens."""
    from holdfast.apps.system.bench import bench_of
    from holdfast.db.database import open_database

    settings = app.settings  # read first: the ledgers are fitted to them
    async with open_database(settings) as database:
        yield bench_of(Bare(settings=settings, stores=app.stores, apps=app.apps, database=database))


def restore(app: Holdfast, given: Any, json: bool) -> None:
    """Restores in this process, and tells it."""
    logged, told = application.run(_restore(app, given))
    if json:
        output.data({"id": logged, "status": "completed", "message": told})
    else:
        output.line(output.readable(f"{logged} completed: {told}"))


async def _restore(app: Holdfast, given: Any) -> tuple[str, str]:
    from holdfast.apps.system import parameters
    from holdfast.apps.system.executors.restore import without_job
    from holdfast.apps.system.types import JobType

    params: Any = parameters.read(JobType.RESTORE, given)
    async with _opened(app) as bench:
        return await without_job(params, bench)


def advise(app: Holdfast, error: Exception) -> None:
    """Raises what helps, when no job could be made because its tables are lost; else does nothing."""
    from psycopg.errors import UndefinedTable

    outdated = isinstance(error, SchemaOutdated) and error.fields.get("current") != "none"
    if outdated or not isinstance(error, (UndefinedTable, MigrationError, SchemaOutdated)):
        return
    if not application.run(_can_be_a_job(app)):
        message = "is needed here: tables of the platform are lost, and no job can be made"
        raise InvalidInput(field="--without-job", message=message) from error


async def _can_be_a_job(app: Holdfast) -> bool:
    from holdfast.apps.system.executors.restore import can_be_a_job

    async with _opened(app) as bench:
        return await can_be_a_job(bench)
