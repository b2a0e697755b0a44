"""Connections as the repository makes, finds, lists and changes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.apps.connectors import connections, cursors, tenants
from holdfast.apps.connectors.connections import Link
from holdfast.db.pool import Connection
from holdfast.errors import Conflict, InvalidInput, NotFound
from runtime.support import until

Connect = Callable[[], Awaitable[Connection]]

ONE, TWO = UUID(int=1), UUID(int=2)
END = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
async def two(conn: Connection) -> None:
    """Two tenants."""
    for tenant in (ONE, TWO):
        await tenants.create(conn, "a tenant", id=tenant)


pytestmark = pytest.mark.usefixtures("two")


async def add(conn: Connection, name: str = "octo", **given: Any) -> Link:
    return await connections.create(
        conn, **{"tenant_id": ONE, "provider": "github", "external_id": name} | given
    )


async def metadata_of(conn: Connection, link: Link) -> Any:
    """As the row has it, and not as we read it."""
    found = await conn.execute("select metadata::text from connections where id = %s", [link.id])
    ((text,),) = await found.fetchall()
    return None if text is None else json.loads(text)


async def put(conn: Connection, link: Link, metadata: str | None) -> None:
    await conn.execute("update connections set metadata = %s where id = %s", [metadata, link.id])


async def count(conn: Connection) -> int:
    ((rows,),) = await (await conn.execute("select count(*) from connections")).fetchall()
    return rows


# -- making --------------------------------------------------------------------------------------------


async def test_a_connection_is_made_with_what_is_given_and_the_rest_is_empty(conn: Connection) -> None:
    """C-11"""
    bare = await add(conn)
    assert (bare.tenant_id, bare.provider, bare.external_id, bare.status) == (ONE, "github", "octo", "active")
    assert (bare.display_name, bare.scopes, bare.metadata, bare.expires_at) == (None, (), {}, None)
    assert (bare.access, bare.refresh, bare.key_id) == (None, None, None)
    assert bare.created_at == bare.updated_at
    assert bare.id.version == 4
    full = await add(
        conn,
        "hub",
        id=UUID(int=5),
        display_name="Octo Cat",
        scopes=("repo", "read:org"),
        access=b"\x01a",
        refresh=b"\x01r",
        key_id="k",
        expires_at=END,
        metadata={"team": {"id": 7}},
        status="paused",
    )
    assert full.id == UUID(int=5)
    assert (full.display_name, full.scopes, full.metadata) == (
        "Octo Cat",
        ("repo", "read:org"),
        {"team": {"id": 7}},
    )
    assert (full.access, full.refresh, full.key_id, full.expires_at) == (b"\x01a", b"\x01r", "k", END)
    assert full.status == "paused"
    assert await connections.get_by_id(conn, full.id) == full


async def test_no_token_shows_in_the_repr_of_a_connection(conn: Connection) -> None:
    """C-57: not even sealed."""
    link = await add(conn, access=b"sealed-access", refresh=b"sealed-refresh")
    assert "sealed" not in repr(link)


async def test_the_same_account_twice_is_a_conflict_for_one_tenant_and_none_for_two(
    conn: Connection,
) -> None:
    """C-11: 23505 is told as `Conflict`, and the caller's transaction goes on."""
    async with conn.transaction():
        await add(conn)
        with pytest.raises(Conflict) as caught:
            await add(conn, status="paused")
        assert str(caught.value) == "connection: this tenant has the github account 'octo' already"
        await add(conn, tenant_id=TWO)
        await add(conn, provider="slack")
        await add(conn, "Octo")
    assert await count(conn) == 4


async def test_an_id_that_is_taken_is_a_conflict(conn: Connection) -> None:
    """C-11"""
    link = await add(conn)
    with pytest.raises(Conflict, match=f"one with the id {link.id} already"):
        await add(conn, "other", id=link.id)
    with pytest.raises(Conflict, match=f"one with the id {link.id} already"):
        await connections.upsert(conn, id=link.id, tenant_id=ONE, provider="github", external_id="other")


async def test_a_connection_needs_a_tenant_and_a_provider_that_are_there(conn: Connection) -> None:
    """C-14: 23503 is told as `NotFound`, and the caller's transaction goes on."""
    nobody = uuid4()
    async with conn.transaction():
        with pytest.raises(NotFound, match=f"no tenant with the id {nobody}"):
            await add(conn, tenant_id=nobody)
        with pytest.raises(NotFound, match="provider 'asana' not found"):
            await add(conn, provider="asana")
        await add(conn)
    assert await count(conn) == 1


async def test_a_slug_with_hyphens_means_the_same_provider(conn: Connection) -> None:
    """C-10"""
    link = await add(conn, provider="google-drive")
    assert link.provider == "google_drive"
    assert await connections.find_by_unique(conn, ONE, "google-drive", "octo") == link
    assert (await connections.list_by_tenant_provider(conn, ONE, "google-drive", 10)).items == (link,)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"external_id": ""}, "external_id"),
        ({"external_id": " \t"}, "external_id"),
        ({"external_id": "x" * 501}, "external_id"),
        ({"external_id": "a\x00b"}, "external_id"),
        ({"external_id": "a\ud800"}, "external_id"),
        ({"external_id": 7}, "external_id"),
        ({"provider": "a\x00b"}, "provider"),
        ({"provider": "Git Hub"}, "provider"),
        ({"status": "gone"}, "status"),
        ({"expires_at": datetime(2030, 1, 1)}, "expires_at"),  # noqa: DTZ001
    ],
)
async def test_what_makes_no_sense_is_refused_and_nothing_is_written(
    conn: Connection, wrong: dict[str, Any], field: str
) -> None:
    """C-11"""
    for make in (connections.create, connections.upsert):
        with pytest.raises(InvalidInput) as caught:
            await make(conn, **{"tenant_id": ONE, "provider": "github", "external_id": "octo"} | wrong)
        assert caught.value.field == field
    assert await count(conn) == 0


async def test_the_account_is_kept_to_the_letter_and_what_people_read_is_made_to_fit(
    conn: Connection,
) -> None:
    """C-56: tokens are sealed with the account's id, so it is never trimmed; a name may be odd."""
    link = await add(
        conn,
        " " + "é" * 499,
        display_name="N\x00" * 200,
        scopes=["a\x00", "b\ud800"],
        metadata={"k\x00": ["v\x00", float("nan")]},
    )
    assert link.external_id == " " + "é" * 499
    assert link.display_name is not None
    assert len(link.display_name) == 255
    assert link.metadata == {"k": ["v", None]}
    assert len(link.scopes) == 2


async def test_of_two_who_connect_one_account_together_one_makes_it(connect: Connect) -> None:
    """C-11, C-65: the second waits for the first one's commit, and is then a conflict, or the same."""
    first, second, third = await connect(), await connect(), await connect()
    async with first.transaction():
        made = await add(first)
        late = asyncio.create_task(add(second))
        renewed = asyncio.create_task(
            connections.upsert(third, tenant_id=ONE, provider="github", external_id="octo", access=b"new")
        )
        watcher = await connect()
        for one in (second, third):
            await blocked(watcher, one)
    with pytest.raises(Conflict):
        await late
    link, created = await renewed
    assert (link.id, created, link.access) == (made.id, False, b"new")


async def blocked(watcher: Connection, other: Connection) -> None:
    """Returns when the other connection waits for a lock."""
    query = "select count(*) > 0 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    await until(watcher, query, other.info.backend_pid)


# -- connecting again ----------------------------------------------------------------------------------


async def test_connecting_again_replaces_the_tokens_and_keeps_what_syncs_have_noted(
    conn: Connection,
) -> None:
    """C-65: status active, cursor kept, other metadata merged."""
    known: Any = {"tenant_id": ONE, "provider": "github", "external_id": "octo"}
    sync = {"cursor": {"page": 7}, "next_run_at": "2026-01-01T00:00:00.000000Z", "mine": 1}
    first, made = await connections.upsert(
        conn,
        **known,
        display_name="Octo",
        scopes=("repo",),
        access=b"a1",
        refresh=b"r1",
        key_id="k1",
        expires_at=END,
        metadata={"sync": sync, "login": "octo", "kept": True},
    )
    assert made
    await connections.update_tokens_status(conn, first.id, status="error")
    again, made = await connections.upsert(
        conn,
        **known,
        access=b"a2",
        key_id="k2",
        metadata={"login": "octocat", "sync": {"cursor": None}, "new": []},
    )
    assert not made
    assert (again.id, again.created_at, again.status) == (first.id, first.created_at, "active")
    assert (again.access, again.refresh, again.key_id, again.expires_at) == (b"a2", None, "k2", None)
    assert (again.display_name, again.scopes) == ("Octo", ("repo",))
    assert again.metadata == {"sync": sync, "login": "octocat", "kept": True, "new": []}
    assert again.updated_at > first.updated_at
    assert await count(conn) == 1


@pytest.mark.parametrize(
    ("before", "brought", "after"),
    [
        ({"external_ids": ["b", "a"]}, {"external_ids": ["a", "c"]}, {"external_ids": ["b", "a", "c"]}),
        ({"external_ids": ["b"], "hook": 7}, None, {"external_ids": ["b"], "hook": 7}),
        ({"external_ids": ["b"], "hook": 7}, {"hook": 8}, {"external_ids": ["b"], "hook": 8}),
        ({"external_ids": ["b"]}, {"external_ids": 3}, {"external_ids": ["b"]}),
        ({"external_ids": ["b"]}, 3, {"external_ids": ["b"]}),
        ({"hook": 7}, {"external_ids": ["a"]}, {"external_ids": ["a"], "hook": 7}),
        (3, {"external_ids": ["a"]}, {"external_ids": ["a"]}),
        ({"external_ids": []}, {"external_ids": []}, {"external_ids": []}),
    ],
)
async def test_connecting_again_keeps_the_names_that_webhooks_call_the_account_by(
    conn: Connection, before: Any, brought: Any, after: Any
) -> None:
    """C-51, C-65: those that a person has set, and those that the provider tells now."""
    known: Any = {"tenant_id": ONE, "provider": "github", "external_id": "octo"}
    await connections.upsert(conn, **known, metadata={"webhook": before})
    again, made = await connections.upsert(
        conn, **known, metadata={"login": "octo"} | ({} if brought is None else {"webhook": brought})
    )
    assert (made, again.metadata) == (False, {"login": "octo", "webhook": after})


@pytest.mark.parametrize("there", [None, "null", "[1]", "7", '"text"'])
async def test_connecting_again_makes_an_object_of_metadata_that_is_none(
    conn: Connection, there: str | None
) -> None:
    """C-17, C-65"""
    link = await add(conn)
    await put(conn, link, there)
    known: Any = {"tenant_id": ONE, "provider": "github", "external_id": "octo"}
    again, _ = await connections.upsert(conn, **known, metadata={"login": "octo"})
    assert again.metadata == {"login": "octo"}
    assert (await connections.upsert(conn, **known))[0].metadata == {"login": "octo"}


async def test_a_sync_object_that_there_was_not_comes_along(conn: Connection) -> None:
    """C-65"""
    link = await add(conn, metadata={"login": "octo"})
    known: Any = {"tenant_id": ONE, "provider": "github", "external_id": "octo"}
    again, _ = await connections.upsert(conn, **known, metadata={"sync": {"interval_seconds": 60}})
    assert again.id == link.id
    assert again.metadata == {"login": "octo", "sync": {"interval_seconds": 60}}


# -- reading -------------------------------------------------------------------------------------------


async def test_another_tenants_connection_is_not_found_and_a_worker_sees_it(conn: Connection) -> None:
    """C-13: 404, as if there were none."""
    link = await add(conn)
    assert await connections.of_tenant(conn, link.id, ONE) == link
    assert await connections.get_by_id(conn, link.id) == link
    unknown = uuid4()
    for asked, tenant in ((link.id, TWO), (unknown, ONE), (link.id, uuid4())):
        with pytest.raises(NotFound) as caught:
            await connections.of_tenant(conn, asked, tenant)
        assert str(caught.value) == f"no connection with the id {asked}"
    assert await connections.get_by_id(conn, unknown) is None


async def test_an_account_is_found_within_its_tenant_and_provider_only(conn: Connection) -> None:
    """C-11"""
    link = await add(conn)
    assert await connections.find_by_unique(conn, ONE, "github", "octo") == link
    for tenant, provider, name in (
        (TWO, "github", "octo"),
        (ONE, "slack", "octo"),
        (ONE, "github", "Octo"),
        (ONE, "nobody", "octo"),
    ):
        assert await connections.find_by_unique(conn, tenant, provider, name) is None
    with pytest.raises(InvalidInput, match="external_id"):
        await connections.find_by_unique(conn, ONE, "github", "a\x00")


async def test_a_row_that_others_have_filled_oddly_is_still_read(conn: Connection) -> None:
    """C-17: times without end, metadata that is no object, no scopes."""
    link = await add(conn)
    await conn.execute(
        "update connections set expires_at = 'infinity', created_at = '-infinity', metadata = '[1]',"
        " scopes = null"
    )
    found = await connections.get_by_id(conn, link.id)
    assert found is not None
    assert (found.expires_at, found.metadata, found.scopes, found.created_at.year) == (None, {}, (), 1)


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({"webhook": {"external_ids": ["installation:7", "x"]}}, True),
        ({"webhook": {"external_ids": []}}, False),
        ({"webhook": {"external_ids": "installation:7"}}, False),
        ({"webhook": {"external_ids": {"installation:7": 1}}}, False),
        ({"webhook": ["installation:7"]}, False),
        ({"webhook": None}, False),
        ({"external_ids": ["installation:7"]}, False),
        ([], False),
        (None, False),
    ],
)
async def test_a_connection_is_found_by_its_account_or_by_an_id_set_for_webhooks(
    conn: Connection, metadata: Any, found: bool
) -> None:
    """C-51"""
    link = await add(conn)
    await put(conn, link, json.dumps(metadata))
    sought = await connections.by_external_ids(conn, ONE, "github", ["installation:7", "nobody"])
    assert [one.id for one in sought] == ([link.id] if found else [])
    assert len(await connections.by_external_ids(conn, ONE, "github", ["octo", "x"])) == 1


async def test_ids_of_webhooks_mean_one_tenant_and_one_provider_and_all_that_match(
    conn: Connection,
) -> None:
    """C-51: it is never guessed, so whoever asks is told of several."""
    first = await add(conn, "a")
    second = await add(conn, "b", metadata={"webhook": {"external_ids": ["a"]}})
    await add(conn, "a", tenant_id=TWO)
    await add(conn, "a", provider="slack")
    found = await connections.by_external_ids(conn, ONE, "github", ["a", "a", "c\x00", "d\ud800"])
    assert [one.id for one in found] == [first.id, second.id]
    assert await connections.by_external_ids(conn, ONE, "github", []) == []


# -- listing -------------------------------------------------------------------------------------------


async def test_listing_t1_github_returns_only_connections_of_t1_and_github(conn: Connection) -> None:
    """C-12"""
    wanted = [await add(conn, name) for name in ("a", "b")]
    await add(conn, "a", tenant_id=TWO)
    await add(conn, "a", provider="slack")
    page = await connections.list_by_tenant_provider(conn, ONE, "github", 10)
    assert (page.items, page.cursor) == (tuple(wanted), None)


async def walk(conn: Connection, limit: int, **which: Any) -> list[list[Link]]:
    """Every page, to the last."""
    pages: list[list[Link]] = []
    cursor = None
    while True:
        page = await connections.listing(
            conn,
            which.get("tenant_id"),
            limit=limit,
            cursor=cursor,
            **{name: value for name, value in which.items() if name != "tenant_id"},
        )
        pages.append(list(page.items))
        if page.cursor is None:
            return pages
        cursor = page.cursor


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 100])
async def test_pages_over_equal_times_show_every_row_once(conn: Connection, limit: int) -> None:
    """C-12, C-68"""
    async with conn.transaction():  # all of one moment
        ids = {(await add(conn, f"a{place}")).id for place in range(7)}
    pages = await walk(conn, limit, tenant_id=ONE, provider="github")
    seen = [link for page in pages for link in page]
    assert len(seen) == 7
    assert {link.id for link in seen} == ids
    assert seen == sorted(seen, key=lambda link: (link.created_at, link.id))
    assert [len(page) for page in pages] == [limit] * (7 // limit) + [7 % limit] * bool(7 % limit)


async def test_a_row_that_comes_or_goes_between_two_pages_moves_no_other(conn: Connection) -> None:
    """C-68"""
    links = [await add(conn, f"a{place}") for place in range(4)]
    first = await connections.list_by_tenant_provider(conn, ONE, "github", 2)
    await conn.execute("delete from connections where id = any(%s)", [[links[0].id, links[1].id]])
    await add(conn, "late")
    rest = await connections.list_by_tenant_provider(conn, ONE, "github", 10, first.cursor)
    assert [link.external_id for link in rest.items] == ["a2", "a3", "late"]


async def test_a_limit_of_nothing_is_an_empty_page(conn: Connection) -> None:
    """C-12"""
    await add(conn)
    page = await connections.list_by_tenant_provider(conn, ONE, "github", 0)
    assert (page.items, page.cursor) == ((), None)


@pytest.mark.parametrize("limit", [-1, 1001, True, "1", 1.0, None])
async def test_a_limit_that_is_no_number_of_rows_is_refused(conn: Connection, limit: Any) -> None:
    """C-68"""
    with pytest.raises(InvalidInput, match="limit"):
        await connections.listing(conn, ONE, limit=limit)


async def test_a_listing_is_narrowed_by_status_and_widened_to_everybody(conn: Connection) -> None:
    """C-69"""
    active, paused = await add(conn, "a"), await add(conn, "b", status="paused")
    other = await add(conn, "a", tenant_id=TWO)
    found = await connections.listing(conn, ONE, status="paused")
    assert found.items == (paused,)
    assert (await connections.listing(conn, None)).items == (active, paused, other)
    with pytest.raises(InvalidInput, match="status: must be one of active, paused, revoked, error"):
        await connections.listing(conn, ONE, status="gone")


async def test_a_cursor_is_good_for_its_own_filters_only(conn: Connection) -> None:
    """C-68: and for its own tenant."""
    for place in range(3):
        await add(conn, f"a{place}")
    cursor = (await connections.list_by_tenant_provider(conn, ONE, "github", 1)).cursor
    assert cursor is not None
    for which in ({"provider": "slack"}, {"provider": "github", "status": "active"}, {}):
        with pytest.raises(InvalidInput, match="cursor: belongs to other filters"):
            await connections.listing(conn, ONE, cursor=cursor, **which)
    with pytest.raises(InvalidInput, match="cursor: belongs to other filters"):
        await connections.listing(conn, TWO, provider="github", cursor=cursor)
    other = cursors.encode({"id": uuid4()}, {"tenant_id": ONE})
    with pytest.raises(InvalidInput, match="cursor: is one of another list"):
        await connections.listing(conn, ONE, cursor=other)


# -- changing ------------------------------------------------------------------------------------------

FIELDS: dict[str, tuple[Any, Any]] = {
    "access": (b"new", None),
    "refresh": (b"new", None),
    "key_id": ("new", None),
    "status": ("revoked", "error"),
    "expires_at": (END + timedelta(days=1), None),
}


@pytest.mark.parametrize("field", FIELDS)
async def test_a_field_that_is_not_passed_is_not_touched(conn: Connection, field: str) -> None:
    """C-11: None empties a field, and that is something else."""
    link = await add(conn, access=b"a", refresh=b"r", key_id="k", expires_at=END, metadata={"m": 1})
    for value in FIELDS[field]:
        changed = await connections.update_tokens_status(conn, link.id, **{field: value})
        assert changed is not None
        assert getattr(changed, field) == value
        kept = [name for name in Link.__dataclass_fields__ if name not in (field, "updated_at")]
        assert [getattr(changed, name) for name in kept] == [getattr(link, name) for name in kept]
        assert changed.updated_at > link.updated_at


async def test_a_change_of_nothing_changes_nothing(conn: Connection) -> None:
    """C-11"""
    link = await add(conn)
    assert await connections.update_tokens_status(conn, link.id) == link
    assert await connections.update_tokens_status(conn, uuid4()) is None
    assert await connections.update_tokens_status(conn, uuid4(), status="error") is None


async def test_a_status_that_nobody_knows_is_refused(conn: Connection) -> None:
    """C-11"""
    link = await add(conn)
    with pytest.raises(InvalidInput, match="status: must be one of"):
        await connections.update_tokens_status(conn, link.id, status="gone")
    with pytest.raises(InvalidInput, match="expires_at: must have a time zone"):
        await connections.update_tokens_status(conn, link.id, expires_at=datetime(2030, 1, 1))  # noqa: DTZ001
    assert await connections.get_by_id(conn, link.id) == link


@pytest.mark.parametrize(
    ("there", "left"),
    [
        (None, {}),
        ("null", {}),
        ("[1, 2]", {}),
        ("7", {}),
        ("{}", {}),
        (
            '{"team": {"id": 12345678901234567890, "rate": 1.10}}',
            {"team": {"id": 12345678901234567890, "rate": 1.1}},
        ),
        ('{"sync": null, "a": null}', {"a": None}),
        ('{"sync": [1]}', {}),
        ('{"sync": "text"}', {}),
    ],
)
async def test_sync_is_written_whatever_stands_there_and_its_siblings_survive(
    conn: Connection, there: str | None, left: dict[str, Any]
) -> None:
    """C-17: null, no object, and no `sync` at all are where a plain jsonb_set would change nothing."""
    link = await add(conn)
    await put(conn, link, there)
    await connections.merge_sync(conn, link.id, {"cursor": {"page": 1}})
    assert await metadata_of(conn, link) == left | {"sync": {"cursor": {"page": 1}}}


async def test_keys_of_sync_are_merged_removed_and_otherwise_kept(conn: Connection) -> None:
    """C-17: null is a value; a key in both lists is written."""
    link = await add(conn, metadata={"sync": {"mine": [1], "cursor": 1, "old": 2}, "a": 1})
    await connections.merge_sync(conn, link.id, {"cursor": None, "both": 1}, ("old", "both", "nothing"))
    assert await metadata_of(conn, link) == {"sync": {"mine": [1], "cursor": None, "both": 1}, "a": 1}
    await connections.merge_sync(conn, link.id, {}, ("cursor",))
    assert await metadata_of(conn, link) == {"sync": {"mine": [1], "both": 1}, "a": 1}
    await connections.merge_sync(conn, uuid4(), {"cursor": 1})  # gone: nothing to do


@pytest.mark.parametrize("cursor", ["a\x00b", float("inf"), object(), "x" * 1024 * 1024])
async def test_what_json_cannot_hold_is_refused_and_nothing_is_written(conn: Connection, cursor: Any) -> None:
    """C-34"""
    link = await add(conn, metadata={"sync": {"cursor": 1}})
    with pytest.raises(InvalidInput) as caught:
        await connections.merge_sync(conn, link.id, {"cursor": cursor})
    assert caught.value.field == "sync"
    assert await metadata_of(conn, link) == {"sync": {"cursor": 1}}


# -- locks ---------------------------------------------------------------------------------------------


async def test_a_locked_connection_still_lets_rows_refer_to_it(connect: Connect, conn: Connection) -> None:
    """C-37: `for update` would make every insert of a job or a signal wait."""
    link = await add(conn)
    other = await connect()
    await other.execute("set lock_timeout = '2s'")
    async with conn.transaction():
        assert await connections.lock(conn, link.id) == link
        await other.execute(
            "insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type)"
            " values (gen_random_uuid(), %s, 'github', %s, 'full')",
            [ONE, link.id],
        )
    assert await connections.lock(conn, uuid4()) is None


async def test_a_shared_lock_hinders_no_writer_and_keeps_the_connection_from_being_removed(
    connect: Connect, conn: Connection
) -> None:
    """C-49: however many deliveries come, others may write what it says."""
    link = await add(conn)
    second, writer, watcher = await connect(), await connect(), await connect()
    async with conn.transaction():
        assert await connections.lock_shared(conn, link.id) == link
        async with second.transaction():
            assert await connections.lock_shared(second, link.id) == link
        assert await connections.lock(writer, link.id) == link
        removing = asyncio.create_task(writer.execute("delete from connections where id = %s", (link.id,)))
        await blocked(watcher, writer)
        assert not removing.done()
    assert (await removing).rowcount == 1


async def test_whoever_waited_for_the_lock_reads_what_the_other_has_written(
    connect: Connect, conn: Connection
) -> None:
    """C-38"""
    link = await add(conn)
    second, watcher = await connect(), await connect()
    async with second.transaction():
        async with conn.transaction():
            await connections.lock(conn, link.id)
            waiting = asyncio.create_task(connections.lock(second, link.id))
            await blocked(watcher, second)
            await connections.merge_sync(conn, link.id, {"cursor": 2})
        found = await waiting
        assert found is not None
        assert found.metadata == {"sync": {"cursor": 2}}
