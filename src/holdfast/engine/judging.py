"""What the live table lacks of its needs, each with what that costs and the SQL that mends it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import LiteralString

from psycopg.sql import SQL, Composable, Identifier

from holdfast.engine import queries
from holdfast.engine.ledger import Ledger
from holdfast.engine.needs import NAIVE, ZONED, Finding, Need, missing, raw, statement
from holdfast.engine.queries import FoundTable, LiveCheck, LiveColumn, LiveRole, LiveTable, Refused
from holdfast.engine.roles import Journal
from holdfast.engine.words import COMMA, literals

# How a value becomes one of another type, where a plain cast would lose the zone or the unit.
CONVERT: Mapping[tuple[str, str], LiteralString] = {
    (NAIVE, ZONED): "{} at time zone 'UTC'",
    (ZONED, NAIVE): "{} at time zone 'UTC'",
    ("bigint", ZONED): "to_timestamp({} / 1000.0)",
    ("bigint", NAIVE): "to_timestamp({} / 1000.0) at time zone 'UTC'",
    (ZONED, "bigint"): "(extract(epoch from {}) * 1000)::bigint",
    (NAIVE, "bigint"): "(extract(epoch from {} at time zone 'UTC') * 1000)::bigint",
    ("date", ZONED): "{}::timestamp at time zone 'UTC'",
    ("date", "bigint"): "(extract(epoch from {}) * 1000)::bigint",
}

STRAINED: Mapping[str, str] = {
    "integer": "it works until it overflows",
    "smallint": "it works until it overflows",
    "json": "it works, but the database can neither search nor index it",
}


# -- a column -------------------------------------------------------------------------------------------


def judge(need: Need, live: LiveTable, table: Composable) -> Iterable[Finding]:
    """What the live column lacks of its need, in the order in which the remedies can run."""
    column = live.columns.get(need.column)
    if column is None:
        yield _absent(need, live, table)
        return
    yield from _type(need, column, table)
    yield from _nulls(need, column, table)
    yield from _default(need, column, table)


def strangers(declared: Iterable[Need], live: LiveTable, table: Composable) -> Iterable[Finding]:
    """Columns that nobody declared and that refuse a row which does not fill them."""
    known = {need.column for need in declared}
    for column in live.columns.values():
        if column.name not in known and column.not_null and not column.fills_itself:
            yield Finding(
                severity="missing",
                what=f"the column {column.name} is NOT NULL without a default, and no enqueue fills it:"
                " give it a default, declare it among `extras` or the payload, or let it be NULL",
                promise_lost="nothing can be enqueued",
                remedy_sql=statement(queries.DROP_NOT_NULL, table=table, column=Identifier(column.name)),
            )


def _named(need: Need) -> str:
    return f"the column {need.column} ({need.role})"


def _absent(need: Need, live: LiveTable, table: Composable) -> Finding:
    others = ", ".join(live.columns)
    remedy = need.definition and statement(
        queries.ADD_COLUMN, table=table, column=Identifier(need.column), definition=need.definition
    )
    return Finding(
        severity="missing",
        what=f"{_named(need)} is not there; the table has {others}",
        promise_lost=need.lost,
        remedy_sql=remedy,
    )


def _type(need: Need, column: LiveColumn, table: Composable) -> Iterable[Finding]:
    if need.fits and column.type not in need.fits:
        strained = column.type in need.strained
        advice = ": change the declaration or the column" if need.own_type else ""
        yield Finding(
            severity="warning" if strained else "missing",
            what=f"{_named(need)} is {column.type}, and should be {need.fits[0]}{advice}",
            promise_lost=STRAINED[column.type] if strained else need.lost,
            remedy_sql=None if need.own_type else _retype(need, column, need.fits[0], table),
        )
    elif need.room and column.length is not None and column.length < need.room:
        yield Finding(
            severity="missing",
            what=f"{_named(need)} has room for {column.length} characters only",
            promise_lost="a longer text is refused, and the move that brings it fails",
            remedy_sql=_retype(need, column, "text", table),
        )


def _retype(need: Need, column: LiveColumn, type: str, table: Composable) -> str:
    name = Identifier(column.name)
    convert = CONVERT.get((column.type, type))
    both = column.default is not None and need.default is not None
    return statement(
        queries.SET_TYPE_AND_DEFAULT if both else queries.SET_TYPE,
        table=table,
        column=name,
        type=raw(type),
        using=SQL(convert).format(name) if convert else SQL("{}::{}").format(name, raw(type)),
        default=need.default or SQL("null"),
    )


def _nulls(need: Need, column: LiveColumn, table: Composable) -> Iterable[Finding]:
    name = Identifier(column.name)
    if need.nulls == "needed" and column.not_null:
        yield Finding(
            severity="missing",
            what=f"{_named(need)} is NOT NULL, and must be empty at times",
            promise_lost=need.lost,
            remedy_sql=statement(queries.DROP_NOT_NULL, table=table, column=name),
        )
    if need.nulls == "wanted" and column.not_null and not column.fills_itself:
        if need.role == "extra":
            yield Finding(severity="fine", what=f"{_named(need)} is NOT NULL: every enqueue must fill it")
            return
        yield Finding(
            severity="warning",
            what=f"{_named(need)} is NOT NULL without a default",
            promise_lost="an enqueue that leaves it out is refused",
            remedy_sql=statement(queries.DROP_NOT_NULL, table=table, column=name),
        )
    if need.nulls == "forbidden" and not column.not_null and need.default:
        holes = {"table": table, "column": name, "default": need.default}
        yield Finding(
            severity="missing",
            what=f"{_named(need)} may be NULL, and NULL + 1 is NULL",
            promise_lost=need.lost,
            remedy_sql=statement(queries.FILL, **holes) + "\n" + statement(queries.SET_NOT_NULL, **holes),
        )


def _default(need: Need, column: LiveColumn, table: Composable) -> Iterable[Finding]:
    if need.role == "journal" and need.made and not column.fills_itself:
        yield Finding(
            severity="missing",
            what=f"{_named(need)} does not count by itself",
            promise_lost="nobody knows in which order events were written",
            remedy_sql=statement(queries.ADD_IDENTITY, table=table, column=Identifier(column.name)),
        )
    if need.default is None or column.fills_itself:
        return
    refused = column.not_null and not need.written
    severity = "missing" if refused else need.bare
    if severity is None:
        return
    lost = need.lost
    if refused:
        lost = "nothing can be enqueued without naming it"
    elif need.written:
        lost = "a plain INSERT must name it: else the row is refused or never found"
    yield Finding(
        severity=severity,
        what=f"{_named(need)} has no default",
        promise_lost=lost,
        remedy_sql=statement(
            queries.SET_DEFAULT, table=table, column=Identifier(column.name), default=need.default
        ),
    )


def differing(column: LiveColumn, live: str | None, declared: str | None) -> Finding:
    """A default that is another than the declaration says, which fills in for the table in some bulks."""
    known = f"the default {column.default}" if column.default else "no default"
    return Finding(
        severity="warning",
        what=f"the column {column.name} has {known}, and `defaults` says {_value(declared)}: change one of"
        " them",
        promise_lost=f"a bulk of unlike items gets {_value(declared)}, a single one {_value(live)}",
    )


def _value(text: str | None) -> str:
    return "NULL" if text is None else text


def fence(ledger: Ledger, table: Composable) -> Finding:
    """What keeps a worker that lost its claim from writing."""
    if ledger.fence:
        return Finding(severity="fine", what=f"{ledger.fence} is the fence: it grows with every claim")
    if ledger.owner is None:
        return Finding(severity="fine", what="no owner column: a claim is a lock, and ends with its worker")
    holes = {"column": Identifier("fence"), "definition": SQL("bigint not null default 0")}
    return Finding(
        severity="fine",
        what=f"no fence column: each claim writes a token of its own into {ledger.owner}, and every later"
        f" write names it. That is correct as long as nobody else writes {ledger.owner}; a number"
        ' that only grows is safe from that, too: add the column and declare fence="fence"',
        remedy_sql=statement(queries.ADD_COLUMN, table=table, **holes),
    )


# -- the table -------------------------------------------------------------------------------------------


def no_table(name: str, wanted: Sequence[Need]) -> Finding:
    """A table that is nowhere; it can be made where the declaration knows the types of all its columns."""
    columns = [(Identifier(need.column), need.definition) for need in wanted if need.definition]
    complete = len(columns) == len(wanted)
    remedy = statement(
        queries.CREATE_TABLE,
        table=Identifier(*name.split(".")),
        columns=SQL(",\n    ").join(SQL("{} {}").format(*column) for column in columns),
    )
    advice = "" if complete else ": create it, since only you know the types of all its columns"
    what = f"there is no table {name}{advice}"
    return missing(what, "there is nothing to work on", remedy if complete else None)


def lost_table(what: str) -> Finding:
    """A table that only a person can put right."""
    return missing(what, "there is nothing to work on", None)


def denied(found: FoundTable, refused: Sequence[Refused], role: str, name: str, lost: str) -> list[Finding]:
    """Privileges that `role` lacks; the remedy grants these and no more."""
    grants: list[str] = []
    if not found.reachable:
        holes = {"schema": Identifier(found.schema), "role": Identifier(role)}
        grants.append(statement(queries.GRANT_SCHEMA, **holes))
    if refused:
        listed = COMMA.join(map(_privilege, refused))
        table = Identifier(found.schema, found.name)
        grants.append(statement(queries.GRANT, privileges=listed, table=table, role=Identifier(role)))
    if not grants:
        return []
    told = (
        f"{one.privilege} ({', '.join(one.columns)})" if one.columns else one.privilege for one in refused
    )
    what = f"the role {role} lacks {', '.join(told) or 'the use of its schema'} on {name}"
    return [missing(what, lost, "\n".join(grants))]


def _privilege(refused: Refused) -> Composable:
    columns = COMMA.join(map(Identifier, refused.columns))
    return (
        SQL("{} ({})").format(raw(refused.privilege), columns) if refused.columns else raw(refused.privilege)
    )


def too_narrow(check: LiveCheck, state: str, refused: Sequence[str], table: Composable) -> Finding:
    """A CHECK that keeps a row from a state which the declaration has."""
    listed = ", ".join(refused)
    tied = [f"{name} as our moves set it" for name in check.columns if name != state]
    holes: dict[str, Composable] = {"table": table, "name": Identifier(check.name)}
    widen = holes | {"expression": raw(check.expression), "state": Identifier(state)}
    first = statement(queries.WIDEN_CHECK, **widen, words=literals(refused))
    return missing(
        " with ".join((f"the constraint {check.name} refuses {listed}", *tied)),
        f"no row can become {listed}: the move fails",
        first + "\n" + statement(queries.VALIDATE, **holes),
    )


def unsearchable(journal: Journal, table: Composable) -> Finding:
    """A journal in which the events of one row cannot be found by an index."""
    name = f"idx_{journal.table.rpartition('.')[2]}_{journal.row}"[:63]
    columns = SQL("{}, {}").format(Identifier(journal.row), Identifier(journal.seq))
    holes = {"unique": SQL(""), "concurrently": SQL(" concurrently"), "predicate": SQL("")}
    return Finding(
        severity="warning",
        what=f"the journal {journal.table} has no index on {journal.row}",
        promise_lost="a timeline, and `holdfast job verify`, read all events to find those of one row",
        remedy_sql=statement(
            queries.CREATE_INDEX, table=table, name=Identifier(name), columns=columns, **holes
        ),
    )


# -- tenants ---------------------------------------------------------------------------------------------

UNCONFINED = "a tenant sees the rows of all others"


def unsecured(found: FoundTable) -> Iterable[Finding]:
    """A table whose policies nobody asks."""
    if not found.secured:
        remedy = statement(queries.SECURE, table=Identifier(found.schema, found.name))
        yield missing(f"row level security is off on {found.name}", UNCONFINED, remedy)


def unconfined(name: str, role: LiveRole, version: int) -> Iterable[Finding]:
    """What keeps the role `name` from confining a tenant; `version` is the server's."""
    holes = {"role": Identifier(name), "login": Identifier(role.login)}
    grant = statement(queries.GRANT_SET_ROLE if version >= 160_000 else queries.GRANT_ROLE, **holes)
    if not role.present:
        remedy = statement(queries.CREATE_ROLE, **holes) + "\n" + grant
        lost = "no transaction can be confined to a tenant"
        yield missing(f"there is no role {name}, and a tenant's transactions act as it", lost, remedy)
        return
    if role.superuser or role.bypasses:
        told = "is a superuser" if role.superuser else "has BYPASSRLS"
        remedy = statement(queries.CONFINE_ROLE, **holes)
        yield missing(f"the role {name} {told}, so no policy binds it", UNCONFINED, remedy)
    if not role.reachable:
        yield Finding(
            severity="warning",
            what=f"the login {role.login} may not act as {name}",
            promise_lost="handlers that use ctx.transaction() fail, and so does app.as_tenant()",
            remedy_sql=grant,
        )
