"""Confines a transaction to one tenant, by the database's own row level security. Never opens a connection.

The role and the setting last for one transaction (SET LOCAL), so that no later user of a pooled connection
inherits a tenant.
"""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection
from psycopg.errors import InsufficientPrivilege, InvalidParameterValue

from holdfast.engine import intake, sql
from holdfast.engine.ledger import Ledger
from holdfast.errors import InvalidInput, NotAllowed


async def confine(conn: AsyncConnection[Any], ledger: Ledger, tenant: Any) -> str:
    """Confines the open transaction to a tenant; answers with the role that it had before."""
    rule = ledger.tenant
    if rule is None or rule.setting is None:
        raise InvalidInput(field="ledger", message=f"{ledger.name} does not say how to confine a tenant")
    if tenant is None or tenant == "":
        raise NotAllowed(message=f"no {rule.name} is given, and {ledger.name} shows nothing without one")
    whose = str(intake.typed(rule.name, rule.type, tenant))
    try:
        params = {"role": rule.role, "setting": rule.setting, "tenant": whose}
        cursor = await conn.execute(sql.CONFINE, params)
    except (InsufficientPrivilege, InvalidParameterValue) as error:
        said = error.diag.message_primary
        advice = f"grant {rule.role} to the user of HOLDFAST_DATABASE_URL"
        raise NotAllowed(message=f"cannot act as the role {rule.role} ({said}): {advice}") from None
    (row,) = await cursor.fetchall()
    return row[0]


async def unconfine(conn: AsyncConnection[Any], role: str) -> None:
    """Gives the open transaction the role back that it had before `confine`."""
    await conn.execute(sql.UNCONFINE, {"role": role})
