"""Tokens in use: opened for a connector, refreshed before they end, given up when a provider refuses them.

A refresh may change the refresh token itself, so two at once would kill the grant: an advisory lock lets one
process at a time ask, and whoever waited for it looks first whether the token is a new one already. No row
is locked while the provider is asked.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from psycopg import InterfaceError, InternalError, OperationalError
from psycopg.rows import class_row

from holdfast.apps.connectors import connections, failures, http, work_queries
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.crypto import Sealed
from holdfast.apps.connectors.protocol import (
    Account,
    ConnectorError,
    Grant,
    NotSetUp,
    Permanent,
    Transient,
    Unauthorized,
    Unsupported,
)
from holdfast.apps.connectors.service import Connectors, NoConnector, clock
from holdfast.engine.store import Connection
from holdfast.errors import DatabaseUnavailable, DecryptionError, NotFound
from holdfast.runtime.duties import Duty

log = logging.getLogger("holdfast.connectors")
T = TypeVar("T")

SOON = timedelta(seconds=60)  # a token that ends within this time is refreshed before it is used
GRACE = 4.0  # seconds that a worker which ends waits for refreshes whose runs are gone
LONGEST = http.WHOLE + 10.0  # seconds that a provider may take for one: a connector may be anybody's
BATCH = 100  # connections in one look of the duty

REFUSALS = (Permanent, Unauthorized, DecryptionError)  # of a refresh: the account must be connected anew
INNOCENT = (NoConnector, NotSetUp)  # of these, though, it is this process that cannot
# The session or the server, not the statement; InternalError: idle timeouts, a standby that is read-only.
LOST_SESSION = (OperationalError, InterfaceError, InternalError, DatabaseUnavailable)
WRITE_MAX_SECONDS = 300.0  # how long new tokens are kept in memory while the database cannot be reached
WRITE_RETRY_MAX_SECONDS = 5.0  # the longest pause between two tries


# -- using -----------------------------------------------------------------------------------------------


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
    """A connection's token during one run: opened when it is first needed, refreshed at most once.

    `now` is the database's time when the run began: when a token ends is written by that clock.
    """

    def __init__(self, service: Connectors, link: Link, now: datetime) -> None:
        self.service = service
        self.link = link
        self._began, self._since = now, time.monotonic()
        self.secrets: list[str | None] = []  # what must never be told
        self._account: Account | None = None
        self._renewed = False

    async def account(self) -> Account:
        """The account, with its token in the clear; one that lasts for another minute, if it can."""
        if self._account is None:
            ending = self._ends_soon() and self.link.refresh is not None
            link = await refresh(self.service, self.link.id, used=self.link.access) if ending else self.link
            self._use(link)
            assert self._account
        return self._account

    def _ends_soon(self) -> bool:
        now = self._began + timedelta(seconds=time.monotonic() - self._since)
        return self.link.expires_at is not None and self.link.expires_at - now < SOON

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

    What cannot be mended (`REFUSALS`) is raised after the connection was set to `error`. Whoever is stopped
    meanwhile leaves it to end by itself: a new refresh token that is not written down is lost for good.
    """
    task = asyncio.ensure_future(_refresh(service, connection_id, used))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            _leave(task, connection_id)
        raise


async def _refresh(service: Connectors, connection_id: UUID, used: bytes | None) -> Link:
    given: list[Given] = []
    try:
        # A connection of its own: the pool is for those who are quick, and duties run in another loop.
        async with await service.database.connect("token refresh") as conn, conn.transaction():
            await conn.execute(work_queries.REFRESHING, {"id": connection_id})
            answer = await _refresh_alone(conn, service, connection_id, used, given)
    except LOST_SESSION as error:
        if not given:
            raise
        return await _write_again(service, given[0], error)
    if isinstance(answer, Exception):
        raise answer  # now that it is written down
    return answer


async def _write_again(service: Connectors, given: Given, error: Exception) -> Link:
    """Write the tokens of a successful exchange on a new connection, until it succeeds or the time is over.

    Safe to repeat after a commit whose outcome is unknown: tokens that are already written are found there.
    The advisory lock is not taken again: the session that holds it by now may be waiting for the provider.
    """
    deadline, pause = time.monotonic() + WRITE_MAX_SECONDS, 0.1
    while True:
        log.warning(
            "connection %s: database session lost before new tokens were written (%s); writing them again",
            given.link.id,
            type(error).__name__,
        )
        try:
            async with await service.database.connect("token refresh") as conn, conn.transaction():
                return await _write(conn, service, given)
        except LOST_SESSION as again:
            if time.monotonic() + pause > deadline:
                raise
            error = again
        await asyncio.sleep(pause)
        pause = min(pause * 2, WRITE_RETRY_MAX_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a provider gave for the refresh token `old` of a connection, and when it was asked."""

    link: Link
    grant: Grant
    old: str = field(repr=False)
    asked_at: datetime


async def _refresh_alone(
    conn: Connection, service: Connectors, connection_id: UUID, used: bytes | None, given: list[Given]
) -> Link | Exception:
    """The connection with its new token, or why there is none, which the caller raises after its commit.

    What the provider has given stands in `given` from then on, whatever becomes of `conn`.
    """
    link = await connections.get_by_id(conn, connection_id)
    if link is None:
        raise NotFound(what="connection", id=connection_id)
    if not _same(service, link, used):
        return link
    asked_at = await clock(conn)
    try:
        grant, old = await _ask(service, link)
    except INNOCENT:
        raise
    except REFUSALS as error:
        await _spoil(conn, service, link, error)
        return error
    given.append(Given(link=link, grant=grant, old=old, asked_at=asked_at))
    return await _write(conn, service, given[0])


async def _ask(service: Connectors, link: Link) -> tuple[Grant, str]:
    """What the provider gives for the refresh token, and that token."""
    kind = service.kind(link.provider)
    name = kind.provider.display_name
    if link.refresh is None:
        raise Unsupported(message=f"{name} gave no refresh token: the account must be authorised again")
    token = _text(service, link, link.refresh)
    timer = asyncio.timeout(LONGEST)
    try:
        async with timer, service.connector(link.provider) as connector:
            return await connector.refresh(token), token
    except ConnectorError as error:
        raise failures.scrubbed(error, [token]) from None
    except TimeoutError:
        if not timer.expired():
            raise
        raise Transient(message=f"{name} took too long to refresh a token") from None


async def _write(conn: Connection, service: Connectors, given: Given) -> Link:
    """Store the new tokens, unless the account was connected again or disconnected in the meantime.

    When the session was lost, another process may have presented the old refresh token too and been refused.
    The status `error` that it wrote is about the old tokens; the ones written here are good.
    """
    link, grant = given.link, given.grant
    current = await connections.lock(conn, link.id)
    if current is None:
        raise NotFound(what="connection", id=link.id)
    if not _same(service, current, link.access):
        return current
    access = _sealed(service, link, grant.access_token)
    # The old one is sealed again as well: both are sealed by the key that the row names.
    again = _sealed(service, link, grant.refresh_token or given.old)
    ends = None if grant.lifetime is None else given.asked_at + grant.lifetime
    written = await connections.update_tokens_status(
        conn,
        link.id,
        access=access.data,
        refresh=again.data,
        key_id=access.key_id,
        expires_at=ends,
        status="active" if current.status == "error" else connections.KEEP,
    )
    kept = "unchanged" if grant.refresh_token in (None, given.old) else "rotated"
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


# -- left alone ------------------------------------------------------------------------------------------

# Refreshes whose runs were stopped, of every loop, each with what tells its end to the other loops. Held here
# as a loop holds its tasks weakly.
_left: dict[asyncio.Task[Link], Future[None]] = {}


def _leave(task: asyncio.Task[Link], connection_id: UUID) -> None:
    """Lets a refresh come to its end by itself; its own time-out sees that there is one."""
    ended: Future[None] = Future()

    def tell(task: asyncio.Task[Link]) -> None:
        _left.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            told = failures.fault(error) if isinstance(error, Exception) else {"message": repr(error)}
            log.warning("connection %s: its token could not be refreshed: %s", connection_id, told["message"])
        ended.set_result(None)

    _left[task] = ended
    task.add_done_callback(tell)


async def settle(seconds: float | None = None) -> int:
    """Waits for the refreshes that were left alone, for so long at most; answers how many have ended."""
    waiting = [asyncio.wrap_future(ended) for ended in list(_left.values())]
    if not waiting:
        return 0
    done, _ = await asyncio.wait(waiting, timeout=seconds)
    return len(done)


def last_duty() -> Duty:
    """Every worker's last look: its loop is about to close, and with it what still runs there."""

    async def run(conn: Connection, worker: str) -> int:  # noqa: ARG001
        return await settle(GRACE)

    return Duty(name="settle refreshes", every=3600.0, run=run, by_all=True, at_the_end=True)


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


def duty(service: Connectors, draw: Callable[[], float] = random.random) -> Duty:
    """The look for tokens that will soon end; not all installations at the same minute."""
    settings = service.settings
    spread = settings.token_refresh_jitter * (2 * draw() - 1)

    async def run(conn: Connection, _: str) -> int:
        return await refresh_ending(service, conn)

    every = max(settings.token_refresh_tick_seconds * (1 + spread), 1.0)
    return Duty(name="refresh tokens", every=every, run=run, by_all=True)
