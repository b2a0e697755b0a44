"""One run of a session: read its pictures, then write what they say, all of it or nothing.

Reading takes long and holds no lock. The transaction at the end is short, and also ends the session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import psycopg
from psycopg.rows import dict_row

from holdfast.apps.schedules import process_queries as queries
from holdfast.apps.schedules.canonical import canonical
from holdfast.apps.schedules.facts import Facts
from holdfast.apps.schedules.observe import Observation, observe
from holdfast.apps.schedules.story import tell
from holdfast.apps.schedules.values import Extractor, Image, Payload, Refusal, Session, Stage
from holdfast.db.database import Database
from holdfast.db.schedule_settings import ScheduleSettings
from holdfast.engine.lifecycle import Verb
from holdfast.engine.outcomes import Done, Fail, Outcome, Snooze
from holdfast.engine.store import Store
from holdfast.engine.values import Move
from holdfast.engine.witness import Witness
from holdfast.errors import ClaimLost, DatabaseUnavailable
from holdfast.runtime.context import Context
from holdfast.runtime.processes import crash_of
from holdfast.runtime.runner import passes

FAILING: tuple[Verb, ...] = ("reject", "exhaust")
UNWRITTEN = ("COMMIT_FAILED", "UNWRITABLE")  # what the worker says of an end that the database refuses
LONGEST_RUN = 600.0  # seconds: a session that is read for longer is stopped, and fails


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What sessions are processed with. `outbox` takes the messages, `facts` counts."""

    settings: ScheduleSettings
    extractor: Extractor
    outbox: Store
    facts: Facts


@dataclass
class Progress:
    """At which stage a run is."""

    stage: Stage = "db"


async def process(pipeline: Pipeline, database: Database, ctx: Context) -> Outcome:
    """The handler of a capture session."""
    progress = Progress()
    try:
        async with asyncio.timeout(LONGEST_RUN):
            return await _process(pipeline, database, ctx, progress)
    except Refusal as refusal:
        return _fail(refusal)
    except (psycopg.Error, DatabaseUnavailable) as error:
        if not passes(error):
            return _fail(Refusal("db_error", f"{type(error).__name__}: {error}", "db"))
        _log(ctx, "session.released", level=logging.WARNING, reason=f"{type(error).__name__}: {error}")
        return Snooze(seconds=0)
    except TimeoutError:
        told = f"it was read for longer than {LONGEST_RUN:g} s"
        stage: Stage = "db" if progress.stage == "diff" else progress.stage  # a diff waits for locks only
        return _fail(Refusal("timed_out", told, stage))
    except ClaimLost:
        raise
    except Exception as error:  # a mistake of ours: told like any other failure, and the others go on
        return _fail(_wrapped("internal_error", error, progress.stage))


async def _process(pipeline: Pipeline, database: Database, ctx: Context, progress: Progress) -> Outcome:
    """Reads, and writes what was read."""
    session, images, attempt = await _load(database, ctx)
    tell("session.finalized", session=session.id, user=session.user_id, attempt=attempt)
    tell("session.images_loaded", session=session.id, user=session.user_id, images=len(images))
    progress.stage = "ocr"
    extracted = await _extract(pipeline.extractor, session, images)
    progress.stage = "layout"
    payload = canonical(extracted)
    progress.stage = "diff"
    conn = await ctx.transaction(confined=False)
    seen = await observe(
        conn, pipeline.outbox, pipeline.settings, session, images, payload, owner=ctx.job.owner
    )
    ctx.when_committed(lambda: pipeline.facts.ended(seen.word, seen.events))
    return _answer(ctx, session, payload, seen)


async def _load(database: Database, ctx: Context) -> tuple[Session, list[Image], int]:
    """The session, its pictures, and which of its attempts this is."""
    async with database.connection() as conn, conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(queries.SESSION, {"session": ctx.job.id})
        rows = await cursor.fetchall()
    if not rows:
        raise _lost(ctx)
    session = Session(id=ctx.job.id, user_id=rows[0]["user_id"], created_at=rows[0]["came"])
    names = [field.name for field in fields(Image)]
    images = [Image(**{name: row[name] for name in names}) for row in rows if row["id"] is not None]
    return session, images, rows[0]["attempt"]


async def _extract(extractor: Extractor, session: Session, images: Sequence[Image]) -> Any:
    """What the extractor read; whatever it raises beside a refusal is told by its class and text."""
    try:
        return await extractor.extract(session, images)
    except Refusal:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise _wrapped("extractor_error", error, "ocr") from error


def _wrapped(code: str, error: BaseException, stage: Stage) -> Refusal:
    crash = crash_of(error)
    refusal = Refusal(code, crash.message, stage)
    refusal.trace = crash.trace
    return refusal


def _answer(ctx: Context, session: Session, payload: Payload, seen: Observation) -> Outcome:
    """The outcome, and what is told when it has been committed."""

    def tells(event: str, **facts: Any) -> None:
        tell(event, session=session.id, user=session.user_id, **facts)

    match seen.word:
        case "lost":
            raise _lost(ctx)
        case "grown":
            tells("session.released", reason="a picture came while it was read")
            return Snooze(seconds=0)
        case "superseded":
            ctx.when_committed(lambda: tells("session.superseded", schedule_date=payload["schedule_date"]))
            return Done(seen.word)
        case "done" | "unchanged":

            def committed() -> None:
                entries, version = len(payload["entries"]), seen.version
                tells("aggregation.completed", schedule_date=payload["schedule_date"], entries=entries)
                tells("diff.computed", changes=len(seen.events), version=version)
                tells("events.persisted", events=len(seen.events))
                tells("notifications.generated", notifications=len(seen.notices))
                tells("notifications.stored", notifications=len(seen.notices))
                tells("session.processed", outcome=seen.word, version=version)

            ctx.when_committed(committed)
            return Done(seen.word)


def _fail(refusal: Refusal) -> Fail:
    """It is told when it has been written: whoever has lost the session has nothing to say about it."""
    facts = {"stage": refusal.stage}
    return Fail(reason=refusal.sentence, code=refusal.code, trace=refusal.trace, facts=facts)


def witness(facts: Facts) -> Witness:
    """Counts and tells that sessions have failed, whoever wrote it: their worker, or who buried it."""

    def wrote(moves: Sequence[Move], _: str | None) -> None:
        for move in moves:
            if move.verb in FAILING and (fault := move.fault):
                facts.ended("failed")
                tell(
                    "session.failed",
                    session=move.claim.id,
                    user=move.claim.tenant,
                    level=logging.ERROR,
                    error__type=fault.code.lower(),
                    error__message=fault.message,
                    error__stage=fault.facts.get("stage")
                    or ("db" if fault.code in UNWRITTEN else "lifecycle"),
                    trace=fault.trace,
                )

    return Witness(added=_unheard, began=_unheard, wrote=wrote, ordered=_unheard)


def _unheard(*_: Any) -> None:
    """Nobody wants to know."""


def _log(ctx: Context, event: str, **facts: Any) -> None:
    tell(event, session=ctx.job.id, user=ctx.job.tenant, **facts)


def _lost(ctx: Context) -> ClaimLost:
    return ClaimLost(what=ctx.store.ledger.name, id=ctx.job.id, fence=ctx.job.fence)
