"""How captures come in: a session and its pictures, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection, Error
from psycopg.errors import UniqueViolation
from psycopg.rows import dict_row

from holdfast.apps.schedules import process_queries as queries
from holdfast.engine import intake, reading
from holdfast.engine.adding import refused
from holdfast.engine.store import Store
from holdfast.engine.values import Item
from holdfast.errors import Conflict, InvalidInput, NotFound

Connection = AsyncConnection[Any]
MAX_TRIES = 5
KEY_LENGTH = 1024  # bytes, as much as object stores take


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture that is in the object store under `r2_key`, and the message that brought it."""

    r2_key: str
    telegram_message_id: int | None = None


async def add(conn: Connection, store: Store, user_id: Any, pictures: Sequence[Picture] = ()) -> UUID:
    """Adds a session of this user with its pictures, all or nothing; answers with its id."""
    for place, picture in enumerate(pictures):
        _check(f"images[{place}]", picture)
    async with conn.transaction():
        receipt = await store.enqueue(conn, Item(tenant=user_id))
        await _attach(conn, receipt.id, pictures)
    return receipt.id


async def attach(
    conn: Connection, store: Store, id: Any, pictures: Sequence[Picture], *, user_id: int | None = None
) -> None:
    """Adds pictures to a session that has not ended; another user's is not found."""
    for place, picture in enumerate(pictures):
        _check(f"images[{place}]", picture)
    key = reading.key_of(store.ledger, id)
    async with conn.transaction():
        async with conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(queries.OPEN, {"session": key})
            found = await cursor.fetchone()
        if found is None or user_id not in (None, found["user_id"]):
            raise NotFound(what=store.ledger.name, id=key)
        if found["state"] in store.ledger.ends:
            raise Conflict(what=f"the session {key}", message=f"is {found['state']}: begin a new one")
        await _attach(conn, key, pictures)


async def _attach(conn: Connection, session: UUID, pictures: Sequence[Picture]) -> None:
    for picture in pictures:
        try:
            await _attach_one(conn, session, picture)
        except Error as error:
            if refusal := refused(error):
                raise refusal from None
            raise


async def _attach_one(conn: Connection, session: UUID, picture: Picture) -> None:
    """Insert the next picture of a session; another service may take the same number at the same time.

    Which rule a row breaks is read from the table: the names of its constraints are the owner's.
    """
    row = {"session": session, "key": picture.r2_key, "message": picture.telegram_message_id}
    for _ in range(MAX_TRIES):
        try:
            async with conn.transaction():
                await conn.execute(queries.IMAGE, row)
                return
        except UniqueViolation:
            async with conn.cursor(row_factory=dict_row) as cursor:
                await cursor.execute(queries.TAKEN, row)
                taken = await cursor.fetchone() or {}
        if taken.get("key"):
            raise Conflict(what=f"the picture of r2_key {picture.r2_key!r}", message="is there already")
        if taken.get("message"):
            what = f"the picture of message {picture.telegram_message_id}"
            raise Conflict(what=what, message="is there already")
    raise Conflict(what=f"the session {session}", message="gets pictures from others just now: try again")


def _check(where: str, picture: Picture) -> None:
    key = picture.r2_key
    intake.clean_text(f"{where}.r2_key", key)
    if not key.strip() or not key.isprintable() or len(key.encode()) > KEY_LENGTH:
        message = f"must be the picture's key in the object store, of 1 to {KEY_LENGTH} bytes, on one line"
        raise InvalidInput(field=f"{where}.r2_key", message=message)
    if picture.telegram_message_id is not None:
        intake.typed(f"{where}.telegram_message_id", "bigint", picture.telegram_message_id)
