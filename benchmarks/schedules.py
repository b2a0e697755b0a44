"""Measures how many capture sessions a second one worker turns into days, against hand-written SQL.

usage: python -m benchmarks.schedules [--short] [--rounds N] [--check]    (make bench-schedules)

Both do the same durable work by turns, on fresh tables of one embedded PostgreSQL with fsync and synchronous
commit on: each session is claimed and committed, then its version, events, snapshot, messages and end are
written under the lock of its day and committed. The limit reads no picture and thinks nothing: what it
writes was worked out before. Holdfast is one worker as it is run, with the extractor `fixture`. Machines are
noisy, so only the ratio means something. `--check` fails when it is below its bar.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.limit import connect
from benchmarks.run import target
from holdfast import Holdfast, Settings
from holdfast.apps.schedules import days
from holdfast.apps.schedules.canonical import canonical, day_of, lock_key, payload_hash
from holdfast.apps.schedules.diff import diff
from holdfast.apps.schedules.events import record
from holdfast.apps.schedules.ledger import SESSIONS
from holdfast.apps.schedules.messages import notices
from holdfast.apps.schedules.shifts import shifts, to_json
from holdfast.apps.schedules.values import Event, Notice, Shift, Slot
from holdfast.db import embedded

BAR = 0.35  # the least share of the limit that we accept
DAY = date(2030, 3, 4)
SOONEST = datetime(2030, 1, 1, tzinfo=UTC)

ADD = """
insert into schedule_ingest.capture_session (id, user_id, created_at)
select id, user_id, now() - interval '1 day' + n * interval '1 millisecond'
from unnest(%s::uuid[], %s::bigint[]) with ordinality as s (id, user_id, n)
"""
PICTURES = """
insert into schedule_ingest.capture_image (session_id, sequence, r2_key, created_at)
select id, 1, id || '.jpg', now() - interval '1 day' from schedule_ingest.capture_session
"""
COUNTS = """
select (select count(*) from schedule_ingest.capture_session where state = 'done') as done,
    (select count(*) from schedule_ingest.schedule_version) as versions,
    (select count(*) from schedule_ingest.schedule_event) as events,
    (select count(*) from schedule_ingest.schedule_notification) as notices
"""

# -- what there is to do -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Work:
    """A session, the day that is read in it, and what has to be written because of that."""

    session: UUID
    user: int
    day: dict[str, Any]
    key: int
    version: Mapping[str, Any] | None
    snapshot: Sequence[Mapping[str, str]]
    events: Sequence[Event]
    notices: Sequence[Notice]


def read(user: int, turn: int) -> dict[str, Any]:
    """A user's day, as his next capture shows it: a shift moves, comes or goes, or nothing has changed."""
    visits = [("Marie Sjöberg Städservice", "Valebergsvägen 316"), ("Annika Berg", "Kyrkogatan 3")]
    visits += [("Hovås skola", "Skolvägen 1")] if turn % 4 < 3 else []
    hour = 7 + user % 5 + (turn + 2) // 3 % 3
    entries = [
        {
            "start": f"{hour + 2 * place:02}:00",
            "end": f"{hour + 2 * place + 1:02}:30",
            "title": title,
            "location": "Billdal",
            "address": address,
        }
        for place, (title, address) in enumerate(visits)
    ]
    return {"schedule_date": DAY.isoformat(), "entries": entries}


def works(users: int, turns: int) -> Iterator[Work]:
    """All sessions in the order in which they came: everybody's first, then everybody's second."""
    known: dict[int, tuple[Shift, ...]] = {}
    hashes: dict[int, tuple[int, str]] = {}
    taken: dict[int, dict[Slot, UUID]] = {}
    for turn in range(turns):
        for user in range(users):
            session = UUID(int=(turn << 64) + (4 << 76) + (2 << 62) + user)
            day = read(user, turn)
            payload = canonical(day)
            found = diff(known.get(user, ()), shifts(payload))
            slots = taken.setdefault(user, {})
            events, _ = record(
                found.changes, user_id=user, day=DAY, session_id=session, detected_at=SOONEST, taken=slots
            )
            slots |= {
                Slot(
                    location_fingerprint=event.location_fingerprint,
                    type=event.type,
                    old_hash=event.old_hash,
                    new_hash=event.new_hash,
                ): session
                for event in events
            }
            number, last = hashes.get(user, (0, ""))
            changed = payload_hash(payload) != last
            if changed:
                hashes[user] = (number + 1, payload_hash(payload))
            known[user] = found.snapshot
            yield Work(
                session=session,
                user=user,
                day=day,
                key=lock_key(user, day_of(payload)),
                version={"version": number + 1, "payload": payload, "hash": hashes[user][1]}
                if changed
                else None,
                snapshot=[to_json(shift) for shift in found.snapshot],
                events=events,
                notices=notices(events, threshold=3, today=None),
            )


# -- the limit ---------------------------------------------------------------------------------------------

CLAIM = """
with picked as materialized (
    select id from schedule_ingest.capture_session where state = 'pending'
    order by created_at, id limit 1 for no key update skip locked
), moved as (
    update schedule_ingest.capture_session s set state = 'processing', locked_by = %s, locked_at = now()
    from picked p where s.id = p.id returning s.id
), begun as (
    insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at)
    select id, 1, %s, now() from moved
)
select id from moved
"""
LOCK = "select pg_advisory_xact_lock(%s)"
KNOWN = """
select s.id, n.snapshot_payload, v.payload_hash, clock_timestamp() as now
from schedule_ingest.capture_session s
left join schedule_ingest.day_snapshot n on n.user_id = s.user_id and n.schedule_date = %s
left join schedule_ingest.day_schedule d on d.user_id = s.user_id and d.schedule_date = n.schedule_date
left join schedule_ingest.schedule_version v on v.user_id = d.user_id
    and v.schedule_date = d.schedule_date and v.version = d.current_version
where s.id = %s and s.locked_by = %s for update of s
"""
VERSION = """
insert into schedule_ingest.schedule_version
    (user_id, schedule_date, version, session_id, payload, payload_hash, created_at)
values (%s, %s, %s, %s, %s, %s, %s)
"""
EVENTS = """
insert into schedule_ingest.schedule_event (event_id, user_id, schedule_date, event_type,
    location_fingerprint, customer_fingerprint, old_value_hash, new_value_hash, old_value, new_value,
    detected_at, source_session_id)
select id, %s, %s, type, location, customer, old_hash, new_hash, old, new, %s, %s
from unnest(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::jsonb[], %s::jsonb[])
    as e (id, type, location, customer, old_hash, new_hash, old, new)
"""
SNAPSHOT = """
insert into schedule_ingest.day_snapshot
    (user_id, schedule_date, snapshot_payload, source_session_id, updated_at)
values (%s, %s, %s, %s, %s)
on conflict (user_id, schedule_date) do update set snapshot_payload = excluded.snapshot_payload,
    source_session_id = excluded.source_session_id, updated_at = excluded.updated_at
"""
NOTICES = """
insert into schedule_ingest.schedule_notification (notification_id, user_id, schedule_date,
    source_session_id, notification_type, message, event_ids, created_at)
select id, %s, %s, %s, type, message, ids, %s
from unnest(%s::text[], %s::text[], %s::text[], %s::jsonb[]) as n (id, type, message, ids)
on conflict do nothing
"""
DONE = """
with moved as (
    update schedule_ingest.capture_session set state = 'done', locked_by = null, locked_at = null
    where id = %s and locked_by = %s and state = 'processing' returning id
)
update schedule_ingest.capture_attempt a set ended_at = now(), outcome = 'done'
from moved where a.session_id = moved.id and a.ended_at is null
"""


async def by_hand(url: str, todo: Mapping[UUID, Work], _: Path) -> float:
    """Sessions a second by one connection, one after the other."""
    async with await connect(url) as conn, conn.cursor(binary=True) as cursor:
        began = time.perf_counter()
        done = 0
        while row := await (await cursor.execute(CLAIM, ("limit/1", "limit"))).fetchone():
            await _write(conn, todo[row[0]])
            done += 1
        took = time.perf_counter() - began
    assert done == len(todo)
    return done / took


async def _write(conn: psycopg.AsyncConnection[Any], work: Work) -> None:
    async with conn.transaction():
        await conn.execute(LOCK, (work.key,))
        ((*_, now),) = await (await conn.execute(KNOWN, (DAY, work.session, "limit/1"))).fetchall()
        if version := work.version:
            row = (
                work.user,
                DAY,
                version["version"],
                work.session,
                Jsonb(version["payload"]),
                version["hash"],
            )
            await conn.execute(VERSION, (*row, now))
        if work.events:
            columns = zip(
                *(
                    (
                        event.id,
                        event.type,
                        event.location_fingerprint,
                        event.customer_fingerprint,
                        event.old_hash,
                        event.new_hash,
                        event.old and Jsonb(to_json(event.old)),
                        event.new and Jsonb(to_json(event.new)),
                    )
                    for event in work.events
                ),
                strict=True,
            )
            await conn.execute(EVENTS, (work.user, DAY, now, work.session, *map(list, columns)))
        await conn.execute(SNAPSHOT, (work.user, DAY, Jsonb(work.snapshot), work.session, now))
        if work.notices:
            columns = zip(
                *(
                    (
                        notice.id,
                        notice.type,
                        notice.message,
                        Jsonb([str(event) for event in notice.event_ids]),
                    )
                    for notice in work.notices
                ),
                strict=True,
            )
            await conn.execute(NOTICES, (work.user, DAY, work.session, now, *map(list, columns)))
        await conn.execute(DONE, (work.session, "limit/1"))


# -- Holdfast ----------------------------------------------------------------------------------------------


async def by_holdfast(url: str, todo: Mapping[UUID, Work], folder: Path) -> float:
    """Sessions a second by one worker, as `holdfast schedules loop` has it."""
    settings = Settings(database_url=url, profile="test", log_level="ERROR", schedules_fixture_path=folder)
    async with Holdfast(settings) as app:
        worker = app.worker(ledgers=[SESSIONS])
        began = time.perf_counter()
        await worker.run(until_idle=True)
        took = time.perf_counter() - began
        async with app.database.connection() as conn:
            report = await days.verify(conn)
    assert report.problems == (), report.problems
    return len(todo) / took


# -- the run -----------------------------------------------------------------------------------------------

SIDES = {"limit": by_hand, "holdfast": by_holdfast}


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--short", action="store_true", help="small numbers, one round: does it still run?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="fail below the bar")
    options = parser.parse_args()
    users, turns = (50, 6) if options.short else (250, 12)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as home:
        Path(home).chmod(0o755)  # the server of root runs as somebody else, who must get here
        todo = {work.session: work for work in works(users, turns)}
        folder = Path(home) / "days"
        folder.mkdir()
        for work in todo.values():
            (folder / f"{work.session}.json").write_text(json.dumps(work.day))
        with embedded.acquire(Path(home)) as lease:
            rounds = [
                one_round(lease.url, todo, folder) for _ in range(1 if options.short else options.rounds)
            ]
    report(rounds, check=options.check)


def one_round(url: str, todo: Mapping[UUID, Work], folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, side in SIDES.items():
        at = asyncio.run(target(url))
        asyncio.run(fill(at, todo))
        found[name] = asyncio.run(side(at, todo, folder))
        asyncio.run(check(at, todo, exact=name == "limit"))
    print(json.dumps({"measure": "sessions", **found}), flush=True)
    return found


async def fill(url: str, todo: Mapping[UUID, Work]) -> None:
    async with await connect(url) as conn:
        await conn.execute(ADD, (list(todo), [work.user for work in todo.values()]))
        await conn.execute(PICTURES)
        await conn.execute("vacuum analyze")
        await conn.execute("checkpoint")


async def check(url: str, todo: Mapping[UUID, Work], *, exact: bool) -> None:
    """That all is done. What is done at once may come in another order, and then is another history."""
    async with await connect(url) as conn:
        (found,) = await (await conn.execute(COUNTS)).fetchall()
    wanted = (
        len(todo),
        sum(work.version is not None for work in todo.values()),
        sum(len(work.events) for work in todo.values()),
        sum(len(work.notices) for work in todo.values()),
    )
    assert found == wanted if exact else found[0] == wanted[0], (found, wanted)


def report(rounds: Sequence[Mapping[str, float]], *, check: bool) -> None:
    hand, ours = (statistics.median(found[name] for found in rounds) for name in SIDES)
    print(f"\n{'measure':<14}{'limit':>12}{'holdfast':>12}{'ratio':>8}{'bar':>6}")
    print(f"{'sessions':<14}{f'{hand:,.0f} /s':>12}{f'{ours:,.0f} /s':>12}{ours / hand:>8.2f}{BAR:>6}")
    if check and ours / hand < BAR:
        sys.exit(f"below the bar: {ours / hand:.2f} of the limit, the bar is {BAR}")


if __name__ == "__main__":
    main()
