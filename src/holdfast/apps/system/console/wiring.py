"""What the console gets of an application that is open: its jobs, and the tables that are declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.apps.system import actions
from holdfast.apps.system.bench import Bench, Connection
from holdfast.apps.system.console import look
from holdfast.apps.system.console.run import Context, Target
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.registry import Declared, SchemaRegistry
from holdfast.apps.system.types import JobType
from holdfast.errors import NotFound


async def context_of(bench: Bench) -> Context:
    """The context of statements, on this bench."""
    jobs = bench.stores[NAME].ledger.table

    async def create(
        kind: JobType, parameters: Mapping[str, Any], /, *, by: str, key: str | None = None
    ) -> actions.Made:
        return await actions.create(bench, kind, parameters, by=by, key=key)

    async def cancel(id: str, /, *, by: str) -> str:
        return (await actions.cancel(bench, id, by=by)).state

    async def active(kind: JobType, target: Target) -> tuple[str, str] | None:
        return await look.active(bench.database, jobs, kind, target.names)

    async with bench.database.connection() as conn:
        known = [one for one in bench.registry.declared.values() if one.kind != "kept"]
        targets = [await _target(conn, bench.registry, one) for one in known]
    return Context(
        database=bench.database, create=create, cancel=cancel, active=active, targets=targets, jobs=jobs
    )


async def _target(conn: Connection, registry: SchemaRegistry, declared: Declared) -> Target:
    """A declared table by its full name: where it lies, only the catalogue knows. A missing one is called so,
    and whoever wants a job for it is told.
    """
    name = declared.table
    try:
        found = await registry.definition(conn, declared)
        name = f"{found.schema}.{found.name}"
    except NotFound:
        pass
    return Target(name=name, declared=declared.name, spelled=declared.table, ledger=declared.kind == "ledger")
