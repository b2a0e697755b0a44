"""Users over HTTP: forgetting one."""

from __future__ import annotations

from fastapi import APIRouter

from holdfast.api.auth import Admin, Here
from holdfast.api.description import problems
from holdfast.apps.schedules import actions
from holdfast.apps.schedules.answers import Erased
from holdfast.apps.schedules.routes.common import TAG, WORDS, UserId

router = APIRouter(prefix="/schedules/users", tags=[TAG])


@router.delete("/{user_id}", summary="Erase a user", responses=problems(WORDS, 409))
async def erase_user(user_id: UserId, caller: Admin, site: Here) -> Erased:
    """Removes every row of a user for good: sessions, versions, events and messages. For operators.

    The pictures themselves stay in their store. A user of whom there is nothing is answered with 0 rows.
    """
    gone = await actions.erase(site, caller, user_id)
    return Erased(rows=sum(gone.values()), tables=gone)
