"""Messages over HTTP: looking at one, and sending it again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from holdfast.api.auth import Actor, Here, Reader
from holdfast.api.description import problems
from holdfast.api.models import STORABLE, Why
from holdfast.apps.schedules import actions, days
from holdfast.apps.schedules.actions import user_of
from holdfast.apps.schedules.answers import ShownNotification
from holdfast.apps.schedules.routes.common import TAG, WORDS

router = APIRouter(prefix="/schedules/notifications", tags=[TAG])
NotificationId = Annotated[
    str, Path(description="The message's id.", min_length=1, max_length=1024, pattern=STORABLE)
]


@router.get("/{id:row}", summary="Get a message")
async def get_notification(id: NotificationId, caller: Reader, site: Here) -> ShownNotification:
    """One message, with every try to send it. Lists of them are those of any ledger."""
    async with site.connection() as conn:
        return ShownNotification.of(await days.notice(conn, id, user_id=user_of(caller)))


@router.post("/{id:path}/resend", summary="Send a message again", responses=problems(WORDS, 409))
async def resend_notification(
    id: NotificationId, caller: Actor, site: Here, body: Why | None = None
) -> ShownNotification:
    """Lets a message that failed be sent again, with all its tries. Answers with it as it is then."""
    await actions.resend(site, caller, id, reason=body and body.reason)
    async with site.connection() as conn:
        return ShownNotification.of(await days.notice(conn, id, user_id=user_of(caller)))
