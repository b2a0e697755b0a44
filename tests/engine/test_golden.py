"""The SQL that a ledger becomes is committed, so that a reviewer reads what PostgreSQL will run.

After a change that is meant: `HOLDFAST_GOLDEN=write pytest tests/engine/test_golden.py`, and read the diff.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.schedules.ledger import CAPTURE_SESSIONS, NOTIFICATIONS
from holdfast.apps.system.ledger import SYSTEM_JOBS
from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store
from ledgers import ERRANDS, JOB, PARCELS, TASKS

GOLDEN = Path(__file__).parents[1] / "golden"
SOURCE = Path(holdfast.__file__).parent


def statements(ledger: Ledger) -> Iterator[tuple[str, bytes | None]]:
    """Every statement of a ledger by name; those with many shapes by the usual ones."""
    sql, rule = Store(ledger).sql, ledger.idempotency
    made = (ledger.key.column,) if ledger.key.make else ()
    usual = (*made, *(name for name in (ledger.kind,) if name))
    usual += (ledger.tenant.name,) if ledger.tenant else ()
    named = rule is not None and rule.column == ledger.key.column  # by every caller
    usual += (ledger.key.column,) if named else ()
    keyed = (*usual, rule.column) if rule and not named else usual
    spread = ledger.payload if isinstance(ledger.payload, tuple) else ()
    if ledger.payload:
        yield "enqueue, with a payload", sql.enqueue((*usual, "+payload"), spread)
    if ledger.due:
        yield "enqueue, with a key and a delay", sql.enqueue((*keyed, "+delay"), ())
        yield "enqueue, with a time", sql.enqueue((*usual, "+run_at"), ())
    else:
        yield "enqueue, with a key" if rule else "enqueue", sql.enqueue(keyed, ())
    if rule and rule.repeat != "touch":
        yield "enqueue: what stood in the way", sql.existing()
    if ledger.journal is None and not named:
        yield "copy: the clock", sql.moment
        yield "copy", sql.copy((*usual, ledger.state, ledger.times.created))
    yield "claim", sql.claim
    if ledger.kind_indexed:
        yield "claim of some kinds", sql.claim_of_kinds
    for verb, statement in sql.moves.items():
        yield f"{verb}, by the worker", statement
    for verb, statement in sql.orders.items():
        yield f"{verb}, by a person", statement
    for verb, statement in sql.own_orders.items():
        yield f"{verb}, by a person of one tenant", statement
    yield "what stands in the way of a requeue", sql.twin
    yield "progress", sql.progress
    yield "heartbeat", sql.still_held
    if ledger.owner:
        yield "held by workers that are gone", sql.held_by
        yield "orphans", sql.orphans
    yield "leases run out", sql.expired if ledger.lease else None
    yield "get", sql.row(("id",))
    yield "timeline", sql.events
    yield "verify, a page of rows with their events", sql.verify(("after_key",)) if ledger.journal else None
    yield "find, by state and kind, after a page", sql.rows(("states", "kind", "cursor"))
    yield "keys, for an order by a filter", sql.keys(("states", "owner", "after_key"))
    yield "count, since a time", sql.counts(("created_after",))
    yield "stats", sql.stats(())
    yield "depth: the size of the table", sql.size
    yield "depth, of one state", sql.depth(("state",))
    yield "head", sql.head
    yield "due kinds", sql.due_kinds
    yield "ahead", sql.ahead
    yield "touched", sql.touched
    yield "held since", sql.held_since
    yield "marks", sql.marks
    yield "held, by worker", sql.held
    yield "changes", sql.changes(()) if ledger.journal else None


def golden(ledger: Ledger) -> str:
    parts = [f"-- The SQL of the ledger {ledger.name}. Made by tests/engine/test_golden.py; do not edit.\n"]
    for name, statement in statements(ledger):
        if statement is not None:
            parts.append(f"-- {name}\n{statement.decode().strip()};\n")
    return "\n".join(parts)


LEDGERS = (TASKS, JOB, SYNC_JOBS, PARCELS, ERRANDS, CAPTURE_SESSIONS, NOTIFICATIONS, SYSTEM_JOBS)


@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda ledger: ledger.name)
def test_the_compiled_sql_is_the_committed_one(ledger: Ledger) -> None:
    file = GOLDEN / f"{ledger.name}.sql"
    if os.environ.get("HOLDFAST_GOLDEN") == "write":
        file.write_text(golden(ledger))
    how = f"the SQL of {ledger.name} has changed; if it should: HOLDFAST_GOLDEN=write pytest {__file__}"
    assert file.read_text() == golden(ledger), how


# -- where SQL may be ------------------------------------------------------------------------------------

STATEMENT = re.compile(
    r"^\s*(with\s+\w+\s+as\b|select\s[\s\S]*\sfrom\s|insert\s+into\s|update\s[\s\S]*\sset\s|delete\s+from\s"
    r"|copy\s[\s\S]*\s(from|to)\s|(create|alter|drop|comment\s+on|truncate|grant|revoke)\s+\w+\s"
    r"|(listen|unlisten|notify)\s|set\s+(local\s+)?\w+\s*(=|to)\s|select\s+\w+\(|do\s+\$)",
    re.IGNORECASE,
)
PROSE = re.compile(r"\s*[A-Z][a-z]")  # a sentence may begin with "Listen to" or "Revoke a"
# The rooms of SQL, and what makes the server and its schema before there is a ledger to speak of.
ROOMS = re.compile(r"(^|/)(\w+_)?(sql|queries|tables)\.py$|^db/migrations/|^db/(migrate|listen|cluster)\.py$")


# In a room of SQL every mention counts; elsewhere the schema as a name, or before a table's.
# Two things are meant: the old table that a migration replaces, and everybody as a role.
MEANT = re.compile(r"'public'|\bpublic\.jobs\b|from public'|to public$")
MEANING = re.compile(r"/(000[267]|0010)_|/restore_queries\.py$")
PUBLIC = {True: re.compile(r"(?i)\bpublic\b"), False: re.compile(r'(?i)^"?public"?$|\bpublic"?\.')}


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """The string literals of a module that are no docstrings."""
    tree = ast.parse(file.read_text())
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def modules() -> list[str]:
    return sorted(file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py"))


def test_the_search_for_sql_finds_sql() -> None:
    for text in (
        "select 1 from t",
        "\n  with a as (select 1) select 2",
        "insert into t values (1)",
        "UPDATE t SET a = 1",
        "delete from t",
        "select pg_notify('a', '')",
        "create table t (a int)",
    ):
        assert STATEMENT.match(text), text
    for text in ("select a row", "update the row", "with care", "t.{} is null", "copy: use enqueue_many"):
        assert not STATEMENT.match(text), text


def test_sql_is_in_its_own_rooms_only() -> None:
    found = [
        f"{name}:{line}: {text.strip()[:60]}"
        for name in modules()
        if not ROOMS.search(name)
        for line, text in texts(SOURCE / name)
        if STATEMENT.match(text) and not PROSE.match(text)
    ]
    assert found == []


def test_no_sql_names_the_public_schema() -> None:
    """Apps may be installed in any schema, and a group of tenants may have one of its own."""
    found = [
        f"{name}:{line}: {text.strip()[:60]}"
        for name in modules()
        for line, text in texts(SOURCE / name)
        if PUBLIC[bool(ROOMS.search(name))].search(MEANT.sub("", text) if MEANING.search(name) else text)
    ]
    assert found == []
