"""A town's sessions go through real processes while one is frozen, one is killed, and pictures keep coming.

What must be recorded follows from what is read in the sessions and from the order of the versions, which the
lock of each day has decided: so all of it is compared, to the last message.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from random import Random, SystemRandom
from typing import Any
from uuid import UUID

import pytest

from holdfast import Settings
from holdfast.apps.schedules import days, intake
from holdfast.apps.schedules.canonical import payload_hash
from holdfast.apps.schedules.intake import Picture
from holdfast.db.pool import Connection
from holdfast.errors import Conflict
from runtime.support import PATIENCE, column, one, shown, until
from schedules.kit import Stage, stage
from schedules.loops import Loop, loop
from schedules.soaking import Capture, Town, Version, one_after_the_other, told
from schedules.test_delivery import FOREIGN, MARK

HOW: dict[str, Any] = {
    "lease_timeout_seconds": 2,
    "heartbeat_seconds": 0.4,
    "delivery": "file",
    "delivery_poll_seconds": 1,
    "delivery_batch": 100,
}
ADD = """
insert into schedule_ingest.capture_session (id, user_id, created_at)
select id, user_id, clock_timestamp() + number * interval '1 microsecond'
from unnest(%s::uuid[], %s::bigint[]) with ordinality as added (id, user_id, number)
"""
PICTURES = """
insert into schedule_ingest.capture_image (session_id, sequence, r2_key)
select id, number, id || '/' || number
from unnest(%s::uuid[], %s::int[]) as added (id, images), generate_series(1, images) as number
"""
HELD = "select id from schedule_ingest.capture_session where state = 'processing' and locked_by like %s"
# What it holds and has not locked: a process that is frozen in the last transaction of a session keeps it.
FREE = f"{HELD} for update skip locked"
ENDED = "select count(*) from schedule_ingest.capture_session where state in ('done', 'failed')"
OPEN = "select from schedule_ingest.capture_session where state in ('pending', 'processing')"
WELL = ("done", "unchanged", "superseded")


@dataclass(frozen=True)
class Size:
    """How much there is of everything."""

    sessions: int
    users: int


SMALL, LARGE = Size(300, 20), Size(10_000, 500)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A run of a session."""

    attempt: int
    worker: str
    claimed_at: datetime
    ended_at: datetime
    outcome: str

    def lost_with(self, process: str) -> bool:
        """Whether it was a worker of this process that was lost with it."""
        return self.outcome == "lost" and process.strip("%") in self.worker


class Soak:
    """The run: the town, the processes, and what goes wrong."""

    def __init__(self, here: Stage, conn: Connection, town: Town, folder: Path, chance: Random) -> None:
        self.here, self.conn, self.town, self.folder, self.chance = here, conn, town, folder, chance
        self.loops: list[Loop] = []
        self.caught: dict[str, list[UUID]] = {}  # by process: what it held when it was frozen or killed
        self.killed = 0
        self.late = 0  # pictures that came while their session was open
        self.coming = list(town.captures.values())
        self.theirs: list[str] = []  # what the other service has sent
        self.over = False

    # -- what comes in -------------------------------------------------------------------------------

    async def feed(self, count: int) -> None:
        """The next sessions and their pictures, as the other service adds them: in one transaction, without
        a bell.
        """
        captures, self.coming = self.coming[:count], self.coming[count:]
        async with self.conn.transaction():
            ids = [capture.id for capture in captures]
            await self.conn.execute(ADD, (ids, [capture.user for capture in captures]))
            await self.conn.execute(PICTURES, (ids, [capture.images for capture in captures]))

    async def pester(self, conn: Connection) -> None:
        """Pictures for sessions that are open, most of them just when they are read."""
        some = """
            select id from schedule_ingest.capture_session where state in ('pending', 'processing')
            order by state desc, random() limit 2
        """
        while not self.over:
            for session in await column(conn, some):
                try:
                    picture = Picture(r2_key=f"{session}/late {self.late}")
                    await intake.attach(conn, self.here.sessions, session, [picture])
                    self.late += 1
                except Conflict:
                    pass  # it has ended
            await asyncio.sleep(0.02)

    async def mend(self, conn: Connection) -> None:
        """Every other session that failed can be read after all, and is let run again."""
        failed = "select id from schedule_ingest.capture_session where state = 'failed' and id = any(%s)"
        bad = [capture for capture in self.town.captures.values() if capture.bad][::2]
        while not self.over:
            for session in await column(conn, failed, [capture.id for capture in bad if not capture.mended]):
                capture = self.town.captures[session]
                capture.mended = True
                capture.put(self.folder)
                await self.here.sessions.requeue(conn, session)
            await asyncio.sleep(0.05)

    async def dispatch(self, conn: Connection) -> None:
        """Another service that sends messages, too."""
        while not self.over:
            async with conn.transaction():
                row = await (await conn.execute(FOREIGN)).fetchone()
                if row is not None:
                    self.theirs.append(row[0])
                    await conn.execute(MARK, (row[0],))
            await asyncio.sleep(0.01)

    # -- what goes wrong -----------------------------------------------------------------------------

    async def catch(self, process: Loop, held_by: str = HELD) -> list[UUID]:
        """Freezes a process in the middle of its work; what it holds."""
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline, "it was never to be caught at work"
            at_work = f"select exists ({HELD})"
            await until(self.conn, f"{at_work} or not exists ({OPEN})", mine(process))
            if not await one(self.conn, at_work, mine(process)):  # the others were quicker
                await self.feed(5)
                continue
            process.freeze()
            await asyncio.to_thread(stopped, process)
            await asyncio.sleep(0.1)  # the server may still be doing what it was asked to
            if held := await column(self.conn, held_by, mine(process)):
                self.caught[mine(process)] = held
                return held
            process.thaw()

    async def freeze(self, process: Loop) -> None:
        """SIGSTOP until others have taken what it held, and it is given up; then SIGCONT.

        They take what waits before that.
        """
        held, within = await self.catch(process, FREE), PATIENCE + len(self.town.captures) / 10
        await until(
            self.conn, f"select not exists ({HELD} and id = any(%s))", mine(process), held, within=within
        )
        await until(self.conn, "select not exists (select from workers where id like %s)", mine(process))
        process.thaw()
        await until(self.conn, "select exists (select from workers where id like %s)", mine(process))

    async def kill(self, process: Loop) -> None:
        """SIGKILL."""
        await self.catch(process)
        process.kill()
        self.killed += 1
        self.loops.remove(process)

    async def reached(self, count: int) -> None:
        await until(self.conn, f"select ({ENDED}) >= %s", count, within=PATIENCE + count / 10, every=0.05)


def mine(process: Loop) -> str:
    """What the ids of a process's workers are like; a worker that is given up takes another."""
    return f"%-{process.pid}-%"


def stopped(process: Loop) -> None:
    """Waits until every thread of it stands still."""
    deadline = time.monotonic() + PATIENCE
    while any(state(thread / "stat") != "T" for thread in Path(f"/proc/{process.pid}/task").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def state(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "T"  # a thread that has ended stands still as well


# -- the run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True], ids=["in any order", "in the order of each user"])
@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.soak)], ids=["small", "large"])
async def test_after_a_kill_and_a_freeze_every_session_is_recorded_once_and_every_message_sent(
    settings: Settings,
    conn: Connection,
    connect: Any,
    tmp_path: Path,
    size: Size,
    ordered: bool,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S-8, S-11, S-14, S-18, S-19, S-30..S-32, S-44, S-46..S-48, S-50, S-52: all of it at the same time."""
    seed = os.environ.get("SOAK_SEED") or f"{SystemRandom().getrandbits(32):x}"
    sys.stdout.write(f"SOAK_SEED={seed}; the processes' logs are in {tmp_path}\n")
    chance = Random(seed)
    town, sent = Town.settled(chance, size.sessions, size.users), tmp_path / "sent.jsonl"
    folder = tmp_path / "days"
    folder.mkdir()
    for capture in town.captures.values():
        capture.put(folder)
    how = HOW | {"fixture_path": folder, "delivery_file": sent, "user_order": str(ordered).lower()}
    assert settings.database_url
    async with stage(settings) as here:
        soak = Soak(here, conn, town, folder, chance)
        with ExitStack() as stack:

            def start(name: str) -> Loop:
                soak.loops.append(
                    stack.enter_context(loop(str(settings.database_url), tmp_path, name, **how))
                )
                return soak.loops[-1]

            first, second = start("first"), start("second")
            await until(conn, "select count(*) = 2 from workers")
            began = time.monotonic()
            work = [soak.pester(await connect()), soak.mend(await connect()), soak.dispatch(await connect())]
            beside = [asyncio.create_task(one) for one in work]
            await run(soak, first, second, start)
            took = time.monotonic() - began
            await until(conn, ALL_SENT, within=PATIENCE + size.sessions / 20, every=0.1)
            soak.over = True
            await asyncio.gather(*beside)
            assert [process.stop() for process in soak.loops] == [0, 0]
        await all_is_well(soak)
        await all_is_sent(soak, sent)
        await every_picture_was_read(
            soak, [tmp_path / f"{name}.log" for name in ("first", "second", "third")]
        )
    lost = await one(conn, "select count(*) from schedule_ingest.capture_attempt where outcome = 'lost'")
    grown = await one(conn, "select count(*) from schedule_ingest.capture_attempt where outcome = 'released'")
    figures = (
        f"{size.sessions} sessions of {size.users} users in {took:.1f} s: {size.sessions / took:.0f} a"
        f" second; {lost} attempts lost, {grown} given back, {soak.late} pictures came late;"
        f" {len(soak.theirs)} messages sent by the other service, {len(lines(sent))} by us"
    )
    if request.node.get_closest_marker("soak"):
        shown(capsys, figures)
    sys.stdout.write(figures + "\n")


ALL_SENT = """
select not exists (select from schedule_ingest.schedule_notification where status <> 'sent')
"""


async def run(soak: Soak, first: Loop, second: Loop, start: Callable[[str], Loop]) -> None:
    """Three portions: one in peace, one while a process is frozen, one while the other is killed."""
    captures = list(soak.town.captures.values())
    third = len(captures) // 3
    await soak.feed(third)
    await soak.reached(third // 2)
    await soak.feed(third)
    await soak.freeze(first)
    await soak.reached(third)
    await soak.feed(third // 2)
    await soak.kill(second)
    await soak.feed(len(soak.coming))
    start("third")
    within = PATIENCE + len(captures) / 5
    await until(soak.conn, ALL_ENDED, [one.id for one in captures if one.bad][::2], within=within, every=0.05)


# Those that can be mended have been.
ALL_ENDED = """
select not exists (
    select from schedule_ingest.capture_session
    where state in ('pending', 'processing') or state = 'failed' and id = any(%s)
)
"""


# -- what must be true -----------------------------------------------------------------------------------


async def all_is_well(soak: Soak) -> None:
    """Every session has ended as it must, and left what it must, and nothing else is there."""
    here, town = soak.here, soak.town
    async with here.app.database.connection() as conn:
        report = await days.verify(conn)
    assert report.problems == ()
    attempts = await attempts_are_whole(soak)
    outcomes = {session: [one.outcome for one in each] for session, each in attempts.items()}
    versions: defaultdict[tuple[int, str], list[Version]] = defaultdict(list)
    for row in await here.rows("select * from schedule_ingest.schedule_version order by version"):
        key = row.pop("user_id"), row.pop("schedule_date").isoformat()
        versions[key].append(Version(**row))
    events: defaultdict[UUID, set[tuple[UUID, Any]]] = defaultdict(set)
    for row in await here.rows("select * from schedule_ingest.schedule_event"):
        events[row["source_session_id"]].add((row["event_id"], row["detected_at"]))
    messages: defaultdict[UUID, list[tuple[str, str, list[str]]]] = defaultdict(list)
    for row in await here.rows("select * from schedule_ingest.schedule_notification order by created_at"):
        told_of = (row["notification_id"], row["message"], row["event_ids"])
        messages[row["source_session_id"]].append(told_of)
    snapshots = {
        (row["user_id"], row["schedule_date"].isoformat()): row
        for row in await here.rows("select * from schedule_ingest.day_snapshot")
    }
    undisturbed = 0
    for key, captures in town.by_day().items():
        found, seen = versions.pop(key, []), [one for one in captures if outcomes[one.id][-1] in WELL]
        payloads_are_what_was_read(town, found)
        expected, known = told(*key, found)
        for what in expected:
            assert events.pop(what.session_id, set()) == {(event, what.at) for event in what.events}
            assert messages.pop(what.session_id, []) == [
                (notice.id, notice.message, [str(event) for event in notice.event_ids])
                for notice in what.notices
            ]
        if seen:
            snapshot = snapshots.pop(key)
            assert snapshot["snapshot_payload"] == known
            assert (
                payload_hash(town.captures[snapshot["source_session_id"]].payload) == found[-1].payload_hash
            )
        the_words_are_true(seen, outcomes, found)
        if were_in_order([attempts[capture.id][-1] for capture in seen]):
            assert [(one.session_id, one.payload_hash) for one in found] == list(one_after_the_other(seen))
            undisturbed += 1
    assert (versions, events, messages, snapshots) == ({}, {}, {}, {}), "what nobody's session has brought"
    assert undisturbed > len(town.by_day()) / 2


async def attempts_are_whole(soak: Soak) -> dict[UUID, list[Attempt]]:
    """The attempts at each session, in their order: all have ended, and one at most well."""
    found: defaultdict[UUID, list[Attempt]] = defaultdict(list)
    for row in await soak.here.rows("select * from schedule_ingest.capture_attempt order by attempt"):
        assert row["ended_at"] is not None
        found[row.pop("session_id")].append(Attempt(**row))
    for session in await soak.here.rows("select * from schedule_ingest.capture_session"):
        capture, attempts = soak.town.captures[session["id"]], found[session["id"]]
        outcomes = [one.outcome for one in attempts]
        assert [one.attempt for one in attempts] == list(range(1, len(attempts) + 1))
        assert (session["locked_at"], session["locked_by"]) == (None, None)
        assert set(outcomes[:-1]) <= {"lost", "released", *(["failed"] if capture.mended else [])}
        if capture.bad and not capture.mended:
            assert (session["state"], outcomes[-1]) == ("failed", "failed")
            assert session["error"].startswith(f"{capture.bad}: ")
        else:
            assert session["state"] == "done", session
            assert outcomes[-1] in WELL
    assert found.keys() == soak.town.captures.keys()
    for process, held in soak.caught.items():
        # What it had when it stood still is lost, but for what it was just ending.
        lost = {session for session in held for one in found[session] if one.lost_with(process)}
        assert lost, f"nothing was lost with {process}, which held {held}"
        assert all(found[session][-1].outcome in WELL for session in held if session not in lost)
    return found


def were_in_order(attempts: Sequence[Attempt]) -> bool:
    """Whether each was begun when the one before had ended."""
    return all(one.ended_at <= other.claimed_at for one, other in pairwise(attempts))


def payloads_are_what_was_read(town: Town, versions: Sequence[Version]) -> None:
    assert [version.version for version in versions] == list(range(1, len(versions) + 1))
    for version in versions:
        payload = town.captures[version.session_id].payload
        assert (version.payload, version.payload_hash) == (payload, payload_hash(payload))


def the_words_are_true(
    seen: Sequence[Capture], outcomes: dict[UUID, list[str]], found: Sequence[Version]
) -> None:
    """A session is done if it made a version, else unchanged; superseded only if it was tried before."""
    makers = {version.session_id for version in found}
    hashes = {version.payload_hash for version in found}
    for capture in seen:
        word = outcomes[capture.id][-1]
        assert (capture.id in makers) == (word == "done")
        if word == "unchanged":
            assert payload_hash(capture.payload) in hashes
        if word == "superseded":
            assert {"lost", "failed"} & set(outcomes[capture.id][:-1])


async def all_is_sent(soak: Soak, sent: Path) -> None:
    """Each message at least once, by us or by the other service; a kill may repeat one."""
    ours = Counter(line["notification_id"] for line in lines(sent))
    every = set(await column(soak.conn, "select notification_id from schedule_ingest.schedule_notification"))
    times = ours + Counter(soak.theirs)
    assert times.keys() == every
    assert sum(times.values()) - len(every) <= soak.killed
    assert ours
    assert soak.theirs
    sends = "select notification_id from schedule_ingest.notification_attempt where error is null"
    tried = await column(soak.conn, sends)
    assert len(tried) == len(set(tried))
    assert len(ours.keys() - set(tried)) <= soak.killed
    assert not set(tried) - ours.keys()


def lines(sent: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in sent.read_text().splitlines()]


async def every_picture_was_read(soak: Soak, logs: Sequence[Path]) -> None:
    """A session is done only when all its pictures were read, those that came late as well (S-19)."""
    there = dict(
        await (
            await soak.conn.execute(
                "select session_id, count(*) from schedule_ingest.capture_image group by 1"
            )
        ).fetchall()
    )
    told = 0
    for log in logs:
        read: dict[str, int] = {}
        for line in said(log):
            if line.get("event") == "session.images_loaded":
                read[line["session_id"]] = line["images"]
            elif line.get("event") == "session.processed":
                session = line["session_id"]
                assert read[session] == there.get(UUID(session), 0), session
                told += 1
    assert told > len(soak.town.captures) / 2


def said(log: Path) -> Iterator[dict[str, Any]]:
    """What a process has logged; a line that it was killed in is left out."""
    with log.open() as stream:
        yield from (json.loads(line) for line in stream if line.startswith("{") and line.endswith("}\n"))
