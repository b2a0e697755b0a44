"""Does what a statement says, for an administrator: the door of the console.

A handler takes who asks, the text, and what the platform has for it; it answers with columns, rows and a
message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from holdfast.apps.system.console import look
from holdfast.apps.system.console.grammar import MOST_ROWS, parse
from holdfast.apps.system.console.question import query
from holdfast.apps.system.console.statements import (
    BackupSchema,
    BackupTables,
    CompactAll,
    CompactTable,
    FlushAll,
    FlushTable,
    KillJob,
    Name,
    Restore,
    Select,
    ShowJobs,
    Statement,
)
from holdfast.apps.system.legacy import MAX_LISTED, Record, legacy_records
from holdfast.apps.system.types import JobType, read_id
from holdfast.errors import HoldfastError, IdempotencyConflict, InvalidInput, NotAllowed

if TYPE_CHECKING:
    from holdfast.db.database import Database

ANSWERED = ("id", "table", "answer")
READS = (ShowJobs, Select)


# -- who asks, with what, and what is answered -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Who asks, and whether they may."""

    who: str
    administrator: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A table that can be compacted, and flushed if it is a ledger.

    `name` is its name with its schema; `declared` is what it is called in the declaration, for a ledger the
    ledger's name; `spelled` how the declaration names the table.
    """

    name: str
    declared: str
    spelled: str
    ledger: bool

    @property
    def names(self) -> tuple[str, ...]:
        """All that the parameters of a job may call it."""
        return tuple(dict.fromkeys((self.declared, self.spelled, self.name)))

    @property
    def schema(self) -> str:
        """The schema that it lies in."""
        return self.name.rpartition(".")[0]

    @property
    def table(self) -> str:
        """Its name alone."""
        return self.name.rpartition(".")[2]


class Receipt(Protocol):
    """What a created job is known by."""

    @property
    def id(self) -> Any: ...
    @property
    def status(self) -> str: ...


class Create(Protocol):
    """Makes a job, or raises: `IdempotencyConflict` while another one of its key is active."""

    async def __call__(
        self, kind: JobType, parameters: Mapping[str, Any], /, *, by: str, key: str | None = None
    ) -> Receipt: ...


class Cancel(Protocol):
    """Calls a job off, and answers with its status."""

    async def __call__(self, id: str, /, *, by: str) -> str: ...


Active = Callable[[JobType, Target], Awaitable[tuple[str, str] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What statements need of the platform.

    `targets` are the tables that are declared, `jobs` is the table of the jobs. `active` tells the id and the
    status of the job that is at work on a target, or waits for it.
    """

    database: Database
    create: Create
    cancel: Cancel
    active: Active
    targets: Sequence[Target]
    jobs: str = "system.jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a statement.

    `times` are the places of columns with milliseconds since 1970; `more`: not all rows are told.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    message: str
    times: tuple[int, ...] = ()
    more: bool = False


async def execute(session: Session, text: str, context: Context) -> Answer:
    """Does what a text says, and answers; raises typed errors, and then nothing was done.

    Who is no administrator learns nothing, not even whether the text could be read.
    """
    if not session.administrator:
        raise NotAllowed(message="the console is for administrators")
    return await perform(session, parse(text), context)


async def perform(session: Session, statement: Statement, context: Context) -> Answer:
    """Does what a statement says, for somebody who may."""
    if not session.administrator:
        raise NotAllowed(message="the console is for administrators")
    match statement:
        case ShowJobs() | Select():
            return await _read(statement, context)
        case KillJob():
            return await _kill(session, statement, context)
        case FlushTable() | CompactTable():
            return await _one(session, statement, context)
        case FlushAll() | CompactAll():
            return await _every(session, statement, context)
        case BackupSchema() | BackupTables() | Restore():
            return await _copy(session, statement, context)
        case _:
            assert_never(statement)


# -- questions and orders --------------------------------------------------------------------------------


async def _read(statement: ShowJobs | Select, context: Context) -> Answer:
    asked = query(statement, context.jobs, MOST_ROWS, await _legacy(statement, context))
    rows, more = await look.rows(context.database, asked)
    told = f"{len(rows):,} {'row' if len(rows) == 1 else 'rows'}{', and there are more' if more else ''}"
    return Answer(columns=asked.headings, rows=tuple(rows), message=told, times=asked.times, more=more)


async def _legacy(statement: ShowJobs | Select, context: Context) -> list[Record]:
    """The old records, for SHOW JOBS: a SELECT reads the table that it names."""
    if isinstance(statement, Select):
        return []
    async with context.database.connection() as conn:
        return await legacy_records(conn, MAX_LISTED, schema=context.jobs.partition(".")[0])


async def _kill(session: Session, statement: KillJob, context: Context) -> Answer:
    job = read_id(statement.id)
    status = await context.cancel(job, by=session.who)
    return Answer(columns=("id", "status"), rows=((job, status),), message=f"{job} is {status}")


async def _copy(
    session: Session, statement: BackupSchema | BackupTables | Restore, context: Context
) -> Answer:
    kind, parameters = _copying(statement, context)
    made = await context.create(kind, parameters, by=session.who)
    return Answer(
        columns=("id", "status"), rows=((made.id, made.status),), message=f"{made.id} is {made.status}"
    )


def _copying(
    statement: BackupSchema | BackupTables | Restore, context: Context
) -> tuple[JobType, dict[str, Any]]:
    match statement:
        case BackupSchema(schema=schema, location=location):
            return JobType.BACKUP, {"schema": schema, "backup_location": location}
        case BackupTables(names=names, location=location):
            schema, tables = _together(names, context)
            return JobType.BACKUP, {"schema": schema, "tables": tables, "backup_location": location}
        case Restore(location=location, schema=schema, overwrite=overwrite):
            parameters = {"backup_location": location, "target_schema": schema, "overwrite": overwrite}
            return JobType.RESTORE, parameters
        case _:
            assert_never(statement)


def _together(names: Sequence[Name], context: Context) -> tuple[str, list[str]]:
    """The one schema of some tables, and their names in it; a name alone is that of a table we know."""
    full = [name if name.schema is not None else _known(find(name, context.targets)) for name in names]
    schemas = sorted({str(name.schema) for name in full})
    if len(schemas) > 1:
        told = f"all tables of one backup lie in one schema, these lie in {', '.join(schemas)}"
        raise InvalidInput(field="table", message=told)
    return schemas[0], list(dict.fromkeys(name.table for name in full))


def _known(target: Target) -> Name:
    return Name(target.schema, target.table)


# -- flush and compact -----------------------------------------------------------------------------------


async def _one(session: Session, statement: FlushTable | CompactTable, context: Context) -> Answer:
    flush = isinstance(statement, FlushTable)
    eligible = [target for target in context.targets if not flush or target.ledger]
    target = find(statement.name, eligible)
    job, answer = await _start(session, JobType.FLUSH if flush else JobType.COMPACT, target, context)
    return Answer(columns=ANSWERED, rows=((job, target.name, answer),), message=answer)


async def _every(session: Session, statement: FlushAll | CompactAll, context: Context) -> Answer:
    """A job for every ledger: one that is refused keeps no other from its job, and is told in its row."""
    schema = statement.schema if isinstance(statement, FlushAll) else None
    kind = JobType.FLUSH if isinstance(statement, FlushAll) else JobType.COMPACT
    rows: list[tuple[str | None, str, str]] = []
    refusals: list[HoldfastError] = []
    for target in _within(schema, context.targets):
        try:
            job, answer = await _start(session, kind, target, context)
        except HoldfastError as error:
            refusals.append(error)
            job, answer = None, f"refused: {error}"
        rows.append((job, target.name, answer))
    if refusals and len(refusals) == len(rows):
        raise refusals[0]
    counted = Counter(answer.partition(":")[0] for _, _, answer in rows)
    told = ", ".join(f"{count:,} {word}" for word, count in counted.items())
    return Answer(columns=ANSWERED, rows=tuple(rows), message=told or "there is no ledger")


def _within(schema: str | None, targets: Sequence[Target]) -> list[Target]:
    ledgers = [target for target in targets if target.ledger]
    if schema is None:
        return ledgers
    if within := [target for target in ledgers if target.schema == schema]:
        return within
    schemas = ", ".join(sorted({target.schema for target in ledgers}))
    raise InvalidInput(field="schema", message=f"no ledger lies in {schema!r}; they lie in {schemas}")


async def _start(session: Session, kind: JobType, target: Target, context: Context) -> tuple[str, str]:
    """The id of the target's job, and what became of the wish: it was made, or there is one already.

    The look spares a second job beside one that somebody made another way; of two that look at once, the key
    lets one pass.
    """
    if (busy := await context.active(kind, target)) is not None:
        return busy[0], _skipped(busy[1])
    parameters = {"ledger" if target.ledger else "table": target.declared}
    key = f"{kind.short_prefix}:{target.name}"
    try:
        made = await context.create(kind, parameters, by=session.who, key=key)
    except IdempotencyConflict as conflict:
        other, _, status = str(conflict.fields["detail"]).rpartition(", ")
        if other != kind:  # somebody has given this key to other work
            raise
        return str(conflict.fields["id"]), _skipped(status)
    return str(made.id), made.status


def _skipped(status: str) -> str:
    return f"skipped: already {status}"


def find(name: Name, targets: Sequence[Target]) -> Target:
    """The declared table of a name: its full name, or alone that of its ledger or of the table."""
    if name.schema is not None:
        found = [target for target in targets if target.name == str(name)]
    else:
        found = [target for target in targets if target.declared == name.table]
        found = found or [target for target in targets if target.table == name.table]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(sorted(target.name for target in found or targets)) or "none"
    if found:
        raise InvalidInput(field="table", message=f"{str(name)!r} may be {listed}: say which")
    raise InvalidInput(
        field="table", message=f"{str(name)!r} is not declared for this; declared are {listed}"
    )
