"""A model of `job`, and real connections that do anything in any order: after each step both must agree.

The model is a few dicts. It knows nothing of the engine: its table of edges, its arithmetic of attempts and
waits, and the events that it expects are written out here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from psycopg import AsyncConnection
from psycopg.rows import dict_row
from psycopg.sql import SQL, Composable, Identifier

from holdfast.apps.jobs.ledger import JOB
from holdfast.engine.backoff import Backoff
from holdfast.engine.decide import decide, decide_lost
from holdfast.engine.outcomes import Done, Ending, Fail, Retry, Snooze
from holdfast.engine.statements import Statements
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Filter, Item, Move, Receipt
from holdfast.engine.verify import verify
from holdfast.engine.words import Words
from holdfast.errors import ClaimLost, IllegalEdge, NotFound
from ledgers import NOW

ORGS = (UUID(int=1), UUID(int=2))
WORKERS = ("w1", "w2")
CONNECTIONS = 3
CANCELLABLE = ("queued", "failed", "running")
SOME_STATES = ((), ("queued",), ("failed", "running"), ("succeeded",), ("canceled", "queued"))
UNDONE = (
    *("enqueue", "enqueue_many", "claim", "finish", "retry", "progress"),
    *("cancel", "requeue", "cancel_where", "requeue_where"),
)
EXACT = Backoff(base=1, cap=60, jitter=0)
Answer = TypeVar("Answer")
Hop = tuple[str | None, str]


@dataclass
class Model:
    """What we think of one job."""

    org: UUID
    priority: int
    limit: int
    policy: str
    run_at: datetime
    status: str = "queued"
    attempt: int = 0
    fence: int = 0
    worker: str | None = None
    started: bool = False
    error: tuple[str | None, str | None] = (None, None)
    hops: list[Hop] = field(default_factory=lambda: [(None, "queued")])

    def go(self, *stations: str) -> None:
        for station in stations:
            self.hops.append((self.status, station))
            self.status = station
        if self.status != "running":
            self.worker = None

    @property
    def wait(self) -> float:
        """The delay of the next retry, by the row's own policy."""
        return {"none": 0.0, "fixed": 1.0, "exp": min(60.0, 2.0**self.attempt)}[self.policy]

    def bad_run(self, code: str, message: str, run_at: datetime) -> None:
        self.error = (code, message)
        if self.attempt >= self.limit:
            self.go("failed", "dead_letter")
        else:
            self.attempt += 1
            self.run_at = run_at
            self.go("failed")


def _one_of(name: str) -> st.SearchStrategy[Any]:
    """Something that the machine has, by a number: what is drawn must not depend on what the database did."""

    def pick(machine: Any, number: int) -> Any:
        known = list(getattr(machine, name))
        return known[-1 - number % len(known)]

    return st.builds(pick, st.runner(), st.integers(0, 999))


jobs: st.SearchStrategy[UUID] = _one_of("model")
claims: st.SearchStrategy[Claimed] = _one_of("handed_out")


class Jobs(RuleBasedStateMachine):
    """Workers, people and a clock that may also step back."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = Store(JOB)
        self.model: dict[UUID, Model] = {}
        self.keys: dict[tuple[UUID, str], UUID] = {}
        self.handed_out: list[Claimed] = []
        self.now = NOW
        self.conns = self._do(self._open(url))

    async def _open(self, url: str) -> list[AsyncConnection[Any]]:
        conns = [await AsyncConnection.connect(url, autocommit=True) for _ in range(CONNECTIONS)]
        await conns[0].execute("delete from job")
        return conns

    def _do(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.runner.run(work)

    def teardown(self) -> None:
        for conn in self.conns:
            self._do(conn.close())
        self.runner.close()

    def later(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    def holds(self, claim: Claimed) -> bool:
        job = self.model[claim.id]
        return job.status == "running" and (job.fence, job.worker) == (claim.fence, claim.owner)

    # -- what may happen -----------------------------------------------------------------------------

    @initialize(limits=st.lists(st.integers(0, 2), min_size=4, max_size=4))
    def begin_with_some_work(self, limits: list[int]) -> None:
        for n, limit in enumerate(limits):
            self.enqueue(0, ORGS[n % 2], None, n % 2, limit, ("none", "exp")[n % 2], 0)
        self.claim(1, "w1", 3)

    @rule(seconds=st.sampled_from([0.5, 1, 2, 16, 60, 3600, -1, -30]))
    def time_passes(self, seconds: float) -> None:
        self.now = self.later(seconds)

    @rule(
        n=st.integers(0, CONNECTIONS - 1),
        org=st.sampled_from(ORGS),
        key=st.sampled_from([None, None, "a", "b"]),
        priority=st.integers(0, 2),
        limit=st.integers(0, 2),
        policy=st.sampled_from(["none", "fixed", "exp"]),
        delay=st.sampled_from([0, 0, 5]),
    )
    def enqueue(
        self, n: int, org: UUID, key: str | None, priority: int, limit: int, policy: str, delay: int
    ) -> None:
        item = Item(
            kind="demo", tenant=org, key=key, priority=priority, limit=limit, backoff=policy, delay=delay
        )
        receipt = self._do(self.store.enqueue(self.conns[n], item, by="ana", now=self.now))
        self._added(receipt, org, key, Model(org, priority, limit, policy, self.later(delay)))

    @rule(
        n=st.integers(0, CONNECTIONS - 1),
        items=st.lists(st.tuples(st.sampled_from(ORGS), st.sampled_from([None, "a", "c"])), max_size=4),
    )
    def enqueue_many(self, n: int, items: list[tuple[UUID, str | None]]) -> None:
        """A key may be taken already, or come twice: the first of a key is its row."""
        asked = [Item(kind="demo", tenant=org, key=key, limit=1, backoff="none") for org, key in items]
        receipts = self._do(self.store.enqueue_many(self.conns[n], asked, by="ana", now=self.now))
        for (org, key), receipt in zip(items, receipts, strict=True):
            self._added(receipt, org, key, Model(org, 0, 1, "none", self.now))

    def _added(self, receipt: Receipt, org: UUID, key: str | None, job: Model) -> None:
        known = self.keys.get((org, key)) if key else None
        assert (receipt.created, known in (None, receipt.id)) == (known is None, True)
        if known is None:
            assert receipt.id not in self.model
            self.model[receipt.id] = job
            if key:
                self.keys[org, key] = receipt.id

    @rule(org=st.sampled_from(ORGS), number=st.integers(0, 9))
    def two_enqueue_one_key_at_once(self, org: UUID, number: int) -> None:
        """Two connections race for one key: one of them makes the row, both get its id."""
        key = f"race-{number}"
        item = Item(kind="demo", tenant=org, key=key, limit=1, backoff="none")

        async def both() -> list[Receipt]:
            adding = (self.store.enqueue(conn, item, by="ana", now=self.now) for conn in self.conns[:2])
            return await asyncio.gather(*adding)

        made, found = sorted(self._do(both()), key=lambda receipt: not receipt.created)
        assert (made.id, found.created) == (found.id, False)
        self._added(made, org, key, Model(org, 0, 1, "none", self.now))

    @rule(
        n=st.integers(0, CONNECTIONS - 1),
        worker=st.sampled_from(WORKERS),
        limit=st.integers(1, 3),
    )
    def claim(self, n: int, worker: str, limit: int) -> None:
        due = [
            (-job.priority, job.run_at)
            for job in self.model.values()
            if job.status in ("queued", "failed") and job.run_at <= self.now
        ]
        found = self._do(self.store.claim(self.conns[n], worker, limit, now=self.now))
        got = [(-self.model[one.id].priority, self.model[one.id].run_at) for one in found]
        assert got == sorted(due)[:limit]
        for one in found:
            job = self.model[one.id]
            job.go(*(["queued"] if job.status == "failed" else []), "running")
            job.fence += 1
            job.worker, job.started = worker, True
            assert (one.fence, one.attempts, one.owner) == (job.fence, job.attempt, worker)
        self.handed_out += found

    def _say(self, n: int, claim: Claimed, ending: Ending) -> bool:
        move = decide(JOB, claim, ending, EXACT)
        moved = self._do(self.store.move(self.conns[n], [move], now=self.now))
        assert bool(moved) == self.holds(claim)
        return bool(moved)

    @rule(n=st.integers(0, CONNECTIONS - 1), claim=claims)
    def finish(self, n: int, claim: Claimed) -> None:
        if self._say(n, claim, Done({"n": n})):
            self.model[claim.id].error = (None, None)
            self.model[claim.id].go("succeeded")

    @rule(n=st.integers(0, CONNECTIONS - 1), claim=claims, after=st.sampled_from([None, None, 7.0]))
    def fail_a_run(self, n: int, claim: Claimed, after: float | None) -> None:
        if self._say(n, claim, Retry("it broke", after=after, code="BROKEN")):
            job = self.model[claim.id]
            job.bad_run("BROKEN", "it broke", self.later(job.wait if after is None else after))

    @rule(n=st.integers(0, CONNECTIONS - 1), claim=claims)
    def fail_for_good(self, n: int, claim: Claimed) -> None:
        if self._say(n, claim, Fail("never", code="NEVER")):
            self.model[claim.id].error = ("NEVER", "never")
            self.model[claim.id].go("failed", "dead_letter")

    @rule(n=st.integers(0, CONNECTIONS - 1), claim=claims, seconds=st.sampled_from([0.0, 9.0]))
    def snooze(self, n: int, claim: Claimed, seconds: float) -> None:
        if self._say(n, claim, Snooze(seconds)):
            self.model[claim.id].run_at = self.later(seconds)
            self.model[claim.id].go("queued")

    @rule(n=st.integers(0, CONNECTIONS - 1), claim=claims)
    def release(self, n: int, claim: Claimed) -> None:
        held = self.holds(claim)
        moves = [Move(verb="release", claim=claim)]
        assert bool(self._do(self.store.move(self.conns[n], moves, now=self.now))) == held
        if held:
            self.model[claim.id].run_at = self.now
            self.model[claim.id].go("queued")

    @rule(n=st.integers(0, CONNECTIONS - 1), claim=claims)
    def the_same_worker_takes_it_again(self, n: int, claim: Claimed) -> None:
        """From now on the old claim is a zombie's that has the right worker and an old fence."""
        self.snooze(n, claim, 0.0)
        self.claim(n, claim.owner or "", 3)

    @rule(n=st.integers(0, CONNECTIONS - 1), claim=claims, percent=st.integers(0, 100))
    def progress(self, n: int, claim: Claimed, percent: int) -> None:
        held = self.holds(claim)
        try:
            self._do(self.store.progress(self.conns[n], claim, percent, "stage", now=self.now))
            assert held
            self.model[claim.id].go("running")
        except ClaimLost:
            assert not held

    @rule(n=st.integers(0, CONNECTIONS - 1), worker=st.sampled_from(WORKERS))
    def lose_a_worker(self, n: int, worker: str) -> None:
        """Its heartbeat stops; the leader gives its rows back, and its handlers do not know."""
        conn = self.conns[n]

        async def reap() -> frozenset[Any]:
            async with conn.transaction():
                claims = await self.store.held_by(conn, [worker], now=self.now)
                moves = [decide_lost(JOB, claim) for claim in claims]
                return await self.store.move(conn, moves, by="leader", now=self.now)

        held = {key for key, job in self.model.items() if job.worker == worker}
        assert self._do(reap()) == held
        for key in held:
            self.model[key].bad_run("WORKER_LOST", "worker lost", self.now)

    @rule(n=st.integers(0, CONNECTIONS - 1), id=jobs)
    def cancel(self, n: int, id: UUID, tenant: UUID | None = None) -> None:
        job = self.model[id]
        try:
            self._do(self.store.cancel(self.conns[n], id, tenant=tenant, by="ana", now=self.now))
            assert job.status in CANCELLABLE
            job.go("canceled")
        except IllegalEdge:
            assert job.status in ("succeeded", "canceled", "dead_letter")

    def _requeued(self, job: Model) -> None:
        job.attempt, job.run_at, job.started = 0, self.now, False
        job.go("queued")

    @rule(n=st.integers(0, CONNECTIONS - 1), id=jobs)
    def requeue(self, n: int, id: UUID) -> None:
        job = self.model[id]
        try:
            self._do(self.store.requeue(self.conns[n], id, by="ana", now=self.now))
            assert job.status in ("dead_letter", "failed")
            self._requeued(job)
        except IllegalEdge:
            assert job.status not in ("dead_letter", "failed")

    @rule(n=st.integers(0, CONNECTIONS - 1), org=st.sampled_from(ORGS))
    def requeue_the_dead_letters_of_an_organisation(self, n: int, org: UUID) -> None:
        which = Filter(states=("dead_letter",), tenant=org)
        count = self._do(self.store.requeue_where(self.conns[n], which, by="ana", now=self.now))
        meant = [job for job in self.model.values() if (job.org, job.status) == (org, "dead_letter")]
        assert count == len(meant)
        for job in meant:
            self._requeued(job)

    @rule(n=st.integers(0, CONNECTIONS - 1), org=st.sampled_from(ORGS), states=st.sampled_from(SOME_STATES))
    def cancel_by_a_filter(self, n: int, org: UUID, states: tuple[str, ...]) -> None:
        """Of the rows that the filter means, those that can be called off."""
        which = Filter(states=states, tenant=org, kind="demo")
        count = self._do(self.store.cancel_where(self.conns[n], which, by="ana", now=self.now))
        able = set(states or CANCELLABLE) & set(CANCELLABLE)
        meant = [job for job in self.model.values() if job.org == org and job.status in able]
        assert count == len(meant)
        for job in meant:
            job.go("canceled")

    @rule(n=st.integers(0, CONNECTIONS - 1), id=jobs, verb=st.sampled_from(["cancel", "requeue"]))
    def order_as_the_wrong_organisation(self, n: int, id: UUID, verb: str) -> None:
        """Whatever its state, it is not found, and nothing changes."""
        (other,) = (org for org in ORGS if org != self.model[id].org)
        order = self.store.cancel if verb == "cancel" else self.store.requeue
        try:
            self._do(order(self.conns[n], id, tenant=other, by="ana", now=self.now))
            raise AssertionError("the row of another was found")
        except NotFound:
            pass

    @rule(n=st.integers(0, CONNECTIONS - 1), id=jobs)
    def cancel_as_the_right_organisation(self, n: int, id: UUID) -> None:
        self.cancel(n, id, tenant=self.model[id].org)

    @rule(
        n=st.integers(0, CONNECTIONS - 1),
        claim=claims,
        verbs=st.lists(st.sampled_from(UNDONE), min_size=1, max_size=3),
    )
    def do_something_and_roll_it_back(self, n: int, claim: Claimed, verbs: list[str]) -> None:
        """What a transaction did is gone with it, rows and events: the model does not change at all."""
        store, conn, org = self.store, self.conns[n], self.model[claim.id].org
        doing: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "enqueue": lambda: store.enqueue(conn, Item(kind="demo", tenant=org, key="a"), now=self.now),
            "enqueue_many": lambda: store.enqueue_many(
                conn, [Item(kind="demo", tenant=org, key=key) for key in (None, "c", "c")], now=self.now
            ),
            "claim": lambda: store.claim(conn, "w1", 3, now=self.now),
            "finish": lambda: store.move(conn, [decide(JOB, claim, Done(), EXACT)], now=self.now),
            "retry": lambda: store.move(conn, [decide(JOB, claim, Retry("x"), EXACT)], now=self.now),
            "progress": lambda: store.progress(conn, claim, 1, now=self.now),
            "cancel": lambda: store.cancel(conn, claim.id, now=self.now),
            "requeue": lambda: store.requeue(conn, claim.id, tenant=org, now=self.now),
            "cancel_where": lambda: store.cancel_where(conn, Filter(), now=self.now),
            "requeue_where": lambda: store.requeue_where(conn, Filter(tenant=org), now=self.now),
        }
        assert set(doing) == set(UNDONE)

        async def in_vain() -> None:
            async with conn.transaction(force_rollback=True):
                for verb in verbs:
                    with suppress(ClaimLost, IllegalEdge):
                        await doing[verb]()

        self._do(in_vain())

    @rule(claim=claims)
    def cancel_and_finish_at_once(self, claim: Claimed) -> None:
        """Two connections race for one row: exactly one has its way, and the loser is told."""
        job, held = self.model[claim.id], self.holds(claim)

        async def both() -> tuple[BaseException | None, frozenset[Any]]:
            moves = [decide(JOB, claim, Done(), EXACT)]
            cancel, moved = await asyncio.gather(
                self.store.cancel(self.conns[0], claim.id, by="ana", now=self.now),
                self.store.move(self.conns[1], moves, now=self.now),
                return_exceptions=True,
            )
            assert not isinstance(moved, BaseException)
            return cancel, moved

        refused, moved = self._do(both())
        if moved:
            assert held
            assert isinstance(refused, IllegalEdge)
            job.error = (None, None)
            job.go("succeeded")
        elif job.status in ("queued", "failed", "running"):
            assert refused is None
            job.go("canceled")
        else:
            assert isinstance(refused, IllegalEdge)

    # -- what must hold ------------------------------------------------------------------------------

    @invariant()
    def rows_and_events_are_as_the_model_says(self) -> None:
        rows, events = self._do(self._look())
        assert set(rows) == set(self.model)
        for key, job in self.model.items():
            row = rows[key]
            assert (row["status"], row["attempt"], row["fence"]) == (job.status, job.attempt, job.fence)
            assert row["worker_id"] == job.worker
            assert (row["last_error_code"], row["last_error_message"]) == job.error
            assert (row["started_at"] is not None) == job.started
            if job.status in ("queued", "failed"):
                assert row["run_at"] == job.run_at
            own = [event for event in events if event["job_id"] == key]
            assert [(event["prev_status"], event["next_status"]) for event in own] == job.hops
            assert [event["ts"] for event in own] == sorted(event["ts"] for event in own)
            assert row["updated_at"] == own[-1]["ts"]
            ended = own[-1]["ts"] if job.status in ("succeeded", "canceled", "dead_letter") else None
            assert row["finished_at"] == ended
        assert self._do(verify(self.store, self.conns[2])).lies == ()

    async def _look(self) -> tuple[dict[UUID, dict[str, Any]], list[dict[str, Any]]]:
        async with self.conns[2].cursor(row_factory=dict_row) as cursor:
            await cursor.execute("select * from job")
            rows = {row["id"]: row for row in await cursor.fetchall()}
            await cursor.execute("select * from job_event order by seq")
            return rows, await cursor.fetchall()


def search(url: str, examples: int, **more: Any) -> None:
    """Lets the machine run, and fails with the first step after which the model and the tables differ."""
    run_state_machine_as_test(
        lambda: Jobs(url),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            phases=(Phase.generate,),  # shrinking takes minutes: ask for it when there is something to find
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )


def test_any_order_of_anything_leaves_rows_and_events_as_the_model_says(database_url: str) -> None:
    """J-3, J-4, J-6, J-8, J-9, J-15, J-19, J-21, J-22, J-26, J-27, J-28, J-29, J-30, J-31, J-32, J-34, J-35,
    J-44."""
    search(database_url, 40)


def _without_the_fence(words: Words) -> Composable:
    return SQL("t.{} is not distinct from m.owner").format(Identifier(words.ledger.owner))


def test_the_machine_would_find_a_guard_without_a_fence(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J-15: the control. A zombie whose worker has the row again must be stopped by the fence alone."""
    monkeypatch.setattr(Words, "guard", _without_the_fence)
    with pytest.raises((AssertionError, Flaky)):  # found; whether it is found twice, a race may decide
        search(database_url, 60, derandomize=True, report_multiple_bugs=False)


def test_the_machine_would_find_an_order_that_forgets_the_tenant(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J-44: the control. An order that is given as another organisation must change nothing."""
    monkeypatch.setattr(Statements, "own_orders", property(lambda statements: statements.orders))
    with pytest.raises((AssertionError, Flaky)):
        search(database_url, 60, derandomize=True, report_multiple_bugs=False)
