"""What a caller may do about schedules: allowed, done and audited in one place, for routes and pages.

One action and its audit entry are one transaction. Orders about single rows are those of any ledger.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from uuid import UUID

from holdfast.api import actions as orders
from holdfast.api import audit
from holdfast.api.actions import must, must_operate
from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.apps.schedules import days
from holdfast.apps.schedules import intake as captures
from holdfast.apps.schedules.intake import Picture
from holdfast.apps.schedules.ledger import NOTICES, SESSIONS
from holdfast.apps.schedules.record import Day
from holdfast.engine import intake
from holdfast.engine.values import Row
from holdfast.errors import InvalidInput, NotAllowed, NotFound

# -- who -------------------------------------------------------------------------------------------------


def user_of(caller: Caller) -> int | None:
    """The user that a caller is confined to, None for everybody. To a tenant that is no user, nothing is."""
    if caller.tenant is None:
        return None
    try:
        return intake.typed("X-Tenant-Id", "bigint", caller.tenant)
    except InvalidInput:
        raise NotFound(what="user", id=caller.tenant) from None


def confined(caller: Caller, user_id: int) -> int:
    """The user that an address names, or `NotFound` where it is another than the caller's own."""
    if user_of(caller) not in (None, user_id):
        raise NotFound(what="user", id=user_id)
    return user_id


# -- what ------------------------------------------------------------------------------------------------


async def add(site: Site, caller: Caller, user_id: int | None, pictures: Sequence[Picture]) -> UUID:
    """Adds a session of a user with its pictures, all or nothing; answers with its id."""
    must(caller, "act")
    own = user_of(caller)
    if own is not None and user_id not in (None, own):
        raise NotAllowed(message=f"user_id: {user_id} is not yours")
    for picture in pictures if own is not None else ():
        _must_be_of(own, picture.r2_key)
    whose = user_id if own is None else own
    if whose is None:
        raise InvalidInput(field="user_id", message="is missing: say whose schedule it is")
    async with site.connection() as conn, conn.transaction():
        made = await captures.add(conn, site.store(caller, SESSIONS), whose, pictures)
        noted = replace(caller, tenant=str(whose))
        await audit.note(conn, noted, "capture add", ledger=SESSIONS, row_id=made, rows=1)
        return made


def _must_be_of(own: int | None, key: str) -> None:
    """A key is easily guessed, and says whose picture it is: by the first number in its path."""
    parts = key.split("/")
    number = next((part for part in parts if re.fullmatch("-?[0-9]+", part)), None)
    if number != str(own) or {"", ".", ".."} & set(parts):
        told = f"{key!r} is not yours: {own} is the first number in the path of a key of yours"
        raise NotAllowed(message=told)


async def resend(site: Site, caller: Caller, id: str, *, reason: str | None = None) -> Row:
    """Lets a message that failed be sent again, and answers with its row as it is then."""
    user_of(caller)
    return await orders.requeue(site, caller, NOTICES, id, reason=reason)


async def rebuild(site: Site, caller: Caller, user_id: int, day: date) -> Day:
    """Writes the snapshot of a day anew from its events."""
    must(caller, "act")
    whose = replace(caller, tenant=str(confined(caller, user_id)))
    async with site.connection() as conn, conn.transaction():
        rebuilt = await days.rebuild(conn, user_id, day)
        await audit.note(conn, whose, "schedule rebuild", row_id=f"{user_id}/{day}", rows=1)
        return rebuilt


async def erase(site: Site, caller: Caller, user_id: int) -> dict[str, int]:
    """Removes every row of a user for good; answers how many, by table. The audit keeps that it was done."""
    must_operate(caller, "admin")
    whose = replace(caller, tenant=str(confined(caller, user_id)))
    async with site.connection() as conn, conn.transaction():
        gone = await days.erase(conn, user_id)
        await audit.note(
            conn, whose, "schedule erase", row_id=user_id, rows=sum(gone.values()), detail={"tables": gone}
        )
        return gone
