"""What a SELECT of the console becomes, and what it cannot do (Y-36, Y-40)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from psycopg.errors import ReadOnlySqlTransaction
from psycopg.sql import SQL, Composable, Composed, Identifier, Placeholder

from holdfast.apps.system.console import look, queries
from holdfast.apps.system.console.grammar import MOST_ROWS, parse
from holdfast.apps.system.console.question import Query, query
from holdfast.apps.system.console.statements import COLUMNS, LEGACY, Select, ShowJobs
from holdfast.db.database import Database, open_database
from holdfast.db.pool import Connection
from holdfast.db.settings import Settings
from holdfast.errors import InvalidInput

JOBS = "system.jobs"
HOUR = 3_600_000
NOON = 1738324800000  # 2025-01-31T12:00:00Z

ADD = """
insert into system.jobs (id, job_type, status, message, parameters, retry_count, created_at, finished_at,
    priority, queue)
values (%s, %s, %s, %s, %s::text::jsonb, %s, %s, %s, %s, %s)
"""
ROWS: list[tuple[Any, ...]] = [
    ("FL-aaaaaa1", "flush", "queued", None, '{"ledger": "job"}', 0, 0, None, 5, "night"),
    ("FL-aaaaaa2", "flush", "completed", "0 rows", '{"ledger": "tasks"}', 0, 1, 2, None, None),
    ("SE-aaaaaa3", "stream_eviction", "failed", "it's 100% gone", "{}", 3, 2, 3, -1, None),
    ("BK-aaaaaa4", "backup", "running", None, '{"overwrite": true}', 1, 3, None, None, "Night"),
    ("XX-aaaaaa5", "defragment", "cancelled", "a\\b", '{"n": 24}', 0, 4, 5, 5, ""),
]  # times are hours after noon


@pytest.fixture
async def database(settings: Settings) -> AsyncIterator[Database]:
    async with open_database(settings) as opened:
        yield opened


@pytest.fixture
async def rows(conn: Connection) -> None:
    for *first, created, finished, priority, queue in ROWS:
        times = (NOON + created * HOUR, None if finished is None else NOON + finished * HOUR)
        await conn.execute(ADD, (*first, *times, priority, queue))


def asked(text: str) -> Query:
    statement = parse(text)
    assert isinstance(statement, Select | ShowJobs)
    return query(statement, JOBS, MOST_ROWS)


async def answer(database: Database, text: str) -> list[tuple[Any, ...]]:
    return (await look.rows(database, asked(text)))[0]


# -- the statement ---------------------------------------------------------------------------------------


def test_a_question_becomes_our_own_statement_with_parameters() -> None:
    """Y-36: names by identifier quoting, values as parameters."""
    made = asked(
        "select id, result, parameters->>'ledger' from system.jobs where status in ('Failed', 'x''; drop--') "
        "and not (created_at between '2025-01-31T12:00:00Z' and 5 or queue is null) order by id desc limit 7"
    )
    assert made.statement.as_string(None) == (
        'select t."id", t."message", (t."parameters" ->> %s::text) from "system"."jobs" as t '
        'where (t."status" in (%s, %s)) '
        'and (not ((t."created_at" between %s and %s) or (t."queue" is null))) order by t."id" desc limit %s'
    )
    assert made.values == ("ledger", "failed", "x'; drop--", NOON, 5, 7)
    assert made.headings == ("id", "result", "ledger")


def test_the_newest_come_first_and_their_number_has_an_end() -> None:
    """Y-35, Y-36: 100 for SHOW JOBS, all that fit for a SELECT; one more is read, to know of more."""
    shown, selected = asked("SHOW JOBS"), asked("SELECT * FROM system.jobs")
    assert (shown.values, shown.most) == ((101,), 100)
    assert (selected.values, selected.most) == ((MOST_ROWS + 1,), MOST_ROWS)
    for made in (shown, selected):
        assert "order by t.created_at desc, t.id desc" in made.statement.as_string(None)
    assert asked("SHOW JOBS LIMIT 0").values == (0,)
    assert selected.headings == tuple(COLUMNS)
    assert [selected.headings[place] for place in selected.times] == [
        *("created_at", "updated_at", "started_at", "finished_at", "run_at")
    ]


# Texts that would do harm, were they ever read as SQL, and any others.
HARM = st.one_of(
    st.sampled_from(
        ["'; drop table job --", "') or true --", "%s", "%(id)s", "{}", "\\'", '"', "$1", "/* */"]
    ),
    st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30),
)
TEXT_COLUMNS = st.sampled_from([name for name, kind in COLUMNS.items() if kind in ("text", "status", "type")])


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def comparisons() -> st.SearchStrategy[str]:
    column = st.one_of(
        TEXT_COLUMNS, st.sampled_from(list(LEGACY)), HARM.map(lambda f: f"parameters->>{quoted(f)}")
    )
    value = HARM.map(quoted)
    pattern = HARM.map(lambda text: quoted(text.rstrip("\\")))
    return st.one_of(
        st.builds(lambda c, s, v: f"{c} {s} {v}", column, st.sampled_from(["=", "<>", "<", ">="]), value),
        st.builds(
            lambda c, v: f"{c} NOT IN ({', '.join(v)})", column, st.lists(value, min_size=1, max_size=4)
        ),
        st.builds(lambda c, h, p: f"{c} {h} {p}", column, st.sampled_from(["LIKE", "NOT ILIKE"]), pattern),
        st.builds(lambda c, a, b: f"{c} BETWEEN {a} AND {b}", column, value, value),
        st.builds(lambda c: f"{c} IS NOT NULL", column),
    )


CONDITIONS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds(lambda a, b: f"({a}) AND {b}", inner, inner),
        st.builds(lambda a, b: f"{a} OR ({b})", inner, inner),
        inner.map(lambda a: f"NOT ({a})"),
    ),
    max_leaves=8,
)


def leaves(part: Composable) -> Iterator[Composable]:
    if isinstance(part, Composed):
        for inner in part:
            yield from leaves(inner)
    else:
        yield part


def templates() -> list[str]:
    """Every piece of SQL that the room of SQL has."""
    found: list[str] = []
    for value in (value for name, value in vars(queries).items() if name.isupper()):
        found += [value] if isinstance(value, str) else value.values()
    return found


OURS = templates()


@hypothesis_settings(max_examples=300, deadline=None)
@given(CONDITIONS, HARM)
def test_no_text_of_the_console_is_in_the_statement(condition: str, field: str) -> None:
    """Y-36: it is made of our templates, known names and placeholders alone; the texts are parameters."""
    made = asked(f"SELECT id, parameters->>{quoted(field)} FROM system.jobs WHERE {condition} ORDER BY queue")
    for leaf in leaves(made.statement):
        match leaf:
            case SQL():
                assert any(leaf.as_string(None) in text for text in OURS)
            case Identifier():
                assert set(leaf._obj) <= {"system", "jobs", *COLUMNS}  # pyright: ignore[reportPrivateUsage]
            case _:
                assert isinstance(leaf, Placeholder)
    # As many values as there are places for them, so none has gone another way.
    assert sum(isinstance(leaf, Placeholder) for leaf in leaves(made.statement)) == len(made.values)
    assert field == made.values[0]


@pytest.mark.parametrize("text", ["'; drop table system.jobs; --", "%s %(x)s {} $1", "\\", 'a"b', "ünï 日本"])
async def test_any_text_can_be_compared_and_nothing_happens(
    database: Database, conn: Connection, text: str
) -> None:
    """Y-36: what looks like SQL is a value."""
    add = ADD.replace("%s::text::jsonb", "jsonb_build_object(%s::text, 'here')")
    await conn.execute(add, ("FL-aaaaaa1", "flush", "new", text, text, 0, NOON, None, None, None))
    for condition in (f"message = {quoted(text)}", f"parameters->>{quoted(text)} = 'here'"):
        assert await answer(database, f"SELECT id FROM system.jobs WHERE {condition}") == [("FL-aaaaaa1",)]


# -- the answer ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        ("status = 'QUEUED'", "1"),
        ("status <> 'Running'", "1235"),
        ("status IN ('Failed', 'canceled', 'running')", "345"),
        ("job_type = 'StreamEviction'", "3"),
        ("job_type = 'Defragment'", "5"),
        ("job_type NOT IN ('flush', 'Backup')", "35"),
        ("status LIKE 'C%'", "25"),
        ("message IS NULL", "14"),
        ("result IS NOT NULL", "235"),
        ("message = 'it''s 100% gone'", "3"),
        ("error_message LIKE '%100\\%%'", "3"),
        ("message LIKE 'a\\\\b'", "5"),
        ("message ILIKE 'IT%'", "3"),
        ("message NOT LIKE '%gone'", "25"),
        ("queue = 'night'", "1"),
        ("queue ILIKE 'night'", "14"),
        ("queue = ''", "5"),
        ("retry_count > 0", "34"),
        ("retry_count BETWEEN 1 AND 2.5", "4"),
        ("retry_count NOT BETWEEN 0 AND 1", "3"),
        ("retry_count IN (1, 3.0, 99999999999999999999)", "34"),
        ("retry_count < 1.5", "1245"),
        ("priority = -1", "3"),
        ("priority IS NULL OR priority > 4", "1245"),
        ("NOT (priority = 5)", "3"),
        ("created_at >= '2025-01-31T14:00:00Z'", "345"),
        ("created_at < '2025-01-31T13:00:00.0001'", "12"),
        ("created_at = 1738324800000", "1"),
        ("finished_at IS NULL AND status <> 'queued'", "4"),
        ("parameters ->> 'ledger' IN ('job', 'tasks')", "12"),
        ("parameters ->> 'overwrite' = TRUE", "4"),
        ("parameters ->> 'n' = 24", "5"),
        ("parameters ->> 'n' IS NULL AND retry_count = 3", "3"),
        ("id = 'FL-aaaaaa1' OR id = 'FL-aaaaaa2' AND status = 'failed'", "1"),
        ("(id = 'FL-aaaaaa1' OR id = 'FL-aaaaaa2') AND NOT status = 'queued'", "2"),
        ("id = 'nobody'", ""),
    ],
)
async def test_conditions_choose_the_rows_that_they_say(
    database: Database, condition: str, numbers: str
) -> None:
    """Y-36, Y-40: words in any case, times in UTC, old names, as SQL means it."""
    found = await answer(database, f"SELECT id FROM system.jobs WHERE {condition} ORDER BY created_at")
    assert "".join(one[-1] for (one,) in found) == numbers
    ((count,),) = await answer(database, f"SELECT count(*) FROM system.jobs WHERE {condition}")
    assert count == len(numbers)
    shown = await answer(database, f"SHOW JOBS WHERE {condition}")
    assert "".join(row[0][-1] for row in reversed(shown)) == numbers


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    ("order", "numbers"),
    [
        ("priority DESC NULLS LAST, created_at", "15324"),
        ("priority ASC NULLS FIRST, created_at DESC", "42351"),
        ("parameters ->> 'ledger' NULLS FIRST, created_at", "34512"),
        ("result NULLS FIRST, created_at", "14"),  # how texts are ordered is the database's business
    ],
)
async def test_rows_come_in_the_order_that_is_asked_for(database: Database, order: str, numbers: str) -> None:
    """Y-36: ORDER BY, with a place for NULL."""
    found = await answer(database, f"SELECT id FROM system.jobs ORDER BY {order}")
    assert len(found) == len(ROWS)
    assert "".join(one[-1] for (one,) in found).startswith(numbers)


@pytest.mark.usefixtures("rows")
async def test_an_answer_has_the_values_of_the_row(database: Database) -> None:
    """Y-4, Y-35, Y-40: milliseconds as they are, parameters as an object, the old name as a heading."""
    made = asked("SELECT id, created_at, parameters, error_message FROM system.jobs WHERE retry_count = 3")
    assert made.headings == ("id", "created_at", "parameters", "error_message")
    assert await look.rows(database, made) == ([("SE-aaaaaa3", NOON + 2 * HOUR, {}, "it's 100% gone")], False)


@pytest.mark.usefixtures("rows")
async def test_every_column_can_be_asked_for_and_the_table_has_no_other(
    database: Database, conn: Connection
) -> None:
    """Y-36: the columns that the console knows are those of the table."""
    found = await answer(database, "SELECT * FROM system.jobs WHERE id = 'FL-aaaaaa1'")
    cursor = await conn.execute("select * from system.jobs where id = 'FL-aaaaaa1'")
    assert [column.name for column in cursor.description or ()] == list(COLUMNS)
    assert found == await cursor.fetchall()


async def test_there_being_more_is_told(database: Database, conn: Connection) -> None:
    """Y-35: SHOW JOBS answers the newest hundred, and says whether there are others."""
    for number in range(101):
        row = (f"FL-{number:06}", "flush", "new", None, "{}", 0, NOON + number, None, None, None)
        await conn.execute(ADD, row)
    found, more = await look.rows(database, asked("SHOW JOBS"))
    assert (len(found), more) == (100, True)
    assert found[0][0] == "FL-000100"
    found, more = await look.rows(database, asked("SHOW JOBS WHERE id <> 'FL-000000'"))
    assert (len(found), more) == (100, False)


async def test_a_large_answer_is_cut_and_says_so(database: Database, conn: Connection) -> None:
    """Y-36: ten thousand long traces are not for one answer."""
    fill = """
    insert into system.jobs (id, job_type, status, exception_trace, finished_at)
    select 'FL-' || lpad(n::text, 6, '0'), 'flush', 'failed', repeat('x', 1000), 0
    from generate_series(1, 2000) as n
    """
    await conn.execute(fill)
    everything = asked("SELECT exception_trace FROM system.jobs")
    found, more = await look.rows(database, everything, largest=1_000_000)
    assert more
    assert 1000 <= len(found) < 2000
    assert await look.rows(database, asked("SELECT count(*) FROM system.jobs")) == ([(2000,)], False)


# -- what it cannot do -----------------------------------------------------------------------------------

TRAP = """
alter table system.jobs rename to jobs_behind;
create function system.spring() returns boolean language plpgsql as $$
    begin {what}; return true; end $$;
create view system.jobs as select * from system.jobs_behind where system.spring();
"""


@pytest.mark.usefixtures("rows")
async def test_a_question_is_asked_in_a_read_only_transaction(database: Database, conn: Connection) -> None:
    """Y-36: whatever stands behind the table's name, nothing is written."""
    await conn.execute(TRAP.format(what="delete from system.jobs_behind").encode())
    with pytest.raises(ReadOnlySqlTransaction):
        await answer(database, "SHOW JOBS")
    cursor = await conn.execute("select count(*) from system.jobs_behind")
    assert await cursor.fetchone() == (len(ROWS),)
    async with database.connection() as same:  # and the connection is as it was
        assert await (await same.execute("show transaction_read_only")).fetchone() == ("off",)
        assert await (await same.execute("show statement_timeout")).fetchone() == ("30s",)


@pytest.mark.usefixtures("rows")
async def test_a_question_that_takes_too_long_is_ended(database: Database, conn: Connection) -> None:
    """Y-36: it does not hold the server up."""
    await conn.execute(TRAP.format(what="perform pg_sleep(60)").encode())
    with pytest.raises(InvalidInput, match=r"took longer than 0\.1 seconds"):
        await look.rows(database, asked("SHOW JOBS"), longest=0.1)


async def test_a_list_as_long_as_a_statement_may_be_is_answered(database: Database) -> None:
    """Y-36: no number of values is too large for the server."""
    many = ",".join(["1"] * 9_900)
    assert await answer(database, f"SELECT id FROM system.jobs WHERE fence IN ({many})") == []
    deep = "(" * 49 + "fence = 1" + ")" * 49
    wide = " OR ".join([f"NOT {deep}"] * 100)
    assert await answer(database, f"SELECT id FROM system.jobs WHERE {wide}") == []
