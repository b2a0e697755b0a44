"""Everything that the store can say, said as the wrong tenant: nothing of the other is seen or changed.

The statements run under the tenant's role, where the database's own policies and grants decide. The list of
verbs is compared with the store, so that no new one is forgotten; and a control takes the guards away, so
that an attack which could never succeed is not counted as one that was refused.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import ModuleType
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.errors import InsufficientPrivilege

from holdfast import Holdfast, Settings
from holdfast.apps.jobs.ledger import JOB
from holdfast.engine import verify as verify_module
from holdfast.engine.lifecycle import Verb
from holdfast.engine.store import Store
from holdfast.engine.values import Change, Claimed, Count, Fault, Filter, Item, Move, Page, Row, Stat
from holdfast.engine.verify import Report, verify
from holdfast.errors import ClaimLost, HoldfastError, InvalidInput, NotAllowed, NotFound
from ledgers import JOB_SAMPLE

Connection = AsyncConnection[Any]
OURS, THEIRS = UUID(int=0xA), UUID(int=0xB)
STATES = ("queued", "running", "succeeded", "failed", "canceled", "dead_letter")
EVENTS = 15  # of one organisation: 1 + 2 + 3 + 3 + 2 + 4, one for each hop
LATE = datetime(2032, 1, 1, tzinfo=UTC)  # when everything that waits is due


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

    async def restore(self) -> None:
        """Everything as it was at the beginning."""
        async with self.owner.transaction():
            await self.owner.execute("delete from job")
            await self.owner.execute("set local session_replication_role = replica")
            await self.owner.execute("insert into job table saved.job")
            await self.owner.execute("insert into job_event overriding system value table saved.job_event")


@pytest.fixture
async def world(settings: Settings, conn: Connection) -> AsyncIterator[World]:
    async with Holdfast(settings) as app:
        store = app.store("job")
        both: dict[UUID, dict[str, UUID]] = {OURS: {}, THEIRS: {}}
        for org, jobs in both.items():
            for state in reversed(STATES):  # the queued ones last: `bring` claims what it has just added
                item = {"tenant": org, "key": f"key-{state}", "payload": {"secret": str(org)}}
                jobs[state] = await JOB_SAMPLE.bring(conn, state, owner=f"w-{state}-{org}", **item)
                if state == "failed":
                    await conn.execute("update job set run_at = 'infinity' where id = %s", [jobs[state]])
            due = "2031-01-01" if org == OURS else "2030-01-01"
            await conn.execute("update job set run_at = %s where id = %s", [due, jobs["queued"]])
            await conn.execute("update job set run_at = '2031-01-01' where id = %s", [jobs["failed"]])
        claim = await JOB_SAMPLE.held(conn, both[THEIRS]["running"])
        await conn.execute("create schema saved")
        await conn.execute("create table saved.job as table job")
        await conn.execute("create table saved.job_event as table job_event")
        yield World(app, conn, store, both[OURS], both[THEIRS], claim)


# -- the attacks -----------------------------------------------------------------------------------------


Try = Callable[[World, Connection], Awaitable[Any]]
Answer = Callable[[World], Any] | type[Exception] | Any

POLICY, GRANT = "policy", "grant"


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What is tried, what must be answered, and what stands in its way.

    `answer` is the gist (see `gist`) of what the tenant OURS gets, `nobody` that of a role without a tenant
    (the same, if not given): a value, a function of the world, or the type of the exception. `given` is the
    state of the one job of theirs whose id the attacker knows already, and says himself. `guard`: the row
    level security, or a grant that the role has not got; any other text is why no guard is needed at all.
    """

    do: Try
    answer: Answer
    nobody: Answer = ...
    guard: str = POLICY
    given: str | None = None


async def _enqueue_many(world: World, conn: Connection) -> Any:
    items = [Item(kind="a", tenant=OURS), Item(kind="a", tenant=THEIRS)]
    return await world.store.enqueue_many(conn, items)


async def _sync(world: World, conn: Connection, do: Callable[[psycopg.Connection[Any]], Any]) -> Any:
    """Does it on a connection that is not async, with the role and the tenant of `conn`."""
    query = "select current_setting('role'), coalesce(current_setting('holdfast.org_id', true), '')"
    ((role, tenant),) = await (await conn.execute(query)).fetchall()

    def there() -> Any:
        with psycopg.connect(world.app.settings.database_url or "") as other:
            query = "select set_config('role', %s, true), set_config('holdfast.org_id', %s, true)"
            other.execute(query, [role, tenant])
            return do(other)

    return await asyncio.to_thread(there)


async def _enqueue_sync(world: World, conn: Connection) -> Any:
    item = Item(kind="a", tenant=THEIRS)
    return await _sync(world, conn, lambda other: world.store.enqueue_sync(other, item))


async def _enqueue_many_sync(world: World, conn: Connection) -> Any:
    items = [Item(kind="a", tenant=OURS), Item(kind="a", tenant=THEIRS, key="key-queued")]
    return await _sync(world, conn, lambda other: world.store.enqueue_many_sync(other, items))


async def _start(world: World, conn: Connection) -> Any:
    return [claim for claim in await world.store.start(conn, [world.claim]) if claim != world.claim]


def enqueues(**item: Any) -> Attack:
    """Enqueueing for THEIRS."""
    return Attack(
        do=lambda world, conn: world.store.enqueue(conn, Item(**({"kind": "a", "tenant": THEIRS} | item))),
        answer=NotAllowed,
    )


async def _held_since(world: World, conn: Connection) -> Any:
    row = await world.store.get(world.owner, world.theirs["running"])
    return await world.store.held_since(conn, row)


def moves(verb: Verb, guard: str) -> Attack:
    """Says how a run of theirs ended."""

    async def say(world: World, conn: Connection) -> Any:
        move = Move(verb=verb, claim=world.claim, fault=Fault(code="X", message="x"))
        return await world.store.move(conn, [move])

    return Attack(
        do=say, answer=InsufficientPrivilege if guard == GRANT else [], guard=guard, given="running"
    )


def our(*states: str) -> Callable[[World], list[UUID]]:
    """The ids of our own jobs in these states."""
    return lambda world: gist([world.ours[state] for state in states])


def stats(rows: int) -> list[tuple[str, int]]:
    """So many rows in each state."""
    return sorted((state, rows) for state in STATES)


HOLDERS = [f"w-running-{org}" for org in (OURS, THEIRS)]
COUNTS = sorted((state, "demo", 1) for state in STATES)

ATTACKS: dict[str, Attack] = {
    "enqueue": enqueues(),
    "enqueue with their key": enqueues(kind="demo", key="key-queued"),
    "enqueue with their key and another kind": enqueues(key="key-queued"),
    "enqueue_many": Attack(do=_enqueue_many, answer=NotAllowed),
    "enqueue_sync": Attack(do=_enqueue_sync, answer=NotAllowed),
    "enqueue_many_sync": Attack(do=_enqueue_many_sync, answer=NotAllowed),
    "copy": Attack(
        do=lambda world, conn: world.store.copy(conn, [Item(kind="a", tenant=THEIRS)]),
        answer=InvalidInput,
        guard="a ledger with a journal refuses COPY before anything is sent",
    ),
    "ring": Attack(
        do=lambda world, conn: world.store.ring(conn),
        answer=None,
        guard="a doorbell says nothing but that somebody is there",
    ),
    "claim": Attack(
        do=lambda world, conn: world.store.claim(conn, "thief", 100, now=LATE),
        answer=InsufficientPrivilege,
        guard=GRANT,
    ),
    "turn": Attack(
        do=lambda world, conn: world.store.turn(conn, [Move(verb="finish", claim=world.claim)], "thief", 100),
        answer=InsufficientPrivilege,
        guard=GRANT,
        given="running",
    ),
    "start": Attack(
        do=_start,
        answer=[],
        guard="job has no edge `start`: the answer is what was given, and nothing is sent",
        given="running",
    ),
    "move: finish": moves("finish", GRANT),
    "move: retry": moves("retry", GRANT),
    "move: exhaust": moves("exhaust", GRANT),
    "move: reject": moves("reject", GRANT),
    "move: lose": moves("lose", GRANT),
    "move: snooze": moves("snooze", POLICY),
    "move: release": moves("release", POLICY),
    "move: cancel": moves("cancel", POLICY),
    "move_one": Attack(
        do=lambda world, conn: world.store.move_one(conn, Move(verb="release", claim=world.claim)),
        answer=ClaimLost,
        given="running",
    ),
    "heartbeat": Attack(
        do=lambda world, conn: world.store.heartbeat(conn, [world.claim]), answer=[], given="running"
    ),
    "progress": Attack(
        do=lambda world, conn: world.store.progress(conn, world.claim, 50, "stolen"),
        answer=ClaimLost,
        given="running",
    ),
    "held_by": Attack(
        do=lambda world, conn: world.store.held_by(conn, HOLDERS), answer=our("running"), nobody=[]
    ),
    "orphans": Attack(
        do=lambda world, conn: world.store.orphans(conn, [], orphaned=-1e9, nameless=-1e9),
        answer=our("running"),
        nobody=[],
    ),
    "expired": Attack(
        do=lambda world, conn: world.store.expired(conn),
        answer=[],
        guard="the lease of a job is its worker's: nothing is sent",
    ),
    "cancel": Attack(
        do=lambda world, conn: world.store.cancel(conn, world.theirs["queued"]),
        answer=NotFound,
        given="queued",
    ),
    "cancel as them": Attack(
        do=lambda world, conn: world.store.cancel(conn, world.theirs["queued"], tenant=THEIRS),
        answer=NotFound,
        given="queued",
    ),
    "cancel what has ended": Attack(
        do=lambda world, conn: world.store.cancel(conn, world.theirs["succeeded"]),
        answer=NotFound,
        given="succeeded",
    ),
    "requeue": Attack(
        do=lambda world, conn: world.store.requeue(conn, world.theirs["dead_letter"]),
        answer=NotFound,
        given="dead_letter",
    ),
    "cancel_where": Attack(
        do=lambda world, conn: world.store.cancel_where(conn, Filter()), answer=3, nobody=0
    ),
    "cancel_where they are": Attack(
        do=lambda world, conn: world.store.cancel_where(conn, Filter(tenant=THEIRS)), answer=0
    ),
    "requeue_where": Attack(
        do=lambda world, conn: world.store.requeue_where(conn, Filter()), answer=2, nobody=0
    ),
    "requeue_where they are": Attack(
        do=lambda world, conn: world.store.requeue_where(conn, Filter(tenant=THEIRS)), answer=0
    ),
    "get": Attack(
        do=lambda world, conn: world.store.get(conn, world.theirs["succeeded"]),
        answer=NotFound,
        given="succeeded",
    ),
    "find": Attack(do=lambda world, conn: world.store.find(conn), answer=our(*STATES), nobody=[]),
    "find what is theirs": Attack(
        do=lambda world, conn: world.store.find(conn, Filter(tenant=THEIRS)), answer=[]
    ),
    "count": Attack(do=lambda world, conn: world.store.count(conn), answer=COUNTS, nobody=[]),
    "count what is theirs": Attack(
        do=lambda world, conn: world.store.count(conn, Filter(tenant=THEIRS)), answer=[]
    ),
    "stats": Attack(
        do=lambda world, conn: world.store.stats(conn), answer=stats(rows=1), nobody=stats(rows=0)
    ),
    "stats of what is theirs": Attack(
        do=lambda world, conn: world.store.stats(conn, Filter(tenant=THEIRS)), answer=stats(rows=0)
    ),
    "depth": Attack(
        do=lambda world, conn: world.store.depth(conn), answer=stats(rows=1), nobody=stats(rows=0)
    ),
    "head": Attack(
        do=lambda world, conn: world.store.head(conn, now=LATE),
        answer=datetime(2031, 1, 1, tzinfo=UTC),
        nobody=None,
    ),
    "due_kinds": Attack(
        do=lambda world, conn: world.store.due_kinds(conn, now=datetime(2030, 6, 1, tzinfo=UTC)), answer=[]
    ),
    "ahead": Attack(
        do=lambda world, conn: world.store.ahead(conn, world.theirs["queued"], kinds=["demo"], now=LATE),
        answer=None,
        given="queued",
    ),
    "touched": Attack(
        do=lambda world, conn: world.store.touched(conn, world.theirs["running"]),
        answer=None,
        given="running",
    ),
    "marks": Attack(do=lambda world, conn: world.store.marks(conn, list(world.theirs.values())), answer={}),
    "held_since": Attack(do=_held_since, answer=None, given="running"),
    "held": Attack(do=lambda world, conn: world.store.held(conn), answer={HOLDERS[0]: 1}, nobody={}),
    "changes": Attack(
        do=lambda world, conn: world.store.changes(conn, datetime(2000, 1, 1, tzinfo=UTC)),
        answer=EVENTS,
        nobody=[],
    ),
    "timeline": Attack(
        do=lambda world, conn: world.store.timeline(conn, world.theirs["running"]),
        answer=NotFound,
        given="running",
    ),
    "verify": Attack(
        do=lambda world, conn: verify(world.store, conn), answer=(len(STATES), EVENTS, 0), nobody=(0, 0, 0)
    ),
    "verify what is theirs": Attack(
        do=lambda world, conn: verify(world.store, conn, tenant=THEIRS), answer=(0, 0, 0)
    ),
    "verify one of theirs": Attack(
        do=lambda world, conn: verify(world.store, conn, id=world.theirs["running"]),
        answer=NotFound,
        given="running",
    ),
}


def verbs_of(place: type | ModuleType) -> Iterator[str]:
    """What can be said to a database: every public function that takes a connection, sync or async."""
    for name, member in inspect.getmembers(place, inspect.isfunction):
        here = isinstance(place, type) or member.__module__ == place.__name__
        if here and not name.startswith("_") and "conn" in inspect.signature(member).parameters:
            yield name


def test_every_verb_is_tried() -> None:
    """J-39: a new verb must be tried as the wrong tenant, too; so must every move that a worker can make."""
    tried = {name.replace(":", "").split()[0] for name in ATTACKS}
    known = {*verbs_of(Store), *verbs_of(verify_module)}
    assert {"enqueue_sync", "enqueue_many_sync", "stats", "verify"} <= known
    assert known - tried == {"hidden"}  # which tells of the login, and of no row
    assert {name.removeprefix("move: ") for name in ATTACKS if ":" in name} == set(Store(JOB).sql.moves)
    free = {name for name, one in ATTACKS.items() if one.guard not in (POLICY, GRANT)}
    assert free == {"copy", "ring", "start", "expired"}


# -- what they are told ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What came of an attack: its gist, and all the words of it."""

    gist: Any
    words: str


def gist(answer: Any) -> Any:
    """An answer as what a table can say of it: keys for rows, numbers for counts, in any order."""
    match answer:
        case Page():
            return gist(answer.rows)
        case Row() | Claimed():
            return answer.id
        case Count():
            return (answer.state, answer.kind, answer.rows)
        case Stat():
            return (answer.state, answer.rows)
        case Report():
            return (answer.rows, answer.events, answer.found)
        case [Change(), *_]:
            return len(answer)
        case list() | tuple() | frozenset():
            return sorted(map(gist, answer), key=str)
        case _:
            return answer


async def attack(world: World, conn: Connection, name: str) -> Told:
    """Tries it, and answers with what it tells: also by the words, the fields and the cause of a refusal."""
    try:
        async with conn.transaction():
            answer = await ATTACKS[name].do(world, conn)
            return Told(gist(answer), f"{answer} {answer!r}")
    except (HoldfastError, psycopg.Error) as error:
        words = [repr(error.__dict__)]
        cause: BaseException | None = error
        while cause is not None:
            words += [str(cause), repr(cause), *getattr(cause, "__notes__", [])]
            if isinstance(cause, psycopg.Error):
                words += [str(getattr(cause.diag, part)) for part in dir(cause.diag) if part[0] != "_"]
            cause = cause.__cause__ or cause.__context__
        return Told(type(error), " ".join(words))


def leaks(world: World, name: str, told: Told) -> list[str]:
    """Which marks of theirs the words have, but for the id that the attacker himself has said."""
    given = ATTACKS[name].given
    ids = [key for state, key in world.theirs.items() if state != given]
    marks = [text for mark in (THEIRS, *ids) for text in (str(mark), mark.hex)]
    return [mark for mark in marks if mark in told.words]


def expected(world: World, answer: Answer) -> Any:
    return answer(world) if callable(answer) and not isinstance(answer, type) else answer


@asynccontextmanager
async def nobody(world: World) -> AsyncIterator[Connection]:
    """The tenant's role without a tenant, on a connection that another transaction has used for THEIRS."""
    async with world.app.database.connection() as conn:
        async with conn.transaction():
            await conn.execute("select set_config('holdfast.org_id', %s, true)", [str(THEIRS)])
        async with conn.transaction():
            await conn.execute("set local role holdfast_tenant")
            yield conn


async def test_the_wrong_tenant_sees_and_changes_nothing(world: World) -> None:
    """J-39, J-40, J-44: whatever is said, their rows and events stay as they are, and no answer has them."""
    before = await world.truth()
    for name, one in ATTACKS.items():
        async with world.app.as_tenant(OURS) as conn:
            told = await attack(world, conn, name)
        assert told.gist == expected(world, one.answer), name
        assert leaks(world, name, told) == [], name
        assert await world.truth() == before, name
        await world.restore()


async def test_a_role_without_a_tenant_sees_and_changes_nothing(world: World) -> None:
    """J-39: without the setting there is nothing, also after another transaction had one."""
    before = await world.truth()
    for name, one in ATTACKS.items():
        async with nobody(world) as conn:
            told = await attack(world, conn, name)
        answer = one.answer if one.nobody is ... else one.nobody
        assert told.gist == expected(world, answer), name
        assert leaks(world, name, told) == [], name
        seen = [key for key in world.ours.values() if str(key) in told.words]
        assert seen == [], name
        assert await world.truth() == before, name
        await world.restore()


async def successes(world: World) -> set[str]:
    """The attacks that leak something, change something, or are answered otherwise than they should be."""
    before, found = await world.truth(), set[str]()
    for name, one in ATTACKS.items():
        async with world.app.as_tenant(OURS) as conn:
            told = await attack(world, conn, name)
        if told.gist != expected(world, one.answer) or leaks(world, name, told):
            found.add(name)
        if await world.truth() != before:
            found.add(name)
        await world.restore()
    return found


async def test_each_attack_succeeds_where_its_guard_is_taken_away(world: World) -> None:
    """J-38, J-39: the control. What never succeeds would prove nothing by being refused."""
    by_guard = {
        guard: {name for name, one in ATTACKS.items() if one.guard == guard} for guard in (POLICY, GRANT)
    }
    assert await successes(world) == set()
    for table in ("job", "job_event"):
        await world.owner.execute(f"alter table {table} disable row level security")
    assert await successes(world) == by_guard[POLICY]
    await world.owner.execute("grant all on job, job_event to holdfast_tenant")
    assert await successes(world) == by_guard[POLICY] | by_guard[GRANT]


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
