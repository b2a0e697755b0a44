"""Claims and leases of sessions, under a contract that another service shares."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast import Settings
from holdfast.apps.schedules.ledger import SESSIONS, sessions
from holdfast.db.pool import Connection
from holdfast.engine.decide import decide
from holdfast.engine.outcomes import Done, Fail, Snooze
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Fault, Move
from holdfast.errors import ClaimLost, IllegalEdge, NotFound
from holdfast.runtime.duties import Patience, reap
from runtime.support import until, until_true
from schedules.kit import NOON, USER, Stop, day, entry, fitted, stage


def store_of(settings: Settings, **changes: Any) -> Store:
    return Store(sessions(fitted(settings, **changes)))


async def put(
    conn: Connection,
    state: str = "pending",
    *,
    user: int = USER,
    created: datetime = NOON,
    locked_at: datetime | None = None,
    locked_by: str | None = None,
    images: tuple[datetime, ...] = (),
) -> UUID:
    """A session as another service may have left it."""
    cursor = await conn.execute(
        "insert into schedule_ingest.capture_session (user_id, state, created_at, locked_at, locked_by)"
        " values (%s, %s, %s, %s, %s) returning id",
        (user, state, created, locked_at, locked_by),
    )
    ((session,),) = await cursor.fetchall()
    for number, moment in enumerate(images, start=1):
        await conn.execute(
            "insert into schedule_ingest.capture_image (session_id, sequence, r2_key, created_at)"
            " values (%s, %s, %s, %s)",
            (session, number, f"{session}/{number}.jpg", moment),
        )
    return session


async def row(conn: Connection, session: UUID) -> dict[str, Any]:
    cursor = await conn.execute(
        "select state::text, locked_at, locked_by, error from schedule_ingest.capture_session where id = %s",
        (session,),
    )
    ((state, locked_at, locked_by, error),) = await cursor.fetchall()
    return {"state": state, "locked_at": locked_at, "locked_by": locked_by, "error": error}


async def attempts(conn: Connection, session: UUID) -> list[tuple[int, str | None]]:
    cursor = await conn.execute(
        "select attempt, outcome from schedule_ingest.capture_attempt where session_id = %s order by 1",
        (session,),
    )
    return [(number, outcome) for number, outcome in await cursor.fetchall()]


async def take(
    store: Store, conn: Connection, who: str = "w", now: datetime = NOON, limit: int = 1
) -> list[Claimed]:
    return await store.claim(conn, who, limit, now=now)


LATER = NOON + timedelta(hours=1)
DAY_AGO = NOON - timedelta(days=1)


# -- the claim -------------------------------------------------------------------------------------------


async def test_a_claim_sets_processing_locked_at_and_locked_by(settings: Settings, conn: Connection) -> None:
    """S-8, S-11: and one attempt; `locked_by` is the worker's id with the number of the claim."""
    store, session = store_of(settings), await put(conn)
    (claim,) = await take(store, conn, "host-7-x")
    found = await row(conn, session)
    assert (claim.id, found["state"], found["locked_at"]) == (session, "processing", NOON)
    assert found["locked_by"] == claim.owner
    assert str(claim.owner).rpartition("/")[0] == "host-7-x"
    assert await attempts(conn, session) == [(1, None)]


async def test_a_pending_session_is_claimed_before_a_day_old_stale_one(
    settings: Settings, conn: Connection
) -> None:
    """S-8: any pending one comes first, then by age; a claim of many keeps that order."""
    store = store_of(settings)
    stale = await put(conn, "processing", created=DAY_AGO, locked_at=DAY_AGO, locked_by="gone/1")
    young, old = await put(conn), await put(conn, created=NOON - timedelta(hours=2))
    assert [claim.id for claim in await take(store, conn, limit=5)] == [old, young, stale]
    assert (await row(conn, stale))["locked_at"] == NOON


async def test_a_fresh_lease_is_never_taken_and_a_null_lease_is_stale(
    settings: Settings, conn: Connection
) -> None:
    """S-9: 300 s by default, to the microsecond."""
    store = store_of(settings)
    edge = NOON - timedelta(seconds=300)
    await put(conn, "processing", locked_at=edge, locked_by="alive/1")
    over = await put(conn, "processing", locked_at=edge - timedelta(microseconds=1), locked_by="gone/1")
    nobody = await put(conn, "processing", created=LATER)
    assert [claim.id for claim in await take(store, conn, limit=5)] == [over, nobody]


async def test_a_stale_claim_marks_the_open_attempt_lost(settings: Settings, conn: Connection) -> None:
    """S-8."""
    store, session = store_of(settings), await put(conn)
    await take(store, conn, "first")
    (claim,) = await take(store, conn, "second", LATER)
    assert claim.id == session
    assert await attempts(conn, session) == [(1, "lost"), (2, None)]


async def test_two_workers_and_one_session_give_one_winner_and_the_other_returns_at_once(
    settings: Settings, conn: Connection, connect: Any
) -> None:
    """S-8: the first has not even committed."""
    store, other = store_of(settings), await connect()
    await put(conn)
    async with conn.transaction():
        assert len(await take(store, conn, "one")) == 1
        await other.execute("set lock_timeout = '1ms'")
        assert await take(store, other, "two") == []


async def test_a_session_is_ready_when_its_newest_image_is_old_enough(
    settings: Settings, conn: Connection
) -> None:
    """S-10: 25 s, counted from the newest image, or from the session where it has none."""
    store = store_of(settings, idle_timeout_seconds=25)
    quiet = await put(conn, images=(NOON - timedelta(seconds=60), NOON - timedelta(seconds=25)))
    await put(conn, images=(NOON - timedelta(seconds=60), NOON - timedelta(seconds=24)))
    bare = await put(conn, created=NOON - timedelta(seconds=25))
    await put(conn, created=NOON - timedelta(seconds=24))
    assert {claim.id for claim in await take(store, conn, limit=9)} == {quiet, bare}


async def test_a_new_image_restarts_the_idle_clock(settings: Settings, conn: Connection) -> None:
    """S-10."""
    store = store_of(settings, idle_timeout_seconds=25)
    session = await put(conn, images=(NOON,))
    ready = NOON + timedelta(seconds=25)
    await conn.execute(
        "insert into schedule_ingest.capture_image (session_id, sequence, r2_key, created_at)"
        " values (%s, 2, 'late', %s)",
        (session, ready - timedelta(seconds=1)),
    )
    assert await take(store, conn, now=ready) == []
    assert await take(store, conn, now=ready + timedelta(seconds=23.5)) == []
    assert [claim.id for claim in await take(store, conn, now=ready + timedelta(seconds=24))] == [session]


async def test_without_images_a_session_never_qualifies_where_they_are_needed(
    settings: Settings, conn: Connection
) -> None:
    """S-10: with `ocr`."""
    store = Store(sessions(fitted(settings), alone=False))
    await put(conn, created=DAY_AGO)
    shown = await put(conn, created=DAY_AGO, images=(DAY_AGO,))
    assert [claim.id for claim in await take(store, conn, limit=5)] == [shown]


async def test_run_once_takes_any_pending_session(settings: Settings, conn: Connection) -> None:
    """S-10: however young its images are."""
    store = Store(sessions(fitted(settings, idle_timeout_seconds=25), hasty=True))
    session = await put(conn, images=(NOON,))
    assert [claim.id for claim in await take(store, conn)] == [session]


async def test_in_user_order_a_slow_older_session_goes_first(settings: Settings, conn: Connection) -> None:
    """S-47: a younger one waits while an older one of its user is pending or has a live lease."""
    store = store_of(settings, user_order=True)
    first, second = await put(conn, created=DAY_AGO), await put(conn)
    other = await put(conn, user=7)
    assert [claim.id for claim in await take(store, conn, "a", limit=5)] == [first, other]
    assert await take(store, conn, "b", limit=5) == []
    stale = NOON + timedelta(seconds=301)
    assert [claim.id for claim in await take(store, conn, "b", stale, limit=5)] == [second, first, other]


async def test_racing_finalisers_give_one_winner(settings: Settings, conn: Connection, connect: Any) -> None:
    """S-10: the idle condition is part of the claim."""
    store = store_of(settings, idle_timeout_seconds=25)
    session = await put(conn, images=(DAY_AGO,))
    connections = [await connect() for _ in range(6)]
    claims = await asyncio.gather(*(take(store, one, f"w{n}") for n, one in enumerate(connections)))
    assert [claim.id for found in claims for claim in found] == [session]


async def test_downtime_of_a_day_is_caught_up_in_order_each_session_once(settings: Settings) -> None:
    """S-8, S-10."""
    async with stage(settings) as here:
        ids = [await here.capture(user, day(entry())) for user in range(1, 6)]
        await here.work(concurrency=1)
        assert [session for session, _ in here.script.asked] == ids
        assert {tuple(await here.outcomes(session)) for session in ids} == {("done",)}


async def test_in_user_order_a_stale_session_waits_too(settings: Settings, conn: Connection) -> None:
    """S-47: a newer one that is taken over again, while an older one is pending or alive."""
    store = store_of(settings, user_order=True)
    older = await put(conn, created=DAY_AGO)
    newer = await put(conn, "processing", locked_at=DAY_AGO, locked_by="gone/1")
    assert [claim.id for claim in await take(store, conn, "a", limit=5)] == [older]
    assert await take(store, conn, "b", limit=5) == []
    await conn.execute("update schedule_ingest.capture_session set state = 'done' where id = %s", (older,))
    assert [claim.id for claim in await take(store, conn, "b", limit=5)] == [newer]


async def test_in_user_order_a_session_that_can_never_be_ready_holds_nobody_up(
    settings: Settings, conn: Connection
) -> None:
    """S-47, S-10: it has no image, and they are needed."""
    store = Store(sessions(fitted(settings, user_order=True), alone=False))
    await put(conn, created=DAY_AGO)
    shown = await put(conn, images=(DAY_AGO,))
    assert [claim.id for claim in await take(store, conn, limit=5)] == [shown]


async def test_a_session_that_a_foreign_service_failed_has_all_its_workers_again(
    settings: Settings, conn: Connection
) -> None:
    """S-15: requeue ends the attempt that was open then."""
    store, session = store_of(settings), await put(conn)
    for number in range(4):
        await take(store, conn, f"w{number}", NOON + timedelta(hours=number))
    await conn.execute("update schedule_ingest.capture_session set state = 'failed', locked_by = null")
    await store.requeue(conn, session)
    assert [outcome for _, outcome in await attempts(conn, session)] == ["lost"] * 3 + ["failed"]
    now = NOON + timedelta(days=1)
    for number in range(5):
        (claim,) = await take(store, conn, f"again{number}", now + timedelta(hours=number))
        assert claim.id == session
    assert await take(store, conn, "one too many", now + timedelta(hours=9)) == []


# -- the lease -------------------------------------------------------------------------------------------


async def test_the_heartbeat_moves_locked_at_only_for_its_owner(settings: Settings, conn: Connection) -> None:
    """S-12: by the database's clock, and only while the session is processed."""
    store, session = store_of(settings), await put(conn)
    (old,) = await take(store, conn, "first")
    (new,) = await take(store, conn, "second", LATER)
    assert await store.heartbeat(conn, [old], now=LATER + timedelta(seconds=9)) == frozenset()
    assert (await row(conn, session))["locked_at"] == LATER
    assert await store.heartbeat(conn, [new], now=LATER + timedelta(seconds=9)) == {session}
    assert (await row(conn, session))["locked_at"] == LATER + timedelta(seconds=9)
    await store.move_one(conn, Move(verb="finish", claim=new))
    assert await store.heartbeat(conn, [new]) == frozenset()


async def test_done_and_failed_clear_the_lease_only_for_its_owner(
    settings: Settings, conn: Connection
) -> None:
    """S-13, S-14: what a late worker says changes no row, and is `ClaimLost`."""
    store = store_of(settings)
    for ending, state in ((Done(), "done"), (Fail("broken", "ocr_empty"), "failed")):
        session = await put(conn)
        (old,) = await take(store, conn, "first")
        (new,) = await take(store, conn, "second", LATER)
        before = await row(conn, session)
        for late in (Done(), Fail("x", "y"), Snooze(0)):
            with pytest.raises(ClaimLost):
                await store.move_one(conn, decide(store.ledger, old, late))
        assert await row(conn, session) == before
        await store.move_one(conn, decide(store.ledger, new, ending))
        found = await row(conn, session)
        assert (found["state"], found["locked_at"], found["locked_by"]) == (state, None, None)


async def test_the_error_is_cut_at_4000_characters(settings: Settings, conn: Connection) -> None:
    """S-13: `code: sentence`."""
    store, session = store_of(settings), await put(conn)
    (claim,) = await take(store, conn)
    await store.move_one(conn, decide(store.ledger, claim, Fail("å" * 5000, "extractor_error")))
    error = (await row(conn, session))["error"]
    assert (len(error), error[:18]) == (4000, "extractor_error: å")


async def test_a_worker_that_claims_again_never_passes_the_guard_of_its_own_older_attempt(
    settings: Settings, conn: Connection
) -> None:
    """S-11: also under the same name each claim is a fence of its own."""
    store, session = store_of(settings), await put(conn)
    (old,) = await take(store, conn, "same")
    (new,) = await take(store, conn, "same", LATER)
    assert old.owner != new.owner
    with pytest.raises(ClaimLost):
        await store.move_one(conn, Move(verb="finish", claim=old))
    assert (await row(conn, session))["state"] == "processing"


async def test_a_process_renews_what_it_runs_before_it_claims(settings: Settings) -> None:
    """S-11, S-12: its own session is not stale for it, however long its handler takes."""
    stop = Stop()
    async with stage(settings, lease_timeout_seconds=0.6, heartbeat_seconds=0.1) as here:
        session = await here.capture(read=stop.then(day(entry())))
        worker = here.worker(concurrency=3)
        running = asyncio.create_task(worker.run())
        await stop.reached()
        (first,) = await here.rows("select locked_at, locked_by from schedule_ingest.capture_session")
        async with here.app.database.connection() as conn:
            renewed = "select true from schedule_ingest.capture_session where locked_at > %s"
            await until(conn, renewed, first["locked_at"] + timedelta(seconds=1))
        assert (await here.session(session))["locked_by"] == first["locked_by"]
        stop.go()
        await here.reaches(session, "done")
        worker.stop()
        await running
        assert await here.outcomes(session) == ["done"]


async def test_the_lease_is_renewed_however_seldom_the_worker_polls(
    settings: Settings, conn: Connection
) -> None:
    """S-12: a poll of an hour, and a lease of a second."""
    stop = Stop()
    how = {"poll_seconds": 3600.0, "lease_timeout_seconds": 1.0, "heartbeat_seconds": 0.2}
    async with stage(settings, **how) as here:
        session = await here.capture(read=stop.then(day(entry())))
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        await stop.reached()
        (first,) = await here.rows("select locked_at from schedule_ingest.capture_session")
        renewed = "select true from schedule_ingest.capture_session where locked_at > %s"
        await until(conn, renewed, first["locked_at"] + timedelta(seconds=2))
        stop.go()
        await here.reaches(session, "done")
        worker.stop()
        await running
        assert await here.outcomes(session) == ["done"]


async def test_a_session_that_somebody_keeps_locked_costs_the_others_no_lease(
    settings: Settings, conn: Connection, connect: Any
) -> None:
    """S-12: another service holds a row; its neighbour is renewed, and new ones are taken."""
    stop, other = Stop(), Stop()
    async with stage(settings, lease_timeout_seconds=1.5, heartbeat_seconds=0.2) as here:
        locked = await here.capture(1, read=stop.then(day(entry())))
        free = await here.capture(2, read=other.then(day(entry())))
        worker = here.worker(concurrency=3)
        running = asyncio.create_task(worker.run())
        await stop.reached()
        await other.reached()
        theirs = await connect()
        async with theirs.transaction():
            await theirs.execute(
                "select from schedule_ingest.capture_session where id = %s for update", (locked,)
            )
            (before,) = await here.rows(
                "select locked_at from schedule_ingest.capture_session where id = %s", free
            )
            renewed = "select true from schedule_ingest.capture_session where id = %s and locked_at > %s"
            await until(conn, renewed, free, before["locked_at"] + timedelta(seconds=2))
            third = await here.capture(3, day(entry()))
            await here.reaches(third, "done")
        stop.go()
        other.go()
        await here.reaches(locked, "done")
        await here.reaches(free, "done")
        worker.stop()
        await running
        assert await here.outcomes(free) == ["done"]


LATE = [
    ("delete from schedule_ingest.capture_session where id = %s", "gone"),
    ("update schedule_ingest.capture_session set state = 'done', locked_by = null where id = %s", "done"),
    ("update schedule_ingest.capture_session set state = 'failed', locked_by = null where id = %s", "failed"),
    ("update schedule_ingest.capture_session set locked_by = 'other/1' where id = %s", "transferred"),
    (
        "update schedule_ingest.capture_session set state = 'pending', locked_by = null where id = %s",
        "unexpected",
    ),
]


@pytest.mark.parametrize(("act", "word"), LATE, ids=[word for _, word in LATE])
async def test_a_lost_lease_writes_nothing_and_says_which_case_it_is(
    settings: Settings, caplog: pytest.LogCaptureFixture, act: str, word: str
) -> None:
    """S-14: the session is not failed, and one line tells."""
    stop = Stop()
    async with stage(settings, heartbeat_seconds=60) as here:
        session = await here.capture(read=stop.then(day(entry())))
        with caplog.at_level(logging.INFO, "holdfast.worker"):
            worker = here.worker()
            running = asyncio.create_task(worker.run())
            await stop.reached()
            if word == "gone":
                await here.do("delete from schedule_ingest.capture_attempt where session_id = %s", session)
            await here.app.pause(SESSIONS)  # so that it does not take what was given back
            await until_true(lambda: not worker.pumps[0].doors.known)
            await here.do(act, session)
            before = await here.rows("select * from schedule_ingest.capture_session")
            stop.go()
            await until_true(lambda: [m for m in caplog.messages if str(session) in m and word in m])
            worker.stop()
            await running
        assert len([m for m in caplog.messages if str(session) in m and word in m]) == 1
        assert await here.rows("select * from schedule_ingest.capture_session") == before
        assert (await here.versions(), await here.events(), await here.snapshot()) == ([], [], None)


async def test_five_lost_workers_end_the_session_as_failed(settings: Settings, conn: Connection) -> None:
    """S-15: the claim leaves it out, the reap duty fails it, and requeue starts the count again."""
    store, session = store_of(settings), await put(conn)
    now = NOON
    for number in range(1, 6):
        (claim,) = await take(store, conn, f"w{number}", now)
        assert claim.id == session
        now += timedelta(hours=1)
    assert await take(store, conn, "w6", now) == []
    assert await reap(conn, [store], "leader", Patience(timeout=1e9, nameless=1e9), now=now) == 1
    found = await row(conn, session)
    assert (found["state"], found["error"]) == ("failed", "worker_lost: gave up after 5 workers")
    assert [outcome for _, outcome in await attempts(conn, session)] == ["lost"] * 4 + ["failed"]
    await store.requeue(conn, session)
    assert (await row(conn, session))["error"] is None
    for number in range(6, 11):
        (claim,) = await take(store, conn, f"w{number}", now)
        now += timedelta(hours=1)
    assert await take(store, conn, "w11", now) == []


async def test_the_reap_duty_leaves_a_stale_session_to_the_next_claim(
    settings: Settings, conn: Connection
) -> None:
    """S-15, S-9: four lost workers are not five, and a live lease is nobody's."""
    store = store_of(settings)
    for number in range(4):
        await take(store, conn, f"w{number}", NOON + timedelta(hours=number))
    session = await put(conn, "processing", locked_at=NOON, locked_by="x/1", created=DAY_AGO)
    patience = Patience(timeout=0.0, nameless=0.0)
    assert await reap(conn, [store], "leader", patience, now=NOON + timedelta(hours=9)) == 0
    assert (await row(conn, session))["state"] == "processing"


async def test_an_orderly_stop_releases_and_does_not_count(settings: Settings) -> None:
    """S-16: back to pending without lease; six stops in a row are no lost workers."""
    async with stage(replace(settings, shutdown_timeout=0.05)) as here:
        stops = [Stop() for _ in range(6)]
        session = await here.capture(read=[stop.then(day(entry())) for stop in stops] + [day(entry())])
        for stop in stops:
            worker = here.worker()
            running = asyncio.create_task(worker.run())
            await stop.reached()
            worker.stop()
            await running
            found = await here.session(session)
            assert (found["state"], found["locked_by"], found["locked_at"]) == ("pending", None, None)
        await here.work()
        assert await here.outcomes(session) == ["released"] * 6 + ["done"]


async def test_a_person_cancels_what_is_pending_and_requeues_what_failed(
    settings: Settings, conn: Connection
) -> None:
    """S-17, S-2: the error says so, and leaving failed clears it; done is final; unknown is not found."""
    store, session = store_of(settings), await put(conn)
    await store.cancel(conn, session)
    assert (await row(conn, session))["error"] == "cancelled: called off by a person"
    await store.requeue(conn, session)
    assert await row(conn, session) == {
        "state": "pending",
        "locked_at": None,
        "locked_by": None,
        "error": None,
    }
    await store.cancel(conn, session, reason="sent twice")
    assert (await row(conn, session))["error"] == "cancelled: sent twice"
    await store.requeue(conn, session)
    (claim,) = await take(store, conn)
    with pytest.raises(IllegalEdge):
        await store.cancel(conn, session)
    await store.move_one(conn, Move(verb="finish", claim=claim))
    for order in (store.cancel, store.requeue):
        with pytest.raises(IllegalEdge):
            await order(conn, session)
        with pytest.raises(NotFound):
            await order(conn, UUID(int=7))


async def test_where_a_foreign_trigger_forbids_a_release_the_lease_runs_out(settings: Settings) -> None:
    """S-1: the verb reports IllegalEdge, and a stop leaves the session to its lease."""
    async with stage(replace(settings, shutdown_timeout=0.05)) as here:
        await here.do(
            "create function forbid() returns trigger language plpgsql as $$ begin"
            " if new.state = 'pending' and old.state <> 'pending' then raise exception 'not here'; end if;"
            " return new; end $$"
        )
        await here.do(
            "create trigger theirs before update on schedule_ingest.capture_session"
            " for each row execute function forbid()"
        )
        stop = Stop()
        session = await here.capture(read=stop.then(day(entry())))
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        await stop.reached()
        worker.stop()
        await running
        found = await here.session(session)
        assert (found["state"], found["error"]) == ("processing", None)
        await here.do(
            "update schedule_ingest.capture_session set state = 'failed', error = 'x: y' where id = %s",
            session,
        )
        async with here.app.database.connection() as conn:
            with pytest.raises(IllegalEdge, match="not here"):
                await here.sessions.requeue(conn, session)
        assert (await here.session(session))["state"] == "failed"


async def test_a_failing_session_ends_failed_and_the_others_go_on(settings: Settings) -> None:
    """S-18: no automatic retry."""
    async with stage(settings) as here:
        bad = await here.capture(1, RuntimeError("the lens is dirty"))
        good = await here.capture(2, day(entry()))
        await here.work(concurrency=1)
        assert (await here.session(bad))["error"] == "extractor_error: RuntimeError: the lens is dirty"
        assert (await here.session(good))["state"] == "done"
        await here.work()
        assert await here.outcomes(bad) == ["failed"]


def test_the_lease_is_renewed_as_often_as_the_settings_say(settings: Settings) -> None:
    """S-12: every 10 s, and 300 s without one are too long."""
    lease = sessions(settings).lease
    assert lease is not None
    assert (lease.column, lease.seconds, lease.every) == ("locked_at", 300.0, 10.0)


def test_a_fault_keeps_its_code_in_the_error() -> None:
    """S-13."""
    from holdfast.engine import intake

    errors = sessions(Settings()).errors
    assert errors is not None
    assert intake.error_values(errors, Fault(code="OCR_EMPTY", message="no shift")) == (
        "ocr_empty: no shift",
    )
