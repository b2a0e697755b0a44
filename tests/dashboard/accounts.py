"""Accounts at providers for the pages of connectors: rows as syncs and webhooks would have left them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from api.kit import A, Served, on
from holdfast.apps.connectors import connections, inbox, signals, sync_state, tenants
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.crypto import Keyring
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.connectors.protocol import Signal
from holdfast.apps.connectors.service import clock
from holdfast.db.pool import Connection
from holdfast.engine.store import Store
from holdfast.errors import Conflict

TOKEN = "gho_never-on-a-page"
DELIVERY = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
CURSOR = {"since": "2030-01-31T12:00:00Z", "page": 2}
JOB = """
insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, attempts, scheduled_at,
    started_at, finished_at, error, updated_at)
values (gen_random_uuid(), %(tenant)s, %(provider)s, %(link)s, %(type)s, %(status)s, %(attempts)s,
    now() - %(ago)s::interval, now() - %(ago)s::interval, now() - %(ago)s::interval, %(error)s, now())
returning id
"""


@dataclass(frozen=True)
class Connected:
    """A tenant's account with what it has brought."""

    link: Link
    signal: UUID

    @property
    def addresses(self) -> dict[str, str]:
        """What stands in the addresses of its pages."""
        delivery = f"{self.link.provider}/{self.link.tenant_id}/{DELIVERY}"
        return {"link": str(self.link.id), "signal": str(self.signal), "delivery": delivery}


def connected(served: Served, tenant: str = A, **more: Any) -> Connected:
    """An account with a cursor, a job that ended well, one signal, and one webhook that failed."""

    async def make(conn: Connection) -> Connected:
        link = await account(conn, served, tenant, **more)
        await add_job(conn, link)
        signal = Signal(
            kind="issue_created",
            occurred_at=await clock(conn),
            payload={"title": "It leaks"},
            dedupe_key=f"k-{link.id}",
        )
        async with conn.transaction():
            await signals.store(conn, link, [signal])
        (told,) = (await signals.find(conn, link.tenant_id, connection_id=link.id)).items
        await deliver(conn, link, DELIVERY, error="the payload has no repository")
        return Connected(link, told.id)

    return on(served.settings, make)


async def account(
    conn: Connection,
    served: Served,
    tenant: str = A,
    *,
    provider: str = "github",
    name: str = "Acme & Sons",
    status: str = "active",
    sync: dict[str, Any] | None = None,
    due: float | None = 600.0,
    external_id: str | None = None,
) -> Link:
    """A connection with a sealed token; `due`: in so many seconds."""
    with suppress(Conflict):
        await tenants.create(conn, "Tenant A" if tenant == A else "Tenant B", id=UUID(tenant))
    external_id = external_id or f"acme-{uuid4().hex[:6]}"
    scope: Any = {"tenant_id": UUID(tenant), "provider": provider, "external_id": external_id}
    sealed = Keyring.of(served.settings, served.settings.home).seal(TOKEN, **scope)
    state = {"cursor": CURSOR} if sync is None else dict(sync)
    if due is not None:
        state["next_run_at"] = sync_state.moment_text(await clock(conn) + timedelta(seconds=due))
    return await connections.create(
        conn,
        **scope,
        display_name=name,
        scopes=("repo", "read:org"),
        access=sealed.data if status != "revoked" else None,
        key_id=sealed.key_id,
        status=status,
        metadata={"sync": state},
    )


async def add_job(
    conn: Connection,
    link: Link,
    *,
    type: str = "incremental",
    status: str = "succeeded",
    ago: str = "5 min",
    attempts: int = 1,
    error: str | None = None,
) -> UUID:
    """A job that has ended, by hand."""
    params = {"tenant": link.tenant_id, "provider": link.provider, "link": link.id, "type": type}
    params |= {"status": status, "attempts": attempts, "ago": ago, "error": error}
    ((job,),) = await (await conn.execute(JOB, params)).fetchall()
    return job


async def deliver(
    conn: Connection,
    link: Link | None,
    id: str,
    *,
    tenant: str = A,
    provider: str = "github",
    payload: Any = None,
    error: str | None = None,
    done: bool = False,
) -> None:
    """A webhook in the inbox; with an `error` it is parked, and `done` it is processed."""
    store = Store(SYNC_JOBS)
    await inbox.receive(
        conn,
        store,
        provider=link.provider if link else provider,
        tenant_id=link.tenant_id if link else UUID(tenant),
        link=link,
        delivery_id=id,
        headers={"x-github-event": "issues", "x-hub-signature-256": "sha256=never-on-a-page"},
        payload={"action": "opened", "issue": {"number": 7}} if payload is None else payload,
        body_sha256="0" * 64,
        verification="signature",
    )
    await conn.execute("delete from sync_jobs where job_type = 'webhook' and status = 'queued'")
    if error or done:
        key = inbox.Key(link.provider if link else provider, link.tenant_id if link else UUID(tenant), id)
        await inbox.processed(conn, key, error={"code": "PERMANENT", "message": error} if error else None)
