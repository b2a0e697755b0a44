"""Tokens and sessions: how somebody proves who they are. Only hashes are stored.

A token is `hf_<id>_<secret>`: the id finds its row, and the SHA-256 of the secret proves it. A secret has 256
random bits, so that a slow hash would protect nothing more. A session is what the dashboard's cookie names.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from psycopg import AsyncConnection
from psycopg.rows import class_row, dict_row

from holdfast.api import queries
from holdfast.api.caller import SCOPES, Caller, Scope
from holdfast.engine import intake
from holdfast.errors import InvalidInput, NotFound

Connection = AsyncConnection[Any]
SHAPE = re.compile(r"hf_([a-z0-9]{8})_([A-Za-z0-9_-]{43})")
NAME = re.compile(r"[\w.@+ -]{1,100}")
ALPHABET = string.ascii_lowercase + string.digits
MOST = 1000  # tokens of one list
NOBODY = bytes(32)  # compared with when there is no such token, so that it takes as long
LOCAL = "local"  # the name of the token that a machine makes for its own user


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token as it is shown: everything but its secret."""

    id: str
    name: str
    scope: Scope
    tenant: str | None
    created: datetime
    created_by: str | None
    expires: datetime | None
    revoked: datetime | None
    used: datetime | None


async def create(
    conn: Connection,
    name: str,
    scope: Scope,
    *,
    tenant: str | None = None,
    expires: datetime | None = None,
    by: str | None = None,
) -> tuple[Token, str]:
    """Makes a token; answers with it and with its text, which nobody can read again."""
    _must_fit(name, scope, tenant)
    if expires is not None:
        expires = intake.aware("expires", expires)
    key = "".join(secrets.choice(ALPHABET) for _ in range(8))
    secret = secrets.token_urlsafe(32)
    given = {"id": key, "name": name, "hash": _digest(secret), "scope": scope, "tenant": tenant}
    await conn.execute(queries.GRANT, given | {"by": by, "expires": expires})
    return await find(conn, key), f"hf_{key}_{secret}"


def _must_fit(name: str, scope: str, tenant: str | None) -> None:
    if not NAME.fullmatch(name) or name != name.strip():
        raise InvalidInput(
            field="name", message="must be 1 to 100 letters, digits, blanks and any of . @ + - _"
        )
    if scope not in SCOPES:
        raise InvalidInput(field="scope", message=f"must be one of {', '.join(SCOPES)}, not {scope!r}")
    if tenant is None:
        return
    if not 1 <= len(intake.clean_text("tenant", tenant)) <= 255:
        raise InvalidInput(field="tenant", message="must have 1 to 255 characters: leave it out for none")
    if scope == "admin":
        raise InvalidInput(field="scope", message="admin is for operators: a tenant's token reads or acts")


async def find(conn: Connection, id: str) -> Token:
    """One token, or `NotFound`."""
    async with conn.cursor(row_factory=class_row(Token)) as cursor:
        await cursor.execute(queries.ONE_TOKEN, {"id": intake.clean_text("id", id)})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(what="token", id=id)
    return found


async def every(conn: Connection) -> Sequence[Token]:
    """All tokens, the newest first."""
    async with conn.cursor(row_factory=class_row(Token)) as cursor:
        await cursor.execute(queries.TOKENS, {"limit": MOST})
        return await cursor.fetchall()


async def revoke(conn: Connection, id: str) -> bool:
    """Ends a token for good; False when it was revoked already, `NotFound` when there is none."""
    await find(conn, id)
    cursor = await conn.execute(queries.REVOKE, {"id": id})
    return cursor.rowcount == 1


async def verify(conn: Connection, text: str) -> Caller | None:
    """Who brings this token; None when it is none of ours, wrong, revoked or expired."""
    shape = SHAPE.fullmatch(text)
    if shape is None:
        return None
    key, secret = shape.groups()
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(queries.PROOF, {"id": key})
        row = await cursor.fetchone()
    proven = hmac.compare_digest(_digest(secret), bytes(row["hash"]) if row else NOBODY)
    if row is None or not proven or not row["live"]:
        return None
    if row["stale"]:
        await conn.execute(queries.USED, {"id": key})
    return _caller(f"token:{row['name']}", row["scope"], row["tenant"], key)


def _caller(who: str, scope: str, tenant: str | None, token_id: str | None) -> Caller:
    return Caller(
        who=who, scope=cast("Scope", scope), tenant=tenant, bound=tenant is not None, token_id=token_id
    )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


# -- the token of this machine ---------------------------------------------------------------------------


async def create_first(conn: Connection, home: Path) -> str | None:
    """Make an admin token for this machine, keep it in <home>/token, and return its text.

    Only where there was never any token; else None: a token that was revoked does not come back.
    """
    async with conn.transaction():
        await conn.execute(queries.LOCAL_LOCK)
        if await every(conn):
            return None
        _, text = await create(conn, LOCAL, "admin", by="holdfast")
        await asyncio.to_thread(_write, home / "token", text)
        return text


async def is_kept(conn: Connection, home: Path) -> bool:
    """Whether <home>/token has a token that is good."""
    text = await asyncio.to_thread(_read, home / "token")
    return bool(text and await verify(conn, text))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
    new.replace(path)


# -- sessions --------------------------------------------------------------------------------------------


async def open_session(conn: Connection, caller: Caller, hours: int, *, until: datetime | None = None) -> str:
    """Begins a session of so many hours, or `until` something ends sooner; answers with the cookie's text."""
    await conn.execute(queries.FORGET_SESSIONS)
    text = secrets.token_urlsafe(32)
    session = {"hash": _digest(text), "token": caller.token_id, "who": caller.who, "scope": caller.scope}
    tenant = caller.tenant if caller.bound else None
    await conn.execute(queries.ADD_SESSION, session | {"tenant": tenant, "hours": hours, "until": until})
    return text


async def find_session(conn: Connection, text: str) -> Caller | None:
    """Whose session a cookie names; None when it has ended, or its token has."""
    digest = _digest(text[:100])
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(queries.SESSION, {"hash": digest})
        row = await cursor.fetchone()
    if row is None or not hmac.compare_digest(digest, bytes(row["hash"])):
        return None
    return _caller(row["who"], row["scope"], row["tenant"], row["token_id"])


async def close_session(conn: Connection, text: str) -> None:
    """Ends a session."""
    await conn.execute(queries.END_SESSION, {"hash": _digest(text[:100])})
