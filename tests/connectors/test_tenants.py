"""Tenants as the repository makes and finds them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from holdfast.apps.connectors import tenants
from holdfast.db.pool import Connection
from holdfast.errors import Conflict, InvalidInput, NotFound


async def test_a_tenant_inserted_by_id_and_name_gets_its_created_at(conn: Connection) -> None:
    """C-7, C-70"""
    made = await tenants.create(conn, "Acme", id=UUID(int=7))
    assert (made.id, made.name) == (UUID(int=7), "Acme")
    assert abs(made.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert await tenants.get(conn, made.id) == made


async def test_a_tenant_without_an_id_gets_a_random_one(conn: Connection) -> None:
    """C-7"""
    ids = {(await tenants.create(conn, "Acme")).id for _ in range(3)}
    assert len(ids) == 3
    assert all(one.version == 4 for one in ids)


async def test_a_second_tenant_with_the_same_id_is_a_conflict_and_the_transaction_goes_on(
    conn: Connection,
) -> None:
    """C-7: 23505 is told as `Conflict`."""
    async with conn.transaction():
        made = await tenants.create(conn, "Acme")
        with pytest.raises(Conflict, match=f"^tenant: there is one with the id {made.id} already$"):
            await tenants.create(conn, "Another", id=made.id)
        assert (await tenants.get(conn, made.id)).name == "Acme"


@pytest.mark.parametrize("name", ["x", " Acme ", "\tAcme\n", "é" * 255, " " * 50 + "n" * 255])
async def test_a_name_is_trimmed(conn: Connection, name: str) -> None:
    """C-70"""
    assert (await tenants.create(conn, name)).name == name.strip()


@pytest.mark.parametrize("name", ["", " ", "\n\t ", "n" * 256, "a\x00b", "a\ud800", 7, None])
async def test_a_name_that_is_none_is_refused_and_nothing_is_written(conn: Connection, name: str) -> None:
    """C-70 and the row of "Bad input" about names"""
    with pytest.raises(InvalidInput) as caught:
        await tenants.create(conn, name)
    assert caught.value.field == "name"
    assert await (await conn.execute("select from tenants")).fetchall() == []


async def test_a_tenant_that_is_not_there_is_not_found(conn: Connection) -> None:
    """C-70"""
    unknown = uuid4()
    with pytest.raises(NotFound, match=f"no tenant with the id {unknown}"):
        await tenants.get(conn, unknown)


async def test_what_others_have_written_is_read_as_it_is(conn: Connection) -> None:
    """C-7: no name, and a time that has no end."""
    await conn.execute("insert into tenants (id, created_at) values (%s, 'infinity')", [UUID(int=9)])
    found = await tenants.get(conn, UUID(int=9))
    assert (found.name, found.created_at.year) == (None, 9999)
