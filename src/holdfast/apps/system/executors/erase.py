"""UserCleanup: a subject is erased from every ledger, table and archive that names it.

Without cascade nothing is erased while the subject has open work, connections or archived rows: the job fails
and counts them. With it, open work is called off, so that running handlers are told; then rows go in batches,
in the order of foreign keys, or by the statement that an app declares for its own; then archives are written
anew. Whoever comes in meanwhile is looked for at the end: without cascade he stays, and the job fails. Every
step may be cut off: the next run goes on, as the job knows whom to erase until the commit that ends it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from psycopg import Rollback
from psycopg.errors import DeadlockDetected, ForeignKeyViolation, InsufficientPrivilege, SerializationFailure
from psycopg.sql import SQL, Composed

from holdfast.apps.system import archive_edits as edits
from holdfast.apps.system import bench_queries, parquet
from holdfast.apps.system import manifest as manifests
from holdfast.apps.system.bench import Bench, Connection, Run
from holdfast.apps.system.executors import erase_queries as queries
from holdfast.apps.system.executors import retention
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.parameters import UserCleanup
from holdfast.apps.system.places import Step, unwatched
from holdfast.apps.system.settle import settle
from holdfast.apps.system.source import name, source_of
from holdfast.apps.system.subject import Place, Subject, archives_of, nameless, places_of, subject_of
from holdfast.engine.ledger import Ledger
from holdfast.engine.outcomes import Snooze
from holdfast.engine.values import Filter
from holdfast.engine.words import safe
from holdfast.errors import Conflict, NotAllowed

BATCH = 1000  # rows in one transaction
ROUNDS = 5  # until a subject that goes on sending is told to stop
TELLING = ("job_type", "parameters", "idempotency_key")  # the columns of a job that may name a subject
TAKEN_WAIT = 5.0  # seconds until it looks again whether the ledgers are free


def target(params: UserCleanup) -> str:
    """The subject, of which there is one eraser at a time."""
    subject = subject_of(params)
    return f"subject {subject.words[0]} {subject.value}"


async def check(params: UserCleanup, bench: Bench) -> None:
    """Refuses a subject that cannot be one, and archives that nobody could write anew."""
    subject = subject_of(params)
    async with bench.database.connection() as conn:
        await places_of(conn, bench, subject)
    if await archives_of(bench, subject):
        parquet.pyarrow()


async def run(params: UserCleanup, run: Run, step: Step = unwatched) -> str | Snooze:
    """Erases the subject; answers how many rows went, and which tables could not be asked."""
    subject = subject_of(params)
    conn = await run.bench.database.connect("erasure")
    try:
        with nameless(subject):
            return await _run(conn, params, run, subject, step)
    finally:
        await asyncio.shield(conn.close())


async def _run(conn: Connection, params: UserCleanup, run: Run, subject: Subject, step: Step) -> str | Snooze:
    bench = run.bench
    places = await places_of(conn, bench, subject)
    archives = await archives_of(bench, subject)
    if not await _alone(run, bench, places):
        return Snooze(TAKEN_WAIT)
    await _settle(conn, bench, archives)
    await step("settled")
    if not params.cascade:
        await _must_be_done(conn, bench, subject, places, archives)
    gone: Counter[str] = Counter()
    for left in reversed(range(ROUNDS)):
        cancelled = await _cancel(conn, run, subject, places) if params.cascade else 0
        gone += Counter({"cancelled": cancelled})
        await step("cancelled")
        gone += await _erase(conn, run, params, places, step)
        if not params.cascade:
            await _must_have_no_more(conn, subject, places)
        if not (there := await _there(conn, subject, places)):
            break
        if not left:
            raise Conflict(what="the subject", message=f"is still sending: {_told(there)} came meanwhile")
    await step("erased")
    archives = await archives_of(bench, subject)  # a flush that had lost its target may have come late
    await _settle(conn, bench, archives)
    archived = await _rewrite(run, subject, archives, step)
    await step("rewritten")
    told = _summary(bench, subject, places, gone, archived)
    await _forget_all(conn, run, subject, told, step)
    return told


async def _alone(run: Run, bench: Bench, places: Sequence[Place]) -> bool:
    """Keeps the subject's ledgers to us as well: a flush might just be writing his rows into a file."""
    names = {place.declared.name for place in places if place.declared.kind == "ledger"}
    for one in sorted({*names, NAME}):  # the jobs that were to erase him name him, too
        told = {"target": f"holdfast system {bench.registry.called(one)}"}
        row = await (await run.lock.execute(bench_queries.LOCK, told)).fetchone()
        if not (row and row[0]):
            run.note(f"waits: {one} is taken")
            return False
    return True


async def _settle(conn: Connection, bench: Bench, archives: Sequence[tuple[str, str]]) -> None:
    """Enters or removes the files that a flush has left unlisted: one of them might hold the subject."""
    for declared in bench.registry.ledgers:
        if any(declared.table == table for table, _ in archives):
            await settle(conn, bench.archive, await source_of(conn, bench.registry, declared))


# -- what stands in the way ------------------------------------------------------------------------------


async def _must_be_done(
    conn: Connection,
    bench: Bench,
    subject: Subject,
    places: Sequence[Place],
    archives: Sequence[tuple[str, str]],
) -> None:
    """Refuses to erase somebody who is not done with; tells what there is, by table."""
    found = await _standing(conn, subject, places)
    for table, column in archives:
        found[f"the archive of {table}"] += await edits.count_where(
            bench.archive, table, column, subject.value
        )
    if found := +found:
        message = f"has {_told(found)}: nothing was erased; with cascade that goes as well"
        raise Conflict(what="the subject", message=message)


async def _must_have_no_more(conn: Connection, subject: Subject, places: Sequence[Place]) -> None:
    """Refuses to go on with somebody of whom something has come since we have looked."""
    if found := await _standing(conn, subject, places):
        message = f"has {_told(found)} that came meanwhile, and stay; with cascade that goes as well"
        raise Conflict(what="the subject", message=message)


async def _standing(conn: Connection, subject: Subject, places: Sequence[Place]) -> Counter[str]:
    """What only goes with cascade, by table: unfinished work, and what is in use."""
    found: Counter[str] = Counter()
    for place in places:
        if place.declared.live:
            found[place.declared.name] += await _count(conn, place, subject)
        elif place.declared.kind == "ledger":
            found[place.declared.name] += await _open(conn, place, subject)
    return +found


async def _count(conn: Connection, place: Place, subject: Subject) -> int:
    cursor = await conn.execute(place.render(queries.COUNT), {"value": subject.value})
    ((count,),) = await cursor.fetchall()
    return count


async def _open(conn: Connection, place: Place, subject: Subject) -> int:
    """How many rows of the subject have not ended."""
    unfinished, given = _unfinished(_ledger(place))
    cursor = await conn.execute(place.render(queries.COUNT, unfinished), {**given, "value": subject.value})
    ((count,),) = await cursor.fetchall()
    return count


def _unfinished(ledger: Ledger) -> tuple[Composed, dict[str, Any]]:
    """That the row t has not ended, or is tried again by itself; and what that condition asks for."""
    words = {"state": name(ledger.state), "state_type": SQL(safe(ledger.state_type))}
    unfinished = SQL(queries.OPEN).format(**words)
    again = [SQL("not ({})").format(one) for one in retention.ended(ledger)]
    given = {
        "ends": list(ledger.ends),
        "claimable": [state for state in ledger.ends if state in ledger.lifecycle.claimable],
    }
    return SQL("({})").format(SQL(" or ").join([unfinished, *again])), given


def _ledger(place: Place) -> Ledger:
    assert place.declared.ledger is not None
    return place.declared.ledger


async def _there(conn: Connection, subject: Subject, places: Sequence[Place]) -> Counter[str]:
    return +Counter({place.declared.name: await _count(conn, place, subject) for place in places})


# -- what goes -------------------------------------------------------------------------------------------


async def _cancel(conn: Connection, run: Run, subject: Subject, places: Sequence[Place]) -> int:
    """Calls the open work of the subject off; whoever runs it is told, and not waited for."""
    cancelled = 0
    for place in places:
        ledger = place.declared.ledger
        if ledger is None or ledger.tenant is None or ledger.tenant.name != place.column:
            continue
        store = run.bench.stores[ledger.name]
        cancelled += await store.cancel_where(conn, Filter(tenant=subject.value), by=f"system job {run.id}")
    return cancelled


async def _erase(
    conn: Connection, run: Run, params: UserCleanup, places: Sequence[Place], step: Step
) -> Counter[str]:
    """Removes the rows: by an app's own statement where it has one, else batch by batch.

    Without cascade only what has ended, and whatever does not take with it what has not.
    """
    gone: Counter[str] = Counter()
    subject, standing = subject_of(params), () if params.cascade else places
    own = {app: by[subject.word] for app, by in run.bench.registry.erasures.items() if subject.word in by}
    for app, statement in own.items():
        gone += await _by_the_app(conn, app, statement, subject, standing)
        await run.progress(gone.total(), None, "rows")
    for place in places:
        if place.declared.app in own:
            continue
        while batch := await _delete(conn, run.bench, place, subject, standing):
            gone[place.declared.name] += batch
            await run.progress(gone.total(), None, "rows")
        await step(f"without {place.declared.name}")
    return gone


async def _by_the_app(
    conn: Connection, app: str, statement: Any, subject: Subject, standing: Sequence[Place]
) -> Counter[str]:
    """What an app erases itself, in one transaction; begun again when somebody came in between.

    What may stand in the way is held while it is looked at, so that nothing of it begins again. If more goes
    than was held, something has come since that nobody has looked at.
    """
    for _ in range(ROUNDS):
        try:
            async with conn.transaction():
                await conn.execute(retention.queries.PATIENT)
                held = await _hold(conn, app, subject, standing)
                await _must_have_no_more(conn, subject, standing)
                ((counts,),) = await (await conn.execute(statement, {"value": subject.value})).fetchall()
                if any(counts.get(table, 0) > number for table, number in held.items()):
                    raise Rollback
                return +Counter({str(table): int(count) for table, count in counts.items()})
        except (SerializationFailure, DeadlockDetected):
            continue
        except InsufficientPrivilege as error:
            raise NotAllowed(
                message=f"{app} erases for its owner alone: {error.diag.message_primary}"
            ) from None
    raise Conflict(what="the subject", message=f"is still sending to {app}: try again later")


async def _hold(conn: Connection, app: str, subject: Subject, standing: Sequence[Place]) -> dict[str, int]:
    """Keeps an app's ledgers as they are for the subject; how many rows that are, by table.

    What is referred to comes first, as whoever works on it has it first.
    """
    given = {"value": subject.value, "batch": None}
    return {
        place.definition.name: (await conn.execute(place.render(queries.HOLD), given)).rowcount
        for place in reversed(standing)
        if place.declared.app == app and place.declared.kind == "ledger"
    }


async def _delete(
    conn: Connection, bench: Bench, place: Place, subject: Subject, standing: Sequence[Place]
) -> int:
    """Removes one batch; answers how many rows that were.

    Where something may stand in the way it is looked for once the rows are held: nobody refers to them then.
    """
    given: dict[str, Any] = {"value": subject.value, "batch": BATCH}
    more: list[Composed] = []
    try:
        async with conn.transaction():
            await conn.execute(retention.queries.PATIENT)
            await conn.execute(SQL(retention.queries.HOLD).format(table=place.table))
            await bench.registry.must_be(conn, place.declared, place.definition)
            if standing and place.declared.kind == "ledger":
                unfinished, asked = _unfinished(_ledger(place))
                more, given = [SQL("not {}").format(unfinished)], {**given, **asked}
            elif standing:
                await conn.execute(place.render(queries.HOLD), given)
                await _must_have_no_more(conn, subject, standing)
                if place.declared.live:
                    return 0  # there was none: whatever has come since stays
            return (await conn.execute(place.render(queries.DELETE, *more), given)).rowcount
    except ForeignKeyViolation as error:
        message = f"rows of the subject are referred to: {error.diag.message_primary}"
        raise Conflict(what=place.declared.table, message=message) from None


async def _rewrite(
    run: Run, subject: Subject, archives: Sequence[tuple[str, str]], step: Step
) -> Counter[str]:
    """Writes the archived files anew that hold the subject, without it."""
    gone: Counter[str] = Counter()
    for table, column in archives:
        gone[table] += await edits.rewrite_without(run.bench.archive, table, column, subject.value, step)
        await run.progress(gone.total(), None, "archived rows")
    return +gone


async def _forget_all(conn: Connection, run: Run, subject: Subject, told: str, step: Step) -> None:
    """Takes the subject's name out of what tells of its erasure, and ends the job.

    Rows before the archive: a flush that comes late takes none with the name there. The job's own row goes
    last, with the job's end: whatever goes wrong before, the next run must know whom to erase.
    """
    await _forget(conn, run.bench, subject)
    await step("others forgotten")
    await _forget_archived(conn, run.bench, subject)
    await step("archive forgotten")
    async with conn.transaction():
        await _forget(conn, run.bench, subject, run.id)
        await run.finish(conn, told)
        await step("finishing")
    await step("forgotten")


async def _forget(conn: Connection, bench: Bench, subject: Subject, own: str | None = None) -> None:
    """The jobs that have ended, one's own if it is named, and the audit forget the subject.

    One that has not ended does so at its own end.
    """
    ledger = bench.stores[NAME].ledger
    table = name(*ledger.table.split("."))
    given = {"word": subject.word, "words": list(subject.words), "value": subject.value}
    whose = {"ends": list(ledger.ends), "own": own}
    async with conn.transaction():
        await conn.execute(SQL(queries.FORGET_JOBS).format(table=table), given | whose)
        await conn.execute(queries.FORGET_AUDIT, given)
        if subject.unmistakable:
            await conn.execute(queries.FORGET_MENTIONS, given)


async def _forget_archived(conn: Connection, bench: Bench, subject: Subject) -> None:
    """The same in what is archived of the jobs."""
    declared = bench.registry.ledger(NAME)
    if await bench.archive.list(manifests.folder_of(declared.table)):
        await settle(conn, bench.archive, await source_of(conn, bench.registry, declared))
        await edits.rewrite_with(bench.archive, declared.table, edits.Change(TELLING, subject.forgotten))


# -- what is told ----------------------------------------------------------------------------------------


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _summary(
    bench: Bench, subject: Subject, places: Sequence[Place], gone: Counter[str], archived: Counter[str]
) -> str:
    cancelled = gone.pop("cancelled", 0)
    parts = [f"{gone.total()} rows" + (f" ({_told(gone)})" if gone else "")]
    if cancelled:
        parts.append(f"{cancelled} called off")
    if archived:
        parts.append(f"{archived.total()} archived rows ({_told(archived)})")
    own = {app for app, by in bench.registry.erasures.items() if subject.word in by}
    asked = {place.declared.name for place in places}
    mute = sorted(
        one.name for one in bench.registry.declared.values() if one.name not in asked and one.app not in own
    )
    return f"{'; '.join(parts)}; without a column for {subject.word}: {', '.join(mute)}"
