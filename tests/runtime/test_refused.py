"""Ends that the database refuses, of rows that have one run: given back for what passes, else a bad run."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from holdfast import Context, Fail, Holdfast, Item, Settings, Snooze
from holdfast.db.pool import Connection
from holdfast.runtime import pump, runner
from runtime.support import ERRANDS, make_tables, one, until, working

ONCE = replace(ERRANDS, edges=tuple(edge for edge in ERRANDS.edges if edge.verb not in ("retry", "snooze")))
REFUSE = """
create sequence refusals;
create function refuse() returns trigger language plpgsql as $$ begin
    if nextval('refusals') <= {times} then raise exception 'not now' using errcode = '{code}'; end if;
    return new;
end $$;
create trigger refuse before update on errands for each row
    when ({finish} and new.stage = 'over') execute function refuse();
create trigger refuse before insert on effects for each row when (not {finish}) execute function refuse();
"""
REFUSE_AT_COMMIT = """
create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not at commit'; end $$;
create constraint trigger refuse after update on errands deferrable initially deferred
    for each row when (new.stage = 'over' and new.number % 2 = 0) execute function refuse();
"""
PAUSE = 0.2


@pytest.fixture
async def once(
    settings: Settings, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Holdfast]:
    """An app whose errands have one run, unless they are given back."""
    monkeypatch.setattr(runner, "FIRST_PAUSE", PAUSE)
    await make_tables(conn)
    async with Holdfast(settings, ledgers=[ONCE]) as app:
        await app.store("errands").enqueue(conn, Item(kind="go"))
        yield app


async def end(app: Holdfast, conn: Connection) -> str:
    async with working(app, ledgers=["errands"], concurrency=1):
        return await until(conn, "select stage from errands where stage in ('over', 'bad')")


@pytest.mark.parametrize("code", ["P0001", "53100", "54000", "55000", "57014", "58P01"])
async def test_an_end_that_is_refused_for_good_is_a_bad_run(
    once: Holdfast, conn: Connection, code: str
) -> None:
    """Whatever class of error psycopg gives it: run again, it would be refused again, for ever."""
    runs: list[float] = []

    @once.handler("go", ledger="errands")
    async def go(ctx: Context) -> None:
        runs.append(time.monotonic())
        await ctx.transaction()

    await conn.execute(REFUSE.format(times=99, code=code, finish=True))
    assert await end(once, conn) == "bad"
    assert len(runs) == 1


@pytest.mark.parametrize("code", ["54000", "55000"])
async def test_a_row_that_its_table_refuses_holds_up_no_other(
    once: Holdfast, conn: Connection, code: str
) -> None:
    """As an index does whose limit a text exceeds: psycopg has that in one class with lost connections."""

    @once.handler("go", ledger="errands")
    async def go() -> None:
        return

    await conn.execute(REFUSE.format(times=99, code=code, finish=True))
    async with working(once, ledgers=["errands"], concurrency=1):
        await until(conn, "select stage = 'bad' from errands")
        await conn.execute("drop trigger refuse on errands")
        await once.store("errands").enqueue(conn, Item(kind="go"))
        await until(conn, "select count(*) = 1 from errands where stage = 'over'")


@pytest.mark.parametrize("code", ["25006", "40P01", "53200", "55P03", "57P03", "58030"])
@pytest.mark.parametrize("place", ["the finish", "the handler"])
async def test_an_end_that_is_refused_for_a_while_gives_the_row_back_after_a_pause(
    once: Holdfast, conn: Connection, code: str, place: str
) -> None:
    """It is no fault of the row; but neither is it to be run again and again without a pause."""
    runs: list[float] = []

    @once.handler("go", ledger="errands")
    async def go(ctx: Context) -> Any:
        runs.append(time.monotonic())
        own = await ctx.transaction()
        try:
            await own.execute("insert into effects values (gen_random_uuid(), 'ours')")
        except psycopg.Error as error:
            return Snooze(0) if runner.passes(error) else Fail(str(error))
        return None

    await conn.execute(REFUSE.format(times=2, code=code, finish=place == "the finish"))
    assert await end(once, conn) == "over"
    first, second, third = runs
    assert second - first >= PAUSE
    assert third - second >= 2 * PAUSE
    assert await one(conn, "select count(*) from effects") == 1


@pytest.mark.parametrize("code", ["26000", "42P05", "40001", "57P03", "25006", "08006"])
async def test_an_error_of_the_session_never_counts_against_a_row(
    once: Holdfast, conn: Connection, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is written again, on another connection."""
    monkeypatch.setattr(pump, "LAST_WAIT", 0.1)
    runs: list[float] = []

    @once.handler("go", ledger="errands")
    async def go() -> None:
        runs.append(time.monotonic())

    await conn.execute(REFUSE.format(times=2, code=code, finish=True))
    assert await end(once, conn) == "over"
    assert len(runs) == 1


async def test_a_statement_that_was_prepared_for_the_table_as_it_was_is_prepared_again(
    once: Holdfast, conn: Connection
) -> None:
    """The server refuses such a one when a column that it returns has another type."""
    runs: list[int] = []

    @once.handler("go", ledger="errands")
    async def go(ctx: Context) -> None:
        runs.append(ctx.job.id)
        if len(runs) == 8:
            await conn.execute("alter table errands alter number type bigint")

    await conn.execute("alter table errands alter number type int")
    for _ in range(9):
        await once.store("errands").enqueue(conn, Item(kind="go"))
    async with working(once, ledgers=["errands"], concurrency=1):
        await until(conn, "select count(*) = 10 from errands where stage in ('over', 'bad')")
    assert await one(conn, "select count(*) from errands where stage = 'over'") == 10
    assert len(runs) == 10


async def test_ends_that_are_refused_at_the_commit_are_bad_runs_and_the_worker_goes_on(
    once: Holdfast, conn: Connection
) -> None:
    """By a deferred constraint, which the server checks after all statements of the turn."""

    @once.handler("go", ledger="errands")
    async def go() -> None:
        return

    await conn.execute(REFUSE_AT_COMMIT)
    for _ in range(20):
        await once.store("errands").enqueue(conn, Item(kind="go"))
    async with working(once, ledgers=["errands"], concurrency=3):
        await until(conn, "select count(*) = 21 from errands where stage in ('over', 'bad')")
    assert await one(conn, "select count(*) from errands where stage = 'bad'") == 10
