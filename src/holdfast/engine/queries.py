"""What `doctor` asks the catalogue, what the answers look like, and the SQL that it proposes.

The questions read; none of them writes a row or waits for one. The proposals are text with holes, for a
person to read and to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import AsyncConnection
from psycopg.rows import class_row, scalar_row

Connection = AsyncConnection[Any]

# -- questions -------------------------------------------------------------------------------------------

# Said first, inside a transaction that is rolled back: write nothing, and plan as if the table were large.
QUIET: tuple[LiteralString, ...] = (
    "set local transaction_read_only = on",
    "set local enable_seqscan = off",
    "set local enable_bitmapscan = off",
    "set local enable_sort = off",
    "set local enable_incremental_sort = off",
)

TABLE: LiteralString = """\
select c.oid, n.nspname as schema, c.relname as name, c.relkind::text as kind,
    pg_table_is_visible(c.oid) as visible,
    has_schema_privilege(n.oid, 'usage') as reachable, c.relrowsecurity as secured
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where c.relname = %(name)s and c.relkind in ('r', 'p', 'v', 'm', 'f')
    and (%(schema)s::text is null or n.nspname = %(schema)s)
order by visible desc, n.nspname
"""

# What this login may not do: to a column or, where none is named, to the whole table. What is granted on the
# table counts for each of its columns.
PRIVILEGES: LiteralString = """\
select w.privilege, array_remove(array_agg(w.name order by a.attnum), null) as columns
from unnest(%(privileges)s::text[], %(names)s::text[]) as w (privilege, name)
left join pg_attribute as a
    on a.attrelid = %(table)s::oid and a.attname = w.name and not a.attisdropped
where case
    when w.name is null then not has_table_privilege(%(table)s::oid, w.privilege)
    else not has_column_privilege(%(table)s::oid, a.attnum, w.privilege)
end
group by w.privilege
order by min(array_position(%(privileges)s::text[], w.privilege))
"""

COLUMNS: LiteralString = """\
select a.attname as name, format_type(b.oid, null) as type,
    case when b.oid in ('varchar'::regtype, 'bpchar'::regtype)
        then nullif(greatest(a.atttypmod, t.typtypmod), -1) - 4 end as length,
    a.attnotnull as not_null, pg_get_expr(d.adbin, d.adrelid) as "default",
    a.attidentity::text as identity, a.attgenerated::text <> '' as generated,
    array(select e.enumlabel::text from pg_enum as e where e.enumtypid = b.oid) as labels
from pg_attribute as a
join pg_type as t on t.oid = a.atttypid
join pg_type as b on b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = %(table)s and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""

CHECKS: LiteralString = """\
select c.conname as name, pg_get_expr(c.conbin, c.conrelid) as expression,
    array(
        select a.attname::text from pg_attribute as a
        where a.attrelid = c.conrelid and a.attnum = any(c.conkey) order by a.attnum
    ) as columns
from pg_constraint as c
where c.conrelid = %(table)s and c.contype = 'c'
order by c.conname
"""

# In `options` 1 stands for DESC and 2 for NULLS FIRST.
INDEXES: LiteralString = """\
select c.relname as name, i.indisvalid as valid,
    pg_get_expr(i.indpred, i.indrelid) as predicate, i.indoption::int2[] as options,
    i.indisunique and i.indpred is null and i.indexprs is null as "unique",
    array(
        select coalesce(a.attname::text, '')
        from unnest(i.indkey[0:i.indnkeyatts - 1]) with ordinality as k (attnum, place)
        left join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
        order by k.place
    ) as columns
from pg_index as i join pg_class as c on c.oid = i.indexrelid
where i.indrelid = %(table)s
order by c.relname
"""

NAMES: LiteralString = """\
select relname from pg_class
where relnamespace = (select oid from pg_namespace where nspname = %(schema)s)
"""

TYPE_NAMES: LiteralString = """\
select format_type(to_regtype(word)::oid, null) from unnest(%(words)s::text[]) with ordinality as w (word, n)
order by n
"""

# What a connection gets that does not ask for a zone: settings of the role and the database come first.
ZONE: LiteralString = """\
select split_part(entry, '=', 2)
from pg_db_role_setting as s, unnest(s.setconfig) as entry
where s.setdatabase in (0, (select oid from pg_database where datname = current_database()))
    and s.setrole in (0, (select oid from pg_roles where rolname = session_user))
    and lower(split_part(entry, '=', 1)) = 'timezone'
order by s.setrole = 0, s.setdatabase = 0
limit 1
"""
ZONE_OF_FILE: LiteralString = """\
select setting from pg_file_settings where lower(name) = 'timezone' and error is null
order by seqno desc limit 1
"""
ZONE_OF_SESSION: LiteralString = "select reset_val from pg_settings where name = 'TimeZone'"

ROLE: LiteralString = "select current_user"

# SET ROLE asks who began the session. Since PostgreSQL 16 a member's right to it is granted apart.
TENANT_ROLE: LiteralString = """\
select session_user::text as login, r.oid is not null as present,
    coalesce(r.rolsuper, false) as superuser, coalesce(r.rolbypassrls, false) as bypasses,
    coalesce(pg_has_role(session_user, r.oid, %(right)s), false) as reachable
from (select) as one left join pg_roles as r on r.rolname = %(role)s
"""

# Which of these words would the constraint refuse? Only the state is bound, so it must need nothing else.
REFUSED: LiteralString = """\
select t."+word"
from (select word as "+word", word::{type} as {state} from unnest(array[{words}]) as word) as t
where ({expression}) is false
"""
# The same with the time of the end, which a row has as long as it has ended.
REFUSED_WITH_TIME: LiteralString = """\
select t."+word"
from (
    select word as "+word", word::{type} as {state},
        (case when word in ({ends}) then {now} end)::{time} as {finished}
    from unnest(array[{words}]) as word
) as t
where ({expression}) is false
"""

# What the table puts into a column, and what the declaration says that it does.
DEFAULTS: LiteralString = "select unnest(array[({live})::{type}::text, ({declared})::{type}::text])"

SAMPLE: LiteralString = """\
select distinct word from (select {state}::text as word from {table} limit {size}) as rows
where word not in ({words})
order by word
"""

# A search as its index sees it. Without a lock: a plan that locks repeats every condition as a filter.
PLAN: LiteralString = """\
explain (format json)
select t.ctid from {table} as t where {conditions}{order} limit 100
"""

# Planned to return nothing where the planner can prove that the condition implies the other one: the proof by
# which it decides whether a partial index may be used.
CONSULT_CONSTRAINTS: LiteralString = "set local constraint_exclusion = on"
COUNTEREXAMPLE: LiteralString = """\
explain (format json) select from {table} as t where ({condition}) and ({other}) is not true
"""

# Planned only: fails when no unique index fits the rule.
ARBITER: LiteralString = """\
explain insert into {table} ({columns}) values ({nulls}) on conflict ({columns}){predicate} do nothing
"""

# -- proposals -------------------------------------------------------------------------------------------

# A statement that accepts more than before, or converts what is stored, begins with one of these comments.
LOOSENS: LiteralString = "-- loosens a constraint: "
RETYPES: LiteralString = "-- changes a type: "

GRANT_SCHEMA: LiteralString = "grant usage on schema {schema} to {role}"
GRANT: LiteralString = "grant {privileges} on {table} to {role}"
CREATE_ROLE: LiteralString = "create role {role} nologin"
CONFINE_ROLE: LiteralString = "alter role {role} nosuperuser nobypassrls"
GRANT_ROLE: LiteralString = "grant {role} to {login}"
GRANT_SET_ROLE: LiteralString = "grant {role} to {login} with set true"
SECURE: LiteralString = "alter table {table} enable row level security"
CREATE_TYPE: LiteralString = "create type {type} as enum ({words})"
ADD_LABEL: LiteralString = RETYPES + "it gets one more value\nalter type {type} add value {word}"
CREATE_TABLE: LiteralString = "create table {table} (\n    {columns}\n)"
ADD_COLUMN: LiteralString = "alter table {table} add column {column} {definition}"
_CONVERTED: LiteralString = RETYPES + "stored values are converted, and the table is locked meanwhile\n"
SET_TYPE: LiteralString = _CONVERTED + "alter table {table} alter column {column} type {type} using {using}"
# The old default may have no cast to the new type.
SET_TYPE_AND_DEFAULT: LiteralString = (
    _CONVERTED
    + """\
alter table {table} alter column {column} drop default,
    alter column {column} type {type} using {using},
    alter column {column} set default {default}"""
)
DROP_NOT_NULL: LiteralString = (
    LOOSENS + "the column accepts NULL\nalter table {table} alter column {column} drop not null"
)
FILL: LiteralString = "update {table} set {column} = {default} where {column} is null"
SET_NOT_NULL: LiteralString = (
    "alter table {table} alter column {column} set default {default}, alter column {column} set not null"
)
SET_DEFAULT: LiteralString = "alter table {table} alter column {column} set default {default}"
ADD_IDENTITY: LiteralString = (
    "alter table {table} alter column {column} set not null,"
    " alter column {column} add generated by default as identity"
)
CONTINUE_IDENTITY: LiteralString = """\
select setval(pg_get_serial_sequence({name}, {word}), coalesce(max({column}), 0) + 1, false)
from {table}"""
LET_KEYS_IN: LiteralString = (
    LOOSENS + "an INSERT may give the key\nalter table {table} alter column {column} set generated by default"
)
WIDEN_CHECK: LiteralString = (
    LOOSENS + "it accepts further states\n"
    "alter table {table} drop constraint {name},"
    " add constraint {name} check (({expression}) or {state} in ({words})) not valid"
)
VALIDATE: LiteralString = "alter table {table} validate constraint {name}"
DROP_INDEX: LiteralString = "drop index{concurrently} {index}"
CREATE_INDEX: LiteralString = "create {unique}index{concurrently} {name} on {table} ({columns}){predicate}"


# -- answers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FoundTable:
    """A table of the right name, wherever it is."""

    oid: int
    schema: str
    name: str
    kind: str
    visible: bool
    reachable: bool
    secured: bool


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A privilege that this login lacks: on these columns, or without any on the whole table."""

    privilege: str
    columns: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class LiveRole:
    """The role that confines a tenant, as `login` may use it; an absent one is nothing else either."""

    login: str
    present: bool
    superuser: bool
    bypasses: bool
    reachable: bool


@dataclass(frozen=True, kw_only=True)
class LiveColumn:
    """A column as it is; a domain shows the type beneath it."""

    name: str
    type: str
    length: int | None
    not_null: bool
    default: str | None
    identity: str
    generated: bool
    labels: Sequence[str]

    @property
    def fills_itself(self) -> bool:
        return self.default is not None or bool(self.identity) or self.generated


@dataclass(frozen=True, kw_only=True)
class LiveCheck:
    """A CHECK constraint and the columns it looks at."""

    name: str
    expression: str
    columns: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class LiveIndex:
    """An index; `unique` only where it holds for every row. An expression among the columns is empty."""

    name: str
    valid: bool
    unique: bool
    columns: Sequence[str]
    options: Sequence[int]
    predicate: str | None


@dataclass(frozen=True, kw_only=True)
class ShippedColumn:
    """A column as our migrations make it."""

    type: str
    length: int | None
    not_null: bool
    fills_itself: bool


@dataclass(frozen=True, kw_only=True)
class ShippedTable:
    """A table as our migrations make it."""

    columns: Mapping[str, ShippedColumn]
    checks: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class LiveTable:
    """All that the catalogue knows about a table that matters here; an absent table has no columns."""

    found: FoundTable | None
    columns: Mapping[str, LiveColumn]
    checks: Sequence[LiveCheck]
    indexes: Sequence[LiveIndex]
    taken: frozenset[str]
    refused: Sequence[Refused] = ()


async def look(conn: Connection, table: str, wanted: Mapping[str, Sequence[str]]) -> LiveTable:
    """The table as the catalogue shows it to this role, which wants privileges on columns or on all."""
    schema, _, name = table.rpartition(".")
    async with conn.cursor(row_factory=class_row(FoundTable)) as cursor:
        await cursor.execute(TABLE, {"schema": schema or None, "name": name})
        tables = await cursor.fetchall()
    found = next((one for one in tables if schema or one.visible), None)
    if found is None:
        return LiveTable(found=next(iter(tables), None), columns={}, checks=(), indexes=(), taken=frozenset())
    oid = {"table": found.oid}
    pairs = [(privilege, column) for privilege, columns in wanted.items() for column in columns or (None,)]
    asked = {"privileges": [one for one, _ in pairs], "names": [column for _, column in pairs]}
    async with conn.cursor(row_factory=class_row(Refused)) as cursor:
        refused = await (await cursor.execute(PRIVILEGES, asked | oid)).fetchall()
    async with conn.cursor(row_factory=class_row(LiveColumn)) as cursor:
        columns = {one.name: one for one in await (await cursor.execute(COLUMNS, oid)).fetchall()}
    async with conn.cursor(row_factory=class_row(LiveCheck)) as cursor:
        checks = await (await cursor.execute(CHECKS, oid)).fetchall()
    async with conn.cursor(row_factory=class_row(LiveIndex)) as cursor:
        indexes = await (await cursor.execute(INDEXES, oid)).fetchall()
    taken = frozenset(await words(conn, NAMES, {"schema": found.schema}))
    return LiveTable(
        found=found, columns=columns, checks=checks, indexes=indexes, taken=taken, refused=refused
    )


async def tenant_role(conn: Connection, role: str) -> LiveRole:
    """What the role may do that confines a tenant, and whether this login may take it on."""
    right = "SET" if conn.info.server_version >= 160_000 else "MEMBER"
    async with conn.cursor(row_factory=class_row(LiveRole)) as cursor:
        (found,) = await (await cursor.execute(TENANT_ROLE, {"role": role, "right": right})).fetchall()
    return found


async def words(conn: Connection, query: Any, params: Mapping[str, Any] | None = None) -> list[Any]:
    """The first column of every row."""
    async with conn.cursor(row_factory=scalar_row) as cursor:
        return await (await cursor.execute(query, params)).fetchall()
