"""The public repository of providers and connections: what the seed names, in the caller's transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from connectors import kit
from connectors.kit import Stage
from holdfast import Settings
from holdfast.apps.connectors.repository import Repository, Tokens
from holdfast.db.pool import Connection
from holdfast.errors import Conflict, InvalidInput, NotFound


@pytest.fixture
async def stage(settings: Settings, conn: Connection) -> AsyncIterator[Stage]:
    async with kit.stage(settings, conn) as stage:
        yield stage


async def test_providers_are_read_and_written_by_slug(stage: Stage) -> None:
    accounts, conn = Repository(stage.app), stage.conn
    made = await accounts.upsert(conn, "my-shop", "My shop", "oauth2")
    assert (made.slug, made.display_name, made.auth_type) == ("my_shop", "My shop", "oauth2")
    await accounts.upsert(conn, "my_shop", "Our shop", "webhook-only")
    assert (await accounts.get_by_slug(conn, "my-shop")).display_name == "Our shop"
    slugs = [one.slug for one in await accounts.list_all(conn)]
    assert slugs == sorted(slugs)
    assert "my_shop" in slugs
    with pytest.raises(NotFound):
        await accounts.get_by_slug(conn, "nothing")


async def test_a_connection_is_created_with_its_first_job_or_not_at_all(stage: Stage) -> None:
    """Its tokens are encrypted, the job is due at once, and both are part of the caller's transaction."""
    accounts, conn, tenant = Repository(stage.app), stage.conn, await stage.tenant()
    place: Any = {"tenant_id": tenant, "provider": "fake", "external_id": "a-1"}
    async with conn.transaction(force_rollback=True):
        await accounts.create(conn, **place)
    assert await accounts.find_by_unique(conn, tenant, "fake", "a-1") is None
    made = await accounts.create(conn, **place, tokens=Tokens(access="at-1", refresh="rt-1"))
    assert (stage.opened(made, made.access), stage.opened(made, made.refresh)) == ("at-1", "rt-1")
    (job,) = await stage.jobs(made)
    assert (job["job_type"], job["scheduled_at"] <= datetime.now(UTC)) == ("incremental", True)
    with pytest.raises(Conflict):
        await accounts.create(conn, **place)
    with pytest.raises(NotFound):
        await accounts.create(conn, **place | {"tenant_id": uuid4()})
    with pytest.raises(InvalidInput, match=r"tokens\.access"):
        Tokens(access="two\nlines")
    assert "at-1" not in repr(Tokens(access="at-1"))
    listens = await accounts.create(conn, tenant_id=tenant, provider="zoho-cliq", external_id="o-1")
    assert await stage.jobs(listens) == []


async def test_connections_are_found_by_id_by_account_and_page_by_page(stage: Stage) -> None:
    accounts, conn = Repository(stage.app), stage.conn
    tenant, other = await stage.tenant(), await stage.tenant()
    made = [
        await accounts.create(conn, tenant_id=tenant, provider="fake", external_id=f"a-{n}") for n in range(3)
    ]
    await accounts.create(conn, tenant_id=other, provider="fake", external_id="a-0")
    found = await accounts.find_by_unique(conn, tenant, "fake", "a-1")
    assert found is not None
    assert found.id == made[1].id
    assert await accounts.get_by_id(conn, found.id) == found
    assert await accounts.get_by_id(conn, uuid4()) is None
    first = await accounts.list_by_tenant_provider(conn, tenant, "fake", 2)
    rest = await accounts.list_by_tenant_provider(conn, tenant, "fake", 2, first.cursor)
    assert [one.id for one in (*first.items, *rest.items)] == [one.id for one in made]
    assert rest.cursor is None


async def test_an_update_writes_what_is_passed_and_nothing_else(stage: Stage) -> None:
    accounts, conn = Repository(stage.app), stage.conn
    link = await stage.link()
    ends = datetime(2030, 1, 1, tzinfo=UTC)
    paused = await accounts.update_tokens_status(conn, link.id, status="paused", expires_at=ends)
    assert paused is not None
    assert (paused.status, paused.expires_at, paused.access) == ("paused", ends, link.access)
    renewed = await accounts.update_tokens_status(conn, link.id, tokens=Tokens(access="at-2"))
    assert renewed is not None
    assert (renewed.status, renewed.expires_at, renewed.refresh) == ("paused", ends, None)
    assert stage.opened(renewed, renewed.access) == "at-2"
    emptied = await accounts.update_tokens_status(conn, link.id, tokens=None)
    assert emptied is not None
    assert (emptied.access, emptied.key_id) == (None, None)
    assert await accounts.update_tokens_status(conn, uuid4(), status="active") is None
    with pytest.raises(InvalidInput, match="status"):
        await accounts.update_tokens_status(conn, link.id, status="asleep")
