"""`holdfast sql`: statements of the console from the shell, and the console itself (Y-35 to Y-37)."""

from __future__ import annotations

import doctest
import getpass
import json
import re
import signal
import stat
from pathlib import Path

import pytest

from cli.kit import Query, Run, Show
from conftest import Eventually
from holdfast.cli import sql

ME = f"cli:{getpass.getuser()}"
NOON = 1738324800000  # 2025-01-31T12:00:00Z
ADD = """
insert into system.jobs (id, job_type, status, message, created_at, finished_at)
values (%s, 'flush', %s, %s, %s, %s)
"""
UP, LEFT = b"\x1b[A", b"\x1b[D"


def test_the_examples_in_the_code_are_true() -> None:
    assert doctest.testmod(sql).failed == 0


# -- one statement ---------------------------------------------------------------------------------------


def test_a_question_is_a_table_with_iso_times_or_json_with_milliseconds(holdfast: Run, query: Query) -> None:
    """Y-4, Y-35: people see ISO 8601, programs what is stored."""
    query(ADD, "FL-aaaaaaa1", "completed", "0 rows", NOON, NOON + 1000)
    done = holdfast("sql", "show jobs where status = 'Completed'")
    assert (done.code, done.err) == (0, "")
    heading, row = done.out.splitlines()
    assert heading.split()[:3] == ["ID", "JOB", "TYPE"]
    assert row.split() == [
        *("FL-aaaaaaa1", "flush", "completed", "0", "2025-01-31T12:00:00Z", "2025-01-31T12:00:01Z"),
        *("0", "rows"),
    ]
    told = holdfast("sql", "SELECT id, result, created_at FROM system.jobs;", "--json").data
    assert told == {
        "columns": ["id", "result", "created_at"],
        "rows": [["FL-aaaaaaa1", "0 rows", NOON]],
        "message": "1 row",
        "more": False,
    }


def test_a_statement_may_come_from_standard_input(holdfast: Run) -> None:
    """Y-35: for scripts, with several lines."""
    assert holdfast("sql", feed="SELECT count(*)\nFROM system.jobs;\n").out.split() == ["COUNT", "0"]


def test_more_rows_than_are_shown_are_told_to_a_pipe_as_well(holdfast: Run, query: Query) -> None:
    """Y-35: nobody takes the newest hundred for all of them."""
    for number in range(101):
        query(ADD, f"FL-aaaaa{number:03}", "failed", None, NOON + number, NOON)
    done = holdfast("sql", "SHOW JOBS")
    assert len(done.out.splitlines()) == 101
    assert done.err == "100 rows, and there are more\n"
    assert holdfast("sql", "SHOW JOBS LIMIT 5").err == ""


def test_orders_are_done_by_whoever_sits_at_the_shell_and_are_in_the_audit(
    holdfast: Run, query: Query, folder: Path
) -> None:
    """Y-15, Y-37: who asked is in the log line, and a busy table is a success."""
    made = holdfast("sql", "STORAGE FLUSH TABLE tasks", "--json").data
    ((job, table, told),) = made["rows"]
    assert (table, told) == ("public.tasks", "queued")
    again = holdfast("sql", "STORAGE FLUSH TABLE tasks", "--by", "ana")
    assert again.code == 0
    assert f"{job}  public.tasks  skipped: already queued" in again.out
    killed = holdfast("sql", f"kill job '{job}'", "--by", "ana")
    assert killed.out.split() == ["ID", "STATUS", job, "cancelled"]
    assert query("select id, status, message from system.jobs") == [
        (job, "cancelled", "cancelled by cli:ana"),
    ]
    log = (folder / "home" / "jobs.log").read_text()
    assert f"queued by {ME}" in log
    noted = query("select who, action, row_id, detail ->> 'statement' from holdfast_audit order by id")
    assert [*noted] == [
        (ME, "sql", job, "FlushTable"),
        ("cli:ana", "sql", job, "FlushTable"),
        ("cli:ana", "sql", job, "KillJob"),
    ]


def test_what_is_refused_is_shown_with_a_caret_and_needs_no_database(holdfast: Run) -> None:
    """Y-36: exit code 2; with --json one object."""
    done = holdfast("sql", "SHOW JOBS\nWHERE state = 'failed'", bare=True)
    assert done.code == 2
    assert done.out == ""
    lines = done.err.splitlines()
    assert lines[:2] == ["WHERE state = 'failed'", "      ^"]
    assert lines[2].startswith("holdfast: there is no column 'state'; allowed here: id | job_type | status")
    told = json.loads(holdfast("sql", "DROP TABLE job", "--json", bare=True).err)
    assert (told["code"], told["position"], told["line"], told["column"]) == ("SYNTAX_REFUSED", 1, 1, 1)
    assert "SHOW JOBS [WHERE …] [LIMIT n]" in told["allowed"]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("", 2, "the statement is empty"),
        ("KILL JOB x", 2, "must be like FL-4fK2mZ0q"),
        ("KILL JOB FL-aaaaaaaa", 4, "FL-aaaaaaaa"),
        ("STORAGE FLUSH TABLE nothing", 2, "declared are"),
        ("SHOW JOBS WHERE id = 'a\0b'", 2, "U+0000"),
    ],
)
def test_every_mistake_has_its_exit_code(holdfast: Run, text: str, code: int, words: str) -> None:
    """Y-36: as everywhere in the command line; also what comes from standard input."""
    done = holdfast("sql", feed=text)
    assert done.code == code
    assert words in done.err


# -- the console -----------------------------------------------------------------------------------------


def test_a_console_answers_statements_of_several_lines_until_it_is_left(terminal: Show, query: Query) -> None:
    """Y-35, Y-36: a semicolon ends a statement, unless it is in quotes."""
    query(ADD, "FL-aaaaaaa1", "failed", "one; two", NOON, NOON)
    shown = terminal("sql")
    shown.until("holdfast> ")
    shown.type(b"select id from system.jobs\r")
    shown.until("...> ")
    shown.type(b"where message = 'one; \x7f two'\r")
    shown.until("...> ", after=shown.text.rindex("...> ") + 1)
    shown.type(b";\r")
    shown.until("(1 row)")
    assert "FL-aaaaaaa1" in shown.text
    shown.type(b"SELECT count(*) FROM system.jobs WHERE message = 'a;\r")
    shown.until("'> ")
    shown.type(b"b';\r")
    shown.until("COUNT")
    shown.type(b"\\q\r")
    assert shown.end() == 0


@pytest.mark.parametrize("keys", [b"\\q\r", b"quit\r", b"EXIT;\r", b"\x04"])
def test_each_way_out_leads_out(terminal: Show, keys: bytes) -> None:
    """Y-35: as in other consoles; the terminal is as it was."""
    shown = terminal("sql")
    before = shown.settings()
    shown.until("holdfast> ")
    shown.type(keys)
    assert shown.end() == 0
    assert shown.settings() == before


def test_the_help_lists_the_statements(terminal: Show) -> None:
    """Y-35: all of them."""
    shown = terminal("sql")
    shown.until("holdfast> ")
    shown.type(b"\\?\r")
    shown.until("several lines")
    for form in ("KILL JOB <id>", "STORAGE COMPACT ALL", "RESTORE FROM '<location>' INTO SCHEMA <schema>"):
        assert form in shown.text


def test_errors_show_the_caret_and_the_console_goes_on(terminal: Show) -> None:
    """Y-36: never a traceback."""
    shown = terminal("sql")
    shown.until("holdfast> ")
    shown.type(b"SHOW JOBS WHERE state = 'x';\r")
    shown.until("allowed here:")
    lines = [line.rstrip() for line in shown.text.splitlines()]
    place = lines.index("SHOW JOBS WHERE state = 'x';")
    assert lines[place + 1] == " " * 16 + "^"
    shown.type(b"KILL JOB x;\r")
    shown.until("must be like FL-4fK2mZ0q")
    shown.type(b"STORAGE FLUSH TABLE tasks;\r")
    shown.until("(queued)")
    assert "Traceback" not in shown.text
    shown.until("holdfast> ", after=shown.text.rindex("(queued)"))
    shown.type(b"\x04")
    assert shown.end() == 0


def test_ctrl_c_forgets_what_was_typed(terminal: Show, query: Query) -> None:
    """Y-35: half a statement is not done, and the console stays."""
    shown = terminal("sql")
    shown.until("holdfast> ")
    shown.type(b"STORAGE FLUSH TABLE tasks\r")
    shown.until("...> ")
    shown.type(b"half a line\x03")
    shown.until("holdfast> ", after=shown.text.rindex("...> "))
    shown.type(b";\r")
    shown.until("found ';'")
    shown.type(b"SHOW JOBS;\r")
    shown.until("(0 rows)")
    assert query("select * from system.jobs") == []


def test_ctrl_c_stops_waiting_for_an_answer(terminal: Show, query: Query, eventually: Eventually) -> None:
    """Y-36: a question that takes long is let go, and the console stays."""
    query("alter table system.jobs rename to behind")
    query("create view system.jobs as select b.* from system.behind b, pg_sleep(9)")
    shown = terminal("sql")
    shown.until("holdfast> ")
    shown.type(b"SHOW JOBS;\r")
    asleep = "select 1 from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"
    eventually(lambda: query(asleep))
    shown.type(b"\x03")
    shown.until("not waited for")
    shown.type(b"\\q\r")
    assert shown.end() == 0


def test_the_history_is_kept_for_the_next_time_and_for_nobody_else(terminal: Show, folder: Path) -> None:
    """Y-35: each statement once and in one line; also one that was refused, to be mended."""
    first = terminal("sql")
    first.until("holdfast> ")
    for _ in range(2):
        first.type(b"SELECT count(*)\rFROM system.jobs;\r")
        first.until("COUNT", after=first.text.rfind("COUNT") + 1)
    first.type(b"SHOW JOBZ;\r")
    first.until("found 'JOBZ'")
    first.process.kill()  # not even this loses it
    first.end()
    kept = folder / "home" / "sql_history"
    assert kept.read_text().splitlines() == ["SELECT count(*) FROM system.jobs;", "SHOW JOBZ;"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    second = terminal("sql")
    second.until("holdfast> ")
    second.type(UP + LEFT + b"\x7fS" + b"\r")
    second.until("(0 rows)")
    second.until("holdfast> ", after=second.text.rindex("(0 rows)"))
    second.type(b"\x04")
    assert second.end() == 0
    assert kept.read_text().splitlines()[-1] == "SHOW JOBS;"


def test_a_row_that_is_too_wide_is_shown_by_itself(terminal: Show, query: Query) -> None:
    """Y-35: names and values below one another, and nothing that moves the cursor."""
    query(ADD, "FL-aaaaaaa1", "failed", "bad \x1b[2J text", NOON, NOON)
    shown = terminal("sql")
    shown.until("holdfast> ")
    shown.type(b"SELECT * FROM system.jobs;\r")
    shown.until("(1 row)")
    assert "— 1 —" in shown.text
    assert re.search(r"message +bad \\x1b\[2J text", shown.text)
    assert re.search(r"created_at +2025-01-31T12:00:00Z", shown.text)
    assert "\x1b[2J" not in shown.raw


def test_the_tabulator_completes_words(terminal: Show) -> None:
    """Y-35: keywords, columns and tables."""
    shown = terminal("sql")
    shown.until("holdfast> ")
    shown.type(b"sho\t JOBS WHERE exc\t IS NULL;\r")
    shown.until("(0 rows)")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_console_and_leaves_the_terminal_as_it_was(
    terminal: Show, number: signal.Signals
) -> None:
    """Y-35: as every command."""
    shown = terminal("sql")
    before = shown.settings()
    shown.until("holdfast> ")
    shown.process.send_signal(number)
    assert shown.end() == -number
    assert shown.settings() == before
    assert "Traceback" not in shown.text
