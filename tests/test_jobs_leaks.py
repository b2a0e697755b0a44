"""Everything that the store can say, said as the wrong tenant: nothing of the other is seen or changed.

The statements run under the tenant's role, where the database's own policies decide. The list of verbs is
compared with the store, so that no new one is forgotten.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection

from holdfast import Holdfast, Settings
from holdfast.apps.jobs.ledger import JOB
from holdfast.engine.lifecycle import VERBS
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Fault, Filter, Item, Move
from holdfast.engine.verify import verify
from holdfast.errors import HoldfastError, NotAllowed, NotFound
from ledgers import JOB_SAMPLE

Connection = AsyncConnection[Any]
OURS, THEIRS = UUID(int=0xA), UUID(int=0xB)
STATES = ("queued", "running", "succeeded", "failed", "canceled", "dead_letter")


@dataclass
class World:
    """Two organisations with a job in every state; `theirs` is what must not be seen."""

    app: Holdfast
    owner: Connection
    store: Store
    ours: dict[str, UUID]
    theirs: dict[str, UUID]
    claim: Claimed

    async def truth(self) -> list[Any]:
        """Their rows and events as the owner sees them."""
        rows = await self.owner.execute("select to_jsonb(j) from job as j where org_id = %s", [THEIRS])
        events = await self.owner.execute(
            "select to_jsonb(e) from job_event as e join job on job.id = job_id where org_id = %s", [THEIRS]
        )
        return sorted(map(str, [*await rows.fetchall(), *await events.fetchall()]))


@pytest.fixture
async def world(settings: Settings, conn: Connection) -> AsyncIterator[World]:
    async with Holdfast(settings) as app:
        store = app.store("job")
        both: dict[UUID, dict[str, UUID]] = {OURS: {}, THEIRS: {}}
        for org, jobs in both.items():
            for state in reversed(STATES):  # the queued ones last: `bring` claims what it has just added
                item = {"tenant": org, "key": f"key-{state}", "payload": {"secret": str(org)}}
                jobs[state] = await JOB_SAMPLE.bring(conn, state, owner=f"w-{state}", **item)
                if state == "failed":
                    await conn.execute("update job set run_at = 'infinity' where id = %s", [jobs[state]])
            await conn.execute("update job set run_at = '2031-01-01' where id = %s", [jobs["queued"]])
            await conn.execute("update job set run_at = '2031-01-01' where id = %s", [jobs["failed"]])
        claim = await JOB_SAMPLE.held(conn, both[THEIRS]["running"])
        yield World(app, conn, store, both[OURS], both[THEIRS], claim)


Attack = Callable[[World, Connection], Awaitable[Any]]


async def _enqueue(world: World, conn: Connection) -> Any:
    return await world.store.enqueue(conn, Item(kind="a", tenant=THEIRS))


async def _enqueue_many(world: World, conn: Connection) -> Any:
    items = [Item(kind="a", tenant=OURS), Item(kind="a", tenant=THEIRS)]
    return await world.store.enqueue_many(conn, items)


async def _copy(world: World, conn: Connection) -> Any:
    return await world.store.copy(conn, [Item(kind="a", tenant=THEIRS)])


async def _with_their_key(world: World, conn: Connection) -> Any:
    return await world.store.enqueue(conn, Item(kind="a", tenant=THEIRS, key="key-queued"))


async def _claim(world: World, conn: Connection) -> Any:
    return await world.store.claim(conn, "thief", 100)


async def _turn(world: World, conn: Connection) -> Any:
    return await world.store.turn(conn, [Move(verb="finish", claim=world.claim)], "thief", 100)


async def _start(world: World, conn: Connection) -> Any:
    return [claim.id for claim in await world.store.start(conn, [world.claim]) if claim != world.claim]


async def _move(world: World, conn: Connection) -> Any:
    found: list[Any] = []
    for verb in (verb for verb in VERBS if verb in world.store.sql.moves):
        move = Move(verb=verb, claim=world.claim, fault=Fault(code="X", message="x"))
        try:
            async with conn.transaction():
                found += await world.store.move(conn, [move])
        except psycopg.errors.InsufficientPrivilege:
            continue
    return found


async def _move_one(world: World, conn: Connection) -> Any:
    return await world.store.move_one(conn, Move(verb="release", claim=world.claim))


async def _heartbeat(world: World, conn: Connection) -> Any:
    return await world.store.heartbeat(conn, [world.claim])


async def _progress(world: World, conn: Connection) -> Any:
    return await world.store.progress(conn, world.claim, 50, "stolen")


async def _held_by(world: World, conn: Connection) -> Any:
    return await world.store.held_by(conn, ["w-running"])


async def _orphans(world: World, conn: Connection) -> Any:
    return await world.store.orphans(conn, [], orphaned=-1e9, nameless=-1e9)


async def _expired(world: World, conn: Connection) -> Any:
    return await world.store.expired(conn)


async def _cancel(world: World, conn: Connection) -> Any:
    return await world.store.cancel(conn, world.theirs["queued"])


async def _requeue(world: World, conn: Connection) -> Any:
    return await world.store.requeue(conn, world.theirs["dead_letter"])


async def _cancel_where(world: World, conn: Connection) -> Any:
    await world.store.cancel_where(conn, Filter(tenant=THEIRS))
    return await world.store.cancel_where(conn, Filter())


async def _requeue_where(world: World, conn: Connection) -> Any:
    await world.store.requeue_where(conn, Filter(tenant=THEIRS))
    return await world.store.requeue_where(conn, Filter())


async def _get(world: World, conn: Connection) -> Any:
    return await world.store.get(conn, world.theirs["succeeded"])


async def _find(world: World, conn: Connection) -> Any:
    pages = [await world.store.find(conn), await world.store.find(conn, Filter(tenant=THEIRS))]
    return [row for page in pages for row in page.rows]


async def _count(world: World, conn: Connection) -> Any:
    return await world.store.count(conn, Filter(tenant=THEIRS))


async def _timeline(world: World, conn: Connection) -> Any:
    return await world.store.timeline(conn, world.theirs["running"])


async def _ring(world: World, conn: Connection) -> Any:
    await world.store.ring(conn)  # a doorbell says nothing but that somebody is there


ATTACKS: dict[str, Attack] = {
    "enqueue": _enqueue,
    "enqueue with their key": _with_their_key,
    "enqueue_many": _enqueue_many,
    "copy": _copy,
    "ring": _ring,
    "claim": _claim,
    "turn": _turn,
    "start": _start,
    "move": _move,
    "move_one": _move_one,
    "heartbeat": _heartbeat,
    "progress": _progress,
    "held_by": _held_by,
    "orphans": _orphans,
    "expired": _expired,
    "cancel": _cancel,
    "requeue": _requeue,
    "cancel_where": _cancel_where,
    "requeue_where": _requeue_where,
    "get": _get,
    "find": _find,
    "count": _count,
    "timeline": _timeline,
}


def test_every_verb_of_the_store_is_tried() -> None:
    """A new verb must be tried as the wrong tenant, too."""
    public = [
        name
        for name, member in inspect.getmembers(Store, inspect.isfunction)
        if not name.startswith("_") and inspect.iscoroutinefunction(member)
    ]
    assert set(public) - set(ATTACKS) == set()


async def attack(world: World, conn: Connection, name: str) -> str:
    """What the answer tells; nothing when the attack is refused."""
    try:
        async with conn.transaction():
            return str(await ATTACKS[name](world, conn))
    except (HoldfastError, psycopg.errors.InsufficientPrivilege):
        return ""


async def test_the_wrong_tenant_sees_and_changes_nothing(world: World) -> None:
    """J-39, J-40, J-44: whatever is said, their rows and events stay as they are, and no answer has them."""
    before = await world.truth()
    for name in ATTACKS:
        async with world.app.as_tenant(OURS) as conn:
            told = await attack(world, conn, name)
        assert await world.truth() == before, name
        leaked = [one for one in (THEIRS, *world.theirs.values()) if str(one) in told]
        assert leaked == [], name


async def test_a_role_without_a_tenant_sees_and_changes_nothing(world: World) -> None:
    """J-39: without the setting there is nothing, also after another transaction had one."""
    before = await world.truth()
    async with world.app.database.connection() as conn:
        for name in ATTACKS:
            async with conn.transaction():
                await conn.execute("select set_config('holdfast.org_id', %s, true)", [str(THEIRS)])
            async with conn.transaction():
                await conn.execute("set local role holdfast_tenant")
                told = await attack(world, conn, name)
            assert await world.truth() == before, name
            seen = [one for one in (*world.theirs.values(), *world.ours.values()) if str(one) in told]
            assert seen == [], name


async def test_what_is_theirs_is_not_found_and_what_is_ours_is(world: World) -> None:
    """J-39, J-44: the same words for what is another's and for what is not there at all."""
    async with world.app.as_tenant(OURS) as conn:
        for verb in (world.store.get, world.store.timeline, world.store.cancel, world.store.requeue):
            for key in (world.theirs["running"], UUID(int=99)):
                with pytest.raises(NotFound) as refused:
                    await verb(conn, key)
                assert str(refused.value) == f"no job with the id {key}"
        assert sum(count.rows for count in await world.store.count(conn)) == len(STATES)
        assert {row.id for row in (await world.store.find(conn)).rows} == set(world.ours.values())
        await world.store.cancel(conn, world.ours["running"], by="ana")
        await world.store.requeue(conn, world.ours["dead_letter"], by="ana")
        receipt = await world.store.enqueue(conn, Item(kind="a", tenant=OURS), by="ana")
        assert [event.next for event in await world.store.timeline(conn, receipt.id)] == ["queued"]
        report = await verify(world.store, conn)
        assert (report.rows, report.lies) == (len(STATES) + 1, ())


async def test_enqueueing_for_another_tenant_is_a_clear_refusal(world: World) -> None:
    """J-39: the refusal is typed, and a key of theirs cannot be probed by it."""
    for key in (None, "key-queued", "never used"):
        with pytest.raises(NotAllowed):
            async with world.app.as_tenant(OURS) as conn:
                await world.store.enqueue(conn, Item(kind="a", tenant=THEIRS, key=key))
    async with world.app.as_tenant(OURS) as conn:
        mine = await world.store.enqueue(conn, Item(kind="demo", tenant=OURS, key="key-queued"))
    assert (mine.id, mine.created) == (world.ours["queued"], False)


@pytest.mark.parametrize("nobody", [None, ""])
async def test_nobody_is_refused_before_anything_is_asked(world: World, nobody: Any) -> None:
    """The last row of "Bad input": no identity."""
    with pytest.raises(NotAllowed, match="org_id"):
        async with world.app.as_tenant(nobody):
            raise AssertionError("the block must not begin")


async def test_the_declaration_and_the_policies_name_the_same_role_and_setting(conn: Connection) -> None:
    """J-39: the role and the setting of the declaration are those of every policy for tenants."""
    assert JOB.tenant
    query = """select coalesce(qual, '') || coalesce(with_check, '') from pg_policies
        where tablename = 'job' and %s = any(roles)"""
    policies = await (await conn.execute(query, [JOB.tenant.role])).fetchall()
    assert len(policies) == 3
    assert all(f"'{JOB.tenant.setting}'" in text for (text,) in policies)
