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


async def confine(conn: AsyncConnection[Any], ledger: Ledger, tenant: Any) -> None:
    """Confines the open transaction to a tenant."""
    rule = ledger.tenant
    if rule is None or rule.setting is None:
        raise InvalidInput(field="ledger", message=f"{ledger.name} does not say how to confine a tenant")
    if tenant is None or tenant == "":
        message = f"no {rule.name} is given, and {ledger.name} shows nothing without one"
        raise NotAllowed(message=message, status=401)
    whose = str(intake.typed(rule.name, rule.type, tenant))
    try:
        params = {"role": rule.role, "setting": rule.setting, "tenant": whose}
        await conn.execute(sql.CONFINE, params)
    except (InsufficientPrivilege, InvalidParameterValue) as error:
        said = error.diag.message_primary
        advice = f"grant {rule.role} to the user of HOLDFAST_DATABASE_URL"
        raise NotAllowed(message=f"cannot act as the role {rule.role} ({said}): {advice}") from None


async def unconfine(conn: AsyncConnection[Any]) -> None:
    """Gives the open transaction, and the session, the role back that the login has."""
    await conn.execute(sql.UNCONFINE)
