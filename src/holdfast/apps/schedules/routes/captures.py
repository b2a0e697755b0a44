"""Capture sessions over HTTP: adding one, and what came of it. Lists and orders are those of any ledger."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response

from holdfast.api.auth import Actor, Here, Reader
from holdfast.api.description import problems
from holdfast.api.rows import LOCATION, Responses
from holdfast.apps.schedules import actions, days
from holdfast.apps.schedules.actions import user_of
from holdfast.apps.schedules.answers import NewCapture, ShownCapture
from holdfast.apps.schedules.intake import Picture
from holdfast.apps.schedules.routes.common import TAG, WORDS

router = APIRouter(prefix="/schedules/captures", tags=[TAG])
MADE: Responses = {201: {"description": "The session was added.", "headers": LOCATION}}
CaptureId = Annotated[UUID, Path(description="The session's id.")]


@router.post("", summary="Add a capture session", status_code=201, responses=MADE | problems(WORDS, 404, 409))
async def add_capture(
    caller: Actor, site: Here, body: NewCapture, request: Request, response: Response
) -> ShownCapture:
    """Adds a session with its pictures, all or nothing. A picture that is known already is refused."""
    pictures = [
        Picture(r2_key=one.r2_key, telegram_message_id=one.telegram_message_id) for one in body.images
    ]
    made = await actions.add(site, caller, body.user_id, pictures)
    root = quote(request.scope.get("root_path", ""))
    response.headers["Location"] = f"{root}/api/schedules/captures/{made}"
    async with site.connection() as conn:
        return ShownCapture.of(await days.capture(conn, made, user_id=user_of(caller)))


@router.get("/{id}", summary="Get a capture session")
async def get_capture(id: CaptureId, caller: Reader, site: Here) -> ShownCapture:
    """One session with its pictures and claims, and what came of it: a version, events, messages."""
    async with site.connection() as conn:
        return ShownCapture.of(await days.capture(conn, id, user_id=user_of(caller)))
