"""The step in which a restored schema takes its place: one transaction, in which the old one goes.

What must outlive the old schema is carried over in it: the workers that are there, and the job that restores,
which ends in the same transaction. Rows that somebody held when the backup was made are given back, as those
of lost workers are. System jobs that had not ended by then are ended: a deletion that comes back is not run
again by itself. A job that made a backup is completed if the backup's manifest is there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

from psycopg.errors import DeadlockDetected, LockNotAvailable
from psycopg.sql import SQL, Composable, Composed, Identifier

from holdfast.apps.system.backups import Manifest
from holdfast.apps.system.executors import contents
from holdfast.apps.system.executors import restore_queries as queries
from holdfast.apps.system.executors.contents import Connection, Step, direct, scalar
from holdfast.apps.system.ledger import NAME
from holdfast.engine.decide import decide_lost
from holdfast.engine.ledger import Ledger
from holdfast.engine.replay import RESTORE
from holdfast.engine.store import Store
from holdfast.errors import Conflict, DatabaseUnavailable, InvalidBackup, InvalidInput, TargetExists

if TYPE_CHECKING:
    from holdfast.apps.system.bench import Bench, Run

TRIES = 60  # at having all tables of the old schema to oneself
PAUSE = 1.0  # seconds between them: whoever waits behind us gets its turn
LOOKS, LOOK_PAUSE = 20, 0.1  # how often, and after how many seconds, one looks whether sessions are at rest
IDLE_SECONDS = 0.25  # a session that is idle for less may be in use, by a client between two statements
ANY_AGE = -1e9  # seconds: also what was claimed by a clock that is ahead
WORKERS = "workers"
UNFINISHED = "was unfinished when the backup was made that has been restored"


@dataclass(frozen=True, kw_only=True)
class Swap:
    """What is put where. `scratch` is the schema's name now."""

    run: Run
    scratch: str
    target: str
    manifest: Manifest
    overwrite: bool
    told: str  # what its job says when it is done
    made: Mapping[str, tuple[str, str]]  # of jobs that have made a backup: message and time, by id
    step: Step

    @property
    def dumped(self) -> str:
        """The name that the schema had in the backup."""
        return self.manifest.schema

    @property
    def old(self) -> str:
        """What the old schema is called until it is gone."""
        return f"{self.scratch}_old"


async def take_place(swap: Swap) -> bool:
    """Puts the schema in its place; answers whether it is one that workers work with."""
    async with await direct(swap.run.bench.database, "restore") as conn:
        for left in reversed(range(TRIES)):
            ended: list[str] = []
            try:
                async with conn.transaction():
                    await conn.execute(queries.HASTE)
                    await conn.execute(queries.UPGRADES)
                    await refuse_other_revision(conn, swap.target, swap.manifest, swap.run.bench)
                    await swap.run.hold(conn)
                    alive = await _swap(conn, swap, ended)
                    await swap.run.finish(conn, swap.told)
                    await swap.step("swapping")
                for job in ended:
                    swap.run.bench.log.write(job, "ERROR", f"failed: {UNFINISHED}")
                return alive
            except (LockNotAvailable, DeadlockDetected):
                if not left:
                    raise DatabaseUnavailable(
                        message=f"the tables of {swap.target} were in use all the time: nothing was replaced"
                    ) from None
            await swap.run.progress(TRIES - left, TRIES, "tries to have the tables for a moment")
            await asyncio.sleep(PAUSE)
    raise AssertionError("the last try answers or raises")


async def renew_sessions(conn: Connection) -> None:
    """Ends pooled sessions that know the tables that are gone, once each is at rest; the pool makes new ones.

    Whoever works on one for longer keeps it: statements of the engine do not mind, and it ages away.
    """
    since = await scalar(conn, queries.CLOCK)
    for _ in range(LOOKS):
        if not await scalar(conn, queries.RENEW, since=since, idle=IDLE_SECONDS):
            return
        await asyncio.sleep(LOOK_PAUSE)


async def _swap(conn: Connection, swap: Swap, ended: list[str]) -> bool:
    """Answers whether workers work with it; `ended` gets the jobs that this is the end of."""
    replaces = await contents.schema_exists(conn, swap.target)
    if replaces:
        if not swap.overwrite:
            raise TargetExists(message=f"the schema {swap.target} is there by now")
        await _lock(conn, swap.target)
        await refuse_needed(conn, swap.target)
        await _refuse_others(conn, swap)
        await conn.execute(_rename(swap.target, swap.old))
    await conn.execute(_rename(swap.scratch, swap.target))
    if swap.dumped != swap.target:
        await _retarget(conn, swap)
    alive = await _settle(conn, swap, ended, replaces=replaces)
    if replaces:
        await conn.execute(SQL(queries.DROP_SCHEMA).format(name=Identifier(swap.old)))
        if await _is_meant(conn, WORKERS, swap.target):
            beaten = SQL(queries.BEATEN).format(workers=Identifier(swap.target, WORKERS))
            await conn.execute(beaten, {"timeout": swap.run.bench.settings.worker_timeout})
    return alive


def _rename(name: str, new: str) -> Composed:
    return SQL(queries.RENAME).format(name=Identifier(name), new=Identifier(new))


async def _lock(conn: Connection, schema: str) -> None:
    found = await (await conn.execute(queries.RELATIONS, {"schema": schema})).fetchall()
    if found:
        tables = SQL(", ").join(Identifier(schema, name) for (name,) in found)
        await conn.execute(SQL(queries.LOCK).format(tables=tables))


async def refuse_needed(conn: Connection, schema: str) -> None:
    """`InvalidInput` when something outside needs the schema, and would go with it."""
    inside = await (await conn.execute(queries.EXTENSIONS_INSIDE, {"schema": schema})).fetchall()
    if inside:
        names = ", ".join(name for (name,) in inside)
        raise InvalidInput(
            field="target_schema",
            message=f"{schema} cannot be replaced, as extensions live in it: {names}. Give them a schema of "
            "their own (alter extension … set schema …)",
        )
    if needing := await contents.inward(conn, schema):
        raise InvalidInput(
            field="target_schema",
            message=f"{schema} cannot be replaced, as others need it: {'; '.join(needing[:10])}",
        )


async def refuse_other_revision(conn: Connection, target: str, manifest: Manifest, bench: Bench) -> None:
    """`InvalidBackup` when one schema of the platform would be of another revision than the others.

    One of them tells it for all.
    """
    at = await contents.revision_of(conn)
    if at is None or at == manifest.revision:
        return
    here = await scalar(conn, queries.HERE)
    ours = {store.ledger.table.rpartition(".")[0] or here for store in bench.stores.values()}
    if target in ours:
        raise InvalidBackup(
            message=f"the backup is of the revision {manifest.revision}, and {target} is a "
            f"schema of a platform that is at {at}: restore it into a schema of another name; or restore all "
            f"of the platform's schemas in a new database by Holdfast {manifest.holdfast}, and upgrade that"
        )


# -- what outlives the old schema --------------------------------------------------------------------


async def _settle(conn: Connection, swap: Swap, ended: list[str], *, replaces: bool) -> bool:
    """Carries over what is alive; answers whether anything here is."""
    alive = False
    for store in swap.run.bench.stores.values():
        ledger = store.ledger
        if not await _is_meant(conn, ledger.table, swap.target):
            continue
        alive = True
        if ledger.name == NAME:
            ended += await _end_unfinished(conn, swap, ledger)
        await _give_back(conn, swap, store)
        if replaces:
            await _raise_fences(conn, swap, store)
        if ledger.name == NAME and replaces:
            await _carry_job(conn, swap, ledger)
    if await _is_meant(conn, WORKERS, swap.target):
        alive = True
        if replaces:
            await _carry(conn, swap, WORKERS, queries.FORGET_ALL, queries.CARRY_ALL)
    return alive


async def _is_meant(conn: Connection, table: str, schema: str) -> bool:
    """Whether workers mean a table of this schema by the name: a bare one is in their search_path."""
    within, _, name = table.rpartition(".")
    if within:
        return within == schema and bool(await scalar(conn, queries.HAS_TABLE, schema=schema, table=name))
    return bool(await scalar(conn, queries.MEANT, table=Identifier(name).as_string(conn), schema=schema))


async def _give_back(conn: Connection, swap: Swap, store: Store) -> None:
    """Whoever held rows when the backup was made holds them no longer, also a worker that is still there."""
    ledger = store.ledger
    if ledger.owner is None or not ledger.lifecycle.of("lose"):
        return  # a lock, or a lease that runs out by itself
    while held := await store.orphans(conn, [], orphaned=ANY_AGE, nameless=ANY_AGE):
        moves = [move for claim in held if (move := decide_lost(ledger, claim))]
        if not await store.move(conn, moves, by=swap.run.id):
            return


async def _end_unfinished(conn: Connection, swap: Swap, ledger: Ledger) -> list[str]:
    """Complete the jobs whose backups are there, and fail the others; return the ids of those."""
    names = {
        "table": _in(swap.target, ledger),
        "key": Identifier(ledger.key.column),
        "state": Identifier(ledger.state),
    }
    messages, times = [one for one, _ in swap.made.values()], [at for _, at in swap.made.values()]
    params = {"id": swap.run.id, "ends": list(ledger.ends), "why": UNFINISHED}
    params |= {"jobs": list(swap.made), "messages": messages, "times": times}
    await conn.execute(SQL(queries.COMPLETE_BACKUPS).format(**names), params)
    ended = await conn.execute(SQL(queries.END_UNFINISHED).format(**names), params)
    return [row[0] for row in await ended.fetchall()]


async def _raise_fences(conn: Connection, swap: Swap, store: Store) -> None:
    ledger, words = store.ledger, store.sql
    table = ledger.table.split(".")[-1]
    params = {"old": swap.old, "new": swap.target, "table": table}
    shared = {name for (name,) in await (await conn.execute(queries.SHARED, params)).fetchall()}
    if not ledger.fence or not {ledger.fence, ledger.key.column} <= shared:
        return
    fence = Identifier(ledger.fence)
    names: dict[str, Any] = {
        "new": Identifier(swap.target, table),
        "old": Identifier(swap.old, table),
        "key": words.key,
        "fence": fence,
        "sets": SQL(queries.FENCE).format(fence=fence),
    }
    if ledger.journal is None:
        await conn.execute(SQL(queries.RAISE_FENCES).format(**names))
        return
    moment: Composable = words.clock
    if ledger.times.updated:
        updated = Identifier(ledger.times.updated)
        names["sets"] += SQL(queries.TOUCHED).format(updated=updated, clock=words.clock)
        moment = updated
    query = SQL(queries.RAISE_AND_TELL).format(
        **(names | words.journal_names()),
        state=words.state,
        moment=moment,
        facts=words.facts(RESTORE, due=False),
    )
    await conn.execute(query, {"by": swap.run.id, "now": None})


async def _refuse_others(conn: Connection, swap: Swap) -> None:
    """`Conflict` when other jobs run whose rows would be gone before their end."""
    for store in swap.run.bench.stores.values():
        ledger = store.ledger
        if ledger.name != NAME or not await _is_meant(conn, ledger.table, swap.target):
            continue
        query = SQL(queries.OTHERS_RUNNING).format(
            table=_in(swap.target, ledger), key=Identifier(ledger.key.column), state=Identifier(ledger.state)
        )
        params = {"id": swap.run.id, "states": list(ledger.lifecycle.held)}
        if others := [row[0] for row in await (await conn.execute(query, params)).fetchall()]:
            raise Conflict(
                what=swap.target,
                message=f"other jobs are running, and would lose their rows: {', '.join(others)}",
            )


async def _carry_job(conn: Connection, swap: Swap, ledger: Ledger) -> None:
    """The row of the very job that restores, as it is: its end is written next."""
    table = ledger.table.split(".")[-1]
    key = Identifier(ledger.key.column)
    await _carry(conn, swap, table, queries.FORGET_ROW, queries.CARRY_ROW, key=key)


async def _carry(
    conn: Connection, swap: Swap, table: str, forget: LiteralString, carry: LiteralString, **names: Any
) -> None:
    if not await scalar(conn, queries.HAS_TABLE, schema=swap.old, table=table):
        return
    new, old = Identifier(swap.target, table), Identifier(swap.old, table)
    params = {"old": swap.old, "new": swap.target, "table": table}
    found = await (await conn.execute(queries.SHARED, params)).fetchall()
    columns = SQL(", ").join(Identifier(name) for (name,) in found)
    await conn.execute(SQL(forget).format(table=new, **names), {"id": swap.run.id})
    await conn.execute(SQL(carry).format(new=new, old=old, columns=columns, **names), {"id": swap.run.id})


def _in(schema: str, ledger: Ledger) -> Identifier:
    return Identifier(schema, ledger.table.split(".")[-1])


# -- another name ------------------------------------------------------------------------------------


async def _retarget(conn: Connection, swap: Swap) -> None:
    """Functions of a schema that gets another name: where they look for tables, and what ours say.

    Functions of others whose text names the schema were refused before.
    """
    rows = await (await conn.execute(queries.SEARCHING, {"schema": swap.target})).fetchall()
    for function, path in rows:
        schemas = [swap.target if name == swap.dumped else name for name in read_search_path(path)]
        if schemas != read_search_path(path):
            query = SQL(queries.SET_SEARCH_PATH).format(
                function=SQL(function), schemas=SQL(", ").join(map(Identifier, schemas))
            )
            await conn.execute(query)
    quoted = Identifier(swap.target).as_string(conn) if not _PLAIN.fullmatch(swap.target) else swap.target
    words = re.compile(rf'(?<![\w"]){re.escape(swap.dumped)}(?=\.)')
    params = {"schema": swap.target, "naming": contents.naming_pattern(swap.dumped)}
    for (definition,) in await (await conn.execute(queries.WRITTEN, params)).fetchall():
        await conn.execute(words.sub(quoted, definition).encode())


_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


def read_search_path(text: str) -> list[str]:
    """The names of a search_path, as they are without quotes.

    >>> read_search_path('shop, "Odd, name", pg_temp')
    ['shop', 'Odd, name', 'pg_temp']
    """
    found = re.findall(r'"((?:[^"]|"")*)"|([^,\s"]+)', text)
    return [quoted.replace('""', '"') or plain for quoted, plain in found]
