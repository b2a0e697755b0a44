"""Handlers: what they are given, where they run, what they may answer, and what becomes of their faults."""

import asyncio
import threading
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from holdfast import (
    Backoff,
    Cancel,
    Context,
    Done,
    Fail,
    Holdfast,
    Item,
    Retry,
    Settings,
    Snooze,
    SyncContext,
)
from holdfast.db.pool import Connection
from holdfast.errors import ClaimLost, InvalidInput
from holdfast.runtime.processes import Processes
from runtime.calls import ask_to_retry, divides, ends_its_process, sleeps_long, square
from runtime.support import PATIENCE, add, column, drain, one, running, task, until_task, until_true, working

AT_ONCE = Backoff(base=0.0001)


@dataclass
class Parcel:
    to: str
    grams: int


class Letter(msgspec.Struct):
    to: str
    grams: int


class Card(TypedDict):
    to: str
    grams: int


class Crate(pydantic.BaseModel):
    to: str
    grams: int


PARCEL = {"to": "Ada", "grams": 20}

# -- what they are given -----------------------------------------------------------------------------


@pytest.mark.parametrize("type_", [Parcel, Letter, Card, Crate])
async def test_a_payload_arrives_as_the_type_that_the_handler_names(
    app: Holdfast, conn: Connection, type_: Any
) -> None:
    """Typed payloads: dataclass, Struct, TypedDict and pydantic model (DESIGN, typed payloads)."""
    seen: list[Any] = []

    async def handler(parcel: Any, ctx: Context) -> None:
        seen.append(parcel)

    handler.__annotations__["parcel"] = type_
    app.handler("send")(handler)
    task_id = await add(app, "send", PARCEL)
    await drain(app)
    assert seen == [type_(**PARCEL)]
    assert isinstance(seen[0], dict if type_ is Card else type_)
    assert (await task(conn, task_id))["status"] == "completed"


async def test_a_handler_without_a_type_gets_plain_json_and_none_for_no_payload(app: Holdfast) -> None:
    """§3: JSON null, or no payload, is accepted, and the handler gets None."""
    seen: list[Any] = []

    @app.handler("plain")
    async def plain(payload, ctx):
        seen.append(payload)

    @app.handler("maybe")
    async def maybe(payload: Parcel | None) -> None:
        seen.append(payload)

    for payload in ({"a": [1, None]}, "text", 7, None):
        await add(app, "plain", payload)
        await drain(app)
    await add(app, "maybe")
    await drain(app)
    async with app.database.connection() as conn:
        await conn.execute("insert into tasks (type, payload) values ('plain', 'null')")
    await drain(app)
    assert seen == [{"a": [1, None]}, "text", 7, None, None, None]


@pytest.mark.parametrize("type_", [Parcel, Letter, Card, Crate])
async def test_a_payload_that_does_not_fit_fails_for_good_and_names_the_path(
    app: Holdfast, conn: Connection, type_: Any
) -> None:
    """T-22, §3: seen at run time, it is a permanent failure with the path; the handler is not called."""
    called: list[Any] = []

    async def handler(parcel: Any) -> None:
        called.append(parcel)

    handler.__annotations__["parcel"] = type_
    app.handler("send")(handler)
    task_id = await add(app, "send", {"to": "Ada", "grams": "many"})
    await drain(app)
    row = await task(conn, task_id)
    assert (row["status"], row["next_retry_at"]) == ("failed", None)
    assert row["completed_at"] is not None
    assert "grams" in row["last_error"]
    assert not called


async def test_a_payload_that_does_not_fit_is_refused_at_enqueue_and_nothing_is_written(
    app: Holdfast, conn: Connection
) -> None:
    """§3: seen at enqueue, it is `InvalidInput` with the path; in a bulk with the item's place, too."""

    @app.handler("send")
    async def send(parcel: Parcel) -> None: ...

    misfit = {"to": "Ada", "grams": "many"}
    with pytest.raises(InvalidInput, match=r"\$\.grams") as refused:
        await app.enqueue("tasks", "send", misfit)
    assert refused.value.field == "payload"
    bulk = [Item(kind="send", payload=PARCEL), Item(kind="other"), Item(kind="send", payload=misfit)]
    with pytest.raises(InvalidInput, match=r"\$\.grams") as refused:
        await app.enqueue_many("tasks", bulk)
    assert refused.value.field == "items[2].payload"
    assert await one(conn, "select count(*) from tasks") == 0


async def test_the_context_tells_the_run_and_its_fence(app: Holdfast, conn: Connection) -> None:
    """T-8, T-16: the attempt counts from 1, the fence grows with every claim."""
    seen: list[tuple[int, int]] = []

    @app.handler("again", backoff=AT_ONCE)
    async def again(ctx: Context) -> Retry | None:
        seen.append((ctx.attempt, ctx.fence))
        return Retry(after=0) if ctx.attempt < 3 else None

    task_id = await add(app, "again")
    async with working(app):
        row = await until_task(conn, task_id, "completed")
    assert seen == [(1, 1), (2, 2), (3, 3)]
    assert row["attempts"] == 3


async def test_the_context_has_a_logger_whose_lines_name_the_job(
    app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 2: the context gives a logger."""

    @app.handler("talks")
    async def talks(ctx: Context) -> None:
        ctx.log.warning("half of it is done")

    task_id = await add(app, "talks")
    await drain(app)
    (line,) = [record for record in caplog.records if record.name == "holdfast.job"]
    assert (line.getMessage(), vars(line)["ledger"], vars(line)["job"]) == (
        "half of it is done",
        "tasks",
        str(task_id),
    )


# -- where they run ----------------------------------------------------------------------------------


async def test_a_sync_handler_runs_in_a_thread_and_can_report(app: Holdfast, conn: Connection) -> None:
    """Sync handlers run in threads (DESIGN, async core)."""
    seen: list[Any] = []

    @app.handler("sync")
    def sync(payload: Parcel, ctx: SyncContext) -> None:
        ctx.progress(50, "half")
        seen.append((payload, threading.current_thread() is threading.main_thread(), ctx.attempt))

    task_id = await add(app, "sync", PARCEL)
    await drain(app)
    assert seen == [(Parcel(**PARCEL), False, 1)]
    assert (await task(conn, task_id))["status"] == "completed"


async def test_a_process_answers_with_its_result() -> None:
    """CPU-bound handlers run in processes: the result comes back, the process is used again."""
    processes = Processes()
    try:
        assert await processes.call(square, 12) == 144
        (kept,) = processes._idle
        assert await processes.call(square, 3) == 9
        assert processes._idle == [kept]
    finally:
        await processes.close()


async def test_the_outcome_of_a_process_counts(app: Holdfast, conn: Connection) -> None:
    """What a handler in a process returns is its outcome; what it raises is a bad run."""
    app.handler("retry", place="process")(ask_to_retry)
    app.handler("divide", place="process", limit=1)(divides)
    asked, divided = await add(app, "retry"), await add(app, "divide", 1, limit=1)
    await drain(app)
    row = await task(conn, asked)
    assert (row["status"], row["attempts"], row["last_error"]) == ("pending", 1, "not yet")
    row = await task(conn, divided)
    assert row["status"] == "dead_letter"
    assert "ZeroDivisionError" in row["last_error"]


async def test_a_process_that_dies_is_a_bad_run_and_costs_no_other_process(
    app: Holdfast, conn: Connection
) -> None:
    """T-19: a handler whose process is killed gets its retry; the neighbours go on."""
    app.handler("dies", place="process")(ends_its_process)
    app.handler("square", place="process")(square)
    dead = await add(app, "dies", limit=1)
    alive = [await add(app, "square", n) for n in range(3)]
    await drain(app, concurrency=4)
    row = await task(conn, dead)
    assert (row["status"], row["attempts"]) == ("dead_letter", 1)
    assert "its process ended with exit code -9" in row["last_error"]
    assert {(await task(conn, task_id))["status"] for task_id in alive} == {"completed"}


async def test_a_kept_process_that_died_meanwhile_costs_nobody_a_run() -> None:
    """A process that was killed while it waited for work is not given the next call."""
    processes = Processes()
    try:
        await processes.call(square, 2)
        process, _ = processes._idle[0]
        process.kill()
        process.join()
        assert await processes.call(square, 5) == 25
    finally:
        await processes.close()


# -- how long ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["loop", "thread", "process"])
async def test_a_run_over_its_time_is_a_bad_run_wherever_it_runs(
    app: Holdfast, conn: Connection, place: str
) -> None:
    """T-24: the message says after how long; the run counts like any bad run."""
    woken = threading.Event()

    async def in_loop() -> None:
        await asyncio.Event().wait()

    def in_thread(ctx: SyncContext) -> None:
        assert ctx.cancelled.wait(PATIENCE)
        woken.set()

    functions: dict[str, Any] = {"loop": in_loop, "thread": in_thread, "process": sleeps_long}
    app.handler("slow", timeout=0.3, place=place)(functions[place])  # type: ignore[arg-type]
    task_id = await add(app, "slow", limit=1)
    await drain(app)
    row = await task(conn, task_id)
    assert (row["status"], row["attempts"]) == ("dead_letter", 1)
    assert row["last_error"] == "timed out after 0.3 s"
    assert place != "thread" or await asyncio.to_thread(woken.wait, PATIENCE)


async def test_a_time_out_of_the_handlers_own_is_told_as_its_own(app: Holdfast, conn: Connection) -> None:
    """T-24: only our limit says "timed out after"."""

    @app.handler("own", timeout=20)
    async def own() -> None:
        raise TimeoutError("the printer is slow")

    task_id = await add(app, "own", limit=1)
    await drain(app)
    assert (await task(conn, task_id))["last_error"] == "TimeoutError: the printer is slow"


# -- what they answer --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "status", "attempts", "error"),
    [
        (None, "completed", 1, None),
        ({"any": "thing"}, "completed", 1, None),
        (Done("result"), "completed", 1, None),
        (Retry("busy", after=3600), "pending", 1, "busy"),
        (Fail("never"), "failed", 1, "never"),
        (Snooze(3600), "pending", 0, None),
        (Cancel("no more"), "failed", 0, "no more"),
    ],
)
async def test_an_outcome_decides_what_becomes_of_the_row(
    app: Holdfast, conn: Connection, answer: Any, status: str, attempts: int, error: str | None
) -> None:
    """T-15, T-16, T-19, T-22, T-25: outcomes as values."""

    @app.handler("answers")
    async def answers() -> Any:
        return answer

    task_id = await add(app, "answers")
    await drain(app)
    row = await task(conn, task_id)
    assert (row["status"], row["attempts"], row["last_error"]) == (status, attempts, error)
    waits = await one(conn, "select next_retry_at > now() + interval '50 min' from tasks")
    assert waits is (True if status == "pending" else None)
    assert (row["worker_id"] is None) == (status == "pending")


async def test_an_exception_is_a_bad_run_and_three_of_them_are_the_end(
    app: Holdfast, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """T-17, T-19, T-21: by default three runs, then dead_letter with attempts three and completed_at."""
    caplog.set_level("CRITICAL", "holdfast.worker")  # xdist cannot carry what this handler says
    runs: list[int] = []

    @app.handler("breaks", backoff=AT_ONCE)
    async def breaks(ctx: Context) -> None:
        runs.append(ctx.attempt)
        raise ValueError("no paper\x00\ud800")

    task_id = await add(app, "breaks")
    async with working(app):
        row = await until_task(conn, task_id, "dead_letter")
    assert runs == [1, 2, 3]
    assert row["attempts"] == 3
    assert row["completed_at"] is not None
    assert row["next_retry_at"] is None
    assert row["last_error"].startswith("ValueError: no paper")


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_a_handler_that_wants_to_exit_ends_its_run_and_not_the_worker(
    app: Holdfast, conn: Connection, place: str
) -> None:
    """A sys.exit in a handler is a fault of that handler: an ordinary bad run."""

    async def in_loop() -> None:
        raise SystemExit(3)

    def in_thread() -> None:
        raise SystemExit(3)

    app.handler("exits")(in_loop if place == "loop" else in_thread)
    task_id = await add(app, "exits", limit=1)
    await drain(app)
    row = await task(conn, task_id)
    assert (row["status"], row["last_error"]) == ("dead_letter", "SystemExit: 3")


async def test_a_handler_that_cancels_itself_has_a_bad_run_and_its_row_is_not_left_behind(
    app: Holdfast, conn: Connection
) -> None:
    """T-14, T-19: a CancelledError that nobody asked for must not leave the row held for ever."""

    @app.handler("cancels itself")
    async def cancels_itself() -> None:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner

    task_id = await add(app, "cancels itself", limit=1)
    await drain(app)
    row = await task(conn, task_id)
    assert (row["status"], row["attempts"]) == ("dead_letter", 1)
    assert "CancelledError" in row["last_error"]


@pytest.mark.parametrize("answer", [Snooze(float("inf")), Retry(after=1e300)])
async def test_a_wait_that_no_clock_can_hold_spoils_nothing_but_its_own_run(
    app: Holdfast, conn: Connection, answer: Any
) -> None:
    """T-26: each row is judged alone; the worker and the neighbours in the batch live on."""

    @app.handler("for ever")
    async def for_ever() -> Any:
        return answer

    @app.handler("fine")
    async def fine() -> None: ...

    odd, good = await add(app, "for ever", limit=1), await add(app, "fine")
    await drain(app)
    assert (await task(conn, good))["status"] == "completed"
    row = await task(conn, odd)
    assert row["status"] in ("dead_letter", "pending")
    assert row["worker_id"] is None or row["status"] == "dead_letter"


@pytest.mark.parametrize("kind", ["coroutine", "generator"])
async def test_a_sync_handler_that_returns_unfinished_work_is_not_taken_for_done(
    app: Holdfast, conn: Connection, kind: str
) -> None:
    """Promise 1: a decorator that hides `async def` must not complete tasks whose work never began."""

    async def work() -> None: ...

    def steps() -> Any:
        yield 1

    def hidden() -> Any:
        return work() if kind == "coroutine" else steps()

    app.handler("hidden")(hidden)
    task_id = await add(app, "hidden", limit=1)
    await drain(app)
    row = await task(conn, task_id)
    assert row["status"] == "dead_letter"
    assert kind in row["last_error"]


# -- limits and kinds --------------------------------------------------------------------------------


async def test_the_rows_own_limit_beats_the_handlers_default(app: Holdfast, conn: Connection) -> None:
    """T-17: the handler's limit is a default of the enqueue; the row's own value counts."""
    runs: list[Any] = []

    @app.handler("breaks", limit=2, backoff=AT_ONCE)
    async def breaks(ctx: Context) -> None:
        runs.append(ctx.job.id)
        raise ValueError

    by_default = (await app.enqueue("tasks", "breaks")).id
    by_itself = (await app.enqueue("tasks", "breaks", limit=4)).id
    by_sql = await one(conn, "insert into tasks (type) values ('breaks') returning id")
    none = (await app.enqueue("tasks", "breaks", limit=0)).id
    async with working(app):
        for task_id in (by_default, by_itself, by_sql, none):
            await until_task(conn, task_id, "dead_letter")
    assert [runs.count(task_id) for task_id in (by_default, by_itself, by_sql, none)] == [2, 4, 3, 1]


async def test_a_kind_without_a_handler_fails_without_a_run(app: Holdfast, conn: Connection) -> None:
    """T-22: claimed → failed, last_error says so, attempts unchanged, never retried."""
    task_id = await add(app, "nobody knows")
    await drain(app, ledgers=["tasks"])
    row = await task(conn, task_id)
    assert (row["status"], row["attempts"], row["started_at"]) == ("failed", 0, None)
    assert row["last_error"] == "no handler for 'nobody knows'"
    assert row["completed_at"] is not None


def test_wrong_signatures_are_refused_when_they_are_declared() -> None:
    """Handlers take (payload), (payload, ctx), (ctx) or (): everything else is refused at once."""
    app = Holdfast()

    async def async_generator(payload: Any) -> Any:
        yield payload

    def generator(payload: Any) -> Any:
        yield payload

    def keyword(*, payload: Any) -> None: ...

    def keywords(**payload: Any) -> None: ...

    wrong: list[Any] = [
        lambda a, b: None,
        lambda ctx, payload: None,
        lambda payload, ctx, more: None,
        async_generator,
        generator,
        keyword,
        keywords,
        "not a function",
    ]
    for function in wrong:
        with pytest.raises(InvalidInput):
            app.handler("wrong")(function)
    with pytest.raises(InvalidInput, match="gets no context"):
        app.handler("wrong", place="process")(lambda payload, ctx: None)
    with pytest.raises(InvalidInput, match="must be async"):
        app.handler("wrong", place="loop")(lambda payload: None)
    with pytest.raises(InvalidInput, match="empty"):
        app.handler(" ")(lambda payload: None)
    with pytest.raises(InvalidInput, match="timeout"):
        app.handler("wrong", timeout=0)
    with pytest.raises(InvalidInput, match="ledger"):
        app.handler("wrong", ledger="nowhere")
    assert list(app.handlers) == []


def test_a_kind_has_one_handler() -> None:
    """A second handler of the same kind and ledger is refused; one for a single ledger may stand beside."""
    app = Holdfast()
    app.handler("send")(lambda payload: None)
    with pytest.raises(InvalidInput, match="has a handler already"):
        app.handler("send")(lambda payload: None)
    own = lambda payload: None  # noqa: E731
    app.handler("send", ledger="tasks")(own)
    found = app.handlers.find("tasks", "send")
    assert found
    assert found.function is own


# -- a claim that is gone ----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_progress_on_a_lost_claim_ends_the_run_and_changes_nothing(
    settings: Settings, conn: Connection, place: str
) -> None:
    """T-14: `ClaimLost` inside the handler; its outcome is dropped."""
    seen: list[Any] = []
    taken = threading.Event()

    async def in_loop(ctx: Context) -> None:
        await asyncio.to_thread(taken.wait, PATIENCE)
        try:
            await ctx.progress(10)
        except ClaimLost as lost:
            seen.append(lost)
            raise

    def in_thread(ctx: SyncContext) -> None:
        taken.wait(PATIENCE)
        try:
            ctx.progress(10)
        except ClaimLost as lost:
            seen.append(lost)
            raise

    # So slow a heartbeat that the handler finds out by itself.
    slow = replace(settings, heartbeat_interval=600, worker_timeout=3600, leader_term=3600)
    async with Holdfast(slow) as app:
        app.handler("told")(in_loop if place == "loop" else in_thread)
        task_id = await add(app, "told")
        worker = app.worker(ledgers=["tasks"])
        worker.pumps[0].look = lambda: None  # nor does the doorbell tell it, which looks when it connects
        async with running(worker):
            await until_task(conn, task_id, "running")
            await conn.execute("update tasks set fence = fence + 1, worker_id = 'another'")
            taken.set()
            await until_true(lambda: seen)
            await until_true(lambda: not worker.pumps[0].running)
    row = await task(conn, task_id)
    assert (row["status"], row["worker_id"], row["attempts"]) == ("running", "another", 0)
    assert (seen[0].id, seen[0].fence) == (task_id, 1)


async def test_a_claim_lost_elsewhere_is_an_ordinary_bad_run(app: Holdfast, conn: Connection) -> None:
    """T-14: only the loss of its own claim ends a run without an outcome."""

    @app.handler("clumsy")
    async def clumsy(ctx: Context) -> None:
        raise ClaimLost(what="errands", id=12, fence=1)

    task_id = await add(app, "clumsy", limit=1)
    await drain(app)
    assert (await task(conn, task_id))["status"] == "dead_letter"
    assert await column(conn, "select id from tasks where status = 'running'") == []
