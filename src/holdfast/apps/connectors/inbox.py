"""The inbox of webhooks: a delivery is stored before anything is done about it, and one job drains it.

At most one webhook job of a connection waits or runs, so a second event could not have a job of its own. Both
sides lock the inbox by an advisory lock of its own: storing shares it (`hold`), the drain's finish has it to
itself (`close`). So whoever comes second sees what the first has done, and no delivery is left without a job.
Those who store only keep the connection's row from being removed: locks of a row are not queued, and many who
share one would let no writer in. Advisory locks are: a finish waits for those before it, and for no others.
Lock order: inbox, connection, job, delivery, signals.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from psycopg.errors import ForeignKeyViolation
from psycopg.rows import class_row, tuple_row
from psycopg.types.json import Jsonb

from holdfast.apps.connectors import connections, signatures, sql, work_queries
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.ledger import WEBHOOK, WEBHOOK_PRIORITY
from holdfast.apps.connectors.normal import storable
from holdfast.apps.connectors.protocol import Delivery
from holdfast.apps.connectors.service import clock
from holdfast.apps.connectors.sync_state import moment_text
from holdfast.engine import intake
from holdfast.engine.store import Connection, Store
from holdfast.engine.values import Item, Json
from holdfast.errors import NotFound

log = logging.getLogger("holdfast.connectors")

Verification = Literal["operator", "signature", "shared_secret", "oidc"]

BATCH = 100  # deliveries that one run drains, and that one statement replays
TRIES = 5  # after so many failures a delivery is parked

# Proxies add them: from where a delivery came is nobody's business once it is here.
ADDRESSES = re.compile(
    r"forwarded|(^|-)(real-ip|user-ip|client-?ip|connecting-ip(v6)?|remote-(ip|addr)|external-address)$"
)


class Key(NamedTuple):
    """What tells one delivery from another."""

    provider: str
    tenant_id: UUID
    delivery_id: str


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A delivery as the inbox has it."""

    provider: str
    tenant_id: UUID
    delivery_id: str
    connection_id: UUID | None
    headers: Mapping[str, str]
    payload: Json
    verification: Verification
    received_at: datetime
    processed_at: datetime | None
    attempts: int
    error: Mapping[str, Json] | None

    @property
    def key(self) -> Key:
        return Key(self.provider, self.tenant_id, self.delivery_id)

    @property
    def delivery(self) -> Delivery:
        """As a connector takes it."""
        return Delivery(
            id=self.delivery_id, headers=self.headers, payload=self.payload, received_at=self.received_at
        )


# -- the lock --------------------------------------------------------------------------------------------


async def hold(conn: Connection, connection_ids: Iterable[UUID]) -> dict[UUID, Link]:
    """Those of the connections that there are, by id; their inboxes stay open until the transaction ends."""
    ids = sorted(set(connection_ids))
    for one in ids:
        await conn.execute(sql.HOLD_INBOX, {"id": one})
    found = [await connections.lock_shared(conn, one) for one in ids]
    return {link.id: link for link in found if link is not None}


async def close(conn: Connection, connection_id: UUID) -> None:
    """Waits for those who are storing into an inbox; whoever comes later waits for this transaction."""
    await conn.execute(sql.CLOSE_INBOX, {"id": connection_id})


async def _closed(conn: Connection, connection_id: UUID) -> bool:
    """The same without a wait: False when somebody has it open."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(sql.CLOSE_INBOX_NOW, {"id": connection_id})
        ((closed,),) = await cursor.fetchall()
        return closed


# -- coming in -------------------------------------------------------------------------------------------


async def receive(
    conn: Connection,
    store: Store,
    *,
    provider: str,
    tenant_id: UUID,
    link: Link | None,
    delivery_id: str,
    headers: Mapping[str, str],
    payload: Json,
    body_sha256: str,
    verification: Verification,
    now: datetime | None = None,
) -> bool:
    """Stores a delivery and sees that a job drains it; False when it was known already.

    `link` is the connection that it is for, None when none matched, or several: then it waits for a replay.
    """
    params: dict[str, Any] = {
        "provider": provider,
        "tenant": tenant_id,
        "delivery": delivery_id,
        "headers": Jsonb(kept(headers)),
        "payload": None if payload is None else Jsonb(storable(payload)),
        "sha256": body_sha256,
        "verification": verification,
        "now": now,
    }
    try:
        async with conn.transaction():
            locked = None if link is None else (await hold(conn, [link.id])).get(link.id)
            params["connection"] = None if locked is None else locked.id
            new = bool(await (await conn.execute(sql.RECEIVE, params)).fetchall())
            if new and locked is not None:
                await wake(conn, store, locked, now=now)
            return new
    except ForeignKeyViolation as error:
        raise _missing(error, params) from None


def _missing(error: ForeignKeyViolation, params: Mapping[str, Any]) -> NotFound:
    """What a delivery named that there is not, or that is not this tenant's."""
    constraint = error.diag.constraint_name or ""
    if constraint == "fk_webhook_delivery_scope":
        return NotFound(what="connection", id=params["connection"])
    what = "provider" if "provider" in constraint else "tenant"
    return NotFound(what=what, id=params[what])


async def wake(conn: Connection, store: Store, link: Link, *, now: datetime | None = None) -> None:
    """Sees that a job will drain the inbox of a connection; the caller has its row locked, or just made it.

    One that is paused, revoked or in error keeps its deliveries until it is active again.
    """
    if link.status != "active":
        return
    item = Item(
        kind=WEBHOOK,
        tenant=link.tenant_id,
        priority=WEBHOOK_PRIORITY,
        extras={"connection_id": link.id, "provider_slug": link.provider},
    )
    await store.enqueue(conn, item, now=now)


async def wake_waiting(conn: Connection, store: Store, link: Link) -> None:
    """The same for a connection that has just become active, if anything waits in its inbox.

    Somebody may be storing who has seen it inactive. Waiting for them would be against the order of locks, so
    then there is a job in any case: its finish waits for them.
    """
    if not await _closed(conn, link.id) or await left(conn, link.id):
        await wake(conn, store, link)


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are stored: lower-case, and none that proves anything or tells an address."""
    return {
        name: intake.absorb(value)
        for name, value in signatures.kept(headers).items()
        if not ADDRESSES.search(name)
    }


# -- being drained ---------------------------------------------------------------------------------------


async def left(conn: Connection, connection_id: UUID, *, now: datetime | None = None) -> bool:
    """Whether a delivery of a connection is to be handled by now; one that failed has a time to wait."""
    params = {"connection": connection_id, "now": moment_text(now or await clock(conn))}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(work_queries.LEFT, params)
        ((found,),) = await cursor.fetchall()
        return found


async def processed(
    conn: Connection, key: Key, *, error: Mapping[str, Json] | None = None, now: datetime | None = None
) -> bool:
    """A delivery is done with; with an `error`, for good and badly. False when it was already."""
    params = _named(key) | {"error": error and Jsonb(storable(dict(error))), "now": now}
    return bool(await (await conn.execute(sql.PROCESSED, params)).fetchall())


async def failed_once(
    conn: Connection, key: Key, error: Mapping[str, Json], *, now: datetime | None = None
) -> int:
    """Counts a failure, and answers how many there were: at `TRIES` the delivery is parked with its error."""
    params = _named(key) | {"error": Jsonb(storable(dict(error))), "tries": TRIES, "now": now}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(sql.FAILED_ONCE, params)
        found = await cursor.fetchall()
        return found[0][0] if found else TRIES


def _named(key: Key) -> dict[str, Any]:
    return {"provider": key.provider, "tenant": key.tenant_id, "delivery": key.delivery_id}


# -- once more -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """How many deliveries wait again, and how many of those that were meant still match no connection."""

    deliveries: int = 0
    unmatched: int = 0


async def replay(
    conn: Connection,
    store: Store,
    tenant_id: UUID | None,
    *,
    provider: str,
    match: Callable[[Mapping[str, str], Json], Sequence[str]],
    delivery_id: str | None = None,
    received_after: datetime | None = None,
    received_before: datetime | None = None,
) -> Replayed:
    """Lets deliveries be processed once more, as if they had just come: by id, or by when they came.

    One that had no connection is matched again, by the external ids that `match` finds in it. Some at a time,
    each batch a commit of its own unless the caller has a transaction.
    """
    filters = {
        "provider": provider,
        "tenant_id": tenant_id,
        "delivery": delivery_id,
        "received_after": received_after,
        "received_before": received_before,
    }
    params: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    done = Replayed()
    while True:
        async with conn.transaction():
            async with conn.cursor(row_factory=class_row(Stored)) as cursor:
                await cursor.execute(
                    sql.arrivals(params.keys() & sql.DELIVERY_CONDITIONS), params | {"limit": BATCH}
                )
                found = await cursor.fetchall()
            again = await _replay_some(conn, store, provider, found, match)
        done = Replayed(deliveries=done.deliveries + again, unmatched=done.unmatched + len(found) - again)
        if len(found) < BATCH:
            return done
        last = found[-1]
        params |= {
            "after": _place(last.received_at),
            "after_tenant": last.tenant_id,
            "after_delivery": last.delivery_id,
        }


def _place(moment: datetime) -> datetime | str:
    """The time as its row has it, of one that was read within bounds."""
    ends = {9999: "infinity", 1: "-infinity"}
    return ends.get(moment.year, moment)


async def _replay_some(
    conn: Connection,
    store: Store,
    provider: str,
    found: Sequence[Stored],
    match: Callable[[Mapping[str, str], Json], Sequence[str]],
) -> int:
    """Inboxes first, then connections, their jobs and the deliveries: the order in which everybody locks."""
    meant: list[tuple[Stored, UUID]] = []
    for one in found:
        connection = one.connection_id
        if connection is None:
            called = names(provider, match, one.headers, one.payload)
            link = await matching(conn, one.tenant_id, provider, called)
            connection = link and link.id
        if connection is not None:
            meant.append((one, connection))
    alive = await hold(conn, [whose for _, whose in meant])
    for link in alive.values():
        await wake(conn, store, link)
    meant = [(one, whose) for one, whose in meant if whose in alive]
    params = {
        "provider": provider,
        "tenants": [one.tenant_id for one, _ in meant],
        "deliveries": [one.delivery_id for one, _ in meant],
        "connections": [whose for _, whose in meant],
    }
    await conn.execute(sql.REPLAY, params)
    return len(meant)


def names(
    provider: str,
    match: Callable[[Mapping[str, str], Json], Sequence[str]],
    headers: Mapping[str, str],
    payload: Json,
) -> list[str]:
    """By which external ids a delivery calls its account; none where its connector stumbles over it."""
    try:
        return [one for one in match(headers, payload) if isinstance(one, str)]  # pyright: ignore[reportUnnecessaryIsInstance]
    except Exception as error:
        stumbled(provider, error)
        return []


def stumbled(provider: str, error: Exception) -> None:
    """A connector cannot read a delivery. Of its error the class is told alone: the rest may quote it."""
    log.warning("the connector of %s cannot read a webhook: %s", provider, type(error).__name__)


async def matching(
    conn: Connection, tenant_id: UUID, provider: str, external_ids: Sequence[str]
) -> Link | None:
    """The one connection that a delivery with these external ids is for; never a guess among several."""
    if not external_ids:
        return None
    found = await connections.by_external_ids(conn, tenant_id, provider, list(external_ids))
    return found[0] if len(found) == 1 else None
