"""The record of days: what is known now, what was known at a time, and how it came about (S-54)."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from conftest import Connect
from holdfast.apps.schedules import days
from holdfast.apps.schedules.canonical import lock_key
from holdfast.apps.schedules.record import Day
from holdfast.apps.schedules.values import Event
from holdfast.db.pool import Connection
from holdfast.errors import Conflict, HoldfastError, InvalidInput, NotAllowed, NotFound
from schedules.recorded import DAY, MORNING, all_of, at, entry, forge, observe, session

ANA, BO = 42, 43


def times(day: Day) -> list[tuple[str, str]]:
    return [(shift.start, shift.end) for shift in day.shifts]


# -- the day ---------------------------------------------------------------------------------------------


async def test_a_day_is_known_as_it_was_seen_last(conn: Connection) -> None:
    """S-54: the day now is the snapshot and the current version."""
    await observe(conn, ANA, [entry("09:00")])
    last = await observe(conn, ANA, [entry("10:00"), entry("12:00", title="Bo Ek")], at=at(5))
    day = await days.day(conn, ANA, DAY)
    assert times(day) == [("10:00", "18:00"), ("12:00", "18:00")]
    assert (day.user_id, day.schedule_date, day.version, day.at) == (ANA, DAY, 2, None)
    assert (day.session_id, day.updated_at) == (last, at(5))
    assert [one["start"] for one in day.payload["entries"]] == ["10:00", "12:00"]


async def test_a_day_at_a_time_is_what_the_events_until_then_say(conn: Connection) -> None:
    """S-54: at the moment of an observation it counts already, one microsecond before not yet."""
    first = await observe(conn, ANA, [entry("09:00")], at=at(0))
    second = await observe(conn, ANA, [entry("10:00")], at=at(10))
    await observe(conn, ANA, [], at=at(20))
    before = await days.day(conn, ANA, DAY, at=at(10) - timedelta(microseconds=1))
    assert (times(before), before.version, before.session_id) == ([("09:00", "18:00")], 1, first)
    then = await days.day(conn, ANA, DAY, at=at(10))
    assert (times(then), then.version, then.session_id) == ([("10:00", "18:00")], 2, second)
    assert (then.at, then.updated_at) == (at(10), at(10))
    later = await days.day(conn, ANA, DAY, at=at(20))
    assert (times(later), later.version, later.payload["entries"]) == ([], 3, [])
    elsewhere = at(10).astimezone(tz=None)
    assert times(await days.day(conn, ANA, DAY, at=elsewhere)) == [("10:00", "18:00")]


async def test_a_day_that_nobody_has_seen_is_not_found(conn: Connection) -> None:
    """S-54: never, not yet at that time, or another user's."""
    await observe(conn, ANA, [entry("09:00")], at=at(0))
    for who, day, when in (
        (ANA, date(2026, 3, 3), None),
        (BO, DAY, None),
        (ANA, DAY, at(-1)),
        (BO, DAY, at(1)),
    ):
        with pytest.raises(NotFound):
            await days.day(conn, who, day, at=when)
    with pytest.raises(InvalidInput, match="time zone"):
        await days.day(conn, ANA, DAY, at=datetime(2026, 3, 1, 9))  # noqa: DTZ001 that is the point
    with pytest.raises(InvalidInput, match="out of range"):
        await days.day(conn, 2**63, DAY)


async def test_an_empty_day_was_seen_all_the_same(conn: Connection) -> None:
    """S-54: no shift is something to know."""
    await observe(conn, ANA, [], at=at(0))
    for day in (await days.day(conn, ANA, DAY), await days.day(conn, ANA, DAY, at=at(0))):
        assert (day.shifts, day.version) == ((), 1)


async def test_a_version_of_another_program_without_a_snapshot_is_shown(conn: Connection) -> None:
    """S-54: the contract's owner may have kept versions before there were snapshots."""
    await observe(conn, ANA, [entry("09:00")])
    await forge(conn, "delete from schedule_ingest.day_snapshot")
    await forge(conn, "delete from schedule_ingest.schedule_event")
    day = await days.day(conn, ANA, DAY)
    assert (day.version, day.shifts, day.session_id, day.updated_at) == (1, (), None, None)


async def test_a_snapshot_that_nobody_can_read_is_told_as_such(conn: Connection) -> None:
    await observe(conn, ANA, [entry("09:00")])
    await forge(conn, """update schedule_ingest.day_snapshot set snapshot_payload = '[{"start": 9}]'""")
    with pytest.raises(Conflict, match="rebuild it"):
        await days.day(conn, ANA, DAY)


async def test_times_and_days_that_no_calendar_has_do_not_hide_the_rest(conn: Connection) -> None:
    """S-54: others write these tables, too."""
    await observe(conn, ANA, [entry("09:00")])
    await forge(conn, "update schedule_ingest.day_snapshot set updated_at = 'infinity'")
    await forge(conn, "update schedule_ingest.capture_session set created_at = '-infinity'")
    await forge(conn, "insert into schedule_ingest.day_schedule values (%s, 'infinity', 1)", ANA)
    assert (await days.day(conn, ANA, DAY)).updated_at == datetime.max.replace(tzinfo=UTC)
    assert [day.schedule_date for day in (await days.days(conn)).items] == [DAY]
    (capture,) = (await days.captures(conn)).items
    assert capture.created_at == datetime.min.replace(tzinfo=UTC)
    assert capture.locked_at is None


# -- lists -----------------------------------------------------------------------------------------------


async def test_days_are_listed_page_by_page_the_latest_date_first(conn: Connection) -> None:
    """S-54: no day comes twice, none is skipped, and another user's are not told."""
    for number in range(5):
        await observe(conn, ANA, [entry("09:00")] * number, day=DAY + timedelta(days=number))
    await observe(conn, BO, [entry("09:00")], day=DAY)
    seen: list[tuple[int, int, int]] = []
    cursor = None
    while True:
        page = await days.days(conn, limit=2, cursor=cursor)
        seen += [(one.user_id, one.schedule_date.day, one.shifts) for one in page.items]
        if (cursor := page.cursor) is None:
            break
    assert seen == [(ANA, 6, 4), (ANA, 5, 3), (ANA, 4, 2), (ANA, 3, 1), (BO, 2, 1), (ANA, 2, 0)]
    mine = await days.days(conn, user_id=BO)
    assert [(one.user_id, one.version, one.shifts) for one in mine.items] == [(BO, 1, 1)]
    some = await days.days(conn, user_id=ANA, since=date(2026, 3, 3), until=date(2026, 3, 4))
    assert [one.schedule_date.day for one in some.items] == [4, 3]


@pytest.mark.parametrize(
    "cursor", ["", "x", "WyIyMDI2LTAzLTAyIl0=", "WyJ4IiwiNDIiXQ==", "e30=", "ö", "A" * 600]
)
async def test_a_cursor_that_no_page_gave_out_is_refused(conn: Connection, cursor: str) -> None:
    for listing in (days.days, days.captures, days.notices):
        with pytest.raises(InvalidInput, match="cursor"):
            await listing(conn, cursor=cursor)


async def test_captures_are_listed_with_their_images_and_claims(conn: Connection) -> None:
    first = await observe(conn, ANA, [entry("09:00")], images=2, at=at(0))
    second = await session(conn, BO, images=1, created=at(1))
    assert [one.id for one in (await days.captures(conn)).items] == [second, first]
    (done,) = (await days.captures(conn, state="done")).items
    assert (done.id, done.images, done.attempts, done.user_id) == (first, 2, 1, ANA)
    assert [one.id for one in (await days.captures(conn, user_id=BO)).items] == [second]
    page = await days.captures(conn, limit=1)
    assert [one.id for one in (await days.captures(conn, limit=1, cursor=page.cursor)).items] == [first]
    with pytest.raises(InvalidInput, match="must be one of"):
        await days.captures(conn, state="lost")
    with pytest.raises(InvalidInput, match="limit"):
        await days.captures(conn, limit=101)


async def test_messages_are_listed_with_their_last_try(conn: Connection) -> None:
    await observe(conn, ANA, [entry("09:00")], at=at(0))
    await observe(conn, BO, [entry("10:00")], at=at(1))
    newest, oldest = (await days.notices(conn)).items
    assert (newest.user_id, oldest.user_id, oldest.attempts, oldest.error) == (BO, ANA, 0, None)
    for attempt, error in ((1, "away"), (2, "still away")):
        await conn.execute(
            "insert into schedule_ingest.notification_attempt values (%s, %s, %s, %s, %s)",
            (oldest.id, attempt, at(attempt), error, at(10 + attempt)),
        )
    (found,) = (await days.notices(conn, user_id=ANA, status="pending")).items
    assert (found.attempts, found.error, found.next_at) == (2, "still away", at(12))
    whole = await days.notice(conn, oldest.id)
    assert [(one.attempt, one.error) for one in whole.tries] == [(1, "away"), (2, "still away")]
    await conn.execute(
        "update schedule_ingest.schedule_notification set status = 'failed' where notification_id = %s",
        (oldest.id,),
    )
    (failed,) = (await days.notices(conn, status="failed")).items
    assert (failed.id, failed.next_at) == (oldest.id, None), "what has ended is not tried again"
    page = await days.notices(conn, limit=1)
    assert [one.id for one in (await days.notices(conn, cursor=page.cursor)).items] == [oldest.id]
    with pytest.raises(InvalidInput, match="must be one of"):
        await days.notices(conn, status="lost")


# -- history ---------------------------------------------------------------------------------------------


async def test_the_history_of_a_day_tells_everything_in_its_order(conn: Connection) -> None:
    """S-54: versions, events, messages and the captures behind them, also one that changed nothing."""
    first = await observe(conn, ANA, [entry("09:00")], at=at(0), images=1)
    second = await observe(conn, ANA, [entry("10:00")], at=at(1))
    same = await observe(conn, ANA, [entry("10:00")], at=at(2))
    await observe(conn, ANA, [entry("10:00")], at=at(3), day=date(2026, 3, 3))
    await observe(conn, BO, [entry("11:00")], at=at(4))
    found = await days.history(conn, ANA, DAY)
    assert [(one.version, one.session_id) for one in found.versions] == [(1, first), (2, second)]
    assert [(one.type, one.session_id) for one in found.events] == [
        ("shift_added", first),
        ("shift_time_changed", second),
    ]
    assert [one.message for one in found.notifications] == [
        "New shift added on 2026-03-02 09:00–18:00 in Billdal",  # noqa: RUF001 a range has a dash
        "On 2026-03-02 Billdal shift moved 09:00 → 10:00",
    ]
    assert [(one.id, one.images) for one in found.captures] == [(first, 1), (second, 0), (same, 0)]
    assert not found.cut
    cut = await days.history(conn, ANA, DAY, limit=1)
    assert (cut.cut, [one.version for one in cut.versions]) == (True, [2])
    assert [one.type for one in cut.events] == ["shift_time_changed"]
    with pytest.raises(NotFound):
        await days.history(conn, BO, date(2026, 3, 3))


async def test_a_capture_is_shown_with_all_that_came_of_it(conn: Connection) -> None:
    """S-54: images, claims, version, events, messages."""
    first = await observe(conn, ANA, [entry("09:00"), entry("12:00", title="Bo Ek")], images=2, at=at(0))
    same = await observe(conn, ANA, [entry("09:00"), entry("12:00", title="Bo Ek")], at=at(1))
    found = await days.capture(conn, first)
    assert (found.summary.state, [one.sequence for one in found.images]) == ("done", [1, 2])
    assert [(one.attempt, one.worker, one.outcome) for one in found.attempts] == [(1, "host-1-a", "done")]
    assert found.version is not None
    assert found.version.version == 1
    assert len(found.events) == len(found.notifications) == 2
    nothing = await days.capture(conn, same)
    assert (nothing.version, nothing.events, nothing.notifications) == (None, (), ())
    assert [one.outcome for one in await days.attempts(conn, same)] == ["unchanged"]


async def test_users_never_see_each_others_days(conn: Connection) -> None:
    """S-54: where a user is named, another's capture and message do not exist."""
    key = await observe(conn, ANA, [entry("09:00")])
    (message,) = (await days.notices(conn)).items
    assert (await days.capture(conn, key, user_id=ANA)).summary.id == key
    assert (await days.notice(conn, message.id, user_id=ANA)).summary.id == message.id
    assert (await days.notices(conn, user_id=BO)).items == ()
    assert (await days.captures(conn, user_id=BO)).items == ()
    assert (await days.days(conn, user_id=BO)).items == ()
    asked: list[Callable[[], Awaitable[Any]]] = [
        lambda: days.capture(conn, key, user_id=BO),
        lambda: days.attempts(conn, key, user_id=BO),
        lambda: days.notice(conn, message.id, user_id=BO),
        lambda: days.day(conn, BO, DAY),
        lambda: days.history(conn, BO, DAY),
        lambda: days.compare(conn, BO, DAY, 1, 1),
        lambda: days.verify(conn, user_id=BO, day=DAY),
        lambda: days.rebuild(conn, BO, DAY),
        lambda: days.capture(conn, uuid4()),
        lambda: days.attempts(conn, uuid4()),
        lambda: days.notice(conn, "nobody"),
    ]
    for ask in asked:
        with pytest.raises(NotFound):
            await ask()


# -- two versions ----------------------------------------------------------------------------------------


async def test_two_versions_are_shown_side_by_side_with_what_it_means(conn: Connection) -> None:
    """S-54: entries beside one another, the fields that differ, and the changes."""
    ek = entry("12:00", "14:00", title="Bo Ek")
    await observe(conn, ANA, [entry("09:00"), ek, entry("15:00", title="Cia Lo")], at=at(0))
    await observe(conn, ANA, [entry("10:00"), ek, entry("16:00", title="Dan Ly")], at=at(1))
    found = await days.compare(conn, ANA, DAY, 1, 2)
    told = [
        (line.mark, (line.one or {}).get("start"), (line.other or {}).get("start"), line.differs)
        for line in found.lines
    ]
    assert told == [
        ("changed", "09:00", "10:00", ("start",)),
        ("same", "12:00", "12:00", ()),
        ("removed", "15:00", None, ()),
        ("added", None, "16:00", ()),
    ]
    assert [change.type for change in found.changes] == ["shift_time_changed", "shift_removed", "shift_added"]
    assert (found.one.version, found.other.version) == (1, 2)
    back = await days.compare(conn, ANA, DAY, 2, 1)
    assert [line.mark for line in back.lines] == ["changed", "same", "added", "removed"]
    same = await days.compare(conn, ANA, DAY, 2, 2)
    assert ({line.mark for line in same.lines}, same.changes) == ({"same"}, ())
    for one, other in ((1, 3), (0, 1), (-1, 2)):
        with pytest.raises(NotFound, match="version"):
            await days.compare(conn, ANA, DAY, one, other)
    with pytest.raises(InvalidInput, match="version"):
        await days.compare(conn, ANA, DAY, 1, 2**40)


async def test_a_version_that_is_no_day_cannot_be_compared(conn: Connection) -> None:
    await observe(conn, ANA, [entry("09:00")])
    await forge(conn, "update schedule_ingest.schedule_version set payload = '{}'")
    with pytest.raises(Conflict, match="schedule_date_invalid"):
        await days.compare(conn, ANA, DAY, 1, 1)


# -- rebuild and erase -----------------------------------------------------------------------------------


async def test_a_snapshot_is_rebuilt_from_its_events(conn: Connection) -> None:
    """S-54, S-46: exactly the day that the sessions had left; the last observation stays the last."""
    await observe(conn, ANA, [entry("09:00"), entry("12:00", title="Bo Ek")], at=at(0))
    await observe(conn, ANA, [entry("10:00"), entry("12:00", title="Bo Ek")], at=at(1))
    last = await observe(conn, ANA, [entry("10:00"), entry("12:00", title="Bo Ek")], at=at(2))
    known = await days.day(conn, ANA, DAY)
    for damage in (
        "update schedule_ingest.day_snapshot set snapshot_payload = '[]'",
        """update schedule_ingest.day_snapshot set snapshot_payload = '[{"start": 9}]'""",
    ):
        await forge(conn, damage)
        assert await days.rebuild(conn, ANA, DAY) == known
    assert (known.session_id, known.updated_at) == (last, at(2))
    stored = "select snapshot_payload from schedule_ingest.day_snapshot"
    before = await all_of(conn, stored)
    await days.rebuild(conn, ANA, DAY)
    assert await all_of(conn, stored) == before


async def test_a_lost_snapshot_comes_back_with_the_source_and_time_of_the_last_event(
    conn: Connection,
) -> None:
    """S-54: what changed nothing has left no event, and is forgotten with the snapshot."""
    await observe(conn, ANA, [entry("09:00")], at=at(0))
    second = await observe(conn, ANA, [entry("10:00")], at=at(1))
    await observe(conn, ANA, [entry("10:00")], at=at(2))
    await forge(conn, "delete from schedule_ingest.day_snapshot")
    day = await days.rebuild(conn, ANA, DAY)
    assert (times(day), day.session_id, day.updated_at) == ([("10:00", "18:00")], second, at(1))
    await forge(conn, "update schedule_ingest.day_snapshot set source_session_id = %s", uuid4())
    assert (await days.rebuild(conn, ANA, DAY)).session_id == second, "nobody knows that other session"


async def test_a_rebuild_waits_for_the_session_that_writes_the_day(
    conn: Connection, connect: Connect
) -> None:
    """S-30, S-54: under the same lock, and what it reads is newer than the lock."""
    await observe(conn, ANA, [entry("09:00")], at=at(0))
    writer = await connect()
    async with writer.transaction():
        await writer.execute("select pg_advisory_xact_lock(%s)", (lock_key(ANA, DAY),))
        await conn.execute("set lock_timeout = '50ms'")
        with pytest.raises(Exception, match="lock timeout"):
            await days.rebuild(conn, ANA, DAY)
    await conn.execute("reset lock_timeout")
    assert times(await days.rebuild(conn, ANA, DAY)) == [("09:00", "18:00")]


async def test_events_that_contradict_one_another_are_not_made_into_a_day(conn: Connection) -> None:
    """S-46: a rebuild that cannot be true writes nothing."""
    await observe(conn, ANA, [entry("09:00")], at=at(0))
    await observe(conn, ANA, [entry("10:00")], at=at(1))
    await forge(conn, "delete from schedule_ingest.schedule_event where event_type = 'shift_added'")
    with pytest.raises(Conflict, match="cannot be replayed"):
        await days.rebuild(conn, ANA, DAY)
    assert times(await days.day(conn, ANA, DAY)) == [("10:00", "18:00")]
    with pytest.raises(Conflict, match="cannot be replayed"):
        await days.day(conn, ANA, DAY, at=at(1))


async def test_erase_leaves_no_row_of_the_user_and_touches_no_other(conn: Connection) -> None:
    """S-57: and tells how many, by table."""
    for user in (ANA, BO):
        await observe(conn, user, [entry("09:00")], images=2)
        await observe(conn, user, [entry("10:00")], at=at(1))
    gone = await days.erase(conn, ANA)
    assert gone["capture_session"] == gone["schedule_version"] == gone["schedule_event"] == 2
    assert gone["capture_image"] == gone["capture_attempt"] == gone["schedule_notification"] == 2
    with pytest.raises(NotFound):
        await days.day(conn, ANA, DAY)
    assert (await days.verify(conn, user_id=ANA)).days == 0
    report = await days.verify(conn)
    assert (report.days, report.versions, report.events, report.found) == (1, 2, 2, 0)
    assert set((await days.erase(conn, ANA)).values()) == {0}


@pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
async def test_an_erase_that_somebody_holds_up_is_refused_with_a_sentence(
    conn: Connection, connect: Any, limit: str
) -> None:
    """S-57: a message of theirs is being sent, by whomever; nothing was erased."""
    await observe(conn, ANA, [entry("09:00")])
    other = await connect()
    await conn.execute(f"set {limit} to '100ms'")  # type: ignore[arg-type]
    async with other.transaction():
        await other.execute("select from schedule_ingest.schedule_notification for update")
        with pytest.raises(Conflict, match="nothing was erased, try again in a minute"):
            await days.erase(conn, ANA)
    assert (await days.erase(conn, ANA))["schedule_version"] == 1


async def test_only_who_may_erase_erases(conn: Connection) -> None:
    """S-57: the role of the workers may not."""
    await observe(conn, ANA, [entry("09:00")])
    await conn.execute("set role holdfast_worker")
    with pytest.raises(NotAllowed):
        await days.erase(conn, ANA)
    await conn.execute("reset role")
    assert (await days.day(conn, ANA, DAY)).version == 1


# -- reading while others write --------------------------------------------------------------------------


async def test_reading_works_in_a_transaction_of_the_callers(conn: Connection) -> None:
    """S-54: also after its first statement, when its isolation can be chosen no more."""
    key = await observe(conn, ANA, [entry("09:00")])
    async with conn.transaction():
        await conn.execute("select 1")
        assert (await days.history(conn, ANA, DAY)).versions
        assert (await days.capture(conn, key)).version
        assert (await days.day(conn, ANA, DAY, at=MORNING)).version == 1
        assert (await days.verify(conn)).found == 0
        await days.rebuild(conn, ANA, DAY)


async def test_what_is_read_is_a_value(conn: Connection) -> None:
    await observe(conn, ANA, [entry("09:00")])
    (event,) = (await days.history(conn, ANA, DAY)).events
    assert isinstance(event, Event)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, "type", "shift_removed")  # noqa: B010


async def test_an_event_that_nobody_can_read_is_told_as_such(conn: Connection) -> None:
    await observe(conn, ANA, [entry("09:00")])
    await forge(conn, "update schedule_ingest.schedule_event set new_value = '{}'")
    for ask in (days.history, days.rebuild):
        with pytest.raises(HoldfastError, match="no shift"):
            await ask(conn, ANA, DAY)
