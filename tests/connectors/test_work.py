"""The app's work in a fleet: its duties are done by whoever can do them."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from holdfast import App, Holdfast, Settings
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.db.pool import Connection
from runtime.support import present, until, working


async def test_connections_are_scheduled_also_when_the_leader_cannot(
    settings: Settings, conn: Connection
) -> None:
    """C-21: a worker without the extra leads, and another one, which has it, ticks."""
    resting = App(name="connectors", ledgers=(SYNC_JOBS,))
    eager = replace(settings, sync_tick_seconds=0.1, leader_term=60)
    async with Holdfast(eager, apps=[resting]) as lean, working(lean, ledgers=["tasks"]) as leader:
        await present(conn, leader)
        await until(conn, "select true from workers where is_leader and id = %s", leader.id)
        tenant = uuid4()
        await conn.execute("insert into tenants (id) values (%s)", [tenant])
        await conn.execute(
            "insert into connections (id, tenant_id, provider_slug, external_id) "
            "values (%s, %s, 'github', 'me')",
            [uuid4(), tenant],
        )
        async with Holdfast(eager) as able, working(able, ledgers=["tasks"]) as follower:
            await until(conn, "select true from sync_jobs where job_type = 'incremental'")
            await until(conn, "select is_leader from workers where id = %s", leader.id)
            assert follower.id != leader.id
