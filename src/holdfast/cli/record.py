"""What people do from the shell goes into the same audit as what is done over HTTP."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.engine.store import Connection

log = logging.getLogger("holdfast.audit")


def who(by: str | None) -> str:
    """Who does it, told apart from those who come over HTTP."""
    return f"cli:{by or 'somebody'}"


async def note(conn: Connection, by: str | None, action: str, **what: Any) -> int | None:
    """Writes an entry; None for a login that may not. Who has such a login answers for it elsewhere."""
    import psycopg

    from holdfast.api import audit
    from holdfast.api.caller import Caller

    try:
        async with conn.transaction():
            return await audit.note(conn, Caller(who=who(by), scope="admin"), action, **what)
    except psycopg.errors.InsufficientPrivilege:
        log.debug("this login may not write the audit: %s is not in it", action)
        return None


async def settle(conn: Connection, entry: int | None, rows: int | None, **detail: Any) -> None:
    """Adds to an entry what became of it."""
    from holdfast.api import audit

    if entry is not None:
        await audit.settle(conn, entry, rows, **detail)
