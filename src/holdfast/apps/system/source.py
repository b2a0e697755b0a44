"""What leaves a ledger for the archive: its finished rows, and the rows of other tables that go with them.

The catalogue's foreign keys decide. A table whose rows the database removes together with ours (ON DELETE
CASCADE), like the events of a job, goes along into a file of its own: nothing is lost by a cascade. A row to
which anything else refers stays: a capture session is needed as long as a version or a picture names it. So
does one below which a cascade would reach further down than one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import AsyncConnection
from psycopg.errors import InsufficientPrivilege
from psycopg.sql import SQL, Composable, Composed, Identifier

from holdfast.apps.system.executors import flush_queries as queries
from holdfast.apps.system.manifest import ColumnType
from holdfast.apps.system.parquet import About, kind_of
from holdfast.apps.system.registry import Declared, Definition, Reference, SchemaRegistry
from holdfast.engine.ledger import Ledger
from holdfast.engine.words import safe

Connection = AsyncConnection[Any]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One table of which rows go: the ledger's own, or one whose rows go with them.

    `key` is the ledger's key, or the column that names it; `about` is what a file of these rows is.
    """

    declared: Declared
    definition: Definition
    about: About
    type: str

    @property
    def table(self) -> Identifier:
        """The table, found without a search path."""
        return name(self.definition.schema, self.definition.name)

    @property
    def columns(self) -> tuple[ColumnType, ...]:
        """What a file has of it."""
        return self.about.columns

    def reading(self, columns: tuple[ColumnType, ...] | None = None) -> Composed:
        """The values of columns in the form that a file has them."""
        chosen = self.columns if columns is None else columns
        return SQL(", ").join(
            SQL(queries.VALUE.get(kind_of(one.type), queries.PLAIN)).format(name(one.name)) for one in chosen
        )

    def render(self, template: LiteralString, **holes: Composable) -> Composed:
        """A statement about this table and its key."""
        return SQL(template).format(
            table=self.table, key=name(self.about.key), type=SQL(safe(self.type)), **holes
        )


@dataclass(frozen=True, kw_only=True)
class Source:
    """A ledger as it is now: its own rows, what goes with them, and what keeps rows where they are."""

    declared: Declared
    ledger: Ledger
    rows: Part
    along: tuple[Part, ...]
    keeps: tuple[Composed, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """All tables of which rows go, those first that refer to the others."""
        return (*self.along, self.rows)

    @property
    def schema(self) -> str:
        """Where the ledger's own table is."""
        return self.rows.definition.schema

    @property
    def states(self) -> tuple[str, ...]:
        """Finished, and not waiting for a person."""
        return tuple(state for state in self.declared.ends if state not in self.declared.dead)

    def pick(self) -> Composed:
        """The statement that finds and locks the rows of a batch."""
        return self._found(queries.PICK)

    def still_picked(self) -> Composed:
        """The statement that tells which rows of a batch may go, now that they are locked."""
        return self._found(queries.STILL_PICKED)

    def count(self) -> Composed:
        """The statement that tells how many such rows there are, counted up to a number."""
        return self._found(queries.COUNT)

    def _found(self, template: LiteralString) -> Composed:
        ledger, fits = self.ledger, SQL(queries.FITS)
        late = [one for one in self.rows.columns if kind_of(one.type) in ("timestamp", "timestamptz")]
        conditions: list[Composable] = [fits.format(column=name(one.name)) for one in late]
        if self.declared.where:
            conditions.append(SQL(self.declared.where))
        times = SQL(", ").join(SQL("t.{}").format(name(one)) for one in self.rows.about.times)
        return self.rows.render(
            template,
            state=name(ledger.state),
            state_type=SQL(safe(ledger.state_type)),
            times=times,
            time_type=SQL(queries.TIME_TYPE[ledger.times.kind]),
            conditions=SQL(" and ").join([SQL("true"), *conditions, *self.keeps]),
        )


async def owner_of(conn: Connection, schema: str) -> str | None:
    """The database and schema whose rows these are, by names that no other has; None where nobody may ask."""
    try:
        ((database,),) = await (await conn.execute(queries.WHOSE)).fetchall()
    except InsufficientPrivilege:
        return None
    return f"{database} schema {schema}"


async def source_of(conn: Connection, registry: SchemaRegistry, declared: Declared) -> Source:
    """What may leave a ledger, by what the catalogue says now; `NotFound` if its table is not there."""
    ledger = declared.ledger
    assert ledger is not None
    definition = await registry.fresh(conn, declared)
    times = (ledger.times.finished, ledger.times.updated, ledger.times.created)
    about = About(
        kind="rows",
        table=declared.table,
        key=ledger.key.column,
        columns=_columns(definition),
        times=tuple(one for one in times if one is not None),
        time_kind=ledger.times.kind,
    )
    rows = Part(declared=declared, definition=definition, about=about, type=ledger.key.type)
    along: list[Part] = []
    keeps: list[Composed] = []
    references = await registry.references(conn, definition)
    for one in references:
        part = await _goes_along(conn, registry, rows, one, references)
        if part is not None:
            along.append(part)
        else:
            keeps.append(_keeping(one.schema, one.table, one.columns, one.keys))
    for columns, keys in await (
        await conn.execute(queries.OWN_REFERENCES, {"oid": definition.oid})
    ).fetchall():
        keeps.append(_keeping(definition.schema, definition.name, columns, keys))
    return Source(declared=declared, ledger=ledger, rows=rows, along=tuple(along), keeps=tuple(keeps))


async def _goes_along(
    conn: Connection, registry: SchemaRegistry, rows: Part, one: Reference, others: list[Reference]
) -> Part | None:
    """The table that refers to ours, if its rows go with ours and nothing else goes with them."""
    single = sum((other.schema, other.table) == (one.schema, one.table) for other in others) == 1
    if not (single and one.cascades and one.keys == (rows.about.key,) and len(one.columns) == 1):
        return None
    bare = one.schema == rows.definition.schema and "." not in rows.declared.table
    called = one.table if bare else f"{one.schema}.{one.table}"
    declared = Declared(
        name=f"{one.schema}.{one.table}", table=f"{one.schema}.{one.table}", kind="kept", key=()
    )
    definition = await registry.fresh(conn, declared)
    if await registry.references(conn, definition) or await _refers_to_itself(conn, definition):
        return None
    journal = rows.declared.ledger.journal if rows.declared.ledger else None
    times = (journal.at,) if journal and journal.table in (called, one.table) else ()
    about = About(kind="events", table=called, key=one.columns[0], columns=_columns(definition), times=times)
    return Part(declared=declared, definition=definition, about=about, type=rows.type)


async def _refers_to_itself(conn: Connection, definition: Definition) -> bool:
    found = await conn.execute(queries.OWN_REFERENCES, {"oid": definition.oid})
    return await found.fetchone() is not None


def _keeping(schema: str, table: str, columns: Any, keys: Any) -> Composed:
    """That no row of a table refers to the row t."""
    return SQL(queries.NOT_REFERRED).format(
        table=name(schema, table),
        columns=SQL(", ").join(SQL("r.{}").format(name(one)) for one in columns),
        keys=SQL(", ").join(SQL("t.{}").format(name(one)) for one in keys),
    )


def _columns(definition: Definition) -> tuple[ColumnType, ...]:
    return tuple(ColumnType(one.name, one.type) for one in definition.columns)


def name(*parts: str) -> Identifier:
    """A name as SQL that has parameters, where a % would begin one."""
    return Identifier(*(part.replace("%", "%%") for part in parts))
