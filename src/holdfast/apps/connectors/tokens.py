"""Tokens in use: opened for a connector, refreshed before they end, given up when a provider refuses them.

A refresh may change the refresh token itself, so two at once would kill the grant: an advisory lock lets one
process at a time ask, and whoever waited for it looks first whether the token is a new one already. No row
is locked while the provider is asked.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from psycopg.rows import class_row

from holdfast.apps.connectors import connections, failures, work_queries
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.crypto import Sealed
from holdfast.apps.connectors.protocol import (
    Account,
    ConnectorError,
    Grant,
    Permanent,
    Unauthorized,
    Unsupported,
)
from holdfast.apps.connectors.service import Connectors, NoConnector, clock
from holdfast.engine.store import Connection
from holdfast.errors import DecryptionError, NotFound
from holdfast.runtime.app import Ground
from holdfast.runtime.duties import Duty

log = logging.getLogger("holdfast.connectors")
T = TypeVar("T")

SOON = timedelta(seconds=60)  # a token that ends within this time is refreshed before it is used
GRACE = 4.0  # seconds that a refresh which is under way may go on when its run is stopped
BATCH = 100  # connections in one look of the duty

REFUSALS = (Permanent, Unauthorized, DecryptionError)  # of a refresh: the account must be connected anew


# -- using -----------------------------------------------------------------------------------------------


async def account(service: Connectors, link: Link, *, now: datetime | None = None) -> Account:
    """The connection as its connector sees it, with a token that lasts for another minute if it can."""
    return _open(service, await _lasting(service, link, now))


async def _lasting(service: Connectors, link: Link, now: datetime | None) -> Link:
    ends = link.expires_at
    if ends is None or link.refresh is None or ends - (now or datetime.now(UTC)) >= SOON:
        return link
    return await refresh(service, link.id, used=link.access)


def _open(service: Connectors, link: Link) -> Account:
    return Account(
        id=link.id,
        tenant_id=link.tenant_id,
        provider=link.provider,
        external_id=link.external_id,
        display_name=link.display_name,
        scopes=link.scopes,
        metadata=link.metadata,
        access_token=None if link.access is None else _text(service, link, link.access),
    )


def _text(service: Connectors, link: Link, data: bytes) -> str:
    return service.keyring.open(
        data, tenant_id=link.tenant_id, provider=link.provider, external_id=link.external_id
    )


def _sealed(service: Connectors, link: Link, text: str) -> Sealed:
    return service.keyring.seal(
        text, tenant_id=link.tenant_id, provider=link.provider, external_id=link.external_id
    )


class Access:
    """A connection's token during one run: opened when it is first needed, refreshed at most once."""

    def __init__(self, service: Connectors, link: Link) -> None:
        self.service = service
        self.link = link
        self.secrets: list[str | None] = []  # what must never be told
        self._account: Account | None = None
        self._renewed = False

    async def account(self) -> Account:
        """The account, with its token in the clear."""
        if self._account is None:
            self._use(await _lasting(self.service, self.link, None))
            assert self._account
        return self._account

    async def renew(self, refusal: Unauthorized) -> None:
        """Refreshes the token that was refused; raises the refusal when that was done before."""
        if self._renewed:
            raise refusal
        self._renewed = True
        self._use(await refresh(self.service, self.link.id, used=self.link.access))

    def _use(self, link: Link) -> None:
        self.link = link
        self._account = _open(self.service, link)
        self.secrets.append(self._account.access_token)

    async def call(self, ask: Callable[[Account], Awaitable[T]]) -> T:
        """Asks the provider; once more with a new token when it refuses the first."""
        while True:
            try:
                return await ask(await self.account())
            except Unauthorized as refusal:
                await self.renew(refusal)


# -- refreshing ------------------------------------------------------------------------------------------


async def refresh(service: Connectors, connection_id: UUID, *, used: bytes | None) -> Link:
    """The connection with a newer token than the sealed one that was `used`, by us or by whoever was quicker.

    What cannot be mended (`REFUSALS`) is raised after the connection was set to `error`. Stopped in the
    middle, it goes on for a moment: a new refresh token that is not written down is lost for good.
    """
    task = asyncio.ensure_future(_refresh(service, connection_id, used))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(Exception, asyncio.CancelledError):
            async with asyncio.timeout(GRACE):
                await task
        raise


async def _refresh(service: Connectors, connection_id: UUID, used: bytes | None) -> Link:
    # A connection of its own: the pool is for those who are quick, and duties run in another loop than it.
    async with await service.database.connect("token refresh") as conn:
        async with conn.transaction():
            await conn.execute(work_queries.REFRESHING, {"id": connection_id})
            answer = await _refresh_alone(conn, service, connection_id, used)
        if isinstance(answer, Exception):
            raise answer  # now that it is written down
        return answer


async def _refresh_alone(
    conn: Connection, service: Connectors, connection_id: UUID, used: bytes | None
) -> Link | Exception:
    """The connection with its new token, or why there is none, which the caller raises after its commit."""
    link = await connections.get_by_id(conn, connection_id)
    if link is None:
        raise NotFound(what="connection", id=connection_id)
    if not _same(service, link, used):
        return link
    asked_at = await clock(conn)
    try:
        grant, old = await _ask(service, link)
    except NoConnector:
        raise
    except REFUSALS as error:
        await _spoil(conn, service, link, error)
        return error
    return await _write(conn, service, link, grant, old, asked_at)


async def _ask(service: Connectors, link: Link) -> tuple[Grant, str]:
    """What the provider gives for the refresh token, and that token."""
    kind = service.kind(link.provider)
    if link.refresh is None:
        name = kind.provider.display_name
        raise Unsupported(message=f"{name} gave no refresh token: the account must be authorised again")
    token = _text(service, link, link.refresh)
    try:
        async with service.connector(link.provider) as connector:
            return await connector.refresh(token), token
    except ConnectorError as error:
        raise failures.scrubbed(error, [token]) from None


async def _write(
    conn: Connection, service: Connectors, link: Link, grant: Grant, old: str, asked_at: datetime
) -> Link:
    """Stores the new tokens, unless somebody has connected the account anew meanwhile, or disconnected it."""
    current = await connections.lock(conn, link.id)
    if current is None:
        raise NotFound(what="connection", id=link.id)
    if not _same(service, current, link.access):
        return current
    access = _sealed(service, link, grant.access_token)
    # The old one is sealed again as well: both are sealed by the key that the row names.
    again = _sealed(service, link, grant.refresh_token or old)
    ends = None if grant.expires_in is None else asked_at + timedelta(seconds=grant.expires_in)
    written = await connections.update_tokens_status(
        conn, link.id, access=access.data, refresh=again.data, key_id=access.key_id, expires_at=ends
    )
    kept = "unchanged" if grant.refresh_token in (None, old) else "rotated"
    log.info("connection %s (%s): token refreshed, refresh token %s", link.id, link.provider, kept)
    return written or current


def _same(service: Connectors, link: Link, used: bytes | None) -> bool:
    """Whether a connection still has this access token; a new key seals the same one in other bytes."""
    if link.access is None or used is None:
        return link.access is used
    if link.access == used:
        return True
    try:
        return _text(service, link, link.access) == _text(service, link, used)
    except DecryptionError:
        return False


# -- giving up -------------------------------------------------------------------------------------------


async def spoil(service: Connectors, link: Link, error: Exception) -> None:
    """Sets a connection to `error`: its tokens are refused or unreadable, a person must connect it anew."""
    async with service.database.connection() as conn, conn.transaction():
        await _spoil(conn, service, link, error)


async def _spoil(conn: Connection, service: Connectors, link: Link, error: Exception) -> None:
    """The same in the caller's transaction. Tokens that somebody has brought meanwhile are innocent."""
    current = await connections.lock(conn, link.id)
    if current is None or current.status != "active" or not _same(service, current, link.access):
        return
    await connections.update_tokens_status(conn, link.id, status="error")
    code = failures.fault(error)["code"]
    log.warning("connection %s (%s): connect the account anew (%s)", link.id, link.provider, code)


# -- the duty --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A connection whose token will soon end."""

    id: UUID
    access: bytes | None


async def refresh_ending(service: Connectors, conn: Connection) -> int:
    """Refreshes every token that will soon end, some at once; answers how many could be."""
    settings, tried, done = service.settings, list[UUID](), 0
    places = asyncio.Semaphore(settings.token_refresh_concurrency)
    while True:
        params = {
            "lead": settings.token_refresh_lead_seconds,
            "known": list(service.known),
            "tried": tried,
            "limit": BATCH,
        }
        async with conn.cursor(row_factory=class_row(Ending)) as cursor:
            await cursor.execute(work_queries.ENDING, params)
            found = await cursor.fetchall()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_refreshed(service, each, places)) for each in found]
        done += sum(task.result() for task in tasks)
        if len(found) < BATCH:
            return done
        tried += [each.id for each in found]


async def _refreshed(service: Connectors, ending: Ending, places: asyncio.Semaphore) -> bool:
    """Whether a token could be refreshed; one that could not is told, and hurts no other."""
    async with places:
        try:
            await refresh(service, ending.id, used=ending.access)
        except Exception as error:
            told = failures.fault(error)
            log.warning("connection %s: its token could not be refreshed: %s", ending.id, told["message"])
            return False
    return True


def duty(ground: Ground, draw: Callable[[], float] = random.random) -> Duty:
    """The leader's look for tokens that will soon end; not all installations at the same minute."""
    service, settings = Connectors.of(ground), ground.settings
    spread = settings.token_refresh_jitter * (2 * draw() - 1)

    async def run(conn: Connection, _: str) -> int:
        return await refresh_ending(service, conn)

    every = max(settings.token_refresh_tick_seconds * (1 + spread), 1.0)
    return Duty(name="refresh tokens", every=every, run=run)
