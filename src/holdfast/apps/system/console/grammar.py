"""The grammar of the console: one text, one statement. Pure; answers with a statement or `SyntaxRefused`.

A descent without a way back: the first token that fits nowhere is the one that the refusal is about. There is
no rule for anything that writes a row, so nobody has to be kept from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

from holdfast.apps.system.console.conditions import condition
from holdfast.apps.system.console.reader import Reader, found
from holdfast.apps.system.console.statements import (
    COLUMNS,
    FORMS,
    BackupSchema,
    BackupTables,
    Column,
    CompactAll,
    CompactTable,
    FlushAll,
    FlushTable,
    KillJob,
    Name,
    Order,
    Restore,
    Select,
    ShowJobs,
    Statement,
)

T = TypeVar("T")
MOST_ROWS = 10_000  # of one answer
MOST_COLUMNS = 100  # of one answer, or its order: the server has an end, too
JOBS = Name("system", "jobs")

# What people try in a console that speaks SQL, and what is told them beside the forms.
WRITES = frozenset(
    (
        *("INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "COPY", "CREATE", "ALTER", "DROP", "COMMENT"),
        *("GRANT", "REVOKE", "VACUUM", "REINDEX", "ANALYZE", "CALL", "DO", "LOCK", "SET", "RESET", "NOTIFY"),
        *("BEGIN", "START", "COMMIT", "ROLLBACK"),
    )
)


def parse(text: str) -> Statement:
    """The statement that a text is; or `SyntaxRefused`.

    >>> parse("kill job 'FL-4fK2mZ0q';")
    KillJob(id='FL-4fK2mZ0q')
    """
    reader = Reader(text)
    verb = reader.token
    if verb.kind == "end":
        reader.refuse("the statement is empty", allowed=forms())
    rule = _VERBS.get(verb.keyword)
    if rule is None:
        _unknown(reader)
    reader.take()
    statement = rule(reader)
    _end(reader, statement)
    return statement


def forms(*beginnings: str) -> tuple[str, ...]:
    """The forms of all statements, or of those that begin so."""
    whole = tuple(" ".join(clauses) for clauses in FORMS)
    return tuple(form for form in whole if form.startswith(beginnings)) if beginnings else whole


def _unknown(reader: Reader) -> NoReturn:
    if reader.token.keyword in WRITES:
        reader.refuse(f"found {found(reader.token)}: nothing is written here by hand", allowed=forms())
    reader.refuse(allowed=forms())


def _end(reader: Reader, statement: Statement) -> None:
    """Nothing may follow but one semicolon."""
    semicolon = reader.took(";")
    if reader.token.kind == "end":
        return
    if semicolon:
        told = f"one statement at a time: found {found(reader.token)} after the semicolon"
        reader.refuse(told, allowed=("the end of the statement",))
    reader.refuse(allowed=(*_goes_on(statement), ";"))


def _goes_on(statement: Statement) -> tuple[str, ...]:
    """What could have followed what was read."""
    match statement:
        case ShowJobs(where=where, limit=None):
            return ("LIMIT n",) if where else ("WHERE …", "LIMIT n")
        case Select(columns=columns, where=where, order=order, limit=None):
            sorting = ("ORDER BY …",) if columns is not None and not order else ()
            return (*(() if where or order else ("WHERE …",)), *sorting, "LIMIT n")
        case FlushAll(schema=None):
            return ("IN <ns>",)
        case Restore(overwrite=False):
            return ("OVERWRITE",)
        case _:
            return ()


# -- orders ----------------------------------------------------------------------------------------------


def _kill(reader: Reader) -> Statement:
    reader.need("JOB", allowed=forms("KILL", "CANCEL"))
    return KillJob(reader.id(forms("KILL", "CANCEL")))


def _storage(reader: Reader) -> Statement:
    what = reader.need("FLUSH", "COMPACT", allowed=forms("STORAGE"))
    of_what = forms(f"STORAGE {what}")
    if reader.need("TABLE", "ALL", allowed=of_what) == "TABLE":
        name = reader.table(forms(f"STORAGE {what} TABLE"))
        return FlushTable(name) if what == "FLUSH" else CompactTable(name)
    if what == "COMPACT":
        return CompactAll()
    return FlushAll(reader.name(("the name of a schema",)) if reader.took("IN") else None)


def _backup(reader: Reader) -> Statement:
    what = reader.need("SCHEMA", "TABLE", allowed=forms("BACKUP"))
    of_what = forms(f"BACKUP {what}")
    if what == "SCHEMA":
        schema = reader.name(of_what)
        reader.need("TO", allowed=of_what)
        return BackupSchema(schema, reader.location(of_what))
    names = [reader.table(of_what)]
    while reader.took(","):
        names.append(reader.table(of_what))
    reader.need("TO", allowed=(",", *of_what))
    return BackupTables(tuple(dict.fromkeys(names)), reader.location(of_what))


def _restore(reader: Reader) -> Statement:
    whole = forms("RESTORE")
    reader.need("FROM", allowed=whole)
    location = reader.location(whole)
    reader.need("INTO", allowed=whole)
    reader.need("SCHEMA", allowed=whole)
    schema = reader.name(whole)
    return Restore(location, schema, reader.took("OVERWRITE"))


# -- questions -------------------------------------------------------------------------------------------


def _show(reader: Reader) -> Statement:
    reader.need("JOBS", allowed=forms("SHOW"))
    where = condition(reader) if reader.took("WHERE") else None
    return ShowJobs(where, _limit(reader))


def _select(reader: Reader) -> Statement:
    columns = _columns(reader)
    reader.need("FROM", allowed=(",", "FROM system.jobs") if columns else ("FROM system.jobs",))
    first = reader.token
    if reader.table(("system.jobs",)) != JOBS:
        reader.refuse("only system.jobs can be read here", first, ("system.jobs",))
    where = condition(reader) if reader.took("WHERE") else None
    order = _order(reader) if columns is not None and reader.took("ORDER") else ()
    return Select(columns, where, order, _limit(reader))


def _columns(reader: Reader) -> tuple[Column, ...] | None:
    """The columns that are asked for; None for their number."""
    if reader.took("*"):
        return tuple(Column(name, name) for name in COLUMNS)
    if reader.at("COUNT"):
        reader.take()
        for sign in "(*)":
            reader.need(sign, allowed=("count(*)",))
        return None
    return _listed(reader, _selected)


def _listed(reader: Reader, read: Callable[[Reader], T]) -> tuple[T, ...]:
    """Columns with commas between, and not too many."""
    listed = [read(reader)]
    while reader.took(","):
        if len(listed) == MOST_COLUMNS:
            reader.refuse(f"these are too many: at most {MOST_COLUMNS} columns stand here")
        listed.append(read(reader))
    return tuple(listed)


def _selected(reader: Reader) -> Column:
    if reader.token.kind not in ("word", "quoted"):
        reader.refuse(allowed=(*COLUMNS, "parameters ->> '<field>'", "*", "count(*)"))
    return reader.column()


def _order(reader: Reader) -> tuple[Order, ...]:
    reader.need("BY")
    return _listed(reader, _ordered)


def _ordered(reader: Reader) -> Order:
    column = reader.column()
    descending = reader.at("DESC")
    reader.took("ASC", "DESC")
    if not reader.took("NULLS"):
        return Order(column, descending)
    return Order(column, descending, reader.need("FIRST", "LAST") == "FIRST")


def _limit(reader: Reader) -> int | None:
    if not reader.took("LIMIT"):
        return None
    allowed = (f"a whole number from 0 to {MOST_ROWS}",)
    token = reader.token
    if token.kind != "number" or not token.text.isdigit() or len(token.text) > 20:
        reader.refuse(allowed=allowed)
    if int(token.text) > MOST_ROWS:
        reader.refuse(f"at most {MOST_ROWS:,} rows are answered: found {found(token)}", allowed=allowed)
    reader.take()
    return int(token.text)


_VERBS: Mapping[str, Callable[[Reader], Statement]] = {
    "KILL": _kill,
    "CANCEL": _kill,
    "STORAGE": _storage,
    "BACKUP": _backup,
    "RESTORE": _restore,
    "SHOW": _show,
    "SELECT": _select,
}
