"""The ledgers that the engine's tests run on, each with the table that it describes.

`TASKS` and `JOB` are ours and have their tables from the migrations. The others are users' tables: together
they use every feature that a declaration has. `Sample` is a ledger with what a test must know to speak
to it, told independently of the engine: which verbs are legal, what counts as a run, what the journal says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.sql import SQL, Identifier

from holdfast.apps.jobs.ledger import JOB
from holdfast.apps.system.ledger import SYSTEM_JOBS
from holdfast.apps.tasks.ledger import TASKS
from holdfast.db import migrate
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge, Verb
from holdfast.engine.roles import (
    Attempts,
    CodeError,
    Column,
    Due,
    Idempotency,
    Journal,
    JsonError,
    Key,
    Lane,
    RowLease,
    Tenant,
    TextError,
    Times,
    TraceError,
)
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Fault, Item, Move

Connection = AsyncConnection[Any]
Snapshot = dict[Any, dict[str, Any]]

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)  # the clock that tests lend
ORG = UUID("11111111-1111-4111-8111-111111111111")


def after(seconds: float) -> datetime:
    """The lent clock, so many seconds later."""
    return NOW + timedelta(seconds=seconds)


# A user's own table that shares no word with ours: whole numbers as keys, times in epoch milliseconds, no
# priority, no fence (the courier is the fence), no defaults but the key's.
PARCELS_DDL: LiteralString = """
create table parcels (
    parcel_no integer generated always as identity primary key,
    service text not null,
    slip jsonb,
    stage text not null check (stage in ('shelved', 'moving', 'handed_over', 'returned')),
    courier text,
    barcode text unique,
    tries integer not null default 0,
    complaint varchar(200),
    not_before bigint,
    shelved_ms bigint not null,
    moving_ms bigint,
    done_ms bigint
);
create index parcels_shelf on parcels (shelved_ms) where stage = 'shelved' and not_before is null;
create index parcels_later on parcels (not_before) where stage = 'shelved' and not_before is not null;
create index parcels_moving on parcels (courier) where stage = 'moving';
"""

PARCELS = Ledger(
    name="parcels",
    table="parcels",
    key=Key("parcel_no", "integer"),
    kind="service",
    payload="slip",
    state="stage",
    states=("shelved", "moving", "handed_over", "returned"),
    ends=("handed_over", "returned"),
    edges=(
        Edge("enqueue", to="shelved"),
        Edge("claim", frm=("shelved",), to="moving"),
        Edge("finish", frm=("moving",), to="handed_over"),
        Edge("retry", frm=("moving",), to="shelved"),
        Edge("exhaust", frm=("moving",), to="returned"),
        Edge("reject", frm=("moving",), to="returned"),
        Edge("snooze", frm=("moving",), to="shelved"),
        Edge("release", frm=("moving",), to="shelved"),
        Edge("lose", frm=("moving",), to="shelved"),
        Edge("cancel", frm=("shelved", "moving"), to="returned"),
        Edge("requeue", frm=("returned",), to="shelved"),
    ),
    lanes=(
        Lane("shelf", empty=("not_before",), order=("shelved_ms",)),
        Lane("later", filled=("not_before",), due="not_before", order=("not_before",)),
    ),
    owner="courier",
    due=Due("not_before"),
    attempts=Attempts("tries", limit=2, counts="runs"),
    errors=TextError("complaint", length=200, cleared_by_finish=True),
    times=Times(created="shelved_ms", started="moving_ms", finished="done_ms", kind="epoch_ms"),
    idempotency=Idempotency("barcode", repeat="return"),
)

# Audited, of many tenants, in a schema of its own, with queues: as `job` of the first seed.
ERRANDS_DDL: LiteralString = """
create schema town;
create type town.errand_status as enum
    ('queued', 'running', 'succeeded', 'failed', 'canceled', 'dead_letter');
create table town.errand (
    id uuid primary key default gen_random_uuid(),
    org_id uuid not null,
    type varchar(100) not null,
    status town.errand_status not null default 'queued',
    attempt integer not null default 0,
    max_attempts integer not null default 5,
    priority integer not null default 0,
    idempotency_key varchar(255),
    requested_by varchar(255),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    started_at timestamptz,
    finished_at timestamptz,
    last_error_code varchar(64),
    last_error_message varchar(2048),
    queue text not null default 'default',
    run_at timestamptz not null default now(),
    payload jsonb,
    worker_id text,
    fence bigint not null default 0,
    constraint finished check
        ((finished_at is not null) = (status in ('succeeded', 'canceled', 'dead_letter'))),
    constraint owned check ((worker_id is not null) = (status = 'running'))
);
create unique index errand_key on town.errand (org_id, idempotency_key) where idempotency_key is not null;
create index errand_claimable on town.errand (queue, priority desc, run_at)
    where status in ('queued', 'failed');
create index errand_held on town.errand (worker_id) where status = 'running';
create table town.errand_event (
    id uuid primary key default gen_random_uuid(),
    seq bigint generated always as identity,
    job_id uuid not null references town.errand (id) on delete cascade,
    ts timestamptz not null default now(),
    prev_status varchar(50),
    next_status varchar(50) not null,
    detail_json jsonb
);
"""

ERRANDS = Ledger(
    name="errands",
    table="town.errand",
    state_type="town.errand_status",
    states=("queued", "running", "succeeded", "failed", "canceled", "dead_letter"),
    ends=("succeeded", "canceled", "dead_letter"),
    edges=(
        Edge("enqueue", to="queued"),
        Edge("claim", frm=("queued",), to="running"),
        Edge("claim", frm=("failed",), via=("queued",), to="running"),
        Edge("finish", frm=("running",), to="succeeded"),
        Edge("retry", frm=("running",), to="failed"),
        Edge("exhaust", frm=("running",), via=("failed",), to="dead_letter"),
        Edge("reject", frm=("running",), via=("failed",), to="dead_letter"),
        Edge("snooze", frm=("running",), to="queued"),
        Edge("release", frm=("running",), to="queued"),
        Edge("lose", frm=("running",), to="failed"),
        Edge("cancel", frm=("queued", "failed", "running"), to="canceled"),
        Edge("requeue", frm=("dead_letter", "failed"), to="queued"),
    ),
    lanes=(Lane("due", due="run_at", order=("priority desc", "run_at")),),
    owner="worker_id",
    fence="fence",
    priority="priority",
    queue="queue",
    tenant=Tenant("org_id", "uuid"),
    extras=(Column("requested_by", "text"),),
    due=Due("run_at", cleared=False),
    attempts=Attempts("attempt", limit="max_attempts", counts="retries"),
    errors=CodeError("last_error_code", "last_error_message", code_length=64, message_length=2048),
    times=Times(
        created="created_at",
        updated="updated_at",
        started="started_at",
        finished="finished_at",
        first_start=True,
    ),
    idempotency=Idempotency("idempotency_key", scope=("org_id",), partial=True, repeat="return"),
    journal=Journal(
        table="town.errand_event",
        row="job_id",
        seq="seq",
        at="ts",
        prev="prev_status",
        next="next_status",
        detail="detail_json",
    ),
    cancelled_text=None,
)

# One active row per connection and type, a failed row that may be claimed again, runs counted at their
# start: as `sync_jobs` of the third seed.
SYNCS_DDL: LiteralString = """
create table syncs (
    id uuid primary key,
    connection text,
    job_type text not null,
    status text not null check (status in ('queued', 'running', 'succeeded', 'failed')),
    priority smallint not null default 0,
    attempts integer not null default 0,
    max_attempts integer not null default 10,
    retry_after timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    cursor jsonb,
    error jsonb,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    worker_id text,
    fence bigint not null default 0,
    constraint finished check ((finished_at is not null) = (status in ('succeeded', 'failed')))
);
create unique index syncs_active on syncs (job_type, connection) where status in ('queued', 'running');
create index syncs_fresh on syncs (priority desc, created_at) where status = 'queued' and retry_after is null;
create index syncs_retry on syncs (priority desc, retry_after)
    where status = 'queued' and retry_after is not null;
create index syncs_failed on syncs (priority desc, retry_after)
    where status = 'failed' and retry_after is not null;
"""

SYNCS = Ledger(
    name="syncs",
    table="syncs",
    kind="job_type",
    payload="cursor",
    states=("queued", "running", "succeeded", "failed"),
    ends=("succeeded", "failed"),
    edges=(
        Edge("enqueue", to="queued"),
        Edge("claim", frm=("queued", "failed"), to="running"),
        Edge("finish", frm=("running",), to="succeeded"),
        Edge("retry", frm=("running",), to="queued"),
        Edge("exhaust", frm=("running",), to="failed"),
        Edge("reject", frm=("running",), to="failed"),
        Edge("snooze", frm=("running",), to="queued"),
        Edge("release", frm=("running",), to="queued"),
        Edge("lose", frm=("running",), to="queued"),
        Edge("cancel", frm=("queued", "running"), to="failed"),
        Edge("requeue", frm=("failed",), to="queued"),
    ),
    lanes=(
        Lane("fresh", states=("queued",), empty=("retry_after",), order=("priority desc", "created_at")),
        Lane(
            "retry",
            states=("queued",),
            filled=("retry_after",),
            due="retry_after",
            order=("priority desc", "retry_after"),
        ),
        Lane(
            "failed",
            states=("failed",),
            filled=("retry_after",),
            due="retry_after",
            order=("priority desc", "retry_after"),
        ),
    ),
    owner="worker_id",
    fence="fence",
    priority="priority",
    due=Due("retry_after"),
    attempts=Attempts("attempts", limit="max_attempts", counts="starts"),
    errors=JsonError("error"),
    times=Times(created="created_at", updated="updated_at", started="started_at", finished="finished_at"),
    idempotency=Idempotency("connection", scope=("job_type",), within=("queued", "running"), repeat="refuse"),
)

# A lease in the row itself, no fence, no kind, no retry; the payload is plain columns, the key a text.
PERMITS_DDL: LiteralString = """
create schema office;
create table office.permit (
    slip text primary key,
    number text unique,
    applicant text,
    floors integer,
    drawn_on date,
    state text not null check (state in ('pending', 'processing', 'done', 'failed')),
    error text,
    trace text,
    locked_at timestamptz,
    locked_by text,
    created_at timestamptz not null,
    constraint held check ((locked_by is not null) = (state = 'processing'))
);
create index permit_pending on office.permit (created_at) where state = 'pending';
"""

PERMITS = Ledger(
    name="permits",
    table="office.permit",
    key=Key("slip", "text", lambda: f"slip-{uuid4().hex}"),
    kind=None,
    payload=("applicant", "floors", "drawn_on"),
    state="state",
    states=("pending", "processing", "done", "failed"),
    ends=("done", "failed"),
    edges=(
        Edge("enqueue", to="pending"),
        Edge("claim", frm=("pending",), to="processing"),
        Edge("finish", frm=("processing",), to="done"),
        Edge("reject", frm=("processing",), to="failed"),
        Edge("release", frm=("processing",), to="pending"),
        Edge("lose", frm=("processing",), to="pending"),
        Edge("cancel", frm=("pending",), to="failed"),
        Edge("requeue", frm=("failed",), to="pending"),
    ),
    lanes=(Lane("pending", order=("created_at",)),),
    owner="locked_by",
    lease=RowLease("locked_at", seconds=600),
    errors=TraceError("error", "trace"),
    times=Times(created="created_at"),
    idempotency=Idempotency("number", repeat="ignore"),
)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A ledger and what its tests know about it, in literals of their own.

    `runs`: how often a row that always fails is run at the default limit. `steps`: what each verb adds to
    the count of attempts, said of a row whose handler had begun. `hops`: the events of each (state, verb).
    `kinds`: three that a row may have. `nothing`: what a row without a payload has. `planted`: states that
    only others' SQL brings a row into.
    """

    ledger: Ledger
    legal: Mapping[Verb, tuple[tuple[str, ...], str]]
    runs: int = 1
    steps: Mapping[Verb, int] = field(default_factory=dict)
    hops: Mapping[tuple[str | None, str], tuple[tuple[str | None, str], ...]] = field(default_factory=dict)
    kind: str | None = "demo"
    body: Any = field(default_factory=lambda: {"n": 1})
    tenant: Any = None
    kinds: tuple[str, str, str] = ("a", "b", "c")
    nothing: Any = None
    planted: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.ledger.name

    @property
    def comes_back(self) -> bool:
        """Whether a row whose worker is gone, or that has ended badly, can run again."""
        ends = self.ledger.ends
        return self.legal["lose"][1] not in ends and any(state in ends for state in self.legal["requeue"][0])

    def store(self) -> Store:
        return Store(self.ledger)

    def item(self, **changes: Any) -> Item:
        """An item that this ledger takes."""
        given: dict[str, Any] = {"kind": self.kind, "payload": self.body, "tenant": self.tenant}
        return Item(**(given | changes))

    def table(self) -> Identifier:
        return Identifier(*self.ledger.table.split("."))

    async def rows(self, conn: Connection) -> Snapshot:
        """Every row as PostgreSQL itself tells it, by key."""
        query = SQL("select {}, to_jsonb(t.*) from {} as t").format(
            Identifier(self.ledger.key.column), self.table()
        )
        return dict(await (await conn.execute(query)).fetchall())

    async def row(self, conn: Connection, id: Any) -> dict[str, Any]:
        return (await self.rows(conn))[id]

    async def state(self, conn: Connection, id: Any) -> str:
        return (await self.row(conn, id))[self.ledger.state]

    async def events(self, conn: Connection, id: Any | None = None) -> list[tuple[str | None, str]]:
        """The (prev, next) pairs of one row or of all, in the order of their writing."""
        return [(event["prev_status"], event["next_status"]) for event in await self.told(conn, id)]

    async def told(self, conn: Connection, id: Any | None = None) -> list[dict[str, Any]]:
        """The journal's rows; none where there is no journal."""
        if self.ledger.journal is None:
            return []
        query = SQL(
            "select to_jsonb(e.*) from {} as e where %(id)s::uuid is null or {} = %(id)s order by seq"
        )
        query = query.format(
            Identifier(*self.ledger.journal.table.split(".")), Identifier(self.ledger.journal.row)
        )
        return [event for (event,) in await (await conn.execute(query, {"id": id})).fetchall()]

    async def update(self, conn: Connection, id: Any, **columns: Any) -> None:
        """Foreign SQL: sets columns of one row, past the engine and the edges of `job`."""
        sets = SQL(", ").join(
            SQL("{} = {}").format(Identifier(name), value) for name, value in columns.items()
        )
        query = SQL("update {} set {} where {} = %s").format(
            self.table(), sets, Identifier(self.ledger.key.column)
        )
        async with conn.transaction():
            if self.ledger.table == JOB.table:  # to disable its trigger would wait for all who write to it
                await conn.execute("set local session_replication_role = replica")
            await conn.execute(query, [id])

    async def held(self, conn: Connection, id: Any) -> Claimed:
        """A claim that names the row's own owner and fence, whatever state the row is in."""
        row = await self.row(conn, id)
        attempts = self.ledger.attempts
        return Claimed(
            id=id,
            kind=self.kind or self.ledger.name,
            payload=None,
            state=row[self.ledger.state],
            owner=row[self.ledger.owner],
            fence=row[self.ledger.fence] if self.ledger.fence else 0,
            attempts=row[attempts.column] if attempts else 0,
            limit=None,
        )

    def way(self, state: str) -> tuple[Verb, ...]:
        """The shortest way of legal verbs that brings a new row into `state`."""
        ways: list[tuple[str, tuple[Verb, ...]]] = [(self.legal["enqueue"][1], ())]
        for here, verbs in ways:
            if here == state:
                return verbs
            ways += [
                (to, (*verbs, verb))
                for verb, (frm, to) in self.legal.items()
                if here in frm and len(verbs) < len(self.ledger.states)
            ]
        raise AssertionError(f"no way leads to {state}")

    async def bring(self, conn: Connection, state: str, owner: str = "w1", **item: Any) -> Any:
        """A new row in `state`, brought there by legal verbs only; answers with its key."""
        store = self.store()
        receipt = await store.enqueue(conn, self.item(**item), now=NOW)
        if state in self.planted:
            await self.update(conn, receipt.id, **{self.ledger.state: state})
            return receipt.id
        for verb in self.way(state):
            match verb:
                case "claim":
                    claims = await store.claim(conn, owner, 1, now=after(1))
                    assert [claim.id for claim in claims] == [receipt.id]
                case "start":
                    assert await store.start(conn, [await self.held(conn, receipt.id)], now=after(1))
                case "cancel":
                    await store.cancel(conn, receipt.id, now=after(2))
                case "requeue":
                    await store.requeue(conn, receipt.id, now=after(2))
                case _:
                    move = Move(verb=verb, claim=await self.held(conn, receipt.id), fault=FAULT, delay=1e6)
                    await store.move_one(conn, move, now=after(2))
        assert await self.state(conn, receipt.id) == state
        return receipt.id


FAULT = Fault(code="BROKEN", message="it broke", trace="Traceback: it broke")

RUNS: Mapping[Verb, int] = {"finish": 1, "retry": 1, "exhaust": 1, "reject": 1, "lose": 1}


def _legal(ledger: Ledger) -> dict[Verb, tuple[tuple[str, ...], str]]:
    """The table of a ledger that is declared in this file."""
    legal: dict[Verb, tuple[tuple[str, ...], str]] = {}
    for edge in ledger.edges:
        frm, _ = legal.get(edge.verb, ((), ""))
        legal[edge.verb] = ((*frm, *edge.frm), edge.to)
    return legal


TASKS_SAMPLE = Sample(
    ledger=TASKS,
    legal={
        "enqueue": ((), "pending"),
        "claim": (("pending",), "claimed"),
        "start": (("claimed",), "running"),
        "finish": (("running",), "completed"),
        "retry": (("running",), "pending"),
        "exhaust": (("running",), "dead_letter"),
        "reject": (("claimed", "running"), "failed"),
        "snooze": (("running",), "pending"),
        "release": (("claimed", "running"), "pending"),
        "lose": (("claimed", "running"), "pending"),
        "cancel": (("pending", "claimed", "running"), "failed"),
        "requeue": (("dead_letter", "failed"), "pending"),
    },
    runs=3,
    steps=RUNS,
)
PARCELS_SAMPLE = Sample(ledger=PARCELS, legal=_legal(PARCELS), runs=2, steps=RUNS)
ERRANDS_SAMPLE = Sample(
    ledger=ERRANDS,
    legal=_legal(ERRANDS),
    runs=6,
    steps={"retry": 1, "lose": 1},
    hops={
        (None, "enqueue"): ((None, "queued"),),
        ("queued", "claim"): (("queued", "running"),),
        ("failed", "claim"): (("failed", "queued"), ("queued", "running")),
        ("running", "finish"): (("running", "succeeded"),),
        ("running", "retry"): (("running", "failed"),),
        ("running", "exhaust"): (("running", "failed"), ("failed", "dead_letter")),
        ("running", "reject"): (("running", "failed"), ("failed", "dead_letter")),
        ("running", "snooze"): (("running", "queued"),),
        ("running", "release"): (("running", "queued"),),
        ("running", "lose"): (("running", "failed"),),
        ("queued", "cancel"): (("queued", "canceled"),),
        ("failed", "cancel"): (("failed", "canceled"),),
        ("running", "cancel"): (("running", "canceled"),),
        ("dead_letter", "requeue"): (("dead_letter", "queued"),),
        ("failed", "requeue"): (("failed", "queued"),),
    },
    tenant=ORG,
)
JOB_SAMPLE = replace(
    ERRANDS_SAMPLE,
    ledger=JOB,
    legal={
        "enqueue": ((), "queued"),
        "claim": (("queued", "failed"), "running"),
        "finish": (("running",), "succeeded"),
        "retry": (("running",), "failed"),
        "exhaust": (("running",), "dead_letter"),
        "reject": (("running",), "dead_letter"),
        "snooze": (("running",), "queued"),
        "release": (("running",), "queued"),
        "lose": (("running",), "failed"),
        "cancel": (("queued", "failed", "running"), "canceled"),
        "requeue": (("dead_letter", "failed"), "queued"),
    },
)
SYNCS_SAMPLE = Sample(
    ledger=SYNCS, legal=_legal(SYNCS), runs=10, steps={"claim": 1, "snooze": -1, "release": -1}
)
PERMITS_SAMPLE = Sample(
    ledger=PERMITS, legal=_legal(PERMITS), kind=None, body={"applicant": "Ana", "floors": 3}
)

SYSTEM_SAMPLE = Sample(
    ledger=SYSTEM_JOBS,
    legal={
        "enqueue": ((), "queued"),
        "claim": (("queued", "retrying"), "running"),
        "finish": (("running",), "completed"),
        "retry": (("running",), "retrying"),
        "exhaust": (("running",), "failed"),
        "reject": (("running",), "failed"),
        "snooze": (("running",), "queued"),
        "release": (("running",), "queued"),
        "lose": (("running",), "failed"),
        "cancel": (("new", "queued", "running", "retrying"), "cancelled"),
        "requeue": (("new",), "queued"),
    },
    runs=4,
    steps={"retry": 1},
    kind="flush",
    kinds=("compact", "backup", "restore"),
    nothing={},
    planted=("new",),
)

SAMPLES = (
    *(TASKS_SAMPLE, JOB_SAMPLE, PARCELS_SAMPLE, ERRANDS_SAMPLE, SYNCS_SAMPLE, PERMITS_SAMPLE),
    SYSTEM_SAMPLE,
)
DDL = (PARCELS_DDL, ERRANDS_DDL, SYNCS_DDL, PERMITS_DDL)
TABLES = (
    *("tasks", "job", "workers", "parcels", "town.errand_event", "town.errand", "syncs", "office.permit"),
    "system.jobs",
    *("holdfast_pause", "holdfast_pulse", "holdfast_session", "holdfast_token", "holdfast_audit"),
)


def over(condition: Callable[[Sample], object]) -> pytest.MarkDecorator:
    """Runs a test on those samples that have a feature."""
    return pytest.mark.parametrize("sample", [s for s in SAMPLES if condition(s)], ids=str)


every_sample = over(lambda sample: True)


async def claim_all(
    sample: Sample, conn: Connection, owner: str = "w1", limit: int = 100, at: float = 10, **how: Any
) -> list[Claimed]:
    """Claims, and starts where the ledger has a start: these rows' handlers may be called."""
    store = sample.store()
    return await store.start(conn, await store.claim(conn, owner, limit, now=after(at), **how), now=after(at))


@contextmanager
def ledger_database(postgres: str) -> Iterator[Callable[[], str]]:
    """A database with the tables of all samples, for many tests: making one takes longer than most tests.

    What is given is a function that empties the tables and answers with the URL.
    """
    word = f"ledgers_{uuid4().hex}"
    url, name = urlsplit(postgres)._replace(path=f"/{word}").geturl(), Identifier(word)
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(SQL("create database {} template template0").format(name))
        migrate.upgrade(url)
        with psycopg.connect(url, autocommit=True) as database:
            for ddl in DDL:
                database.execute(ddl)

            def emptied() -> str:
                wipe(database)
                return url

            yield emptied
        server.execute(SQL("drop database {} with (force)").format(name))


def wipe(database: psycopg.Connection[Any]) -> None:
    """Empties the tables of all samples: by DELETE, which is quicker than TRUNCATE while they are small.

    The events of `job` cannot be truncated: they go with their jobs.
    """
    for name in TABLES:
        table = Identifier(*name.split("."))
        many = database.execute(SQL("select true from {} offset 500 limit 1").format(table)).fetchone()
        truncates = many and name != "job"
        database.execute(SQL("truncate {} cascade" if truncates else "delete from {}").format(table))


def json_of(payload: str | None) -> Any:
    """A claim's payload as the handler gets it."""
    return None if payload is None else json.loads(payload)
