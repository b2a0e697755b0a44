"""What maintenance may touch: declared in code, and looked up in PostgreSQL's catalogue.

What was looked up is kept, and dropped when somebody says that a table has changed. Since an ALTER or DROP
may come from anywhere and say nothing, a definition is compared with the catalogue before anything is
destroyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, LiteralString

from psycopg import AsyncConnection
from psycopg.rows import class_row, dict_row
from psycopg.sql import Identifier

from holdfast.apps.system import registry_queries as queries
from holdfast.engine.ledger import Ledger
from holdfast.engine.roles import TimeKind
from holdfast.engine.store import Store
from holdfast.errors import Conflict, InvalidInput, NotFound
from holdfast.runtime.app import App, Table

Connection = AsyncConnection[Any]
Kind = Literal["ledger", "stream", "user", "kept"]


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A table that was declared. `name` is what people call it, `table` how SQL does (maybe with a schema).

    `ends` are the states of finished rows, `dead` those of them that wait for a person. `time` tells how old
    a row is. `subjects`: whose rows they are, by the word for the kind of subject.
    """

    name: str
    table: str
    kind: Kind
    key: tuple[str, ...]
    ledger: Ledger | None = None
    time: str | None = None
    time_kind: TimeKind = "timestamptz"
    ends: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    where: LiteralString | None = None
    gate: str | None = None
    whole: tuple[str, ...] = ()
    evict: LiteralString | None = None
    subjects: Mapping[str, str] = field(default_factory=dict[str, str])
    live: bool = False
    builtin: bool = True
    app: str = ""

    @property
    def identifier(self) -> Identifier:
        """The table's name as SQL."""
        return Identifier(*self.table.split("."))


@dataclass(frozen=True)
class Column:
    """A column as the catalogue has it. `enum`: its type is one."""

    name: str
    type: str
    enum: bool = False
    filled: bool = False


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What the catalogue says of a table: equal definitions mean an unchanged table."""

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A foreign key that leads to a table. `cascades`: rows that refer to a removed one go with it."""

    name: str
    schema: str
    table: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    cascades: bool


class SchemaRegistry:
    """The declared tables, and their definitions as far as they were asked for.

    `erasures`: how an app erases a subject, by its name and the word for the kind of subject.
    """

    def __init__(
        self,
        declared: Iterable[Declared],
        erasures: Mapping[str, Mapping[str, LiteralString]] | None = None,
    ) -> None:
        self.erasures = erasures or {}
        self.declared = {one.name: one for one in declared}
        self._by_table = {one.table: one for one in self.declared.values()}
        self._known: dict[str, Definition] = {}

    def table(self, name: str, field: str = "table") -> Declared:
        """A declared table by its name, its ledger's name or its table's; `InvalidInput` if there is none."""
        found = self._found(name)
        if found is None:
            known = ", ".join(sorted(self.declared))
            raise InvalidInput(field=field, message=f"{name!r} is not declared: there are {known}")
        return found

    def _found(self, name: str) -> Declared | None:
        return self.declared.get(name) or self._by_table.get(name) or self._of_any_schema(name)

    def _of_any_schema(self, name: str) -> Declared | None:
        """A table without a schema in its declaration may be asked for with the one that it is in.

        Which that is the database knows: `must_be_meant` asks it before anything is done.
        """
        schema, dot, bare = name.rpartition(".")
        return self._by_table.get(bare) if dot and schema else None

    def called(self, name: str) -> str:
        """What a table is called, however it was asked for; a name that is not declared is its own."""
        found = self._found(name)
        return found.name if found else name

    async def must_be_meant(self, conn: Connection, name: str, field: str = "table") -> None:
        """Refuses a name whose schema is another than the one that our table is in, or would be in."""
        declared, (schema, dot, bare) = self._found(name), name.rpartition(".")
        if declared is None or not dot or name in (declared.name, declared.table):
            return
        try:
            home = (await self.fresh(conn, declared)).schema
        except NotFound:
            ((home,),) = await (await conn.execute(queries.HERE)).fetchall()
        if home != schema:
            message = f"{name!r} is none of ours: {declared.name} is {home}.{bare}"
            raise InvalidInput(field=field, message=message)

    def ledger(self, name: str, field: str = "ledger") -> Declared:
        """The same, if it is a ledger."""
        found = self.table(name, field)
        if found.kind != "ledger":
            raise InvalidInput(field=field, message=f"{name!r} is no ledger but a {found.kind} table")
        return found

    def stream(self, name: str, field: str = "table") -> Declared:
        """The same, if it is a stream."""
        found = self.table(name, field)
        if found.kind != "stream":
            streams = ", ".join(sorted(one.name for one in self.declared.values() if one.kind == "stream"))
            raise InvalidInput(field=field, message=f"{name!r} is no stream: streams are {streams}")
        return found

    @property
    def ledgers(self) -> list[Declared]:
        return [one for one in self.declared.values() if one.kind == "ledger"]

    async def definition(self, conn: Connection, declared: Declared) -> Definition:
        """What the catalogue says, perhaps from memory; `NotFound` if there is no such table."""
        if declared.name not in self._known:
            self._known[declared.name] = await _look_up(conn, declared)
        return self._known[declared.name]

    async def fresh(self, conn: Connection, declared: Declared) -> Definition:
        """What the catalogue says now: for whoever is about to destroy. What was kept is replaced."""
        self.forget(declared.name)
        return await self.definition(conn, declared)

    async def must_be(self, conn: Connection, declared: Declared, known: Definition) -> None:
        """Refuses to go on with a definition that is no longer true; inside a transaction that has locks."""
        if await self.fresh(conn, declared) != known:
            raise InvalidInput(field="table", message=f"{declared.table} was changed meanwhile: try again")

    def must_have(self, declared: Declared, definition: Definition, columns: Iterable[str]) -> None:
        """Refuses to go on with a table that has no longer the columns that its declaration speaks of."""
        known = {column.name for column in definition.columns}
        if missing := [column for column in columns if column not in known]:
            message = f"{declared.table} has no column {', '.join(missing)}, of which its declaration speaks"
            raise Conflict(what=declared.name, message=message)

    async def references(self, conn: Connection, definition: Definition) -> list[Reference]:
        """The foreign keys of other tables that lead to this one."""
        async with conn.cursor(row_factory=class_row(_Reference)) as cursor:
            await cursor.execute(queries.REFERRING, {"oid": definition.oid})
            return [one.read() for one in await cursor.fetchall()]

    def forget(self, name: str | None = None) -> None:
        """Drops what was kept of a table, or of all."""
        if name is None:
            self._known.clear()
        else:
            self._known.pop(name, None)

    async def announce(self, conn: Connection) -> None:
        """Tells all processes that tables have changed, when the transaction commits."""
        self.forget()
        await conn.execute(queries.ANNOUNCE)


CHANNEL = "holdfast_schema"


@dataclass
class _Reference:
    name: str
    schema: str
    table: str
    cascades: bool
    columns: list[str]
    keys: list[str]

    def read(self) -> Reference:
        return Reference(
            name=self.name,
            schema=self.schema,
            table=self.table,
            cascades=self.cascades,
            columns=tuple(self.columns),
            keys=tuple(self.keys),
        )


async def _look_up(conn: Connection, declared: Declared) -> Definition:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(queries.DEFINITION, {"name": declared.identifier.as_string(None)})
        rows = await cursor.fetchall()
    if not rows:
        raise NotFound(what="table", id=declared.table)
    columns = tuple(Column(row["column"], row["type"], row["enum"], row["filled"]) for row in rows)
    return Definition(oid=rows[0]["oid"], schema=rows[0]["schema"], name=rows[0]["name"], columns=columns)


def declared_by(apps: Iterable[App], stores: Mapping[str, Store], builtin: Iterable[str]) -> list[Declared]:
    """Every ledger, and every further table that an app declares; `builtin` are the apps that are ours.

    A table is called by its bare name where nothing else is. What is declared twice is refused: nobody may
    give one of our tables another meaning.
    """
    ours, apps = set(builtin), tuple(apps)
    homes = {ledger.name: app.name for app in apps for ledger in app.ledgers}
    found = {
        store.ledger.table: _ledger(store.ledger, app=homes.get(store.ledger.name, ""), builtin=ours)
        for store in stores.values()
    }
    names = {one.name for one in found.values()}
    for app in sorted(apps, key=lambda app: app.name not in ours):
        for table in app.tables:
            known = found.get(table.name)
            if known and known.app == app.name and known.kind == "ledger" and known.where is None:
                subjects = {**known.subjects, **table.subjects}
                found[table.name] = replace(known, where=table.where, subjects=subjects)
                continue
            bare = table.name.rpartition(".")[2]
            called = table.name if bare in names else bare
            if known or called in names:
                raise InvalidInput(field="tables", message=f"{table.name} is declared twice")
            names.add(called)
            found[table.name] = _table(table, called, app=app.name, builtin=app.name in ours)
    return list(found.values())


def _ledger(ledger: Ledger, *, app: str, builtin: set[str]) -> Declared:
    times, tenant = ledger.times, ledger.tenant
    waiting = (*ledger.lifecycle.allowed("requeue"), *ledger.lifecycle.claimable)
    return Declared(
        name=ledger.name,
        table=ledger.table,
        kind="ledger",
        key=(ledger.key.column,),
        ledger=ledger,
        time=None if times.finished_well else times.finished or times.updated or times.created,
        time_kind=times.kind,
        ends=ledger.ends,
        dead=tuple(state for state in ledger.ends if state in waiting),
        subjects={tenant.name: tenant.name} if tenant else {},
        builtin=app in builtin,
        app=app,
    )


def _table(table: Table, called: str, *, app: str, builtin: bool) -> Declared:
    return Declared(
        name=called,
        table=table.name,
        kind=table.kind,
        key=table.key,
        time=table.time,
        where=table.where,
        gate=table.gate,
        whole=table.whole,
        evict=table.evict,
        subjects=table.subjects,
        live=table.live,
        builtin=builtin,
        app=app,
    )
