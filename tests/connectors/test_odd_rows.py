"""Rows that others have written, with times that no calendar has or numbers without measure, hide nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from api.kit import A, B
from connectors.door import OTHER, TENANT, House, house
from holdfast import Settings
from holdfast.db.pool import Connection

URL = "/api/connectors"
LISTS = ("jobs", "connections", "deliveries")
FAR = ("20000-01-01", "4000-01-01 BC", "infinity", "-infinity")
TIMES = ("scheduled_at", "retry_after", "started_at", "finished_at", "updated_at", "created_at")


@pytest.fixture
async def here(settings: Settings, conn: Connection) -> AsyncIterator[House]:
    async with house(settings, conn) as here:
        yield here


async def listed(here: House) -> None:
    """Every list shows what is there: to the tenant whose row is odd, to the others, and to operators."""
    for name in LISTS:
        seen = {}
        for tenant in (A, B):
            answer = await here.client("actor").get(f"{URL}/{name}", headers={"X-Tenant-Id": tenant})
            assert answer.status_code == 200, (name, answer.text)
            seen[tenant] = len(answer.json()[name])
        everybody = await here.client("actor").get(f"{URL}/{name}?all_tenants=true")
        assert everybody.status_code == 200, (name, everybody.text)
        assert (seen, len(everybody.json()[name])) == ({A: 2, B: 1}, 3), name
    assert (await here.client("tenant").get(f"{URL}/jobs")).status_code == 200
    assert (await here.client("actor").get("/metrics")).status_code == 200


async def fill(here: House) -> None:
    """Of one tenant two connections with a job and a delivery each, of the other one."""
    for tenant in (TENANT, TENANT, OTHER):
        link = await here.link(tenant=tenant, provider="shop")
        await here.add(link)
        await here.deliver(link, f"d-{link.id}")
    await here.conn.execute("delete from sync_jobs where job_type = 'webhook'")


@pytest.mark.parametrize("status", ["queued", "failed", "succeeded"])
@pytest.mark.parametrize("far", FAR)
async def test_a_time_that_no_calendar_has_hides_no_job_and_no_connection(
    here: House, far: str, status: str
) -> None:
    """C-69"""
    await fill(here)
    for name in TIMES:
        change = f"update sync_jobs set {name} = %s, status = %s, error = %s where tenant_id = %s"
        error = None if status == "succeeded" else '{"code": "X", "message": "x"}'
        await here.conn.execute(change, (far, status, error, TENANT))
        await listed(here)


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("name", ["received_at", "processed_at"])
async def test_a_time_that_no_calendar_has_hides_no_delivery(here: House, far: str, name: str) -> None:
    """C-69"""
    await fill(here)
    change = f"update webhook_delivery set {name} = %s where tenant_id = %s"
    await here.conn.execute(change, (far, TENANT))
    await listed(here)


@pytest.mark.parametrize("attempts", [2147483647, -5])
async def test_starts_without_measure_hide_no_connection(here: House, attempts: int) -> None:
    """C-69: their sum is more than a whole number of four bytes holds."""
    await fill(here)
    (link,) = await here.rows("select * from connections where tenant_id = %s limit 1", TENANT)
    query = """
        insert into sync_jobs (
            id, tenant_id, provider_slug, connection_id, job_type, status, attempts, error
        )
        select gen_random_uuid(), %s, 'shop', %s, 'full', 'failed', %s, '{"code": "X"}'
        from generate_series(1, 3)
    """
    await here.conn.execute(query, (TENANT, link["id"], attempts))
    answer = await here.client("tenant").get(f"{URL}/connections")
    assert answer.status_code == 200
    failures = {one["health"]["failures"] for one in answer.json()["connections"]}
    assert failures == {0, 2147483647 if attempts > 0 else 0}


@pytest.mark.parametrize("far", [*FAR, "2026-03-01"])
async def test_pages_of_jobs_tell_each_once_whatever_their_times(here: House, far: str) -> None:
    """C-68: also where the time that is told of a row is only the bound of what a calendar has."""
    link = await here.link(tenant=TENANT, provider="shop")
    query = """
        insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, scheduled_at)
        select gen_random_uuid(), %s, 'shop', %s, 'full', 'succeeded', s.at::timestamptz
        from unnest(%s::text[]) as s (at)
    """
    times = [far, far, far, "2026-03-02", "2026-03-03", "30000-01-01", "3000-01-01 BC"]
    await here.conn.execute(query, (TENANT, link.id, times))
    seen: list[str] = []
    cursor: str | None = None
    for _ in times:
        params = {"limit": 1} | ({"cursor": cursor} if cursor else {})
        answer = (await here.client("tenant").get(f"{URL}/jobs", params=params)).json()
        seen += [job["id"] for job in answer["jobs"]]
        cursor = answer["next_cursor"]
    assert cursor is None
    assert len(set(seen)) == len(seen) == len(times)
