"""Many rows at once: a file of lines, all or none, and how far it is."""

from __future__ import annotations

import json
from pathlib import Path

from cli.kit import Query, Run, Show

LINES = "".join(f'{{"to": "{n}"}}\n' for n in range(1, 2346))


def test_every_line_of_a_file_is_a_row(holdfast: Run, query: Query, folder: Path) -> None:
    (folder / "mails.jsonl").write_text(f"{LINES}\n  \n")
    done = holdfast("enqueue", "tasks", "mail", "--from", "mails.jsonl", "--priority", "3")
    assert (done.code, done.out, done.err) == (0, "2,345 added\n", "")
    assert query("select count(*), count(distinct payload->>'to'), min(priority) from tasks") == [
        (2345, 2345, 3)
    ]
    told = holdfast("enqueue", "tasks", "mail", "--from", "-", "--json", feed="1\n2\n").data
    assert told == {"ledger": "tasks", "lines": 2, "created": 2}


def test_with_a_key_a_second_run_adds_what_is_new(holdfast: Run, query: Query) -> None:
    again = ("enqueue", "tasks", "mail", "--from", "-", "--key", "import-7")
    assert holdfast(*again, feed="1\n2\n").out == "2 added\n"
    assert holdfast(*again, feed="1\n2\n3\n").out == "1 added; 2 were there already\n"
    assert query("select idempotency_key, payload from tasks order by 1") == [
        (f"import-7:{n}", n) for n in (1, 2, 3)
    ]


def test_one_wrong_line_stops_all_of_them(holdfast: Run, query: Query, folder: Path) -> None:
    (folder / "numbers.jsonl").write_text("1\n\n" * 1500 + '"x"\n')
    done = holdfast("enqueue", "tasks", "double", "--from", "numbers.jsonl", "--app", "shop:app")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("holdfast: line 3001: payload: Expected `int`, got `str`")
    done = holdfast("enqueue", "tasks", "mail", "--from", "-", "--json", feed='1\n{"a": \n')
    assert json.loads(done.err)["message"].startswith("line 2: is not JSON")
    done = holdfast("enqueue", "tasks", "mail", "--from", "-", "--limit", "-1", feed="1\n2\n")
    assert done.err == "holdfast: line 1: --limit: must be 0 or more, not -1\n"
    done = holdfast("enqueue", "tasks", "mail", "--from", "nowhere.jsonl")
    assert (done.code, done.err) == (1, "holdfast: nowhere.jsonl: No such file or directory\n")
    assert query("select count(*) from tasks") == [(0,)]


def test_a_terminal_gets_a_bar_for_what_takes_long(terminal: Show, query: Query, folder: Path) -> None:
    (folder / "mails.jsonl").write_text(LINES)
    shown = terminal("enqueue", "tasks", "mail", "--from", "mails.jsonl")
    assert shown.end() == 0
    assert "2345/2345" in shown.text
    assert shown.text.rstrip().endswith("2,345 added")
    shown = terminal("cancel", "tasks", "--kind", "mail")
    shown.until("cancel 2,345 rows of tasks? [y/N]:")
    shown.type(b"y\r")
    assert shown.end() == 0
    assert "2345/2345" in shown.text
    assert shown.text.rstrip().endswith("2,345 cancelled")
    assert query("select distinct status::text from tasks") == [("failed",)]


def test_a_ledger_is_spoken_of_in_its_own_words(holdfast: Run, query: Query) -> None:
    query("insert into job (org_id, type) values (gen_random_uuid(), 'x'), (gen_random_uuid(), 'x')")
    ((row,),) = query("select id::text from job limit 1")
    assert holdfast("cancel", "job", row).out == "1 canceled\n"
    assert holdfast("cancel", "job", "--kind", "x", "--dry-run").out == "1 would be canceled\n"
