"""Archives are asked in SQL, harmlessly (Y-25, Y-26, Y-31)."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.apps.system import archive_query, parquet
from holdfast.apps.system.archive_query import archived, query
from holdfast.apps.system.places import open_archive
from holdfast.db.pool import Connection
from holdfast.db.settings import Settings
from holdfast.errors import Conflict, InvalidInput, MissingExtra
from system.archiving import Place, finish, place
from system.buckets import ACCESS, SECRET, Server, serving


@pytest.fixture
async def here(settings: Settings, tmp_path: Path, conn: Connection) -> AsyncIterator[Place]:
    """An archive with three tables, the first in several files."""
    async with place(settings, (tmp_path / "archive").as_uri()) as here:
        await finish(conn, "job", 10)
        await finish(conn, "schedule_notification", 3)
        await here.flush(batch_rows=3)
        await here.flush("schedule_notification")
        yield here


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with serving() as server:
        yield server


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select count(*), count(distinct id) from job", ((10, 10),)),
        ("select status, count(*) from job group by 1 order by 1", (("canceled", 3), ("succeeded", 7))),
        ("select count(*) from job j join job_event e on e.job_id = j.id", ((20,),)),
        ("select sum((payload->>'n')::int) from job;", ((55,),)),
        ("with a as (select 1 as x) select x + 1 from a", ((2,),)),
        ("select max(notification_id) from schedule_ingest.schedule_notification", (("n3",),)),
        ("select count(*) from schedule_ingest.notification_attempt", ((3,),)),
        ("select timestamptz '2020-01-01 12:00:00+00' as t", ((datetime(2020, 1, 1, 12, tzinfo=UTC),),)),
        ("select timestamptz 'infinity', date '-infinity'", (("infinity", "-infinity"),)),
        ("select started_at < now() from job limit 1", ((True,),)),
    ],
)
async def test_every_archived_table_is_asked_by_its_own_name(here: Place, sql: str, rows: object) -> None:
    """Y-26: with the values that it had."""
    assert (await query(here.archive, sql)).rows == rows


async def test_the_tables_are_listed_with_their_counts(here: Place) -> None:
    """Y-25."""
    found = {one.table: one for one in await archived(here.archive)}
    assert {table: (one.files, one.rows) for table, one in found.items()} == {
        "job": (4, 10),
        "job_event": (4, 20),
        "schedule_ingest.schedule_notification": (1, 3),
        "schedule_ingest.notification_attempt": (1, 3),
    }
    assert found["job"].first < found["job"].last
    assert all(one.bytes > 0 for one in found.values())


async def test_a_bucket_is_asked_like_a_folder(settings: Settings, conn: Connection, server: Server) -> None:
    """Y-26."""
    async with place(settings, server.url) as here:
        await finish(conn, "tasks", 5)
        await here.flush("tasks", batch_rows=2)
        assert (await query(here.archive, "select count(*) from tasks")).rows == ((5,),)


async def test_an_answer_is_cut_after_so_many_rows(here: Place) -> None:
    """Nobody gets a million rows by mistake."""
    answer = await query(here.archive, "select n from range(5000) as r (n)", rows=1500)
    assert (answer.cut, len(answer.rows), answer.columns) == (True, 1500, ("n",))
    assert not (await query(here.archive, "select n from range(3) as r (n)", rows=3)).cut


@pytest.mark.parametrize(
    "sql",
    [
        "",
        ";",
        "-- nothing",
        "select 1; select 2",
        "insert into job select * from job",
        "create table x (a int)",
        "drop view job",
        "attach '/tmp/x.db'",
        "install httpfs",
        "load httpfs",
        "copy job to '/tmp/holdfast-stolen.csv'",
        "copy (select 1) to '/tmp/holdfast-stolen.csv'",
        "export database '/tmp/holdfast-stolen'",
        "set enable_external_access = true",
        "pragma database_list",
        "call pragma_version()",
        "explain analyze select 1",
        "show tables",
        " SHOW ALL TABLES",
        "begin",
    ],
)
async def test_nothing_but_one_select_is_run(here: Place, sql: str) -> None:
    """No console text can write or change a setting."""
    with pytest.raises(InvalidInput, match="one SELECT"):
        await query(here.archive, sql)
    assert not [name for name in os.listdir("/tmp") if name.startswith("holdfast-stolen")]  # noqa: PTH208


@pytest.mark.parametrize(
    "sql",
    [
        "select * from '/etc/passwd'",
        "select * from read_text('/etc/hostname')",
        "select * from read_csv('/etc/passwd')",
        "select * from read_blob('/etc/*')",
        "select * from glob('/*')",
        "select * from read_parquet('https://127.0.0.1/x')",
        "select * from sniff_csv('/etc/passwd')",
        "select * from query('select * from read_text(''/etc/hostname'')')",
        "select getenv('HOME')",
        "select * from conn",
        "select * from tables",
        "select * from nothing",
        "select nothing from job",
        "select 'x'::int",
        "selec 1",
        "select (",
    ],
)
async def test_bad_sql_is_refused_with_duckdbs_words_and_without_a_path(
    here: Place, sql: str, tmp_path: Path
) -> None:
    """No file and no network can be reached; no trace, and nothing of where we are."""
    with pytest.raises(InvalidInput) as caught:
        await query(here.archive, sql)
    said = str(caught.value)
    assert "\n" not in said
    assert str(tmp_path) not in said
    assert caught.value.__suppress_context__ or caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("sql", "name"), [("select * from nothing", "nothing"), ("select 1 from x.tasks", "x.tasks")]
)
async def test_a_table_of_which_nothing_is_archived_is_told_with_those_that_are(
    here: Place, sql: str, name: str
) -> None:
    """Y-26: in our words, whatever DuckDB would have proposed."""
    with pytest.raises(InvalidInput, match=rf"^sql: nothing of {name} is archived yet; there are .*\bjob\b"):
        await query(here.archive, sql)


async def test_a_time_that_is_longer_than_any_clock_is_the_longest(here: Place) -> None:
    """Y-26."""
    assert (await query(here.archive, "select 1", seconds=1e17)).rows == ((1,),)


async def test_an_empty_archive_says_that_it_is(tmp_path: Path) -> None:
    """Y-26."""
    with pytest.raises(InvalidInput, match="nothing of job is archived yet; the archive is empty"):
        await query(open_archive(tmp_path.as_uri()), "select * from job")


async def test_a_statement_tells_nothing_of_where_the_files_are(here: Place, tmp_path: Path) -> None:
    """Views and settings name no path."""
    for sql in (
        "select * from duckdb_views()",
        "select * from duckdb_settings()",
        "select * from duckdb_tables()",
    ):
        assert str(tmp_path) not in repr((await query(here.archive, sql)).rows)


async def test_what_takes_too_long_is_ended(here: Place) -> None:
    """Time is bound."""
    endless = "select count(*) from range(1000000000) a, range(1000000000) b where a.range * b.range = 7"
    with pytest.raises(InvalidInput, match=r"longer than 0\.3 s"):
        await query(here.archive, endless, seconds=0.3)


async def test_what_takes_too_much_memory_is_ended(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bound."""
    monkeypatch.setattr(archive_query, "MEMORY", "20MB")
    with pytest.raises(InvalidInput, match=r"(?i)memory"):
        await query(here.archive, "select list(n::varchar || repeat('x', 100)) from range(3000000) as r (n)")


async def test_a_file_that_is_broken_is_told_without_its_path(here: Place, tmp_path: Path) -> None:
    """Y-25."""
    for path in (tmp_path / "archive" / "job").glob("*.parquet"):
        path.write_bytes(b"broken")
    with pytest.raises((Conflict, InvalidInput)) as caught:
        await query(here.archive, "select count(payload) from job")
    assert str(tmp_path) not in str(caught.value)


async def test_many_files_are_read_by_their_paths(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Y-31: as not every file can be held open."""
    monkeypatch.setattr(archive_query, "PINNED", 1)
    assert (await query(here.archive, "select count(*) from job")).rows == ((10,),)


async def test_an_archive_that_is_not_there_has_no_tables(tmp_path: Path) -> None:
    """Y-25."""
    empty = open_archive((tmp_path / "none").as_uri())
    assert await archived(empty) == []
    assert (await query(empty, "select 1")).rows == ((1,),)


async def test_without_the_library_the_extra_is_named(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Y-26."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtra, match=r"holdfast\[system\]"):
        await query(here.archive, "select 1")
    assert parquet.pyarrow()
