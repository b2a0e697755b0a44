"""`holdfast stats`: how many rows there are, how long they wait and run, and what fails."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import application, figures, options, output
from holdfast.errors import HoldfastError, InvalidInput

if TYPE_CHECKING:
    from holdfast.engine.store import Store
    from holdfast.platform import Holdfast
    from holdfast.runtime.overview import LedgerView
    from holdfast.runtime.pulse import Pace

COUNTED = ("claimed", "finished", "retried", "dead")


def stats(
    ledger: options.SomeLedger = None,
    tenant: options.Tenant = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Count every row, also where that takes long.")
    ] = False,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Count rows by their state, and tell how long they wait and run, and what fails."""
    found = application.load(app)
    stores = [found.store(ledger)] if ledger else list(found.stores.values())
    if tenant is not None and ledger is None:
        raise InvalidInput(field="--tenant", message="needs a LEDGER: not every one has tenants")
    application.settle(found)
    now, views = application.run(_look(found, stores, tenant, exact))
    if ledger and views[0].trouble:
        raise HoldfastError(message=f"the database said: {views[0].trouble}")
    if json:
        told = [describe(view, now) for view in views]
        output.data(told[0] if ledger else told)
        return
    for view in views:
        if not ledger:
            output.line(view.ledger.name)
        _print(view, now)


async def _look(
    app: Holdfast, stores: list[Store], tenant: str | None, exact: bool
) -> tuple[datetime, list[LedgerView]]:
    from holdfast.engine.values import Filter
    from holdfast.runtime.overview import clock, ledger_view, tenant_view

    async with app, app.database.connection() as conn:
        now = await clock(conn)
        views = [
            await (ledger_view(conn, store) if tenant is None else tenant_view(conn, store, tenant))
            for store in stores
        ]
        if exact:
            counted = [await store.stats(conn, Filter(tenant=tenant)) for store in stores]
            views = [
                dataclasses.replace(view, stats=tuple(every))
                for view, every in zip(views, counted, strict=True)
            ]
        return now, views


def describe(view: LedgerView, now: datetime) -> dict[str, Any]:
    """A ledger as JSON; durations are seconds."""
    return {
        "ledger": view.ledger.name,
        "rows": sum(stat.rows for stat in view.stats),
        "exact": view.exact,
        "states": view.stats,
        "waiting_since": view.waiting_since,
        "oldest_wait": view.oldest_wait(now),
        "paused": [
            {"queue": one.queue, "since": one.since, "by": one.by, "reason": one.reason}
            for one in view.paused
        ],
        "held": sum(view.held.values()),
        "trouble": view.trouble,
        **({} if view.pace is None else _pace(view.pace, now)),
    }


def _pace(pace: Pace, now: datetime) -> dict[str, Any]:
    return {
        "finished_per_minute": round(figures.each_minute(pace, now), 1),
        "last_hour": {name: sum(getattr(minute, name) for minute in pace.minutes) for name in COUNTED},
        "latency": pace.latency,
        "run_time": pace.run_time,
        "failures": [{"code": code, "count": number} for code, number in pace.failures],
    }


def _print(view: LedgerView, now: datetime) -> None:
    if view.trouble:
        output.line(output.readable(f"cannot be looked at: {view.trouble}") + "\n")
        return
    lines = [
        (
            output.shade(view.ledger, one.state),
            figures.count(one.rows, exact=one.exact),
            one.oldest,
            one.due,
        )
        for one in view.stats
    ]
    output.table(("STATE", "COUNT", "OLDEST CREATED", "FIRST DUE"), lines)
    output.facts([*_waits(view, now), *(() if view.pace is None else _speeds(view.pace, now))])
    if not view.exact:
        output.line("≈ is the planner's estimate; --exact counts every row")
    output.line("")


def _waits(view: LedgerView, now: datetime) -> list[tuple[str, Any]]:
    wait = view.oldest_wait(now)
    paused = [
        f"{one.queue or 'all queues'} since {output.moment(one.since, 'seconds')}" for one in view.paused
    ]
    return [
        ("oldest wait", "nothing waits" if wait is None else figures.lasting(wait)),
        ("paused", ", ".join(paused) or None),
    ]


def _speeds(pace: Pace, now: datetime) -> list[tuple[str, Any]]:
    hour = ", ".join(f"{sum(getattr(minute, name) for minute in pace.minutes):,} {name}" for name in COUNTED)
    failures = ", ".join(f"{code} {number:,}" for code, number in pace.failures)
    return [
        ("throughput", f"{figures.each_minute(pace, now):,.0f} finished/min"),
        ("last hour", hour),
        ("waited", figures.percentiles(pace.latency)),
        ("ran", figures.percentiles(pace.run_time)),
        ("failures", failures or "none"),
    ]
