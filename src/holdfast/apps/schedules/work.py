"""What the app does by itself: processes sessions, and delivers messages where it is asked to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Protocol
from uuid import UUID

import msgspec
import psycopg
from psycopg.rows import class_row

from holdfast.apps.schedules import facts, senders
from holdfast.apps.schedules import process_queries as queries
from holdfast.apps.schedules.app import APP, SchedulesApp
from holdfast.apps.schedules.extractors import chosen
from holdfast.apps.schedules.facts import Facts
from holdfast.apps.schedules.ledger import NOTICES, SESSIONS, sessions
from holdfast.apps.schedules.process import LONGEST_RUN, Pipeline, process, witness
from holdfast.apps.schedules.story import Iterations
from holdfast.apps.schedules.values import Notice, NoticeType
from holdfast.engine.outcomes import Outcome
from holdfast.engine.store import Store
from holdfast.errors import DatabaseUnavailable, SettingsError
from holdfast.runtime.app import App, Ground, Work
from holdfast.runtime.context import Context
from holdfast.runtime.handlers import Handler, Handlers, describe
from holdfast.runtime.share import Pace
from holdfast.runtime.worker import Worker

log = logging.getLogger("holdfast.schedules")

SILENCE = 10.0  # seconds beyond a send in which the server hears nothing, until it ends the transaction
MARGIN = 5.0  # seconds: a run ends itself when its time is over; this is for one that does not listen


class Message(msgspec.Struct, frozen=True):
    """The payload of a notification."""

    notification_type: NoticeType
    message: str
    event_ids: tuple[UUID, ...]


def work(ground: Ground) -> Work:
    """The handlers of both ledgers; none for messages where others deliver them."""
    settings, app = ground.settings, _app(ground.apps)

    async def passed_over() -> list[tuple[UUID, int]]:
        with suppress(psycopg.Error, DatabaseUnavailable):
            async with ground.database.connection() as conn:
                return await (await conn.execute(queries.PENDING)).fetchall()
        return []

    iterations = Iterations(settings.schedules_idle_log_every, passed_over)
    counted = Facts()
    ground.stores[SESSIONS].witness = witness(counted)
    left_alone = app.left_alone(settings)
    make = chosen(settings, app.own)

    @cache
    def pipeline() -> Pipeline:  # for whoever works: what it needs may be missing where pages are served
        return Pipeline(
            settings=settings, extractor=make(settings), outbox=ground.stores[NOTICES], facts=counted
        )

    async def processes(ctx: Context) -> Outcome:
        if run := asyncio.current_task():  # over when it has been committed, too, and told
            run.add_done_callback(lambda _: iterations.ended())
        return await process(pipeline(), ground.database, ctx)

    handlers: list[Handler] = []
    if not left_alone:
        handlers.append(
            describe(processes, SESSIONS, place="loop", ledger=SESSIONS, timeout=LONGEST_RUN + MARGIN)
        )
    if sender := senders.make(settings, app.sender):
        handlers.append(_delivery(ground, sender))
    return Work(
        handlers=tuple(handlers),
        duties=(facts.duty(counted),),
        longest=LONGEST_RUN,
        check=None if left_alone else pipeline,
        paces={
            SESSIONS: Pace(
                concurrency=settings.schedules_concurrency,
                poll=settings.schedules_poll_seconds,
                heard=iterations.heard,
            ),
            NOTICES: Pace(
                concurrency=1,
                poll=settings.schedules_delivery_poll_seconds,
                batch=settings.schedules_delivery_batch,
            ),
        },
    )


def _delivery(ground: Ground, sender: senders.Sender) -> Handler:
    patience = ground.settings.schedules_delivery_timeout_seconds
    silence = min(patience + SILENCE, ground.settings.db_idle_in_transaction_seconds)

    async def delivers(message: Message, ctx: Context) -> Outcome:
        conn = await ctx.transaction(confined=False, writes=False)
        await conn.execute(queries.SILENCE, {"limit": f"{1000 * silence:.0f}ms"})
        row = await ctx.store.get(conn, ctx.job.id)
        notice = Notice(
            id=str(row.id),
            user_id=row.tenant,
            schedule_date=date.fromisoformat(row.columns["schedule_date"]),
            session_id=UUID(row.columns["source_session_id"]),
            type=message.notification_type,
            message=message.message,
            event_ids=message.event_ids,
        )
        return await senders.deliver(sender, notice, patience)

    return describe(delivers, NOTICES, place="loop", ledger=NOTICES)


def _app(apps: Sequence[App]) -> SchedulesApp:
    return next((one for one in apps if isinstance(one, SchedulesApp)), APP)


# -- for the command line --------------------------------------------------------------------------------


class Shop(Ground, Protocol):
    """An application that can make a worker."""

    @property
    def handlers(self) -> Handlers: ...

    def worker(
        self,
        *,
        ledgers: Sequence[str] | None = None,
        concurrency: Mapping[str, int] | int | None = None,
        most: int | None = None,
        stores: Mapping[str, Store] | None = None,
    ) -> Worker: ...


@dataclass(frozen=True, kw_only=True)
class Once:
    """A session that was just processed: what the attempt came to, and where the session is now."""

    session: UUID
    outcome: str | None
    state: str
    error: str | None


def _must_be_read(shop: Shop) -> None:
    """Refuses where sessions are left alone, and names what to set."""
    if why := _app(shop.apps).left_alone(shop.settings):
        raise SettingsError(
            title="some settings are wrong:", problems=[f"capture sessions are left alone: {why}"]
        )


async def once(shop: Shop) -> Once | None:
    """Processes one session, the first that is pending, however young; None: there is none."""
    _must_be_read(shop)
    hasty = Store(sessions(shop.settings, hasty=True))
    worker = shop.worker(ledgers=[SESSIONS], concurrency=1, most=1, stores={SESSIONS: hasty})
    hasty.witness = shop.stores[SESSIONS].witness
    await worker.run(until_idle=True)
    async with shop.database.connection() as conn, conn.cursor(row_factory=class_row(Once)) as cursor:
        await cursor.execute(queries.TAKEN_BY, {"worker": worker.id})
        return await cursor.fetchone()


def served(shop: Shop) -> list[str]:
    """The ledgers of this app that a worker here can serve."""
    _must_be_read(shop)
    delivers = shop.settings.schedules_delivery != "off" or shop.handlers.find(NOTICES, NOTICES)
    return [SESSIONS, NOTICES] if delivers else [SESSIONS]
