"""Brings a database to the schema that this version needs, by Alembic. Never prints, never sets up logging.

One command is one transaction: it takes an advisory lock before it reads the version, so processes that
start together wait for one another, also behind a transaction pooler. It sees exactly one schema, the one
given or the first of the connection's search_path. The version is in a table of our own, beside the
`alembic_version` that the user's own migrations may have.

`python -m holdfast.db.migrate FOLDER [FILE]` writes the compiled SQL, one file per migration, and the first
migration also to FILE.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, cast

import psycopg
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from alembic.util import CommandError
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, Index, MetaData, Table, UniqueConstraint, create_engine, text
from sqlalchemy.exc import DBAPIError, SAWarning
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateSchema
from sqlalchemy.sql.schema import RETAIN_SCHEMA

from holdfast.db.pool import explain
from holdfast.errors import DatabaseUnavailable, InvalidInput, MigrationError

VERSION_TABLE = "holdfast_version"
SYSTEM = "system"
log = logging.getLogger("holdfast.migrate")
CONNECT_TIMEOUT = 10  # seconds, unless the URL says otherwise

# A mark in the `info` of an index whose expression comes back in other words, as one with a collation does:
# whether it is there is all that can be compared.
UNREADABLE = "unreadable"

# A mark in the `info` of a table that another service may have created, with names of its own for the unique
# constraints: these are compared by their columns.
NAMED_BY_OWNER = "named_by_owner"

# Alembic's `op` and `context` are names of the whole process.
_ALEMBIC = threading.Lock()

_SETTLE = """
select set_config('TimeZone', 'UTC', true),
       set_config('search_path', quote_ident(coalesce(cast(:schema as text), current_schema())), true),
       set_config('holdfast.system_schema', :system, true)
"""

_LOCK = "select pg_advisory_xact_lock(hashtextextended('holdfast.migrate', 0))"

_SCHEMA_EXISTS = """
select true from pg_namespace where nspname = coalesce(cast(:schema as text), current_schema())
"""

_MARK_SCHEMA = """
do $$ begin
    execute 'comment on schema ' || quote_ident(current_schema()) || ' is ''made by Holdfast''';
end $$
"""

# A schema that we made goes with us, unless somebody else has moved in.
_LEAVE = """
do $$
declare
    here regnamespace := to_regnamespace(quote_ident(current_schema()));
begin
    drop table holdfast_version;
    if obj_description(here, 'pg_namespace') = 'made by Holdfast' then
        execute 'drop schema ' || here;
    end if;
exception when dependent_objects_still_exist then
    drop table holdfast_version;
end
$$
"""

# One statement, so that it is all or nothing wherever it runs, and does nothing when its turn has been.
_GUARDED = """\
-- Holdfast {revision}: {title}
-- Compiled from the migration of that number: change that one, then run `make sql`.
do $holdfast$
begin
perform pg_advisory_xact_lock(hashtextextended('holdfast.migrate', 0));
if to_regclass(quote_ident(current_schema()) || '.holdfast_version') is null then
    create table holdfast_version (
        version_num varchar(32) not null,
        constraint holdfast_version_pkc primary key (version_num)
    );
end if;
if (select max(version_num) from holdfast_version) is distinct from {parent} then
    return;
end if;

{statements}

delete from holdfast_version;
insert into holdfast_version (version_num) values ('{revision}');
end
$holdfast$;
"""


def upgrade(url: str, revision: str = "head", schema: str | None = None) -> None:
    """Bring the database up to `revision`, making `schema` if it is not there; nothing to do is no error."""
    with locked(url, schema) as connection:
        _run(connection, command.upgrade, revision)


@contextmanager
def locked(url: str, schema: str | None) -> Generator[Connection]:
    """Open a transaction that may migrate: under the lock, in the schema, which is made if it is missing."""
    with _transaction(url, schema) as connection:
        connection.execute(text(_LOCK))
        _enter_schema(connection, schema)
        yield connection


def downgrade(url: str, revision: str, schema: str | None = None) -> None:
    """Take the database back to `revision`; "base" removes all that upgrades made, with its data."""
    with _transaction(url, schema) as connection:
        connection.execute(text(_LOCK))
        if _revision(connection) is None:
            return
        _run(connection, command.downgrade, revision)
        if _revision(connection) is None:
            connection.execute(text(_LEAVE))


def current(url: str, schema: str | None = None) -> str | None:
    """The revision that the database is at; None when Holdfast was never installed there."""
    with _transaction(url, schema) as connection:
        return _revision(connection)


def head() -> str:
    """The revision that this version of Holdfast needs."""
    return _scripts()[-1].revision


def pending(url: str, schema: str | None = None) -> bool:
    """Whether an upgrade has something to do; a database newer than this version has nothing pending."""
    return bool(_pending(current(url, schema)))


def check(url: str, metadata: MetaData, schema: str | None = None) -> list[str]:
    """What is amiss, as sentences: revisions not applied, or else what differs from `metadata`.

    Tables that `metadata` does not know are the user's own and no difference. Alembic compares columns,
    types, defaults, unique constraints, foreign keys and the columns of indexes; it does not compare
    primary keys, checks, predicates and triggers.
    """
    with _transaction(url, schema) as connection:
        at = _revision(connection)
        if missing := _pending(at):
            return [
                f"revision {s.revision} ({s.doc}) is not applied: run `holdfast db upgrade`" for s in missing
            ]
        if at not in _known():
            return [f"the database is at revision {at}, which this version of Holdfast does not know"]
        return [_tell(change) for change in _differences(connection, within(metadata, schema))]


def system_schema(schema: str | None) -> str:
    """The schema of system jobs: where we have one by name it is called after that, else `system`.

    >>> system_schema(None), system_schema("cell_7")
    ('system', 'cell_7_system')
    """
    return f"{schema}_{SYSTEM}" if schema else SYSTEM


def within(metadata: MetaData, schema: str | None) -> MetaData:
    """The tables as they are called where we have a schema by name."""
    if schema is None:
        return metadata
    there = MetaData(naming_convention=metadata.naming_convention)
    for table in metadata.sorted_tables:
        called = system_schema(schema) if table.schema == SYSTEM else RETAIN_SCHEMA
        copy = table.to_metadata(there, schema=called)
        marks = {index.name: index.info for index in table.indexes}
        for index in copy.indexes:
            index.info.update(marks[index.name])
    return there


def sql(revision: str = "head") -> str:
    """Every migration up to `revision` as SQL that `psql -f` runs; a second run changes nothing.

    It works in the first schema of the session's search_path, like everything here.
    """
    if revision not in {"head", *_known()}:
        raise InvalidInput(field="revision", message=f"there is no revision {revision}, the last is {head()}")
    last = head() if revision == "head" else revision
    return "\n".join(_compile(script) for script in _scripts() if script.revision <= last)


def write(folder: Path) -> None:
    """Write the compiled SQL of every migration into `folder`, one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for script in _scripts():
        (folder / Path(script.path).with_suffix(".sql").name).write_text(_compile(script))


@contextmanager
def _transaction(url: str, schema: str | None) -> Generator[Connection]:
    """One transaction, in UTC, that sees `schema` and no other; errors come out as sentences."""
    opened = _connect(url)
    opened.add_notice_handler(_pass_on)  # what a migration could not do, and who can
    # READ COMMITTED, so that what is read after the wait for the lock is what the last holder left.
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: opened,
        poolclass=NullPool,
        isolation_level="READ COMMITTED",
        use_native_hstore=False,
    )
    try:
        with engine.begin() as connection:
            connection.execute(text(_SETTLE), {"schema": schema, "system": system_schema(schema)})
            yield connection
    except DBAPIError as error:
        if error.connection_invalidated:
            raise DatabaseUnavailable(message="the connection to PostgreSQL was lost: try again") from None
        raise MigrationError(reason=_first_line(error.orig)) from None
    finally:
        opened.close()


def _pass_on(notice: psycopg.errors.Diagnostic) -> None:
    if notice.severity_nonlocalized in ("NOTICE", "WARNING") and notice.message_primary:
        log.warning("%s", notice.message_primary)


def _connect(url: str) -> psycopg.Connection[Any]:
    try:
        given: dict[str, Any] = {
            "connect_timeout": CONNECT_TIMEOUT,
            **conninfo_to_dict(url),
            "client_encoding": "UTF8",
        }
        return psycopg.connect(prepare_threshold=None, **given)
    except psycopg.OperationalError as error:
        raise explain(error, url) from None
    except psycopg.ProgrammingError:
        # libpq's own words would repeat the URL, and with it the password.
        raise InvalidInput(
            field="url", message="not a URL like postgresql://user@host:5432/database"
        ) from None


def _first_line(error: BaseException | None) -> str:
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return primary or next(iter(str(error).splitlines()), "no reason given")


def _enter_schema(connection: Connection, schema: str | None) -> None:
    # Asks the catalogue: after the wait for the lock, current_schema() may still give the answer from before.
    if connection.scalar(text(_SCHEMA_EXISTS), {"schema": schema}):
        return
    if schema is None:
        raise MigrationError(reason="no schema of the connection's search_path exists: name a schema")
    connection.execute(CreateSchema(schema))
    connection.execute(text(_MARK_SCHEMA))


def _run(connection: Connection, verb: Callable[[Config, str], None], revision: str) -> None:
    at = _revision(connection)
    if at is not None and at not in _known():
        raise MigrationError(
            reason=f"the database is at revision {at}, which this version of Holdfast does not know"
        )
    config = _config()
    config.attributes["connection"] = connection
    try:
        with _ALEMBIC:
            verb(config, revision)
    except CommandError as error:
        raise MigrationError(reason=str(error)) from None


def _context(connection: Connection, **options: Any) -> MigrationContext:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, **options})


def _revision(connection: Connection) -> str | None:
    return _context(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


@cache
def _scripts() -> tuple[Script, ...]:
    """Every migration, the first one first."""
    return tuple(ScriptDirectory.from_config(_config()).walk_revisions())[::-1]


def _known() -> set[str]:
    return {script.revision for script in _scripts()}


def _pending(at: str | None) -> list[Script]:
    return [script for script in _scripts() if at is None or script.revision > at]


def _compile(script: Script) -> str:
    statements = StringIO()
    options = {"as_sql": True, "output_buffer": statements}
    context = MigrationContext.configure(
        dialect_name="postgresql", dialect_opts={"paramstyle": "named"}, opts=options
    )
    with _ALEMBIC, Operations.context(context):
        script.module.upgrade()
    parent = f"'{script.down_revision}'" if script.down_revision else "null"
    return _GUARDED.format(
        revision=script.revision, title=script.doc, parent=parent, statements=statements.getvalue().strip()
    )


def _differences(connection: Connection, metadata: MetaData) -> list[Any]:
    schemas = {table.schema for table in metadata.tables.values()}  # None is the one that we look into

    def ours(name: str | None, kind: str, within: Any) -> bool:
        if kind == "schema":
            return name in schemas
        return kind != "table" or within["schema_qualified_table_name"] in metadata.tables

    def compared(thing: Any, _: Any, __: str, ___: bool, found: Any) -> bool:
        return found is None or UNREADABLE not in thing.info

    context = _context(
        connection,
        compare_type=True,
        compare_server_default=True,
        include_schemas=len(schemas) > 1,
        include_name=ours,
        include_object=compared,
    )
    changes: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SAWarning)  # it stumbles over a constraint that is NOT VALID
        found = compare_metadata(context, metadata)
    for entry in found:
        # Several changes of one column come as a list.
        changes.extend(cast("list[Any]", entry) if isinstance(entry, list) else [entry])
    return _without_renamed([change for change in changes if _differs(change)], metadata)


def _without_renamed(changes: list[Any], metadata: MetaData) -> list[Any]:
    """Leave out unique constraints that the owner of a table created under another name, or as an index."""
    found = {key: change for change in changes if (key := _unique_key(change, "remove"))}
    renamed: list[Any] = []
    for change in changes:
        key = _unique_key(change, "add_constraint")
        if key in found and NAMED_BY_OWNER in metadata.tables[change[1].table.key].info:
            renamed += [change, found[key]]
    return [change for change in changes if change not in renamed]


def _unique_key(change: Any, kind: str) -> tuple[str, frozenset[str]] | None:
    """Return the table and the columns of a change of this kind, if it is about uniqueness of all rows."""
    match change:
        case (str(name), UniqueConstraint() as thing) if name.startswith(kind):
            return thing.table.key, frozenset(thing.columns.keys())
        case (str(name), Index(unique=True, table=Table() as table) as thing) if name.startswith(kind):
            columns = frozenset(thing.columns.keys())
            whole = not thing.dialect_options["postgresql"]["where"]
            return (table.key, columns) if whole and len(columns) == len(thing.expressions) else None
        case _:
            return None


def _differs(change: Any) -> bool:
    """Whether a change is one. Comments are anybody's to write. And Alembic compares what two defaults give:
    a clock gives something else each time.
    """
    match change:
        case ("modify_default", *_, found, wanted) if found and wanted:
            return not all("clock_timestamp" in str(getattr(one, "arg", "")) for one in (found, wanted))
        case (kind, *_):
            return not str(kind).endswith("_comment")  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return True


def _tell(change: Any) -> str:
    match change:
        case ("add_table", table):
            return f"the table {table.name} is missing"
        case ("add_column", _, table, column):
            return f"the column {table}.{column.name} is missing"
        case ("remove_column", _, table, column):
            return f"the column {table}.{column.name} is not one of Holdfast's"
        case ("add_index" | "add_constraint" | "add_fk", thing):
            return f"{thing.name} on {thing.table.name} is missing or different"
        case ("remove_index" | "remove_constraint" | "remove_fk", thing):
            return f"{thing.name} on {thing.table.name} is not one of Holdfast's, or different"
        case ("modify_nullable" | "modify_type" | "modify_default" as kind, _, table, column, *_):
            return f"the column {table}.{column} has another {kind.removeprefix('modify_')}"
        case _:
            return f"the schema differs: {change}"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    for name in sys.argv[2:]:
        Path(name).write_text(sql("0001"))
