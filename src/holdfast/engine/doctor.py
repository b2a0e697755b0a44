"""Compares a declaration with the live table: what is missing, what that costs, the SQL that mends it.

It looks and never touches: everything runs in a read-only transaction that is rolled back, no row is locked,
and what is read of the table is bounded. Findings stand in the order in which their remedies can run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from psycopg import Error
from psycopg.sql import SQL, Composable, Identifier, Literal

from holdfast.engine import judging, queries
from holdfast.engine.indexes import Indexes, LanePlan
from holdfast.engine.intake import POLICIES, payload_text
from holdfast.engine.judging import judge, strangers
from holdfast.engine.ledger import Ledger
from holdfast.engine.needs import (
    LOST,
    NOW,
    SERIALS,
    Finding,
    Need,
    as_shipped,
    journal_needs,
    journal_privileges,
    missing,
    needs,
    privileges,
    raw,
    statement,
)
from holdfast.engine.queries import (
    Connection,
    LiveCheck,
    LiveColumn,
    LiveTable,
    Refused,
    ShippedTable,
    words,
)
from holdfast.engine.words import literals

SAMPLE_SIZE = 10_000
OLDEST, BEST = 15, 18  # major versions of PostgreSQL
UTC = {"utc", "etc/utc", "gmt", "etc/gmt", "uct", "etc/uct", "zulu", "etc/zulu", "universal", "etc/universal"}


@dataclass(frozen=True)
class Diagnosis:
    """All that was found about one ledger."""

    ledger: str
    findings: tuple[Finding, ...]
    lanes: tuple[LanePlan, ...]

    @property
    def healthy(self) -> bool:
        """Whether every promise holds."""
        return not any(finding.severity == "missing" for finding in self.findings)

    def remedy(self) -> str:
        """One script that mends what can be mended by SQL; empty when there is nothing.

        Run it statement by statement, outside a transaction, as `psql -f` does: an index that is built
        CONCURRENTLY lets the work go on, and cannot be part of a transaction.
        """
        parts = [
            f"-- {finding.severity}: {_line(finding.what)}\n"
            f"-- without it: {_line(finding.promise_lost or '')}\n{finding.remedy_sql}\n"
            for finding in self._remedied
        ]
        return "\n".join(parts)

    @property
    def loosens(self) -> bool:
        """Whether the script loosens a constraint or changes a type."""
        return any(finding.loosens for finding in self._remedied)

    @property
    def _remedied(self) -> list[Finding]:
        return [one for one in self.findings if one.severity != "fine" and one.remedy_sql]


async def examine(
    conn: Connection, ledger: Ledger, shipped: Mapping[str, ShippedTable] | None = None
) -> Diagnosis:
    """Compare `ledger` with the table that this connection sees.

    `shipped` has the tables that our migrations make, by name: one is right as they make it, whatever the
    declaration would accept or prefer.
    """
    async with conn.transaction(force_rollback=True):
        for setting in queries.QUIET:
            await conn.execute(setting)
        return await _Examination(conn, ledger, shipped or {}).run()


class _Examination:
    """One look at one ledger, on a connection that was made quiet."""

    def __init__(self, conn: Connection, ledger: Ledger, shipped: Mapping[str, ShippedTable]) -> None:
        self.conn = conn
        self.ledger = ledger
        self.shipped = shipped
        self.table = Identifier(*ledger.table.split("."))
        self.state = Identifier(ledger.state)
        self.lanes: Sequence[LanePlan] = ()
        self.live: LiveTable
        self.refused: Sequence[Refused]  # what keeps this login from working; an enqueue is another matter
        self.types: Mapping[str, str]
        self.needs: list[Need]

    async def run(self) -> Diagnosis:
        findings = [*server(self.conn.info.server_version)]
        findings += [finding async for finding in self._all()]
        return Diagnosis(self.ledger.name, tuple(findings), tuple(self.lanes))

    async def _all(self) -> AsyncIterator[Finding]:
        self.live = await queries.look(self.conn, self.ledger.table, privileges(self.ledger))
        self.refused = [one for one in self.live.refused if one.privilege != "insert"]
        self.types = await self._types()
        self.needs = await self._as_shipped(self.ledger.table, needs(self.ledger, self.types))
        lost = False
        work = "nothing can be claimed or moved; the plans were not looked at"
        for finding in await self._table(self.ledger.table, self.live, self.needs, self.refused, work):
            lost = lost or finding.remedy_sql is None
            yield finding
        if lost:
            return
        steps = (
            self._enqueue,
            self._words,
            self._columns,
            self._defaults,
            self._checks,
            self._tenant,
            self._journal,
            self._indexes,
            self._rows,
        )
        for step in steps:
            async for finding in step():
                yield finding

    async def _types(self) -> Mapping[str, str]:
        """The catalogue's names of the declared types; a type that nobody knows keeps its own."""
        ledger = self.ledger
        further = (*ledger.extras, ledger.tenant) if ledger.tenant else ledger.extras
        declared = list(
            {ledger.key.type, ledger.state_type, ledger.policy_type, *(column.type for column in further)}
        )
        known = await words(self.conn, queries.TYPE_NAMES, {"words": declared})
        return {word: name or word for word, name in zip(declared, known, strict=True)}

    async def _as_shipped(self, name: str, wanted: Sequence[Need]) -> list[Need]:
        """The needs of a table; where our migrations make it, of each column what they make."""
        if name not in self.shipped:
            return list(wanted)
        columns = self.shipped[name].columns
        types = await words(self.conn, queries.TYPE_NAMES, {"words": [one.type for one in columns.values()]})
        named = {
            column: replace(one, type=known or one.type)
            for (column, one), known in zip(columns.items(), types, strict=True)
        }
        return [as_shipped(need, named.get(need.column)) for need in wanted]

    # -- the table -----------------------------------------------------------------------------------

    async def _table(
        self, name: str, live: LiveTable, wanted: Sequence[Need], refused: Sequence[Refused], lost: str
    ) -> list[Finding]:
        """What stands between us and the table; a finding without a remedy ends the examination."""
        found = live.found
        if found is None:
            return [judging.no_table(name, wanted)]
        if not live.columns:
            what = f"there is no table {name} in the search_path, but one in the schema {found.schema}"
            return [judging.lost_table(f"{what}: declare it as {found.schema}.{found.name}")]
        if found.kind not in ("r", "p"):
            what = f"{name} is not a table: rows must be locked and changed where they are"
            return [judging.lost_table(what)]
        (role,) = await words(self.conn, queries.ROLE)
        return judging.denied(found, refused, role, name, lost)

    async def _enqueue(self) -> AsyncIterator[Finding]:
        """A login that only works is as it should be."""
        for one in self.live.refused:
            if one.privilege == "insert":
                whole = len(one.columns) == len(privileges(self.ledger)["insert"])
                columns = "" if whole else f"{', '.join(one.columns)} "
                what = f"this login cannot enqueue: it may not insert {columns}into {self.ledger.table}"
                yield Finding(severity="fine", what=what)

    async def _words(self) -> AsyncIterator[Finding]:
        """The words of the state, and of the policy, where these are enums."""
        ledger, column = self.ledger, self.live.columns.get(self.ledger.state)
        types = [(ledger.state_type, ledger.states, "no row has a state")]
        if ledger.policy:
            types.append((ledger.policy_type, POLICIES, LOST["policy"]))
        for name, labels, lost in types:
            if await words(self.conn, queries.TYPE_NAMES, {"words": [name]}) == [None]:
                remedy = statement(queries.CREATE_TYPE, type=raw(name), words=literals(labels))
                yield missing(f"the type {name} is not there", lost, remedy)
        for word in ledger.states:
            if column and column.labels and word not in column.labels:
                remedy = statement(queries.ADD_LABEL, type=raw(column.type), word=Literal(word))
                what = f"the type {column.type} has no value {word!r}"
                yield missing(what, f"no row can become {word}: the move fails", remedy)

    async def _columns(self) -> AsyncIterator[Finding]:
        if not self.live.columns:
            return
        bad = False
        found = [finding for need in self.needs for finding in judge(need, self.live, self.table)]
        if self.ledger.table not in self.shipped:
            found += [*self._key_source(), *strangers(self.needs, self.live, self.table)]
        for finding in found:
            bad = bad or finding.severity != "fine"
            yield finding
        if not bad:
            yield Finding(severity="fine", what=f"all {len(self.needs)} declared columns fit")
        if self.ledger.fence or self.ledger.table not in self.shipped:
            yield judging.fence(self.ledger, self.table)

    def _key_source(self) -> Iterable[Finding]:
        """Where new keys come from."""
        key, column = self.ledger.key, self.live.columns.get(self.ledger.key.column)
        if column is None:
            return
        holes: dict[str, Composable] = {"table": self.table, "column": Identifier(key.column)}
        if key.make and column.identity == "a":
            what = f"the column {key.column} (key) is GENERATED ALWAYS, and the declaration makes keys itself"
            yield missing(what, "nothing can be enqueued", statement(queries.LET_KEYS_IN, **holes))
        rule = self.ledger.idempotency
        given = rule is not None and rule.column == key.column  # by every caller
        if key.make is None and not column.fills_itself and not given:
            what = f"the column {key.column} (key) has no default, and the declaration makes no keys"
            yield missing(what, "nothing can be enqueued", self._new_keys(column.type, holes))

    def _new_keys(self, type: str, holes: dict[str, Composable]) -> str | None:
        if type in SERIALS:
            name = Literal(self.table.as_string(None))
            follow = holes | {"name": name, "word": Literal(self.ledger.key.column)}
            first = statement(queries.ADD_IDENTITY, **holes)
            return first + "\n" + statement(queries.CONTINUE_IDENTITY, **follow)
        if type == "uuid":
            return statement(queries.SET_DEFAULT, **holes, default=SQL("gen_random_uuid()"))
        return None

    async def _defaults(self) -> AsyncIterator[Finding]:
        """Whether the table puts into columns what the declaration says: the database itself compares."""
        judged = {need.column for need in self.needs if need.default}
        for name, value in self.ledger.defaults.items():
            column = self.live.columns.get(name)
            if column is None or column.identity or column.generated:
                continue
            if column.default is None and name in judged:
                continue  # told already, with a remedy
            query = SQL(queries.DEFAULTS).format(
                live=raw(column.default or "null"),
                declared=Literal(payload_text(value) if name == self.ledger.payload else value),
                type=raw(column.type),
            )
            found = await self._try(query)
            if found and found[0] != found[1]:
                yield judging.differing(column, *found)

    # -- constraints and journal ---------------------------------------------------------------------

    async def _checks(self) -> AsyncIterator[Finding]:
        """Whether every CHECK on the state lets every declared state in."""
        column = self.live.columns.get(self.ledger.state)
        if column is None:
            return
        shipped = self.shipped.get(self.ledger.table)
        for check in self.live.checks:
            if self.ledger.state not in check.columns:
                continue
            finished = self.ledger.times.finished
            if len(check.columns) > 1 and {*check.columns} != {self.ledger.state, finished}:
                if shipped and check.name in shipped.checks:
                    continue
                others = ", ".join(name for name in check.columns if name != self.ledger.state)
                what = f"the constraint {check.name} ties the state to {others}: read it yourself"
                yield Finding(severity="warning", what=what, promise_lost="a move that it refuses fails")
                continue
            refused = await self._refused(check, column)
            if refused is None:
                what = f"the constraint {check.name} on the state could not be tried: read it yourself"
                yield Finding(severity="warning", what=what, promise_lost="a move that it refuses fails")
            elif refused:
                yield judging.too_narrow(check, self.ledger.state, refused, self.table)

    async def _refused(self, check: LiveCheck, column: LiveColumn) -> list[str] | None:
        """The states that a CHECK refuses, with the time of the end where it looks at that, too."""
        ledger, accepted = self.ledger, column.labels or self.ledger.states
        holes: dict[str, Composable] = {
            "type": raw(column.type),
            "state": self.state,
            "words": literals(state for state in ledger.states if state in accepted),
            "expression": raw(check.expression),
        }
        finished = self.live.columns.get(ledger.times.finished or "")
        if len(check.columns) == 1 or finished is None:
            return await self._try(SQL(queries.REFUSED).format(**holes))
        holes |= {
            "finished": Identifier(finished.name),
            "time": raw(finished.type),
            "now": SQL(NOW[ledger.times.kind]),
            "ends": literals([ledger.to("finish")] if ledger.times.finished_well else ledger.ends),
        }
        return await self._try(SQL(queries.REFUSED_WITH_TIME).format(**holes))

    async def _tenant(self) -> AsyncIterator[Finding]:
        """Whether the role that is to confine a tenant does, and whether this login may take it on."""
        role = self.ledger.tenant and self.ledger.tenant.role
        if role is None:
            return
        found = await queries.tenant_role(self.conn, role)
        for finding in judging.unconfined(role, found, self.conn.info.server_version):
            yield finding
        if self.live.found:
            for finding in judging.unsecured(self.live.found):
                yield finding

    async def _journal(self) -> AsyncIterator[Finding]:
        journal = self.ledger.journal
        if journal is None:
            return
        live = await queries.look(self.conn, journal.table, journal_privileges(journal))
        wanted = await self._as_shipped(journal.table, journal_needs(self.ledger, self.types))
        table = Identifier(*journal.table.split("."))
        unsearchable = judging.unsearchable(journal, table)
        for finding in await self._table(journal.table, live, wanted, live.refused, LOST["journal"]):
            if live.found is None and finding.remedy_sql:  # a new table gets its index at once
                finding = replace(finding, remedy_sql=f"{finding.remedy_sql}\n{unsearchable.remedy_sql}")
            yield finding
        if live.columns and live.found and self.ledger.tenant and self.ledger.tenant.role:
            for finding in judging.unsecured(live.found):
                yield finding
        if live.columns:
            for need in wanted:
                for finding in judge(need, live, table):
                    yield finding
            for finding in strangers(wanted, live, table) if journal.table not in self.shipped else ():
                yield finding
            if journal.row in live.columns and not any(
                index.valid and list(index.columns)[:1] == [journal.row] for index in live.indexes
            ):
                yield unsearchable

    # -- indexes and rows ----------------------------------------------------------------------------

    async def _indexes(self) -> AsyncIterator[Finding]:
        if self.refused:
            return
        indexes = Indexes(self.conn, self.ledger, self.live)
        found = [finding async for finding in indexes.findings()]
        self.lanes = tuple(indexes.lanes)
        for finding in found:
            yield finding
        if not found:
            yield Finding(severity="fine", what="every search has its index")

    async def _rows(self) -> AsyncIterator[Finding]:
        """States that rows have and the declaration does not know; and the zone of times without one."""
        if self.ledger.state in self.live.columns:
            query = SQL(queries.SAMPLE).format(
                state=self.state,
                table=self.table,
                size=SAMPLE_SIZE,
                words=literals(self.ledger.states),
            )
            if strange := await self._try(query):
                what = f"rows are in {', '.join(strange)}, which the declaration does not know"
                sample = f"(seen among {SAMPLE_SIZE} rows; there may be more)"
                yield Finding(
                    severity="warning", what=f"{what} {sample}", promise_lost="nobody works on such rows"
                )
        zone = await self._zone() if self.ledger.times.kind == "timestamp" else "UTC"
        if zone.lower() not in UTC:
            yield Finding(
                severity="warning",
                what=f"times here have no zone and mean UTC, but the database's default zone is {zone}: SET"
                " TIME ZONE 'UTC' in whatever else writes here, or ALTER DATABASE ... SET TimeZone = 'UTC'",
                promise_lost="rows that others insert have times that are hours apart from ours",
            )

    async def _zone(self) -> str:
        for question in (queries.ZONE, queries.ZONE_OF_FILE, queries.ZONE_OF_SESSION):
            if zone := await self._try(SQL(question)):
                return zone[0]
        return "unknown"

    async def _try(self, query: Composable) -> list[str] | None:
        """The answer to a question that this role may not be allowed to ask."""
        try:
            async with self.conn.transaction():
                return await words(self.conn, query)
        except Error:
            return None


def server(version: int) -> Iterable[Finding]:
    """What the server's version means; 180004 is 18.4."""
    major = version // 10_000
    if major < OLDEST:
        what = f"PostgreSQL {major} is too old: {OLDEST} is the oldest that works"
        yield Finding(severity="missing", what=what, promise_lost="statements may be refused")
    elif major < BEST:
        yield Finding(
            severity="warning",
            what=f"PostgreSQL {major} has no skip scan; {BEST} has",
            promise_lost="future rows of higher priority make claims cost more, the more there are",
        )


def _line(text: str) -> str:
    return " ".join(text.split())
