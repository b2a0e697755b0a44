"""A worker and an outbox: each row is told while it is locked, and the same transaction writes its end."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from holdfast import Cancel, Context, Done, Fail, Holdfast, Item, Retry, Settings, Snooze
from holdfast.db.pool import Connection
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge
from holdfast.engine.roles import Due
from holdfast.engine.store import Store
from holdfast.errors import ClaimLost, InvalidInput
from holdfast.runtime import courier, pauses
from holdfast.runtime.context import SyncContext
from holdfast.runtime.duties import Patience, reap
from holdfast.runtime.explain import explain
from holdfast.runtime.overview import overview
from holdfast.runtime.share import Pace, Share
from holdfast.runtime.worker import Worker
from outbox import CARDS, STORE, TABLE, card, stages, tries
from runtime.support import PATIENCE, cut, drain, one, present, running, until, until_true, working

Connect = Callable[[], Any]
SENT = "select count(*) = %s from cards where stage = 'sent'"
HURRY = "update card_tries set again_at = now() where again_at is not null"


@dataclass
class Card:
    receiver: str
    words: str | None = None


class Post:
    """What the handler does with a card, and what it did."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.answers: dict[str, list[Any]] = {}
        self.begun = asyncio.Event()
        self.door = asyncio.Event()
        self.door.set()

    async def tell(self, card: Card, ctx: Context) -> Any:
        name = ctx.job.id
        self.told.append(name)
        self.begun.set()
        await self.door.wait()
        answers = self.answers.get(name)
        answer = answers.pop(0) if answers else None
        if isinstance(answer, BaseException):
            raise answer
        return await answer(ctx) if inspect.iscoroutinefunction(answer) else answer


@pytest.fixture
async def app(settings: Settings, conn: Connection) -> AsyncIterator[Holdfast]:
    """An app with the outbox alone beside its own ledgers."""
    await conn.execute(TABLE)
    async with Holdfast(settings, ledgers=[CARDS]) as app:
        yield app


@pytest.fixture
def post(app: Holdfast) -> Post:
    """The handler of the outbox."""
    post = Post()
    app.handler("cards", ledger="cards")(post.tell)
    return post


async def add(conn: Connection, *names: str) -> None:
    for name in names:
        await STORE.enqueue(conn, card(name))


async def send(app: Holdfast, **options: Any) -> int:
    """Works on one row after the other until there is nothing to do."""
    return await drain(app, **({"ledgers": ["cards"], "concurrency": 1} | options))


# -- ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "stage", "said"),
    [
        (None, "sent", None),
        (Done("a receipt"), "sent", "a receipt"),
        ({"any": "thing"}, "sent", None),
        (Retry("busy"), "waiting", "retry: busy"),
        (Fail("no such house", code="GONE"), "back", "gone: no such house"),
        (Cancel("not ours"), "back", "cancelled: not ours"),
        (Snooze(5), "back", "no_edge: the handler answered snooze, which cards does not have"),
        (ValueError("oh"), "waiting", "valueerror: ValueError: oh"),
        (KeyboardInterrupt("odd"), "waiting", "keyboardinterrupt: KeyboardInterrupt: odd"),
        (asyncio.CancelledError("its own"), "waiting", "cancellederror: CancelledError: its own"),
        (Retry("busy", after="soon"), "waiting", "typeerror: "),  # type: ignore[arg-type]
        (Done, "waiting", "unfinished: the handler returned"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value)[:20],
)
async def test_what_a_handler_answers_is_written_when_it_has_answered(
    app: Holdfast, conn: Connection, post: Post, answer: Any, stage: str, said: str | None
) -> None:
    """And the next row is told, whatever became of this one."""
    post.answers["a"] = [answer]
    await add(conn, "a", "b")
    assert await send(app) == 0
    assert post.told == ["a", "b"]
    assert await stages(conn) == {"a": stage, "b": "sent"}
    ((found, again),) = await tries(conn, "a")
    assert again == (stage == "waiting")
    assert found == said if said is None and stage == "sent" else (found or "").startswith(said or "")


async def cancelled_and_waiting(ctx: Context) -> None:
    task = asyncio.current_task()
    assert task
    task.cancel()
    await asyncio.sleep(0)


async def cancelled_at_the_end(ctx: Context) -> None:
    task = asyncio.current_task()
    assert task
    task.cancel()


@pytest.mark.parametrize("slip", [cancelled_and_waiting, cancelled_at_the_end])
async def test_a_handler_that_cancels_its_own_task_has_a_bad_run_and_the_others_are_told(
    app: Holdfast, conn: Connection, post: Post, slip: Any
) -> None:
    post.answers["a"] = [slip]
    await add(conn, "a", "b")
    async with working(app, ledgers=["cards"], concurrency=1):
        await until(conn, SENT, 1)
        await add(conn, "c")
        await until(conn, SENT, 2)
    assert await stages(conn) == {"a": "waiting", "b": "sent", "c": "sent"}
    ((said, again),) = await tries(conn, "a")
    assert again
    assert said
    assert said.startswith("cancellederror: ")


async def test_bad_runs_wait_and_the_last_one_returns_the_row(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    post.answers["a"] = [Retry("busy"), ValueError("oh"), Retry("busy"), None]
    await add(conn, "a")
    await send(app)
    await send(app)
    assert post.told == ["a"]
    waits = "select extract(epoch from again_at - at)::float from card_tries order by n"
    assert await one(conn, waits) == 60
    for _ in range(2):
        await conn.execute(HURRY)
        await send(app)
    assert post.told == ["a"] * 3
    assert await stages(conn) == {"a": "back"}
    await STORE.requeue(conn, "a")
    await send(app)
    assert await stages(conn) == {"a": "sent"}


async def test_a_run_that_takes_too_long_is_stopped_and_tried_again(app: Holdfast, conn: Connection) -> None:
    stopped = asyncio.Event()

    @app.handler("cards", ledger="cards", timeout=0.05)
    async def slow(card: Card) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    await add(conn, "a")
    await send(app)
    assert stopped.is_set()
    assert await tries(conn, "a") == [("timeout: timed out after 0.05 s", True)]


async def test_a_row_that_the_handler_cannot_read_goes_back(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    await STORE.enqueue(conn, Item(key="a", payload={"receiver": "ana", "words": None}))
    await conn.execute("alter table cards alter receiver drop not null")
    await conn.execute("update cards set receiver = null")
    await send(app)
    assert post.told == []
    assert await stages(conn) == {"a": "back"}
    ((said, _),) = await tries(conn, "a")
    assert said
    assert said.startswith("validation_error: ")


async def test_without_a_handler_rows_go_back_or_are_left_alone(settings: Settings, conn: Connection) -> None:
    """As the ledger says; one that leaves them is not served at all."""
    await conn.execute(TABLE)
    await add(conn, "a")
    async with Holdfast(settings, ledgers=[CARDS]) as app:
        assert "cards" not in app.worker().keeper.who.serves
    assert await stages(conn) == {"a": "waiting"}
    async with Holdfast(settings, ledgers=[replace(CARDS, unknown_kind="reject")]) as app:
        await send(app)
    assert await stages(conn) == {"a": "back"}
    assert await tries(conn, "a") == [("no_handler: no handler for 'cards'", False)]


async def test_a_handler_may_run_in_a_thread_and_is_told_when_nobody_waits_for_it(
    app: Holdfast, conn: Connection
) -> None:
    told: list[str] = []
    ended = threading.Event()

    @app.handler("cards", ledger="cards", timeout=0.2)
    def in_a_thread(card: Card, ctx: SyncContext) -> None:
        told.append(ctx.job.id)
        if ctx.job.id == "b":
            ctx.cancelled.wait(PATIENCE)
            ended.set()

    await add(conn, "a", "b")
    await send(app)
    await asyncio.to_thread(ended.wait, PATIENCE)
    assert told == ["a", "b"]
    assert await stages(conn) == {"a": "sent", "b": "waiting"}


async def test_threads_of_another_ledger_that_do_not_end_take_no_place_of_the_outbox(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    door = threading.Event()

    @app.handler("stubborn", timeout=0.05)
    def stubborn() -> None:
        door.wait(2 * PATIENCE)

    for _ in range(2):
        await app.stores["tasks"].enqueue(conn, Item(kind="stubborn", limit=1))
    async with working(app, ledgers=["tasks", "cards"], concurrency={"tasks": 2, "cards": 1}) as worker:
        await until_true(lambda: worker.places.abandoned.total() == 2)
        try:
            await add(conn, "a")
            await until(conn, SENT, 1)
        finally:
            door.set()


# -- the transaction of a run ----------------------------------------------------------------------------


async def noted(ctx: Context) -> Connection:
    own = await ctx.transaction()
    await own.execute("insert into notes values (%s)", [ctx.job.id])
    return own


async def noted_only(ctx: Context) -> None:
    await noted(ctx)


@pytest.fixture
async def notes(conn: Connection) -> None:
    await conn.execute("create table notes (card text not null)")


@pytest.mark.parametrize(
    ("answer", "kept"),
    [(Done(), 1), (Retry("busy"), 0), (Fail("no"), 0), (Cancel("no"), 0), (ValueError("oh"), 0)],
    ids=["done", "retry", "fail", "cancel", "crash"],
)
async def test_what_a_handler_writes_commits_with_the_finish_or_not_at_all(
    app: Holdfast, conn: Connection, post: Post, notes: None, answer: Any, kept: int
) -> None:
    committed: list[str] = []

    async def write(ctx: Context) -> Any:
        await noted(ctx)
        ctx.when_committed(lambda: committed.append(ctx.job.id))
        assert await one(conn, "select count(*) from notes") == 0
        if isinstance(answer, BaseException):
            raise answer
        return answer

    post.answers["a"] = [write]
    await add(conn, "a", "b")
    await send(app)
    assert await one(conn, "select count(*) from notes") == kept
    assert committed == ["a"] * kept
    assert len(await tries(conn, "a")) == 1
    assert (await stages(conn))["b"] == "sent"


async def test_the_transaction_of_the_handler_is_the_one_that_holds_the_lock(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    """So it may read the row that it tells, and change further columns of it."""
    await conn.execute("alter table cards add receipt text")

    async def write(ctx: Context) -> None:
        own = await ctx.transaction()
        assert await ctx.transaction() is own
        await own.execute("update cards set receipt = 'R1' where name = %s", [ctx.job.id])

    post.answers["a"] = [write]
    await add(conn, "a")
    await send(app)
    assert await one(conn, "select stage || receipt from cards") == "sentR1"


async def test_nobody_but_the_courier_ends_its_transaction(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    """`ctx.finish` is for handlers whose claim is a mark in the row."""
    seen: list[InvalidInput] = []

    async def write(ctx: Context) -> None:
        try:
            await ctx.finish(await ctx.transaction())
        except InvalidInput as error:
            seen.append(error)

    post.answers["a"] = [write]
    await add(conn, "a")
    await send(app)
    assert "answer Done()" in str(seen[0])
    assert await stages(conn) == {"a": "sent"}


async def swallowed(ctx: Context) -> None:
    own = await ctx.transaction()
    try:
        await own.execute("select 1 / 0")
    except Exception:
        return


async def left_open(ctx: Context) -> None:
    await (await ctx.transaction()).transaction().__aenter__()


async def deferred(ctx: Context) -> None:
    await (await ctx.transaction()).execute("insert into notes values ('nobody')")


async def committed_by_itself(ctx: Context) -> None:
    await (await ctx.transaction()).execute("commit")


async def committed_by_itself_and_failed(ctx: Context) -> None:
    await committed_by_itself(ctx)
    raise ValueError("and then this")


@pytest.mark.parametrize(
    "slip", [swallowed, left_open, deferred, committed_by_itself, committed_by_itself_and_failed]
)
async def test_a_transaction_that_cannot_commit_is_a_bad_run_and_not_repeated_for_ever(
    app: Holdfast, conn: Connection, post: Post, notes: None, slip: Any
) -> None:
    """The receiver would get it again and again. It is told once for each try."""
    await conn.execute(
        "alter table notes add foreign key (card) references cards (name) deferrable initially deferred"
    )
    post.answers["a"] = [slip] * 9
    await add(conn, "a", "b")
    for number in (1, 2, 3):
        await send(app)
        assert post.told.count("a") == number
        assert len(await tries(conn, "a")) == number
        await conn.execute(HURRY)
    assert await stages(conn) == {"a": "back", "b": "sent"}
    for said, _ in await tries(conn, "a"):
        assert said
        assert said.startswith("commit_failed: the ")


REFUSE = """
create sequence refusals;
create function refuse() returns trigger language plpgsql as $$ begin
    if new.stage = 'sent' and new.name = 'a' and nextval('refusals') <= {times} then
        raise exception 'not now' using errcode = '{code}';
    end if;
    return new;
end $$;
create trigger refuse before update on cards for each row execute function refuse();
"""


async def refusing(conn: Connection, times: int, code: str = "P0001") -> None:
    """A table that refuses to have the first card sent, so many times."""
    await conn.execute(REFUSE.format(times=times, code=code))


async def test_what_a_handler_wrote_is_lost_with_a_refused_end_so_that_it_is_a_bad_run(
    app: Holdfast, conn: Connection, post: Post, notes: None
) -> None:
    post.answers["a"] = [noted_only, noted_only]
    await refusing(conn, 1)
    await add(conn, "a", "b")
    await send(app)
    assert (post.told.count("a"), await stages(conn)) == (1, {"a": "waiting", "b": "sent"})
    ((said, again),) = await tries(conn, "a")
    assert again
    assert said
    assert said.startswith("commit_failed: ")
    await conn.execute(HURRY)
    await send(app)
    assert (post.told.count("a"), await one(conn, "select count(*) from notes")) == (2, 1)


async def reads_only(ctx: Context) -> None:
    own = await ctx.transaction(writes=False)
    assert await one(own, "select count(*) from cards") == 2


@pytest.mark.parametrize(("times", "code"), [(1, "P0001"), (2, "P0001"), (4, "40P01")])
@pytest.mark.parametrize("answer", [None, reads_only])
async def test_a_row_that_was_told_is_not_told_again_when_its_end_is_refused_for_a_while(
    app: Holdfast,
    conn: Connection,
    post: Post,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    code: str,
    answer: Any,
) -> None:
    """Its end is tried again; a worker is not idle before, and those who wait for the commit are told."""
    monkeypatch.setattr(courier, "REFUSED_WAIT", 0.02)
    committed: list[str] = []

    async def tells(ctx: Context) -> None:
        ctx.when_committed(lambda: committed.append(ctx.job.id))
        if answer:
            await answer(ctx)

    post.answers["a"] = [tells]
    await refusing(conn, times, code)
    await add(conn, "a", "b")
    await send(app)
    assert sorted(post.told) == ["a", "b"]
    assert committed == ["a"]
    assert await stages(conn) == {"a": "sent", "b": "sent"}
    assert await tries(conn, "a") == [(None, False)]


async def test_a_row_that_was_told_fails_when_its_end_is_refused_for_good(
    app: Holdfast, conn: Connection, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person has to decide whether it is told again."""
    monkeypatch.setattr(courier, "REFUSED_WAIT", 0.02)
    await refusing(conn, 3)
    await add(conn, "a", "b")
    await send(app)
    assert sorted(post.told) == ["a", "b"]
    assert await stages(conn) == {"a": "back", "b": "sent"}
    ((said, again),) = await tries(conn, "a")
    assert not again
    assert said
    assert said.startswith("commit_failed: it was told, and that cannot be written: not now")
    await STORE.requeue(conn, "a")
    await send(app)
    assert post.told.count("a") == 2
    assert (await stages(conn))["a"] == "sent"


async def test_a_row_that_failed_is_not_told_again_when_that_is_refused(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    post.answers["a"] = [Fail("no such house")]
    await conn.execute("alter table card_tries add check (trouble not like 'failed:%')")
    await add(conn, "a")
    await send(app)
    assert (post.told, await stages(conn)) == (["a"], {"a": "back"})


async def test_a_row_about_which_nothing_can_be_written_is_told_once(
    app: Holdfast, conn: Connection, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind it do not wait for it; and its end is written when it can be."""
    monkeypatch.setattr(courier, "STUCK_WAIT", 0.3)
    await conn.execute("alter table card_tries add constraint no_a check (card <> 'a') not valid")
    await add(conn, "a", "b")
    async with working(app, ledgers=["cards"], concurrency=1):
        await until(conn, SENT, 1)
        await add(conn, "c")
        await until(conn, SENT, 2)
        assert await stages(conn) == {"a": "waiting", "b": "sent", "c": "sent"}
        await conn.execute("alter table card_tries drop constraint no_a")
        await until(conn, "select count(*) = 3 from card_tries")
    assert post.told == ["a", "b", "c"]


async def test_what_is_set_by_a_handler_does_not_stay(app: Holdfast, conn: Connection, post: Post) -> None:
    seen: list[Any] = []

    async def sets(ctx: Context) -> None:
        own = await ctx.transaction()
        seen.append(await one(own, "show statement_timeout"))
        await own.execute("set statement_timeout = '77s'")
        await own.execute("create temporary table mine (n int)")

    post.answers |= {"a": [sets], "b": [sets]}
    await add(conn, "a", "b")
    await send(app)
    assert len(set(seen)) == 1
    assert set((await stages(conn)).values()) == {"sent"}


async def test_the_transaction_is_over_when_the_run_is(app: Holdfast, conn: Connection, post: Post) -> None:
    kept: list[Context] = []

    async def keeps(ctx: Context) -> None:
        kept.append(ctx)

    post.answers["a"] = [keeps]
    await add(conn, "a")
    await send(app)
    with pytest.raises(Exception, match="is over, as the run is"):
        await kept[0].transaction()


async def test_further_work_is_added_with_the_finish(app: Holdfast, conn: Connection, post: Post) -> None:
    post.answers["a"] = [Done(then=(card("a2"),))]
    post.answers["b"] = [Done(then=(Item(payload={"receiver": "nobody"}),))]  # it has no name
    await add(conn, "a", "b")
    await send(app)
    assert await stages(conn) == {"a": "sent", "a2": "sent", "b": "waiting"}
    ((said, again),) = await tries(conn, "b")
    assert again
    assert said
    assert "key" in said


async def test_progress_may_be_told_while_the_row_is_locked(
    app: Holdfast, conn: Connection, post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    async def tells(ctx: Context) -> None:
        await ctx.progress(50, "half")

    post.answers["a"] = [tells]
    await add(conn, "a")
    with caplog.at_level("INFO"):
        await send(app)
    assert await stages(conn) == {"a": "sent"}
    assert "half 50%" in caplog.text


async def test_a_handler_that_says_it_lost_the_row_has_a_bad_run(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    """It cannot have: the row is locked."""
    post.answers["a"] = [ClaimLost(what="cards", id="a", fence=0)]
    await add(conn, "a", "b")
    await send(app)
    assert await stages(conn) == {"a": "waiting", "b": "sent"}


# -- pauses, stops, losses -------------------------------------------------------------------------------


async def test_a_paused_outbox_is_left_alone_until_it_is_resumed(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    await pauses.pause(conn, CARDS, by="ana")
    await add(conn, "a")
    await send(app)
    assert post.told == []
    heard: list[int | Exception] = []
    worker = paced(app, Pace(heard=heard.append))
    async with running(worker):
        await until_true(lambda: len(heard) > 2)
        assert post.told == []
        await pauses.resume(conn, CARDS)
        await until(conn, SENT, 1)
        await pauses.pause(conn, CARDS)
        heard.clear()
        await until_true(lambda: heard)
        await add(conn, "b")
        heard.clear()
        await until_true(lambda: len(heard) > 2)
        assert await stages(conn) == {"a": "sent", "b": "waiting"}
        await pauses.resume(conn, CARDS)
        await until(conn, SENT, 2)


async def test_a_new_row_is_told_at_once(settings: Settings, conn: Connection) -> None:
    """The bell rings; and a stop does not wait for the next look either."""
    await conn.execute(TABLE)
    async with Holdfast(replace(settings, poll_interval=600.0), ledgers=[CARDS]) as app:
        app.handler("cards", ledger="cards")(Post().tell)
        async with asyncio.timeout(PATIENCE), working(app, ledgers=["cards"], concurrency=3) as worker:
            await present(conn, worker)
            await until_true(worker.pumps[0].idle.is_set)
            await add(conn, "a")
            await until(conn, SENT, 1)


async def test_a_stop_lets_what_is_being_told_end_and_begins_nothing(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    post.door.clear()
    await add(conn, "a", "b")
    worker = app.worker(ledgers=["cards"], concurrency=1)
    async with running(worker) as work:
        await post.begun.wait()
        worker.stop()
        await until_true(lambda: not worker.pumps[0].claiming)
        post.door.set()
        assert await work == 0
    assert await stages(conn) == {"a": "sent", "b": "waiting"}
    assert post.told == ["a"]


async def test_what_does_not_end_in_time_is_cut_off_and_nothing_is_written(
    settings: Settings, conn: Connection
) -> None:
    """The lock is gone with it: another worker tells the row."""
    await conn.execute(TABLE)
    await add(conn, "a", "b", "c")
    post = Post()
    post.door.clear()
    async with Holdfast(replace(settings, shutdown_timeout=0.1), ledgers=[CARDS]) as app:
        app.handler("cards", ledger="cards")(post.tell)
        worker = app.worker(ledgers=["cards"], concurrency=2)
        async with running(worker) as work:
            await until_true(lambda: len(post.told) == 2)
            worker.stop()
            assert await work == 2
        assert await stages(conn) == {"a": "waiting", "b": "waiting", "c": "waiting"}
        assert await one(conn, "select count(*) from card_tries") == 0
        post.door.set()
        await send(app)
    assert set((await stages(conn)).values()) == {"sent"}


async def test_a_thread_that_is_cut_off_is_told(settings: Settings, conn: Connection) -> None:
    await conn.execute(TABLE)
    await add(conn, "a")
    begun, told = threading.Event(), threading.Event()
    async with Holdfast(replace(settings, shutdown_timeout=0.1), ledgers=[CARDS]) as app:

        @app.handler("cards", ledger="cards")
        def waits(card: Card, ctx: SyncContext) -> None:
            begun.set()
            if ctx.cancelled.wait(PATIENCE):
                told.set()

        worker = app.worker(ledgers=["cards"], concurrency=1)
        async with running(worker) as work:
            await asyncio.to_thread(begun.wait, PATIENCE)
            worker.stop()
            assert await work >= 1
    assert await asyncio.to_thread(told.wait, PATIENCE)


@pytest.mark.parametrize(
    ("answer", "stage", "said"),
    [
        (None, "sent", (None, False)),
        (Retry("busy"), "waiting", ("retry: busy", True)),
        (Fail("no such house"), "back", ("failed: no such house", False)),
        (ValueError("oh"), "waiting", ("valueerror: ValueError: oh", True)),
    ],
    ids=lambda it: type(it).__name__,
)
async def test_a_row_is_told_once_though_its_connection_is_cut_meanwhile(
    app: Holdfast, conn: Connection, post: Post, answer: Any, stage: str, said: Any
) -> None:
    """What was answered is kept, and written when the database is back."""
    post.answers["a"] = [answer]
    post.door.clear()
    await add(conn, "a", "b", "c")
    async with working(app, ledgers=["cards"], concurrency=1):
        await post.begun.wait()
        await cut(conn, "worker cards")
        post.door.set()
        await until(conn, "select count(*) = 3 from card_tries")
    assert post.told == ["a", "b", "c"]
    assert await stages(conn) == {"a": stage, "b": "sent", "c": "sent"}
    assert await tries(conn, "a") == [said]


async def test_a_row_whose_lock_was_lost_while_it_is_told_is_not_told_beside(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    """The worker has another place, and nobody has the row locked any more."""
    lost, door = asyncio.Event(), asyncio.Event()

    async def loses(ctx: Context) -> None:
        await cut(conn, "worker cards")
        await until(conn, "select true from cards where name = %s for update skip locked", ctx.job.id)
        lost.set()
        await door.wait()

    post.answers["a"] = [loses]
    await add(conn, "a")
    async with working(app, ledgers=["cards"], concurrency=2):
        await lost.wait()
        await add(conn, "b")
        await until(conn, SENT, 1)
        door.set()
        await until(conn, SENT, 2)
    assert post.told == ["a", "b"]


async def test_what_was_written_is_lost_with_the_connection_and_each_loss_is_a_bad_run(
    app: Holdfast, conn: Connection, post: Post, notes: None
) -> None:
    async def loses(ctx: Context) -> None:
        await noted(ctx)
        await cut(conn, "worker cards")

    post.answers["a"] = [loses] * 9
    await add(conn, "a")
    async with working(app, ledgers=["cards"], concurrency=1) as worker:
        for number in (1, 2, 3):
            await until(conn, "select count(*) = %s from card_tries", number)
            await conn.execute(HURRY)
            worker.pumps[0].ring()
    assert post.told == ["a"] * 3
    assert await stages(conn) == {"a": "back"}
    assert await one(conn, "select count(*) from notes") == 0
    assert all((said or "").startswith("commit_failed: ") for said, _ in await tries(conn, "a"))


async def test_what_others_have_done_with_a_row_since_its_connection_was_cut_is_respected(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    """Tried by another, or ended and let go again by a person: it is told anew."""
    doing = {
        "a": "insert into card_tries (card, at, trouble, again_at) values ('a', now(), 'theirs', now())",
        "b": "update cards set stage = 'back' where name = 'b'",
    }

    async def loses(ctx: Context) -> None:
        await cut(conn, "worker cards")
        await until(conn, "select true from cards where name = %s for update skip locked", ctx.job.id)
        await conn.execute(doing[ctx.job.id])

    post.answers = {"a": [loses], "b": [loses]}
    async with working(app, ledgers=["cards"], concurrency=1):
        await add(conn, "a")
        await until(conn, SENT, 1)
        assert await tries(conn, "a") == [("theirs", True), (None, False)]
        await add(conn, "b", "c")
        await until(conn, SENT, 2)
        assert await stages(conn) == {"a": "sent", "b": "back", "c": "sent"}
        await STORE.requeue(conn, "b")
        await until(conn, SENT, 3)
    assert post.told == ["a", "a", "b", "c", "b"]


async def test_a_worker_that_was_given_up_keeps_what_it_has_locked(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    post.door.clear()
    await add(conn, "a")
    async with working(app, ledgers=["cards"], concurrency=1) as worker:
        await post.begun.wait()
        old = worker.id
        await conn.execute("delete from workers")
        await until(conn, "select true from workers where id <> %s", old)
        post.door.set()
        await until(conn, SENT, 1)
    assert post.told == ["a"]


async def test_a_worker_that_comes_back_keeps_the_sessions_of_its_former_id(
    settings: Settings, conn: Connection, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """No leader removes that id, which would free a row while it is being told."""
    await conn.execute(TABLE)
    async with Holdfast(
        replace(settings, worker_timeout=2.0, heartbeat_interval=0.4), ledgers=[CARDS]
    ) as app:
        post = Post()
        app.handler("cards", ledger="cards")(post.tell)
        post.door.clear()
        await add(conn, "a")
        async with working(app, ledgers=["cards"], concurrency=1) as worker:
            await post.begun.wait()
            old, other = worker.id, await connect()
            async with other.transaction():
                await other.execute("lock table workers in access exclusive mode")
                await until_true(lambda: worker.id != old)
            await until(conn, "select true from workers where id = %s", worker.id)
            assert await one(conn, "select count(*) from workers") == 1
            await reap(conn, [STORE], "leader", Patience(timeout=1.0, nameless=60.0))
            post.door.set()
            await until(conn, SENT, 1)
            mark = f"holdfast worker cards [{worker.id}]"
            await until(conn, "select true from pg_stat_activity where application_name = %s", mark)
    assert post.told == ["a"]
    assert "terminated session" not in caplog.text


async def test_a_table_that_is_refused_is_looked_at_again(
    app: Holdfast, conn: Connection, post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int | Exception] = []
    await add(conn, "a")
    await conn.execute("alter table card_tries rename to elsewhere")
    async with running(paced(app, Pace(heard=heard.append))):
        await until_true(lambda: any(isinstance(one, psycopg.errors.UndefinedTable) for one in heard))
        await conn.execute("alter table elsewhere rename to card_tries")
        await until(conn, SENT, 1)
        await until_true(lambda: 1 in heard)
    assert "cards: refused" in caplog.text


# -- several at once -------------------------------------------------------------------------------------


async def test_two_workers_and_another_program_tell_each_row_once(
    app: Holdfast, conn: Connection, post: Post, connect: Connect
) -> None:
    names = [f"{number:03}" for number in range(60)]
    await add(conn, *names)
    foreign: Connection = await connect()
    took: list[str] = []

    async def foreign_program() -> None:
        taking = "select name from cards where stage = 'waiting' order by 1 limit 1 for update skip locked"
        while True:
            async with foreign.transaction():
                name = await one(foreign, taking)
                if name is None:
                    return
                took.append(name)
                marking = "update cards set stage = 'sent', sent_at = now() where name = %s"
                await foreign.execute(marking, [name])

    options: dict[str, Any] = {"ledgers": ["cards"], "concurrency": 3}
    async with working(app, **options), working(app, **options):
        await foreign_program()
        await until(conn, SENT, 60)
    assert sorted(post.told + took) == names
    assert await one(conn, "select count(*) from card_tries") == len(post.told)


async def test_as_many_are_told_at_once_as_there_are_places(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    post.door.clear()
    await add(conn, "a", "b", "c")
    async with working(app, ledgers=["cards"], concurrency=2) as worker:
        await until_true(lambda: len(post.told) == 2)
        assert set(worker.pumps[0].running) == {"a", "b"}
        post.door.set()
        await until(conn, SENT, 3)


def paced(app: Holdfast, pace: Pace, concurrency: int = 1, store: Store = STORE, **more: Any) -> Worker:
    """A worker of the outbox with a pace."""
    share = Share(store=store, concurrency=concurrency, pace=pace, **more)
    return Worker(app.database, [share], app.handlers)


async def test_after_a_full_round_a_worker_rests(app: Holdfast, conn: Connection, post: Post) -> None:
    """Whatever rings; and it says how many there were."""
    heard: list[int | Exception] = []
    await add(conn, *"abcde")
    worker = paced(app, Pace(poll=0.4, batch=2, heard=heard.append))
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def noting(ctx: Context) -> None:
        times.append(loop.time())

    post.answers = {name: [noting] for name in "abcdef"}
    async with running(worker):
        await until_true(lambda: len(times) == 2)
        await add(conn, "f")
        await until(conn, SENT, 6)
    assert times[2] - times[1] >= 0.35
    assert times[4] - times[3] >= 0.35
    assert heard[:3] == [2, 2, 2]


async def test_a_worker_may_be_asked_for_so_many_rows_and_no_more(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    await add(conn, *"abcde")
    for told in (2, 4, 5):
        await send(app, most=2)
        assert len(post.told) == told
    assert set((await stages(conn)).values()) == {"sent"}


# -- kinds and queues ------------------------------------------------------------------------------------

WITH_MORE = "alter table cards add queue text not null default 'default', add kind text not null default 'x'"
SORTED = replace(CARDS, kind="kind", queue="queue")


@pytest.fixture
async def sorted_app(settings: Settings, conn: Connection) -> Callable[[Ledger], Holdfast]:
    """An app with an outbox that has kinds and queues: a card of each kind in each queue."""
    await conn.execute(TABLE)
    await conn.execute(WITH_MORE)
    for kind in ("post", "mail"):
        for queue in ("default", "slow"):
            item = replace(card(f"{kind} {queue}"), kind=kind, queue=queue)
            await Store(SORTED).enqueue(conn, item)
    apps: list[Holdfast] = []

    def make(ledger: Ledger) -> Holdfast:
        apps.append(Holdfast(settings, ledgers=[ledger]))
        apps[-1].handler("post", ledger="cards")(Post().tell)
        return apps[-1]

    return make


async def sent(conn: Connection) -> set[str]:
    return {name for name, stage in (await stages(conn)).items() if stage == "sent"}


async def test_only_the_queues_that_a_worker_serves_are_told(
    sorted_app: Callable[[Ledger], Holdfast], conn: Connection
) -> None:
    async with sorted_app(SORTED) as app:
        await send(app, kinds=["post"], queues=["slow"])
        assert await sent(conn) == {"post slow"}
        await send(app, kinds=["post"], queues=["slow", "default"])
        assert await sent(conn) == {"post slow", "post default"}
        assert (await stages(conn))["mail slow"] == "waiting"


async def test_a_paused_queue_is_left_alone(
    sorted_app: Callable[[Ledger], Holdfast], conn: Connection
) -> None:
    async with sorted_app(SORTED) as app:
        await pauses.pause(conn, SORTED, "default")
        await send(app, kinds=["post"], queues=["slow", "default"])
        assert await sent(conn) == {"post slow"}


async def test_kinds_without_a_handler_are_returned_or_left_as_the_ledger_says(
    sorted_app: Callable[[Ledger], Holdfast], conn: Connection
) -> None:
    async with sorted_app(SORTED) as app:
        await send(app)
        assert await stages(conn) == {
            "mail default": "waiting",
            "mail slow": "waiting",
            "post default": "sent",
            "post slow": "waiting",
        }
    async with sorted_app(replace(SORTED, unknown_kind="reject")) as app:
        await send(app)
        assert (await stages(conn))["mail default"] == "back"


async def test_a_snooze_puts_a_row_off_where_there_is_an_edge_for_it(
    settings: Settings, conn: Connection, notes: None
) -> None:
    """What its handler wrote stays, as elsewhere."""
    await conn.execute(TABLE)
    await conn.execute("alter table cards add due_at timestamptz")
    (lane,) = CARDS.lanes
    ledger = replace(
        CARDS,
        edges=(*CARDS.edges, Edge("snooze", frm=("waiting",), to="waiting")),
        due=Due("due_at", cleared=False),
        lanes=(replace(lane, order=("due_at", "name"), due="due_at"),),
    )
    post = Post()

    async def later(ctx: Context) -> Snooze:
        await noted(ctx)
        return Snooze(600)

    post.answers["a"] = [later]
    async with Holdfast(settings, ledgers=[ledger]) as app:
        app.handler("cards", ledger="cards")(post.tell)
        await app.enqueue("cards", None, {"receiver": "ana"}, key="a")
        await send(app)
        await send(app)
    assert post.told == ["a"]
    assert await stages(conn) == {"a": "waiting"}
    assert await tries(conn, "a") == []
    assert await one(conn, "select due_at > now() + interval '500 s' from cards")
    assert await one(conn, "select count(*) from notes") == 1


# -- what people see -------------------------------------------------------------------------------------


async def test_people_see_that_a_row_is_being_told_or_passed_over(
    app: Holdfast, conn: Connection, post: Post
) -> None:
    post.door.clear()
    post.answers["a"] = [Retry("busy")]
    await add(conn, "a")
    async with working(app, ledgers=["cards"], concurrency=1) as worker:
        await post.begun.wait()
        why = await explain(conn, STORE, await STORE.get(conn, "a"), app.settings)
        assert why.code == "LOCKED"
        post.door.set()
        await until(conn, "select count(*) = 1 from card_tries")
        await present(conn, worker)
        why = await explain(conn, STORE, await STORE.get(conn, "a"), app.settings)
        assert (why.code, why.sentence) == ("PASSED_OVER", "it is passed over until its next try is due")
        seen = await overview(conn, [STORE])
        (view,) = seen.ledgers
        assert view.held == {}


async def test_what_it_did_is_counted(app: Holdfast, conn: Connection, post: Post) -> None:
    post.answers |= {"a": [Retry("busy")], "b": [Fail("no", code="GONE")]}
    await add(conn, "a", "b", "c")
    await send(app)
    query = (
        "select sum(count)::int from holdfast_pulse where minute = '-infinity' and fact = %s and label = %s"
    )
    assert await one(conn, query, "moved", "finish") == 1
    assert await one(conn, query, "moved", "retry") == 1
    assert await one(conn, query, "moved", "reject") == 1
    assert await one(conn, query, "failed", "GONE") == 1
    total = "select sum(count)::int from holdfast_pulse where minute = '-infinity' and fact = %s"
    assert [await one(conn, total, fact) for fact in ("ran", "waited", "dead")] == [3, 3, 1]
