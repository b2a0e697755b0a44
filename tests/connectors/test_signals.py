"""Signals: stored once, read in pages, found through indexes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.errors import ForeignKeyViolation

from holdfast.apps.connectors import connections, queries, signals, tenants
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.normal import KINDS
from holdfast.apps.connectors.protocol import Signal
from holdfast.apps.connectors.signals import StoredSignal
from holdfast.db.pool import Connection
from holdfast.errors import InvalidInput, NotFound
from runtime.support import until

Connect = Callable[[], Awaitable[Connection]]

ONE, TWO = UUID(int=1), UUID(int=2)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
async def link(conn: Connection) -> Link:
    """A connection of the first of two tenants."""
    for tenant in (ONE, TWO):
        await tenants.create(conn, "a tenant", id=tenant)
    return await account(conn)


async def account(conn: Connection, tenant: UUID = ONE, provider: str = "github", name: str = "octo") -> Link:
    return await connections.create(conn, tenant_id=tenant, provider=provider, external_id=name)


def signal(key: str | None = None, *, kind: str = "issue_created", minute: int = 0, **payload: Any) -> Signal:
    moment = NOON + timedelta(minutes=minute)
    return Signal(kind=kind, occurred_at=moment, payload=payload, dedupe_key=key)


async def stored(conn: Connection) -> list[StoredSignal]:
    return list((await signals.find(conn, None, limit=1000)).items)


# -- storing -------------------------------------------------------------------------------------------


async def test_a_signal_for_an_existing_tenant_provider_and_connection_is_stored_with_its_times(
    conn: Connection, link: Link
) -> None:
    """C-73"""
    given = signal("k", title="It broke", labels=["bug"])
    assert await signals.store(conn, link, [given]) == 1
    (one,) = await stored(conn)
    assert (one.tenant_id, one.provider, one.connection_id) == (ONE, "github", link.id)
    assert (one.kind, one.occurred_at, one.dedupe_key) == ("issue_created", NOON, "k")
    assert one.payload == {"title": "It broke", "labels": ["bug"]}
    times = "select received_at = created_at and created_at = updated_at, received_at from signals"
    ((same, received),) = await (await conn.execute(times)).fetchall()
    assert same
    assert one.received_at == received
    assert abs(received - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_signal_of_a_connection_that_is_gone_or_anothers_is_not_stored(
    conn: Connection, link: Link
) -> None:
    """C-14, C-73: 23503 is told as `NotFound`, and the caller's transaction goes on."""
    async with conn.transaction():
        for wrong in ({"id": uuid4()}, {"tenant_id": TWO}, {"provider": "slack"}):
            other = replace(link, **wrong)
            with pytest.raises(NotFound, match=f"no connection with the id {other.id}"):
                await signals.store(conn, other, [signal()])
        assert await signals.store(conn, link, [signal()]) == 1


async def test_every_kind_of_the_closed_list_is_stored_and_no_other(
    conn: Connection, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    """C-74: one line for each that is not."""
    caplog.set_level(logging.INFO)
    known = [signal(kind=kind) for kind in sorted(KINDS)]
    unknown = [signal(kind=kind) for kind in ("issue_exploded", "", "ISSUE_CREATED")]
    assert await signals.store(conn, link, [*unknown, *known]) == len(KINDS) == 29
    assert {one.kind for one in await stored(conn)} == KINDS
    assert caplog.text.count("is no signal") == 3


async def test_a_key_that_is_known_or_repeated_is_stored_once(conn: Connection, link: Link) -> None:
    """C-39: by page and by table; the first one counts. Without a key each is one of its own."""
    assert await signals.store(conn, link, [signal("a", n=1), signal("b"), signal("a", n=2)]) == 2
    assert await signals.store(conn, link, [signal("b"), signal("c"), signal(), signal(), signal("")]) == 4
    assert await signals.store(conn, link, [signal("a"), signal("b"), signal("c")]) == 0
    assert await signals.store(conn, link, []) == 0
    found = await stored(conn)
    assert sorted(one.dedupe_key or "" for one in found) == ["", "", "", "a", "b", "c"]
    assert [one.payload for one in found if one.dedupe_key == "a"] == [{"n": 1}]


async def test_a_key_is_known_to_a_tenant_and_provider_and_to_nobody_else(
    conn: Connection, link: Link
) -> None:
    """C-39, C-76: two accounts of a tenant may see the same repository; two tenants each have their own."""
    await signals.store(conn, link, [signal("a")])
    assert await signals.store(conn, await account(conn, name="second"), [signal("a")]) == 0
    assert await signals.store(conn, await account(conn, TWO), [signal("a")]) == 1
    assert await signals.store(conn, await account(conn, provider="slack"), [signal("a")]) == 1


async def test_of_two_who_store_one_key_together_one_does(
    connect: Connect, conn: Connection, link: Link
) -> None:
    """C-39: over two connections of one tenant, whose rows do not lock each other out."""
    second = await account(conn, name="second")
    other, watcher = await connect(), await connect()
    async with conn.transaction():
        await connections.lock(conn, link.id)
        assert await signals.store(conn, link, [signal("a")]) == 1

        async def late() -> int:
            async with other.transaction():
                await connections.lock(other, second.id)
                return await signals.store(other, second, [signal("a"), signal("b")])

        waiting = asyncio.create_task(late())
        query = "select count(*) > 0 from pg_stat_activity where pid = %s and wait_event = 'advisory'"
        await until(watcher, query, other.info.backend_pid)
    assert await waiting == 1
    assert sorted(one.dedupe_key or "" for one in await stored(conn)) == ["a", "b"]


async def test_tenants_and_providers_do_not_wait_for_one_another(
    connect: Connect, conn: Connection, link: Link
) -> None:
    """C-39"""
    others = [await account(conn, TWO), await account(conn, provider="slack")]
    second = await connect()
    await second.execute("set lock_timeout = '2s'")
    async with conn.transaction():
        await signals.store(conn, link, [signal("a")])
        for other in others:
            assert await signals.store(second, other, [signal("a")]) == 1


async def test_what_is_rolled_back_leaves_no_signal_and_no_lock(
    connect: Connect, conn: Connection, link: Link
) -> None:
    """C-37: a crash between signals and finish leaves no signal."""
    async with conn.transaction(force_rollback=True):
        assert await signals.store(conn, link, [signal("a")]) == 1
    assert await stored(conn) == []
    second = await connect()
    await second.execute("set lock_timeout = '2s'")
    assert await signals.store(second, link, [signal("a")]) == 1


async def test_a_large_page_is_stored_whole(conn: Connection, link: Link) -> None:
    """C-39: over several statements, with repeats in different ones."""
    page = [signal(f"k{n % 1100}", minute=n, n=n) for n in range(2300)]
    assert await signals.store(conn, link, page) == 1100
    ((first, last),) = await (
        await conn.execute("select min((payload->>'n')::int), max((payload->>'n')::int) from signals")
    ).fetchall()
    assert (first, last) == (0, 1099)


async def test_a_payload_from_outside_is_stored_whatever_it_holds(conn: Connection, link: Link) -> None:
    """C-74: one odd message must not hold up all that come after."""
    odd = {"nul": "a\x00b", "half": "\ud800", "nan": float("nan"), "when": NOON, "id": ONE, "deep": {}}
    below = odd["deep"]
    for _ in range(300):
        below["deep"] = {}
        below = below["deep"]
    moved = Signal(kind="issue_created", occurred_at=NOON, payload=odd, dedupe_key="k\x00")
    bare = [Signal(kind="pr_merged", occurred_at=NOON, payload=value) for value in (None, [], "x", 7)]
    assert await signals.store(conn, link, [moved, *bare]) == 5
    by_kind = {one.kind: one for one in await stored(conn)}
    found = by_kind["issue_created"]
    assert (found.payload["nul"], found.payload["nan"], found.dedupe_key) == ("ab", None, "k")
    assert found.payload["when"].startswith("2026-03-01T12:00:00")


async def test_a_key_too_long_for_an_index_is_still_one_key(conn: Connection, link: Link) -> None:
    """C-39, C-76"""
    long, longer = "github:code_pushed:" + "é" * 5000, "github:code_pushed:" + "é" * 5001
    assert await signals.store(conn, link, [signal(long), signal(longer), signal(long)]) == 2
    assert await signals.store(conn, link, [signal(longer)]) == 0


async def test_a_time_without_a_zone_is_refused_and_another_zone_is_the_same_time(
    conn: Connection, link: Link
) -> None:
    """C-73"""
    naive = Signal(kind="issue_created", occurred_at=datetime(2026, 3, 1), payload={})  # noqa: DTZ001
    with pytest.raises(InvalidInput, match="occurred_at: must have a time zone"):
        await signals.store(conn, link, [naive])
    there = NOON.astimezone(timezone(timedelta(hours=-7)))
    await signals.store(conn, link, [Signal(kind="issue_created", occurred_at=there, payload={})])
    assert [one.occurred_at for one in await stored(conn)] == [NOON]


# -- reading -------------------------------------------------------------------------------------------


async def test_one_signal_is_found_by_its_tenant_and_by_no_other(conn: Connection, link: Link) -> None:
    """C-13, C-69"""
    await signals.store(conn, link, [signal(n=1)])
    (one,) = await stored(conn)
    assert await signals.get(conn, one.id, ONE) == one == await signals.get(conn, one.id)
    for asked, tenant in ((one.id, TWO), (uuid4(), ONE)):
        with pytest.raises(NotFound, match=f"no signal with the id {asked}"):
            await signals.get(conn, asked, tenant)


async def test_a_list_is_narrowed_by_each_filter_and_both_times_are_included(
    conn: Connection, link: Link
) -> None:
    """C-69"""
    slack, other = await account(conn, provider="slack"), await account(conn, TWO)
    await signals.store(conn, link, [signal("a", minute=0), signal("b", minute=1, kind="pr_merged")])
    await signals.store(conn, slack, [signal("c", minute=2, kind="message_posted")])
    await signals.store(conn, other, [signal("d", minute=3)])

    async def keys(tenant: UUID | None = ONE, **which: Any) -> str:
        return "".join(one.dedupe_key or "" for one in (await signals.find(conn, tenant, **which)).items)

    assert await keys() == "cba"
    assert await keys(None) == "dcba"
    assert await keys(TWO) == "d"
    assert await keys(provider="github") == "ba"
    assert await keys(provider="nobody") == ""
    assert await keys(connection_id=slack.id) == "c"
    assert await keys(TWO, connection_id=slack.id) == ""
    assert await keys(kind="pr_merged") == "b"
    assert await keys(occurred_after=NOON + timedelta(minutes=1)) == "cb"
    assert await keys(occurred_before=NOON + timedelta(minutes=1)) == "ba"
    assert await keys(occurred_after=NOON, occurred_before=NOON) == "a"
    assert await keys(occurred_after=NOON + timedelta(microseconds=1)) == "cb"


async def test_payloads_are_read_where_they_are_asked_for(conn: Connection, link: Link) -> None:
    """C-69"""
    await signals.store(conn, link, [signal(n=1)])
    assert (await signals.find(conn, ONE)).items[0].payload == {"n": 1}
    assert (await signals.find(conn, ONE, payload=False)).items[0].payload is None


@pytest.mark.parametrize("limit", [1, 3, 10, 11, 100])
async def test_pages_over_equal_times_show_every_signal_once(
    conn: Connection, link: Link, limit: int
) -> None:
    """C-68: newest first, and by id within one time."""
    await signals.store(conn, link, [signal(f"k{n}", minute=n // 4) for n in range(11)])
    seen: list[StoredSignal] = []
    cursor, pages = None, 0
    while True:
        page = await signals.find(conn, ONE, provider="github", limit=limit, cursor=cursor)
        seen += page.items
        pages += 1
        cursor = page.cursor
        if cursor is None:
            break
    assert len(seen) == len({one.id for one in seen}) == 11
    assert seen == sorted(seen, key=lambda one: (one.occurred_at, one.id), reverse=True)
    assert pages == -(-11 // limit)


async def test_pages_go_on_into_what_happened_years_ago(conn: Connection, link: Link) -> None:
    """C-68: an account that was just connected brings its past."""
    years = [Signal(kind="issue_created", occurred_at=NOON.replace(year=y), payload={}) for y in (1999, 1970)]
    await signals.store(conn, link, years)
    first = await signals.find(conn, ONE, limit=1)
    second = await signals.find(conn, ONE, limit=1, cursor=first.cursor)
    assert [one.occurred_at.year for one in (*first.items, *second.items)] == [1999, 1970]


async def test_a_cursor_of_other_filters_or_another_list_is_refused(conn: Connection, link: Link) -> None:
    """C-68"""
    await signals.store(conn, link, [signal(), signal()])
    cursor = (await signals.find(conn, ONE, limit=1)).cursor
    assert cursor is not None
    for which in ({"kind": "pr_merged"}, {"provider": "github"}, {"occurred_after": NOON}):
        with pytest.raises(InvalidInput, match="cursor: belongs to other filters"):
            await signals.find(conn, ONE, cursor=cursor, **which)
    with pytest.raises(InvalidInput, match="cursor: belongs to other filters"):
        await signals.find(conn, TWO, cursor=cursor)
    with pytest.raises(InvalidInput, match="cursor: is one of another list"):
        await connections.listing(conn, ONE, cursor=cursor)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"limit": -1}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"limit": True}, "limit"),
        ({"kind": "a\x00"}, "kind"),
        ({"provider": "a\x00"}, "provider"),
        ({"occurred_after": datetime(2026, 1, 1)}, "occurred_after"),  # noqa: DTZ001
        ({"occurred_before": datetime(2026, 1, 1)}, "occurred_before"),  # noqa: DTZ001
        ({"cursor": ""}, "cursor"),
    ],
)
async def test_what_cannot_be_asked_is_refused(conn: Connection, wrong: dict[str, Any], field: str) -> None:
    """C-68, C-69"""
    with pytest.raises(InvalidInput) as caught:
        await signals.find(conn, ONE, **wrong)
    assert caught.value.field == field


async def test_a_signal_that_others_have_written_oddly_is_still_read(conn: Connection, link: Link) -> None:
    """C-73: by plain SQL, of a kind that we do not know, at a time without end."""
    await conn.execute(
        "insert into signals (id, tenant_id, provider_slug, connection_id, kind, occurred_at, payload)"
        " values (%s, %s, 'github', %s, 'theirs', '-infinity', '1')",
        [UUID(int=5), ONE, link.id],
    )
    (one,) = (await signals.find(conn, ONE)).items
    assert (one.kind, one.payload, one.occurred_at.year) == ("theirs", 1, 1)


# -- plans ---------------------------------------------------------------------------------------------

# Many tenants, kinds and providers; one tenant's rows are one in two hundred.
MANY = """
insert into tenants (id, name) select tenant(n), 'many' from generate_series(1, 200) as n
on conflict do nothing;
insert into connections (id, tenant_id, provider_slug, external_id)
select tenant(n + 1000 * p), tenant(n), (array['github', 'slack', 'jira'])[p], 'many'
from generate_series(1, 200) as n, generate_series(1, 3) as p;
insert into signals (id, tenant_id, provider_slug, connection_id, kind, occurred_at, payload, dedupe_key)
select gen_random_uuid(), tenant(n % 200 + 1), (array['github', 'slack', 'jira'])[n % 3 + 1],
    tenant(n % 200 + 1 + 1000 * (n % 3 + 1)),
    (array['issue_created', 'issue_closed', 'pr_merged', 'message_posted'])[n / 600 % 4 + 1],
    now() - make_interval(secs => n), '{}', 'key ' || n
from generate_series(1, :rows) as n;
"""

BY_KIND = """
select id from signals where tenant_id = %s and kind = %s order by occurred_at desc limit 50
"""


def many(url: str, rows: int) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "create function tenant(n bigint) returns uuid language sql immutable"
            " as $$ select lpad(to_hex(n), 32, '0')::uuid $$"
        )
        db.execute(
            "set session_replication_role = replica"
        )  # its own rows need no look for what they refer to
        db.execute(MANY.replace(":rows", str(rows)).encode())
        db.execute("vacuum analyze signals")


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", ()) for node in nodes(part))]


async def plan_of(conn: Connection, query: str, params: Any) -> list[dict[str, Any]]:
    found = await conn.execute(("explain (analyze, buffers, format json) " + query).encode(), params)
    (((plan,),),) = await found.fetchall()
    return nodes(plan["Plan"])


def described(found: list[dict[str, Any]]) -> tuple[set[str], set[str], int]:
    """The indexes, the kinds of sort, and how many pages were touched."""
    indexes = {node["Index Name"] for node in found if "Index Name" in node}
    sorts = {node["Node Type"] for node in found if "Sort" in node["Node Type"]}
    return indexes, sorts, found[0]["Shared Hit Blocks"] + found[0]["Shared Read Blocks"]


async def seek(conn: Connection) -> None:
    """C-73 and every list of signals, on a table that has many."""
    indexes, sorts, pages = described(await plan_of(conn, BY_KIND, [ONE, "pr_merged"]))
    assert (indexes, sorts) == ({"idx_signals_tenant_kind_occurred"}, set())
    assert pages < 150
    lists: list[tuple[dict[str, Any], str]] = [
        ({"tenant_id": ONE, "kind": "pr_merged"}, "idx_signals_tenant_kind_occurred"),
        ({"tenant_id": ONE, "provider": "jira"}, "idx_signals_tenant_provider_occurred"),
        ({"connection_id": UUID(int=1001)}, "idx_signals_connection_occurred"),
        ({"tenant_id": ONE}, "idx_signals_tenant_occurred"),
        ({}, "idx_signals_occurred_at"),
    ]
    deep = {"before": datetime.now(UTC) - timedelta(hours=20), "before_id": uuid4()}
    for given, index in lists:
        for params in (given, given | deep):
            names = [name for name in params if name != "before_id"]
            query = queries.signals(names, payload=True)
            found = await plan_of(conn, query, params | {"limit": 51})
            indexes, sorts, pages = described(found)
            assert indexes == {index}, params
            assert sorts <= {"Incremental Sort"}, params  # ids within one time, nothing more
            assert pages < 150, params


async def test_a_query_by_tenant_and_kind_newest_first_uses_the_composite_index_and_no_sort(
    conn: Connection, database_url: str
) -> None:
    """C-73: and every list of ours reads a few pages of an index, however deep it is in."""
    many(database_url, 200_000)
    await seek(conn)
    look = "select from signals where tenant_id = %s and provider_slug = %s and dedupe_key = %s"
    indexes, _, pages = described(await plan_of(conn, look, [ONE, "github", "key 600"]))
    assert indexes == {"idx_signals_tenant_provider_dedupe"}
    assert pages < 10


async def test_a_page_that_is_known_already_costs_a_search_for_each_signal(
    conn: Connection, database_url: str
) -> None:
    """C-39: not a walk through the table."""
    many(database_url, 200_000)
    params = {
        "tenant_id": ONE,
        "provider": "slack",
        "connection_id": UUID(int=2001),
        "ids": [uuid4() for _ in range(500)],
        "kinds": ["pr_merged"] * 500,
        "times": [NOON] * 500,
        "payloads": ["{}"] * 500,
        "keys": [f"key {n}" for n in range(500)],
    }
    async with conn.transaction(force_rollback=True):
        found = await plan_of(conn, queries.ADD_SIGNALS, params)
    assert "idx_signals_tenant_provider_dedupe" in described(found)[0]
    assert not [node for node in found if node["Node Type"] == "Seq Scan"]


@pytest.mark.soak
async def test_a_million_signals_are_read_as_fast(conn: Connection, database_url: str) -> None:
    """C-73"""
    many(database_url, 1_000_000)
    await seek(conn)


async def test_the_database_itself_refuses_a_signal_of_another_tenants_connection(
    conn: Connection, link: Link
) -> None:
    """C-14"""
    with pytest.raises(ForeignKeyViolation, match="fk_signals_scope"):
        await conn.execute(
            "insert into signals (id, tenant_id, provider_slug, connection_id, kind, occurred_at, payload)"
            " values (gen_random_uuid(), %s, 'github', %s, 'issue_created', now(), '{}')",
            [TWO, link.id],
        )
