"""`holdfast archive`: archived rows are listed, and asked in SQL (Y-25, Y-26)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

from cli.kit import Run
from holdfast.db.settings import Settings
from system.archiving import FINISHED, place


@pytest.fixture
def flushed(folder: Path, settings: Settings, database_url: str) -> None:
    """Ten jobs that were flushed into the archive of the home."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(FINISHED["job"].encode(), {"count": 10})

    async def flush() -> None:
        async with place(settings, (folder / "home" / "archive").as_uri()) as here:
            await here.flush()

    asyncio.run(flush())


def test_archived_tables_are_listed(holdfast: Run, flushed: None) -> None:
    """Y-25: with their files, rows and times."""
    shown = holdfast("archive", "list")
    assert (shown.code, shown.err) == (0, "")
    assert [line.split()[:3] for line in shown.out.splitlines()] == [
        ["TABLE", "FILES", "ROWS"],
        ["job", "1", "10"],
        ["job_event", "1", "20"],
    ]
    told = holdfast("archive", "list", "--json").data
    assert [(one["table"], one["rows"]) for one in told] == [("job", 10), ("job_event", 20)]


def test_an_archive_is_asked_in_sql(holdfast: Run, flushed: None) -> None:
    """Y-26."""
    sql = "select status, count(*) as n from job group by 1 order by 1"
    shown = holdfast("archive", "query", sql)
    assert shown.code == 0
    assert [line.split() for line in shown.out.splitlines()] == [
        ["status", "n"],
        ["canceled", "3"],
        ["succeeded", "7"],
    ]
    told = holdfast("archive", "query", sql, "--json").data
    assert told == {"columns": ["status", "n"], "rows": [["canceled", 3], ["succeeded", 7]], "cut": False}
    cut = holdfast("archive", "query", "select id from job", "--limit", "3")
    assert len(cut.out.splitlines()) == 4
    assert "there is more" in cut.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("selec 1",), "sql:"),
        (("drop view job",), "must be one SELECT"),
        (("select * from read_text('/etc/hostname')",), "sql:"),
        (("select 1", "--timeout", "0"), "--timeout"),
        (("select 1", "--timeout", "x"), "--timeout"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(
    holdfast: Run, flushed: None, arguments: tuple[str, ...], said: str
) -> None:
    """No trace, and exit code 2."""
    done = holdfast("archive", "query", *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_an_archive_that_is_not_there_is_empty(holdfast: Run) -> None:
    """Y-25: and no database is needed."""
    assert holdfast("archive", "list", "--json", bare=True).data == []


def test_an_archive_that_cannot_be_read_is_one_sentence(holdfast: Run, flushed: None, folder: Path) -> None:
    """Y-26: no trace, and exit code 1; a bucket may be away, or a file."""
    for path in (folder / "home" / "archive" / "job").glob("*.parquet"):
        path.unlink()
    done = holdfast("archive", "query", "select * from job")
    assert (done.code, done.out) == (1, "")
    assert "the archive does not answer: " in done.err
    assert len(done.err.splitlines()) == 1


def test_a_time_that_is_longer_than_any_clock_is_no_mistake(holdfast: Run, flushed: None) -> None:
    """Y-26."""
    assert holdfast("archive", "query", "select 1", "--timeout", "999999999999d").code == 0
