"""Every line that is logged while a handler runs names its job and its trace, whoever logs it."""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Context, Holdfast, Settings, SyncContext, logs, tracing

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
RUN = logs.Run("tasks", 17, "host-1-abc", TRACE)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, without pytest's own handlers."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in (*logs.CHATTY, *logs.INDISCREET):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def stream(root: logging.Logger) -> io.StringIO:
    """JSON lines."""
    stream = io.StringIO()
    logs.configure("INFO", "json", stream)
    return stream


@pytest.fixture
def text(root: logging.Logger) -> io.StringIO:
    """Lines for people."""
    stream = io.StringIO()
    logs.configure("INFO", "text", stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def during(run: logs.Run, *calls: Any) -> None:
    """Makes the calls in a context of their own, as a run has one."""

    def inside() -> None:
        logs.tell_of(run)
        for call in calls:
            call()

    contextvars.copy_context().run(inside)


def test_a_line_of_a_run_says_which_and_another_says_nothing(stream: io.StringIO) -> None:
    shop = logging.getLogger("shop")
    during(RUN, lambda: shop.info("inside"))
    during(RUN._replace(worker=None, trace_id=None), lambda: shop.info("barely"))
    shop.info("outside")
    inside, barely, outside = lines(stream)
    named = {"ledger": "tasks", "job": "17"}
    for line in (inside, barely, outside):
        line.pop("time")
    said = {"level": "INFO", "logger": "shop"}
    assert inside == {**said, "message": "inside", **named, "worker": "host-1-abc", "trace_id": TRACE}
    assert barely == {**said, "message": "barely", **named}
    assert outside == {**said, "message": "outside"}


def test_what_a_record_says_itself_stands(stream: io.StringIO) -> None:
    extra = {"job": "18", "trace_id": "mine"}
    during(RUN, lambda: logging.getLogger("shop").info("another", extra=extra))
    (line,) = lines(stream)
    assert (line["ledger"], line["job"], line["trace_id"]) == ("tasks", "18", "mine")


def test_a_line_outside_of_any_run_names_the_trace_of_its_request(stream: io.StringIO) -> None:
    with tracing.span("GET /", parent=PARENT, kind="server"):
        logging.getLogger("shop").info("asked")
    (line,) = lines(stream)
    assert line["trace_id"] == TRACE
    assert "job" not in line


def test_a_text_line_names_the_job_once_and_adds_nothing_else(text: io.StringIO) -> None:
    shop, worker = logging.getLogger("shop"), logging.getLogger("holdfast.worker")
    during(
        RUN,
        lambda: shop.info("page 1"),
        lambda: worker.warning("tasks 17: ValueError: boom"),
        lambda: worker.warning("tasks 170: is another"),
    )
    ends = [line.partition(": ")[2] for line in text.getvalue().splitlines()]
    assert ends == ["page 1 [tasks 17]", "tasks 17: ValueError: boom", "tasks 170: is another [tasks 17]"]


def test_a_users_own_handler_tells_it_with_our_filter(root: logging.Logger) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(logs.Origin())
    handler.setFormatter(logging.Formatter("%(message)s %(ledger)s %(job)s %(trace_id)s"))
    root.addHandler(handler)
    during(RUN, lambda: logging.getLogger("shop").warning("told"))
    assert stream.getvalue() == f"told tasks 17 {TRACE}\n"


async def test_runs_at_once_do_not_take_each_others_names(settings: Settings, stream: io.StringIO) -> None:
    """Loop and thread, tasks and threads that a handler starts, progress, and the log of its context."""
    app = Holdfast(settings)
    log = logging.getLogger("shop")
    together = asyncio.Barrier(2)

    @app.handler("loop")
    async def loop(number: int, ctx: Context) -> None:
        await together.wait()
        log.info("%d", number)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(log.info, "%d", number))
        ctx.log.info("%d", number)
        await ctx.progress(stage=str(number))

    @app.handler("thread")
    def thread(number: int, ctx: SyncContext) -> None:
        log.info("%d", number)
        ctx.log.info("%d", number)
        ctx.progress(stage=str(number))

    async with app:
        jobs: dict[str, tuple[str, str]] = {}
        for number, kind in enumerate(("loop", "loop", "thread", "thread")):
            trace = f"{number + 1:032x}"
            receipt = await app.enqueue("tasks", kind, number, trace=f"00-{trace}-{'1' * 16}-01")
            jobs[str(number)] = (str(receipt.id), trace)
        assert await app.work(until_idle=True, ledgers=["tasks"], concurrency=4) == 0
    told = [line for line in lines(stream) if line["logger"] in ("shop", "holdfast.job")]
    assert len(told) == 2 * 4 + 2 * 3
    assert all((line["job"], line["trace_id"]) == jobs[line["message"]] for line in told)
    assert {line["ledger"] for line in told} == {"tasks"}
    assert len({line.get("worker") for line in told}) == 1


async def test_nothing_of_a_run_is_left_to_the_next(settings: Settings, stream: io.StringIO) -> None:
    app = Holdfast(settings)

    @app.handler("mail")
    def mail() -> None:
        logging.getLogger("shop").info("sent")

    async with app:
        await app.enqueue("tasks", "mail", trace=PARENT)
        await app.enqueue("tasks", "mail")
        await app.work(until_idle=True, ledgers=["tasks"], concurrency=1)
    logging.getLogger("shop").info("over")
    first, second, last = (line for line in lines(stream) if line["logger"] == "shop")
    assert (first["trace_id"], "trace_id" in second) == (TRACE, False)
    assert first["job"] != second["job"]
    assert "job" not in last


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_what_tells_whole_addresses_is_quiet_at_every_level(root: logging.Logger, level: str) -> None:
    """C-57: the log of an HTTP client may hold a token."""
    logs.configure(level, stream=io.StringIO())
    assert not any(logging.getLogger(name).isEnabledFor(logging.INFO) for name in ("httpx", "httpcore"))
