"""The schemas of the platform: those in which its declared tables lie."""

from __future__ import annotations

from holdfast.apps.system.registry import Connection, SchemaRegistry
from holdfast.errors import NotFound


async def schemas_of(conn: Connection, registry: SchemaRegistry) -> tuple[str, ...]:
    """The schemas of all tables that are ours; one that is not there lies in none."""
    found: set[str] = set()
    for declared in registry.declared.values():
        if declared.builtin:
            try:
                found.add((await registry.definition(conn, declared)).schema)
            except NotFound:
                continue
    return tuple(sorted(found))
