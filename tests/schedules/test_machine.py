"""Any days, any interleaving of two workers, any point of a crash: the record stays true.

The workers here are two connections that do what a worker's process does, statement by statement, so that a
test can stop one anywhere: before its n-th statement it waits for the other, or it is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import dict_row

from holdfast import Settings
from holdfast.apps.schedules import intake, verify
from holdfast.apps.schedules import process_queries as queries
from holdfast.apps.schedules.canonical import canonical
from holdfast.apps.schedules.diff import diff
from holdfast.apps.schedules.ledger import notices, sessions
from holdfast.apps.schedules.observe import observe
from holdfast.apps.schedules.shifts import from_json, shifts
from holdfast.apps.schedules.values import Image, Session
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Fault, Move
from schedules.kit import NOON, day, entry, fitted

LEASE = timedelta(seconds=301)
PLACES = ("Billdal", "Mölndal")
USERS = (1, 2)
CLIENTS = ("Marie Sjöberg", "Annika Berg", "Kontor AB")


class Killed(Exception):
    """The process of a worker is gone."""


@dataclass
class Fuse:
    """What happens before the n-th statement of a worker: it dies, or waits until it is let go on."""

    dies_at: int | None = None
    waits_at: int | None = None
    count: int = 0
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def burn(self) -> None:
        self.count += 1
        if self.count == self.dies_at:
            raise Killed
        if self.count == self.waits_at:
            self.waiting.set()
            await self.go.wait()


FUSES: dict[AsyncConnection[Any], Fuse] = {}


class Fused(AsyncCursor[Any]):
    """A cursor whose connection has a fuse."""

    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        if fuse := FUSES.get(self.connection):
            await fuse.burn()
        return await super().execute(*args, **kwargs)


@dataclass
class Hand:
    """A worker: its connection, and the session in its hands."""

    name: str
    conn: AsyncConnection[Any]
    claim: Claimed | None = None
    payload: Any = None
    images: Sequence[Image] = ()


Lines = tuple[tuple[int, int, str, str], ...]  # start, hours, client, place
lines = st.lists(
    st.tuples(st.integers(6, 9), st.integers(1, 3), st.sampled_from(CLIENTS), st.sampled_from(PLACES)),
    max_size=3,
).map(tuple)
hands = st.sampled_from((0, 1))
steps = st.integers(1, 9)
acts = st.one_of(
    st.tuples(st.just("capture"), st.sampled_from(USERS), lines),
    st.tuples(st.just("capture"), st.sampled_from(USERS), lines),
    st.tuples(st.just("claim"), hands),
    st.tuples(st.just("claim"), hands),
    st.tuples(st.just("finish"), hands),
    st.tuples(st.just("crash"), hands, steps),
    st.tuples(st.just("overlap"), hands, steps, st.one_of(st.none(), steps)),
    st.tuples(st.just("race"), st.sampled_from(USERS), lines, lines, steps, st.one_of(st.none(), steps)),
    st.tuples(st.just("steal"), hands, lines),
    st.tuples(st.just("fail"), hands),
    st.tuples(st.just("release"), hands),
    st.tuples(st.just("image"), hands),
    st.tuples(st.just("expire")),
    st.tuples(st.just("requeue")),
)


class World:
    """A database, two workers, and what they are asked to do."""

    def __init__(self, settings: Settings) -> None:
        self.settings = fitted(settings, summary_threshold=2)
        self.sessions = Store(sessions(self.settings))
        self.outbox = Store(notices(self.settings))
        self.now: datetime = NOON + timedelta(days=36500)  # ahead of every session's own time
        self.read: dict[Any, Any] = {}
        self.pictures = 0
        self.hands: list[Hand] = []

    async def open(self) -> None:
        assert self.settings.database_url
        for name in ("w1", "w2", "people"):
            conn = await AsyncConnection.connect(
                self.settings.database_url, autocommit=True, options="-c timezone=UTC"
            )
            conn.cursor_factory = Fused
            self.hands.append(Hand(name, conn))
        self.people = self.hands.pop().conn

    async def close(self) -> None:
        for hand in self.hands:
            FUSES.pop(hand.conn, None)
            await hand.conn.close()
        for user in USERS:
            await self.people.execute("select schedule_ingest.erase(%s)", (user,))
        await self.people.close()

    async def act(self, what: str, *how: Any) -> None:
        await getattr(self, f"do_{what}")(*how)

    async def do_capture(self, user: int, told: Lines) -> None:
        session = await intake.add(self.people, self.sessions, user)
        entries = [
            entry(f"{start:02}:00", f"{start + hours:02}:00", who, where, f"Storgatan {start}")
            for start, hours, who, where in told
        ]
        self.read[session] = day(*entries)

    async def do_claim(self, number: int) -> None:
        hand = self.hands[number]
        if hand.claim is not None:
            return
        in_hand: list[Any] = []
        claims = await self.sessions.claim(hand.conn, hand.name, 1, in_hand=in_hand, now=self.now)
        if claims:
            (hand.claim,) = claims
            hand.payload = canonical(self.read[hand.claim.id])
            async with hand.conn.cursor(row_factory=dict_row) as cursor:
                await cursor.execute(
                    "select id, sequence, r2_key, telegram_message_id, created_at"
                    " from schedule_ingest.capture_image where session_id = %s",
                    (hand.claim.id,),
                )
                hand.images = [Image(**row) for row in await cursor.fetchall()]

    async def _run(self, hand: Hand, fuse: Fuse) -> None:
        """The final transaction, as a worker does it: all, or nothing when it is killed on the way."""
        claim, hand.claim = hand.claim, None
        if claim is None:
            fuse.waiting.set()
            return
        FUSES[hand.conn] = fuse
        session = Session(id=claim.id, user_id=claim.tenant, created_at=NOON)
        word = "killed"
        try:
            async with hand.conn.transaction():
                seen = await observe(
                    hand.conn,
                    self.outbox,
                    self.settings,
                    session,
                    hand.images,
                    hand.payload,
                    owner=claim.owner,
                )
                word = seen.word
                if word in ("lost", "grown"):
                    return
                finish = Move(verb="finish", claim=claim, result=word)
                assert await self.sessions.move(hand.conn, [finish], now=self.now) == {claim.id}
        except Killed:
            pass
        finally:
            fuse.waiting.set()
            FUSES.pop(hand.conn, None)
            if word == "grown":
                await self.sessions.move(hand.conn, [Move(verb="release", claim=claim)], now=self.now)

    async def do_finish(self, number: int) -> None:
        await self._run(self.hands[number], Fuse())

    async def do_crash(self, number: int, step: int) -> None:
        await self._run(self.hands[number], Fuse(dies_at=step))

    async def do_overlap(self, number: int, step: int, dies_at: int | None) -> None:
        """One worker stands in the middle of its transaction while the other does the whole of its own."""
        first, second = self.hands[number], self.hands[1 - number]
        fuse = Fuse(waits_at=step)
        one = asyncio.create_task(self._run(first, fuse))
        await fuse.waiting.wait()
        two = asyncio.create_task(self._run(second, Fuse(dies_at=dies_at)))
        await asyncio.wait([two], timeout=0.02)  # it may have to wait for the first: then both go on
        fuse.go.set()
        await asyncio.gather(one, two)

    async def do_race(self, user: int, one: Lines, two: Lines, step: int, dies_at: int | None) -> None:
        """Two sessions of one day, read by two workers that end at the same time."""
        for number, told in enumerate((one, two)):
            await self.do_capture(user, told)
            await self.do_claim(number)
        await self.do_overlap(0, step, dies_at)

    async def do_steal(self, number: int, told: Lines) -> None:
        """The lease of one worker is over, the other takes its session, and the first does not know."""
        first, second = self.hands[number], self.hands[1 - number]
        if first.claim is None:
            await self.do_capture(USERS[0], told)
            await self.do_claim(number)
        stolen = first.claim
        await self.do_expire()
        for _ in range(50):
            if stolen is None or (second.claim and second.claim.id == stolen.id):
                break
            await self._run(second, Fuse())
            await self.do_claim(1 - number)
        await self._run(first, Fuse())

    async def do_fail(self, number: int) -> None:
        await self._end(number, "reject")

    async def do_release(self, number: int) -> None:
        await self._end(number, "release")

    async def _end(self, number: int, verb: Any) -> None:
        hand = self.hands[number]
        claim, hand.claim = hand.claim, None
        if claim is not None:
            fault = Fault(code="ocr_empty", message="nothing read") if verb == "reject" else None
            await self.sessions.move(hand.conn, [Move(verb=verb, claim=claim, fault=fault)], now=self.now)

    async def do_image(self, number: int) -> None:
        """A picture comes for the session that a worker reads just now."""
        claim = self.hands[number].claim
        if claim is not None:
            self.pictures += 1
            await self.people.execute(
                "insert into schedule_ingest.capture_image (session_id, sequence, r2_key)"
                " select id, %(n)s, %(k)s from schedule_ingest.capture_session"
                " where id = %(id)s and state in ('pending', 'processing')",
                {"id": claim.id, "n": self.pictures, "k": f"{self.pictures}.jpg"},
            )

    async def do_expire(self) -> None:
        """Time passes: every lease is over, though its worker may not know."""
        self.now += LEASE

    async def do_requeue(self) -> None:
        rows = await self.people.execute(
            "select id from schedule_ingest.capture_session where state = 'failed'"
        )
        for (session,) in await rows.fetchall():
            await self.sessions.requeue(self.people, session)

    async def settle(self) -> None:
        """Everything that is left is processed, by a worker that nobody disturbs."""
        hand = self.hands[0]
        hand.claim = None
        for _ in range(500):
            await self.do_expire()
            await self.do_claim(0)
            if hand.claim is None:
                break
            await self._run(hand, Fuse())

    async def judge(self) -> None:
        """What must hold, whatever happened."""
        report = await verify.verify(self.people)
        assert report.problems == ()
        left = "select state::text, count(*) from schedule_ingest.capture_session group by 1"
        states = dict(await (await self.people.execute(left)).fetchall())
        assert states.keys() <= {"done", "failed"}
        assert sum(states.values()) == len(self.read)
        days = await self.people.execute(
            "select n.user_id, n.schedule_date, n.snapshot_payload, n.source_session_id, v.payload"
            " from schedule_ingest.day_snapshot as n"
            " join schedule_ingest.day_schedule as d using (user_id, schedule_date)"
            " join schedule_ingest.schedule_version as v on v.user_id = d.user_id"
            " and v.schedule_date = d.schedule_date and v.version = d.current_version"
        )
        for _, when, snapshot, source, payload in await days.fetchall():
            assert isinstance(when, date)
            last = canonical(self.read[source])
            assert payload == last  # what was seen last is the current version
            known = [from_json(value) for value in snapshot]
            words = self.settings.schedules_company_words
            assert diff(known, shifts(last, words)).changes == ()
        told = await self.people.execute(
            "select e.event_id from schedule_ingest.schedule_event as e left join ("
            " select jsonb_array_elements_text(event_ids)::uuid as id"
            " from schedule_ingest.schedule_notification"
            ") as n on n.id = e.event_id group by e.event_id having count(n.id) <> 1"
        )
        assert await told.fetchall() == []
        open_ones = await self.people.execute(
            "select 1 from schedule_ingest.capture_attempt where ended_at is null or outcome is null"
        )
        assert await open_ones.fetchall() == []
        ended = await self.people.execute(
            "select a.session_id from schedule_ingest.capture_attempt as a group by 1"
            " having count(*) filter (where outcome in ('done', 'unchanged', 'superseded')) > 1"
        )
        assert await ended.fetchall() == []


async def live(settings: Settings, story: Sequence[tuple[Any, ...]]) -> None:
    """One life: what is told happens, what is left is done, and then it is judged."""
    world = World(settings)
    await world.open()
    try:
        for what, *how in story:
            await world.act(what, *how)
        await world.settle()
        await world.judge()
    finally:
        await world.close()


def search(settings: Settings, examples: int, *phases: Phase) -> None:
    """Lives that many lives; the same ones each time, unless there are very many."""

    @hypothesis_settings(
        max_examples=examples,
        deadline=None,
        derandomize=examples < 1000,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, *phases),
    )
    @given(st.lists(acts, min_size=4, max_size=30))
    def lives(story: list[tuple[Any, ...]]) -> None:
        asyncio.run(live(settings, story))

    lives()


@pytest.mark.parametrize("examples", [60, pytest.param(1500, marks=pytest.mark.soak)])
def test_whatever_two_workers_see_and_wherever_they_die_the_record_is_true(
    settings: Settings, examples: int
) -> None:
    """S-30, S-31, S-32, S-43, S-44, S-46, S-48, S-11, S-19: replay gives the snapshot, no version is missing,
    and no event is told twice.
    """

    search(settings, examples, Phase.shrink)


@pytest.mark.parametrize("step", range(1, 12))
def test_each_step_of_the_final_transaction_may_be_the_last(settings: Settings, step: int) -> None:
    """S-32: a kill before any statement leaves nothing, and the next worker completes it once."""
    one = (("08", 1), ("09", 2))
    told: Lines = tuple((int(start), hours, CLIENTS[0], PLACES[0]) for start, hours in one)
    story = [("capture", 1, told), ("claim", 0), ("crash", 0, step), ("capture", 1, told[:1]), ("claim", 1)]
    asyncio.run(live(settings, [*story, ("crash", 1, step), ("expire",)]))


# What the machine must find: each takes one safeguard away.
BROKEN = {
    "no lock": ("LOCK", "select %(key)s::bigint"),
    "no guard": (
        "HOLD",
        "select from schedule_ingest.capture_session where id = %(session)s and %(owner)s::text is not null",
    ),
    "no look at images": ("DAY", queries.DAY.replace("i.session_id = s.id", "false")),
}


@pytest.mark.parametrize("what", list(BROKEN))
def test_the_machine_finds_a_safeguard_that_is_missing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A control: a test that cannot fail proves nothing."""
    name, broken = BROKEN[what]
    monkeypatch.setattr(queries, name, broken)
    with pytest.raises(BaseException) as found:  # noqa: PT011 (an assertion of ours, or the database's refusal)
        search(settings, 100)
    assert not isinstance(found.value, KeyboardInterrupt)
