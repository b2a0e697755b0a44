"""What Prometheus is told of connections and webhooks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from connectors.door import OTHER, TENANT, House, house
from holdfast import Settings
from holdfast.apps.connectors import metrics, sync_state
from holdfast.apps.connectors.failures import cool_down
from holdfast.apps.connectors.metrics import METRICS, Meters
from holdfast.apps.connectors.protocol import RateLimited
from holdfast.apps.connectors.tick import tick
from holdfast.db.pool import Connection


@pytest.fixture
async def here(settings: Settings, conn: Connection) -> AsyncIterator[House]:
    async with house(settings, conn) as here:
        yield here


async def told(here: House) -> dict[tuple[str, ...], float]:
    """Every number by its name and its labels."""
    text = (await here.client("admin").get("/metrics")).text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_connections_are_counted_by_provider_and_status(here: House) -> None:
    """C-27: whosever they are."""
    for tenant, status in ((TENANT, "active"), (OTHER, "active"), (TENANT, "error")):
        await here.link(tenant=tenant, provider="shop", status=status)
    numbers = await told(here)
    assert numbers["holdfast_connections", "shop", "active"] == 2
    assert numbers["holdfast_connections", "shop", "error"] == 1


async def test_the_backlog_counts_connections_that_are_due_without_a_job(here: House) -> None:
    """C-27: never scheduled, past, or in a spelling that nobody can read; not those with a job."""
    now = datetime.now(UTC)

    def at(seconds: float) -> dict[str, object]:
        return {"sync": {"next_run_at": sync_state.moment_text(now + timedelta(seconds=seconds))}}

    assert (await told(here))["sync_scheduler_backlog_gauge",] == 0
    for metadata in (None, at(-60), {"sync": {"next_run_at": "yesterday"}}, {"sync": 3}):
        await here.link(tenant=TENANT, provider="shop", metadata=metadata)
    await here.link(tenant=TENANT, provider="shop", metadata=at(3600))
    await here.link(tenant=TENANT, provider="shop", status="paused")
    busy = await here.link(tenant=TENANT, provider="shop", metadata=at(-60))
    await here.add(busy)
    assert (await told(here))["sync_scheduler_backlog_gauge",] == 4


async def test_cooldowns_are_told_by_provider(here: House) -> None:
    """C-41: and what others have written there spoils nothing."""
    until = sync_state.moment_text(datetime.now(UTC) + timedelta(seconds=100))
    impossible = "9999-99-99T99:99:99.999999Z"
    for sync in (
        {"last_jitter_seconds": 10, "cooldown_until": until},
        {"last_jitter_seconds": 30, "cooldown_until": "2020-01-01T00:00:00.000000Z"},
        {"last_jitter_seconds": "many", "cooldown_until": "soon"},
    ):
        await here.link(tenant=TENANT, provider="shop", metadata={"sync": sync})
    await here.link(tenant=TENANT, provider="ping", metadata={"sync": {"cooldown_until": impossible}})
    numbers = await told(here)
    assert numbers["rate_limited_connections", "shop"] == 1
    assert 90 < numbers["rate_limited_backoff_seconds", "shop"] <= 100
    assert ("rate_limited_backoff_seconds", "ping") not in numbers


async def test_deliveries_that_wait_are_told(here: House) -> None:
    """C-54: pending and unmatched ones apart; what is processed is not."""
    link = await here.link(tenant=TENANT, provider="shop")
    old = datetime.now(UTC) - timedelta(seconds=50)
    for number in range(3):
        await here.deliver(link, f"d{number}", now=old)
    await here.conn.execute("update webhook_delivery set processed_at = now() where delivery_id = 'd0'")
    await here.conn.execute("update webhook_delivery set connection_id = null where delivery_id = 'd1'")
    numbers = await told(here)
    assert numbers["holdfast_webhook_deliveries_pending", "shop"] == 1
    assert numbers["holdfast_webhook_deliveries_unmatched", "shop"] == 1
    assert 50 <= numbers["holdfast_webhook_oldest_pending_seconds", "shop"] < 80


async def test_every_metric_is_declared_and_none_has_a_tenant(here: House) -> None:
    """C-27: a tenant label has no bound."""
    found = {family.name: family for family in await metrics.collect(here.app.site)}
    assert {name.removesuffix("_total") for name in METRICS} == set(found)
    labels = {label for one in METRICS.values() for label in one.labels}
    assert labels <= {"provider", "provider_slug", "status", "way", "reason"}
    assert (str(TENANT) in (await here.client("admin").get("/metrics")).text) is False


def test_a_histogram_of_proofs_counts_up() -> None:
    """C-55: every bucket has what is below it."""
    meters = Meters()
    for seconds in (0.00005, 0.003, 0.003, 99.0):
        meters.verified_in("shop", seconds)
    assert sum(meters.took["shop"]) == 4
    assert meters.took["shop"][0] == 1
    assert meters.took["shop"][-1] == 1
    assert meters.sums["shop"] == pytest.approx(99.00605)


async def test_what_the_leader_and_the_workers_have_counted_is_told(here: House, conn: Connection) -> None:
    """C-27, C-41: the tick tells its jobs, jitter and time; each refusal of a provider is one more."""
    for _ in range(3):
        await here.link(tenant=TENANT, provider="shop")
    await tick(conn, here.app.stores["sync_jobs"], here.app.settings, draw=lambda low, high: high)
    link = await here.link(tenant=TENANT, provider="ping")
    async with conn.transaction():
        limit = RateLimited(message="too often", retry_after_seconds=7, shared=False)
        await cool_down(conn, here.app.settings, link, limit, 7.0)
    numbers = await told(here)
    assert numbers["sync_scheduler_jobs_scheduled_total", "shop"] == 3
    assert numbers["sync_scheduler_jitter_seconds_count",] == 3
    assert numbers["sync_scheduler_jitter_seconds_sum",] == 3 * 180
    assert numbers["sync_scheduler_jitter_seconds_bucket", "60"] == 0
    assert numbers["sync_scheduler_jitter_seconds_bucket", "300"] == 3
    assert numbers["sync_scheduler_tick_duration_ms_count",] == 1
    assert numbers["rate_limited_total", "ping"] == 1
