"""What the tests of the connectors share: a provider that does as it is told, and the rows that they need.

The fake connector follows a `Script`: each call takes its next step: an answer, an error to raise, or an
async function that is asked for the answer. Nothing here sleeps and hopes: a step may stop at a `Stop`,
which tells that it was reached and waits until the test lets it go on.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from psycopg.rows import class_row, dict_row

from holdfast import Holdfast, Item, Settings
from holdfast.apps.connectors import catalogue, connections, inbox, sql, tenants
from holdfast.apps.connectors.app import app as connectors_app
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.inbox import Stored
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.connectors.protocol import (
    Account,
    Connector,
    Delivery,
    Grant,
    Page,
    Provider,
    Signal,
    WebhookResult,
)
from holdfast.apps.connectors.service import Connectors
from holdfast.apps.connectors.tokens import Access
from holdfast.db.pool import Connection
from holdfast.runtime.worker import Worker
from runtime.support import PATIENCE, running, until

FAKE = Provider(slug="fake", display_name="Fake", auth_type="oauth2", scopes=("read",))
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ACCESS, REFRESH = "access-token-7f3a", "refresh-token-9c1e"  # no log, answer or row may ever show these
KEY = base64.b64encode(bytes(range(32))).decode()
TABLES = ("sync_jobs", "signals", "webhook_delivery", "connections")


def signal(key: str, *, kind: str = "issue_created", **payload: Any) -> Signal:
    """A signal whose dedupe key is `key`; None has none."""
    return Signal(kind=kind, occurred_at=NOON, payload=payload or {"key": key}, dedupe_key=key)


def page(*keys: str, cursor: Any = None, more: bool = False) -> Page:
    """A page with one signal for each key."""
    return Page(signals=tuple(signal(key) for key in keys), next_cursor=cursor, has_more=more)


class Stop:
    """Where a step waits: `await stop.reached()` in the test, then `stop.go()`."""

    def __init__(self) -> None:
        self._here, self._go = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        """What the step does."""
        self._here.set()
        await self._go.wait()

    async def reached(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._here.wait()

    def go(self) -> None:
        self._go.set()

    def then(self, answer: Any) -> Callable[..., Any]:
        """A step that waits here before it answers."""

        async def step(*_: Any) -> Any:
            await self.wait()
            return await _taken(answer)

        return step


@dataclass(frozen=True)
class Call:
    """What the fake was asked: which method, with which token, and about what."""

    method: str
    token: str | None
    about: Any


@dataclass
class Script:
    """What the fake does next, by method, and what it was asked. Without a step it answers with nothing.

    `webhooks` are steps by the delivery's id; a delivery without one becomes one signal of its own name.
    """

    syncs: list[Any] = field(default_factory=list[Any])
    grants: list[Any] = field(default_factory=list[Any])
    webhooks: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    calls: list[Call] = field(default_factory=list[Call])

    def of(self, method: str) -> list[Any]:
        """What the calls of a method were about."""
        return [call.about for call in self.calls if call.method == method]

    def tokens(self, method: str) -> list[str | None]:
        """The tokens that the calls of a method came with."""
        return [call.token for call in self.calls if call.method == method]


async def _taken(step: Any, *arguments: Any) -> Any:
    if isinstance(step, BaseException):
        raise step
    answer = step(*arguments) if callable(step) else step
    return await answer if inspect.isawaitable(answer) else answer


def fake(script: Script, provider: Provider = FAKE) -> type[Connector]:
    """A connector that follows the script."""

    class Fake(Connector):
        async def sync(self, account: Account, cursor: Any) -> Page:
            script.calls.append(Call("sync", account.access_token, cursor))
            return await _taken(script.syncs.pop(0) if script.syncs else Page(), account, cursor)

        async def refresh(self, refresh_token: str) -> Grant:
            script.calls.append(Call("refresh", None, refresh_token))
            step = script.grants.pop(0) if script.grants else grant()
            return await _taken(step, refresh_token)

        async def handle_webhook(self, account: Account, delivery: Delivery) -> WebhookResult:
            script.calls.append(Call("webhook", account.access_token, delivery.id))
            steps = script.webhooks.get(delivery.id)
            step = steps.pop(0) if steps else WebhookResult(signals=(signal(delivery.id),))
            return await _taken(step, account, delivery)

        def delivery_id(self, headers: Mapping[str, str], body: bytes) -> str:
            return headers.get("x-fake-delivery") or super().delivery_id(headers, body)

        def external_ids(self, headers: Mapping[str, str], payload: Any) -> list[str]:
            return [payload["account"]] if isinstance(payload, dict) and "account" in payload else []

    Fake.provider = provider
    return Fake


def grant(access: str = "new-" + ACCESS, refresh: str | None = None, expires_in: int | None = 3600) -> Grant:
    """What a refresh gives."""
    return Grant(external_id="", access_token=access, refresh_token=refresh, expires_in=expires_in)


class Stage:
    """An open app whose connector follows `script`, and the rows that a test puts on it."""

    def __init__(self, app: Holdfast, conn: Connection, script: Script) -> None:
        self.app = app
        self.conn = conn
        self.script = script
        self.service = Connectors.of(app)
        self.store = app.store(SYNC_JOBS.name)

    # -- rows ----------------------------------------------------------------------------------------

    async def tenant(self, name: str = "Ada & Co") -> UUID:
        return (await tenants.create(self.conn, name)).id

    async def link(
        self,
        *,
        tenant: UUID | None = None,
        provider: str = FAKE.slug,
        external_id: str | None = None,
        access: str | None = ACCESS,
        refresh: str | None = REFRESH,
        expires_in: float | None = 3600.0,
        **more: Any,
    ) -> Link:
        """A connection with sealed tokens; `expires_in` is in seconds from now."""
        tenant = tenant or await self.tenant()
        external_id = external_id or f"account-{uuid4().hex[:8]}"
        scope = {"tenant_id": tenant, "provider": provider, "external_id": external_id}
        sealed = {
            name: self.service.keyring.seal(text, **scope)
            for name, text in {"access": access, "refresh": refresh}.items()
            if text is not None
        }
        ends = None if expires_in is None else datetime.now(UTC) + timedelta(seconds=expires_in)
        return await connections.create(
            self.conn,
            **scope,
            **{name: one.data for name, one in sealed.items()},
            key_id=self.service.keyring.current_id if sealed else None,
            expires_at=ends,
            **more,
        )

    async def add(self, link: Link, kind: str = "incremental", cursor: Any = None, **options: Any) -> UUID:
        """A job for the connection; answers with its id."""
        extras = {"connection_id": link.id, "provider_slug": link.provider}
        item = Item(kind=kind, payload=cursor, tenant=link.tenant_id, extras=extras, **options)
        return (await self.store.enqueue(self.conn, item)).id

    async def deliver(
        self,
        link: Link | None,
        delivery: str,
        payload: Any = None,
        conn: Connection | None = None,
        **more: Any,
    ) -> bool:
        """A delivery in the connection's inbox, and the job that drains it."""
        return await inbox.receive(
            conn or self.conn,
            self.store,
            provider=link.provider if link else FAKE.slug,
            link=link,
            delivery_id=delivery,
            headers={"x-fake-delivery": delivery},
            payload={} if payload is None else payload,
            body_sha256="0" * 64,
            verification="signature",
            **{"tenant_id": link.tenant_id} if link else {},
            **more,
        )

    # -- looks ---------------------------------------------------------------------------------------

    async def rows(self, query: str, *params: Any) -> list[dict[str, Any]]:
        """The answer of a query by its names."""
        return await (await self.conn.cursor(row_factory=dict_row).execute(query, params)).fetchall()

    async def job(self, id: UUID) -> dict[str, Any]:
        (row,) = await self.rows("select * from sync_jobs where id = %s", id)
        return row

    async def jobs(self, link: Link, kind: str | None = None) -> list[dict[str, Any]]:
        """The connection's jobs in the order in which they were made."""
        query = "select * from sync_jobs where connection_id = %s and coalesce(%s, job_type) = job_type"
        return await self.rows(query + " order by created_at, started_at nulls last", link.id, kind)

    async def keys(self, link: Link) -> list[str]:
        """The dedupe keys of the connection's signals, in order."""
        query = "select dedupe_key from signals where connection_id = %s order by dedupe_key"
        return [row["dedupe_key"] for row in await self.rows(query, link.id)]

    async def now(self, link: Link) -> Link:
        """The connection as it is now."""
        found = await connections.get_by_id(self.conn, link.id)
        assert found
        return found

    async def sync_of(self, link: Link) -> dict[str, Any]:
        """`metadata.sync` as it is now."""
        return dict((await self.now(link)).metadata.get("sync", {}))

    async def pending(self, link: Link, conn: Connection | None = None) -> list[Stored]:
        """The connection's deliveries that wait, in order of arrival."""
        query = sql.DELIVERY + "as d where connection_id = %s and d.processed_at is null"
        order = " order by d.received_at, delivery_id"
        cursor = (conn or self.conn).cursor(row_factory=class_row(Stored))
        return await (await cursor.execute(query + order, (link.id,))).fetchall()

    async def rest(self, provider: str = FAKE.slug) -> datetime | None:
        """Until when a provider wants no calls; None: it may be asked."""
        query = "select cooldown_until from providers where slug = %s and cooldown_until > now()"
        found = await self.rows(query, provider)
        return found[0]["cooldown_until"] if found else None

    async def account(self, link: Link) -> Account:
        """The connection as its connector sees it."""
        ((now,),) = await (await self.conn.execute("select clock_timestamp()")).fetchall()
        return await Access(self.service, link, now).account()

    async def delivery(self, id: str) -> dict[str, Any]:
        (row,) = await self.rows("select * from webhook_delivery where delivery_id = %s", id)
        return row

    def opened(self, link: Link, data: bytes | None) -> str | None:
        """A sealed token in the clear."""
        scope = {"tenant_id": link.tenant_id, "provider": link.provider, "external_id": link.external_id}
        return None if data is None else self.service.keyring.open(data, **scope)

    async def everything(self) -> str:
        """All rows of the app's tables as text, to see what they hold, or that nothing has changed."""
        parts = [str(await self.rows(f"select * from {table} order by 1, 2, 3, 4")) for table in TABLES]
        return "\n".join(parts)

    # -- work ----------------------------------------------------------------------------------------

    def worker(self, **options: Any) -> Worker:
        """A worker for sync jobs. Its leader does none of the app's duties: they come when a test says so."""
        worker = self.app.worker(ledgers=[SYNC_JOBS.name], **options)
        mine = {"schedule", "refresh tokens", "retain connectors", "stranded deliveries"}
        worker.keeper.duties = [duty for duty in worker.keeper.duties if duty.name not in mine]
        return worker

    async def work(self, **options: Any) -> None:
        """Works until there is nothing to do."""
        async with asyncio.timeout(PATIENCE):
            await self.worker(**options).run(until_idle=True)

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[Worker]:
        """A worker at work for the length of the block."""
        worker = self.worker(**options)
        async with running(worker):
            yield worker

    async def until_job(self, id: UUID, status: str) -> dict[str, Any]:
        """Waits until the job has this status."""
        await until(self.conn, "select true from sync_jobs where id = %s and status = %s", id, status)
        return await self.job(id)

    async def make_due(self) -> None:
        """Ends every wait of a queued job."""
        await self.conn.execute(
            "update sync_jobs set retry_after = now() where status = 'queued' and retry_after > now()"
        )


@asynccontextmanager
async def stage(settings: Settings, conn: Connection, script: Script | None = None) -> AsyncIterator[Stage]:
    """A stage on the test's database; a second one there is another process to the first."""
    script, settings = script or Script(), replace(settings, crypto_key=settings.crypto_key or KEY)
    await catalogue.upsert(conn, FAKE)
    async with Holdfast(settings, apps=[connectors_app(fake(script))]) as app:
        yield Stage(app, conn, script)
