"""What the console understands: one frozen value a statement, and the forms in which they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeAlias

Kind = Literal["text", "type", "status", "number", "time", "object"]
Comparison = Literal["=", "<>", "<", "<=", ">", ">="]
Pattern = Literal["LIKE", "ILIKE"]
Value: TypeAlias = str | int | Decimal

# The columns of system.jobs in their order, and how a value of each is read.
COLUMNS: Mapping[str, Kind] = {
    "id": "text",
    "job_type": "type",
    "status": "status",
    "message": "text",
    "exception_trace": "text",
    "parameters": "object",
    "idempotency_key": "text",
    "retry_count": "number",
    "max_retries": "number",
    "created_at": "time",
    "updated_at": "time",
    "started_at": "time",
    "finished_at": "time",
    "node_id": "text",
    "queue": "text",
    "priority": "number",
    "fence": "number",
    "run_at": "time",
}
LEGACY: Mapping[str, str] = {"result": "message", "error_message": "message"}

# What can be asked for, clause by clause.
FORMS: tuple[tuple[str, ...], ...] = (
    ("KILL JOB <id>",),
    ("CANCEL JOB <id>",),
    ("STORAGE FLUSH TABLE <ns.table>",),
    ("STORAGE FLUSH ALL", "[IN <ns>]"),
    ("STORAGE COMPACT TABLE <ns.table>",),
    ("STORAGE COMPACT ALL",),
    ("BACKUP SCHEMA <schema>", "TO '<location>'"),
    ("BACKUP TABLE <ns.table>, …", "TO '<location>'"),
    ("RESTORE", "FROM '<location>'", "INTO SCHEMA <schema>", "[OVERWRITE]"),
    ("SHOW JOBS", "[WHERE …]", "[LIMIT n]"),
    ("SELECT <columns, * or count(*)>", "FROM system.jobs", "[WHERE …]", "[ORDER BY …]", "[LIMIT n]"),
)


# -- names -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Name:
    """A table, with its schema where one was given.

    >>> str(Name("system", "jobs"))
    'system.jobs'
    """

    schema: str | None
    table: str

    def __str__(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column as it was asked for, and the one that is meant; of parameters perhaps one field, as text."""

    asked: str
    real: str
    field: str | None = None

    @property
    def kind(self) -> Kind:
        """How its values are read."""
        return "text" if self.field is not None else COLUMNS[self.real]

    @property
    def heading(self) -> str:
        """What it is called in an answer."""
        return self.asked if self.field is None else self.field


# -- conditions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compare:
    """`column = value` and the like."""

    column: Column
    sign: Comparison
    value: Value


@dataclass(frozen=True, slots=True)
class Among:
    """`column [NOT] IN (values)`."""

    column: Column
    values: tuple[Value, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Like:
    """`column [NOT] LIKE pattern`, or ILIKE."""

    column: Column
    pattern: str
    how: Pattern
    negated: bool


@dataclass(frozen=True, slots=True)
class Between:
    """`column [NOT] BETWEEN low AND high`."""

    column: Column
    low: Value
    high: Value
    negated: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    """`column IS [NOT] NULL`."""

    column: Column
    negated: bool


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT condition`."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class All:
    """Conditions joined by AND; two or more, side by side, so that a long row of them is not a deep one."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """Conditions joined by OR; two or more."""

    conditions: tuple[Condition, ...]


Condition: TypeAlias = Compare | Among | Like | Between | IsNull | Not | All | Either


@dataclass(frozen=True, slots=True)
class Order:
    """One part of ORDER BY; `nulls_first` None: as PostgreSQL has it."""

    column: Column
    descending: bool = False
    nulls_first: bool | None = None


# -- statements ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KillJob:
    """Ends a job, whatever it is doing."""

    id: str


@dataclass(frozen=True, slots=True)
class FlushTable:
    """Archives the finished rows of one ledger."""

    name: Name


@dataclass(frozen=True, slots=True)
class FlushAll:
    """Archives the finished rows of every ledger, or of those in one schema."""

    schema: str | None = None


@dataclass(frozen=True, slots=True)
class CompactTable:
    """Merges the files and mends the indexes of one table."""

    name: Name


@dataclass(frozen=True, slots=True)
class CompactAll:
    """Merges the files and mends the indexes of every ledger."""


@dataclass(frozen=True, slots=True)
class BackupSchema:
    """Backs a whole schema up."""

    schema: str
    location: str


@dataclass(frozen=True, slots=True)
class BackupTables:
    """Backs some tables of one schema up."""

    names: tuple[Name, ...]
    location: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Brings a backup back, into a schema."""

    location: str
    schema: str
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class ShowJobs:
    """The newest jobs, in the columns that people want to see."""

    where: Condition | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """Rows of system.jobs; `columns` None: how many there are."""

    columns: tuple[Column, ...] | None
    where: Condition | None = None
    order: tuple[Order, ...] = ()
    limit: int | None = None


Statement: TypeAlias = (
    KillJob
    | FlushTable
    | FlushAll
    | CompactTable
    | CompactAll
    | BackupSchema
    | BackupTables
    | Restore
    | ShowJobs
    | Select
)
