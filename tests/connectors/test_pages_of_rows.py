"""Pages: every row once, whatever its time, and no cursor that another list gave out."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from connectors.door import OTHER, TENANT, House, house
from connectors.kit import NOON, signal
from holdfast import Settings
from holdfast.apps.connectors import connections, signals
from holdfast.db.pool import Connection

URL = "/api/connectors"
LISTS = {"connections": "id", "jobs": "id", "signals": "id", "deliveries": "delivery_id", "tenants": "id"}


@pytest.fixture
async def here(settings: Settings, conn: Connection) -> AsyncIterator[House]:
    """Seven of everything, all at the same time."""
    async with house(settings, conn) as here:
        for number in range(7):
            link = await here.link(tenant=TENANT, provider="shop", external_id=f"a{number}")
            await here.add(link)
            await here.deliver(link, f"d{number}", now=NOON)
            async with conn.transaction():
                await connections.lock(conn, link.id)
                await signals.store(conn, link, [signal(f"s{number}")])
        other = await here.link(tenant=OTHER, provider="shop")
        await here.add(other)
        await here.deliver(other, "other", now=NOON)
        await conn.execute("delete from sync_jobs where job_type = 'webhook'")
        for number in range(5):
            await here.tenant(f"T{number}")
        for table in ("connections", "tenants"):
            await conn.execute(f"update {table} set created_at = %s".encode(), (NOON,))
        await conn.execute("update sync_jobs set scheduled_at = %s", (NOON,))
        yield here


async def pages(client: httpx.AsyncClient, name: str, **params: Any) -> list[list[Any]]:
    """All pages of a list, by the ids of their rows."""
    found: list[list[Any]] = []
    while True:
        response = await client.get(f"{URL}/{name}", params=params)
        assert response.status_code == 200, response.text
        answer = response.json()
        found.append([row[LISTS[name]] for row in answer[name]])
        assert "next_cursor" in answer
        if answer["next_cursor"] is None:
            return found
        params["cursor"] = answer["next_cursor"]


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 100])
async def test_pages_over_equal_times_show_every_row_once(here: House, name: str, limit: int) -> None:
    """C-68: none twice, none skipped; the last page says so, also when it is full."""
    who = "reader" if name == "tenants" else "tenant reader"
    found = await pages(here.client(who), name, limit=limit)
    every = [one for page in found for one in page]
    assert len(every) == len(set(every)) == 7
    assert [len(page) for page in found] == [limit] * (7 // limit) + ([7 % limit] if 7 % limit else [])
    (whole,) = await pages(here.client(who), name, limit=100)
    assert every == whole


async def test_rows_that_come_meanwhile_disturb_no_page(here: House) -> None:
    """C-68: what was there at the beginning is told once."""
    client = here.client("tenant reader")
    first = (await client.get(f"{URL}/jobs", params={"limit": 3})).json()
    link = await here.link(tenant=TENANT, provider="shop")
    await here.add(link)  # due now, so before all others
    rest = await pages(client, "jobs", limit=3, cursor=first["next_cursor"])
    every = [row["id"] for row in first["jobs"]] + [one for page in rest for one in page]
    assert len(every) == len(set(every)) == 7


async def test_an_operator_sees_everybody_if_he_says_so(here: House) -> None:
    """C-72: `all_tenants`; without it, a tenant must be named, and a tenant may not say it."""
    operator = here.client("reader", **{"X-Tenant-Id": str(TENANT)})
    for name in ("connections", "jobs", "deliveries"):
        (own,) = await pages(operator, name)
        (every,) = await pages(operator, name, all_tenants="true")
        assert (len(own), len(every)) == (7, 8), name
        response = await here.client("tenant").get(f"{URL}/{name}", params={"all_tenants": "true"})
        assert response.status_code == 403


def cursor_of(**told: Any) -> str:
    return base64.b64encode(json.dumps(told).encode()).decode()


async def test_a_cursor_that_no_page_gave_out_is_refused(here: House) -> None:
    """Section 4: empty, too long, no base64, other JSON, another version, nil, far away, other filters."""
    client = here.client("tenant reader")
    good = (await client.get(f"{URL}/jobs", params={"limit": 1})).json()["next_cursor"]
    told = json.loads(base64.urlsafe_b64decode(good))
    keys, mark = told["keys"], told["filters"]

    def changed(**more: Any) -> str:
        return cursor_of(version=1, keys=keys | more, filters=mark)

    far = (datetime.now(UTC) + timedelta(days=400)).isoformat()
    bad = [
        "",
        "x" * 1001,
        "%%%",
        base64.b64encode(b"\xff\xfe").decode(),
        base64.b64encode(b"no json").decode(),
        base64.b64encode(b'"' + b"x" * 510 + b'"').decode(),
        cursor_of(version=2, keys=keys, filters=mark),
        cursor_of(version=1, keys={}, filters=mark),
        changed(id=str(UUID(int=0))),
        changed(id="x"),
        changed(scheduled_at=far),
        changed(scheduled_at="noon"),
        changed(more="x"),
    ]
    assert (await client.get(f"{URL}/jobs", params={"cursor": changed()})).status_code == 200
    for text in bad:
        response = await client.get(f"{URL}/jobs", params={"cursor": text})
        assert (response.status_code, response.json()["field"]) == (400, "cursor"), text
    for params in ({"status": "queued"}, {"provider": "shop"}, {"all_tenants": "true"}):
        response = await client.get(f"{URL}/jobs", params={"cursor": good, **params})
        assert response.status_code == (403 if "all_tenants" in params else 400)
    response = await here.client("other tenant").get(f"{URL}/jobs", params={"cursor": good})
    assert response.status_code == 400
    for name in ("signals", "connections", "deliveries"):
        assert (await client.get(f"{URL}/{name}", params={"cursor": good})).status_code == 400


@pytest.mark.parametrize("name", LISTS)
async def test_a_limit_lies_between_1_and_100(here: House, name: str) -> None:
    """C-68: 50 if nothing is said."""
    for limit in ("0", "101", "abc", "1.5", "-1", ""):
        response = await here.client("reader").get(f"{URL}/{name}", params={"limit": limit})
        assert (response.status_code, response.json()["field"]) == (400, "limit"), limit


async def test_a_page_has_50_rows_if_nothing_is_said(here: House) -> None:
    """C-68: the default."""
    link = await here.link(tenant=TENANT, provider="ping")
    for number in range(51):
        await here.deliver(link, f"m{number}")
    answer = (await here.client("tenant").get(f"{URL}/deliveries", params={"provider": "ping"})).json()
    assert len(answer["deliveries"]) == 50
    assert answer["next_cursor"]
